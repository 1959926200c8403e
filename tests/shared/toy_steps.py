"""Steps of a toy world, for tests of the runtime, and random programs over them, as trees."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from gpu_rag.errors import RequestFailed
from gpu_rag.runtime import (
    RANK_EMBED,
    RANK_GRAPH,
    RANK_LLM,
    RANK_TEXT,
    Context,
    Kind,
    Metered,
    Outcome,
    Step,
    batched,
    gather,
)
from gpu_rag.runtime.core import Core
from gpu_rag.types import Question

RANKS = {"text": RANK_TEXT, "graph": RANK_GRAPH, "embed": RANK_EMBED, "llm": RANK_LLM}
Answering = Callable[[list[Any], int], Any]


@dataclass
class Toys:
    """The resource of toy steps. answers: what answers (queries, k), by the name of a step; others echo each query,
    refuse a negative one, and meter it where it is an LLM's: 10 tokens, 4 of them cached, and 1 new. log: what ran."""

    answers: dict[str, Answering] = field(default_factory=dict)
    log: list[tuple[str, list[Any]]] = field(default_factory=list)

    def run(self, name: str, service: str, queries: list[Any], k: int) -> Any:
        """The answers to one batch."""
        self.log.append((name, queries))
        if name in self.answers:
            return self.answers[name](queries, k)
        return [metered(refused(query)) if service == "llm" else refused(query) for query in queries]

    @property
    def resources(self) -> dict[str, Any]:
        """The resources of a driver."""
        return {"toys": self}


def refused(query: Any) -> Any:
    """The query, or its refusal where it is a number below 0."""
    return RequestFailed(f"refused {query}") if isinstance(query, int) and query < 0 else query


def metered(value: Any) -> Metered[Any]:
    """A reply of 10 and 1 tokens."""
    return Metered(value, n_prompt=10, n_cached=4, n_generated=1)


def toy(
    name: str, service: str = "graph", *, max_batch: int = 1024, tile: int | None = None
) -> Step[Any, Any, Any, Any]:
    """A step that Toys answer; its key is `k`."""

    def run(toys: Toys, queries: list[Any], k: int = 0) -> Sequence[Any]:
        found: Sequence[Any] = toys.run(name, service, queries, k)
        return found

    return batched(Kind("toys", service, RANKS[service], max_batch), tile=tile, name=name)(run)


text, graph, embed, llm = (toy(service, service) for service in RANKS)
walk = toy("walk")  # beside `graph`, in its rank


async def ask(step: Step[Any, Any, Any, Any], query: Any = 0) -> Any:
    """A strand of one call."""
    return await step(query)


def pairs(programs: Iterable[Any]) -> list[tuple[Question, Any]]:
    """Each program with a question: q0, q1, ..."""
    return [(Question(f"q{i}", "?"), program) for i, program in enumerate(programs)]


# ("call", step, k, query) | ("seq", [tree]) | ("gather", [tree]) | ("fail", tag) | ("try", tree)
# ("finally", tree, call); a query below 0 is refused

Tree = tuple[Any, ...]
NAMES = ("text", "graph", "walk", "embed", "llm", "llm")  # twice as many requests as calls of another step


def trees(bad: bool = True) -> st.SearchStrategy[Tree]:
    """Trees of up to 20 leaves. bad: some of them fail or are refused."""
    query = st.sampled_from([*range(10), *([-1] if bad else [])])
    call = st.tuples(st.just("call"), st.sampled_from(NAMES), st.integers(1, 2), query)
    leaf = st.one_of(*[call] * 9, st.tuples(st.just("fail"), st.integers(0, 3))) if bad else call

    def inner(part: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        parts = st.lists(part, min_size=2, max_size=5)
        shapes = [st.tuples(st.just("seq"), parts), st.tuples(st.just("gather"), parts)]
        return st.one_of(*shapes, st.tuples(st.just("try"), part), st.tuples(st.just("finally"), part, call))

    return st.recursive(leaf, inner, max_leaves=20)


def grown(rng: Any, depth: int) -> Tree:
    """A tree of up to 4**depth leaves, mostly without failures."""
    if depth == 0 or rng.random() < 0.1:
        call = ("call", rng.choice(NAMES), rng.randint(1, 2), rng.randint(0, 99))
        return ("fail", 1) if rng.random() < 0.02 else call
    if rng.random() < 0.1:
        return ("try", ("finally", grown(rng, depth - 1), ("call", "text", 1, 5)))
    return (rng.choice(["seq", "gather"]), [grown(rng, depth - 1) for _ in range(rng.randint(1, 4))])


def said(name: str, k: int, query: int) -> str | RequestFailed:
    """The answer to a call of a tree."""
    return RequestFailed(f"refused {name}") if query < 0 else f"{name}/{k}/{query}"


async def interpret(tree: Tree, ctx: Context, call: Callable[..., Any]) -> Any:
    """Run a tree. call(name, k, query, slot): the call of a step."""
    match tree:
        case ("call", name, k, query):
            result = await call(name, k, query, ctx.slot)
            ctx.note(f"{name}-note", k, (result,))
            return result
        case ("seq", parts):
            return [await interpret(part, ctx, call) for part in parts]
        case ("gather", parts):
            # calls of an odd k go in directly, with the slot that they will have
            return await gather(
                *(
                    call(*part[1:], (*ctx.slot, i)) if part[0] == "call" and part[2] % 2 else interpret(part, ctx, call)
                    for i, part in enumerate(parts)
                )
            )
        case ("fail", tag):
            raise ValueError(f"bug {tag}")
        case ("try", part):
            try:
                return await interpret(part, ctx, call)
            except Exception as error:  # noqa: BLE001 - Cancelled too
                return ("caught", type(error).__name__, str(error))
        case ("finally", part, last):
            try:
                return await interpret(part, ctx, call)
            finally:
                await interpret(last, ctx, call)


def visible(outcome: Outcome) -> tuple[Any, ...]:
    """All of an outcome but its costs."""
    trace = tuple(replace(step, s=0.0) for step in outcome.trace)
    error = outcome.error and (type(outcome.error), str(outcome.error))
    return outcome.question.id, outcome.draft, error, trace


def cost(outcome: Outcome) -> dict[str, Any]:
    """The cost, without seconds."""
    return {name: value for name, value in asdict(outcome.usage).items() if not name.endswith("_s")}


class FirstInTimeWins(Core):
    """A wrong driver: of siblings that fail the first in time is told, not the first in order."""

    def _fail_group(self, group, index, error):
        super()._fail_group(group, 0, error) if group.error is None else None
        group.n_running = 0
