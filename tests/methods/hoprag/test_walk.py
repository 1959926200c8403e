"""HopRAG's traversal against a plain sequential reference, on random graphs with a scripted chooser."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.methods.hoprag import program as hoprag
from gpu_rag.methods.hoprag.batched import AtVertices, OutEdge
from gpu_rag.methods.hoprag.program import Params
from gpu_rag.program.decide import RULE
from gpu_rag.program.search import Ranking
from gpu_rag.runtime.rounds import run_rounds
from gpu_rag.types import Question

STEPS = (
    "embed",
    "walk_hops",
    "enter_hops",
    "out_edges",
    "near_vertices",
    "decide_all",
    "edge_question",
    "vertex_passage",
)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


@dataclass
class World:
    """A graph, and what a question finds in it. out: the out-edges of each vertex, best first; near: SIM(v, q)."""

    start: list[int]
    out: list[list[OutEdge]]
    near: list[float]
    passage: list[int]
    none: set[int] = field(default_factory=set)  # vertices where the scripted chooser takes no edge
    pick: Callable[[int, int], int] = lambda vertex, n: (7 * vertex + 3) % n


def world(seed: int, *, n: int = 12, n_passages: int = 12) -> World:
    r = np.random.default_rng(seed)
    out, edge = [], 0
    for _ in range(n):
        targets = sorted(r.choice(n, r.integers(0, 5), replace=False).tolist())
        scores = np.sort(r.random(len(targets)).round(2))[::-1]
        out.append([OutEdge(edge + i, t, float(s)) for i, (t, s) in enumerate(zip(targets, scores))])
        edge += len(targets)
    start = r.permutation(n)[: r.integers(1, 6)].tolist()
    passage = sorted(r.integers(0, n_passages, n).tolist()) if n_passages < n else list(range(n))
    none = set(r.choice(n, 3, replace=False).tolist())
    return World(start, out, r.random(n).round(1).tolist(), passage, none)


class FakeRun:
    """A run whose steps are answered from a world at once."""

    def __init__(self, ctx: Any, world: World, by: str, limit: int):
        self.ctx, self.world, self.limit, self.depth = ctx, world, limit, limit
        self.by, self.decider = by, RULE
        self.on_choice = None if by == "alone" else self.note  # if choices are watched, every hop is decided
        self.index = SimpleNamespace(passage_titles=[f"P{p}" for p in range(99)])
        self.asked: list[tuple[str, int]] = []
        self.widths: list[int] = []
        self.found: Ranking | None = None

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), 1), np.float32)

    async def enter_hops(self, question: Any, k: int) -> Ranking:
        return Ranking(tuple(self.world.start[:k]), tuple(1.0 for _ in self.world.start[:k]))

    async def walk_hops(self, query: Any, about: str, k: int) -> Ranking:
        start = self.world.start[:k]
        return Ranking(tuple(start), tuple(0.7 - 0.1 * i for i in range(len(start))))

    async def out_edges(self, query: AtVertices, k: int) -> list[list[OutEdge]]:
        self.widths.append(len(query[1]))
        return [self.world.out[v][:k] for v in query[1]]

    async def near_vertices(self, query: AtVertices, about: str) -> list[float]:
        return [self.world.near[v] for v in query[1]]

    def saw(self, passages: Any) -> None:
        assert set(passages()) <= set(self.world.passage)

    async def decide(self, run: Any, ask: Any, options: Sequence[str], **fields: Any) -> list[int]:
        assert ask.none and ask.k == 1
        if not options:
            return []
        if self.by == "similarity":
            return ask.rule(fields["entry"], fields["edges"])
        firsts = [self.edge_question(None, edges[0].edge) if edges else "" for edges in self.world.out]
        vertex = firsts.index(options[0])
        assert list(options) == [self.edge_question(None, e.edge) for e in self.world.out[vertex]]
        assert fields["title"] == f"P{self.world.passage[vertex]}"
        self.asked.append((f"{ask.name}_{fields['step']}", vertex))
        if vertex in self.world.none:
            return []
        return [self.world.pick(vertex, len(options))]

    async def decide_all(self, run: Any, ask: Any, several: Sequence[Any], together: Any) -> list[list[int]]:
        return [await self.decide(run, ask, **fields) for fields in several]

    def edge_question(self, index: Any, edge: int) -> str:
        return f"Question {edge}?"

    def vertex_passage(self, index: Any, vertex: int) -> int:
        return self.world.passage[vertex]

    def note(self, *noted: Any) -> None:
        self.ctx.note(*noted)

    def evidence(self, ranking: Ranking, why: str, name: str, limit: int) -> tuple[Any, ...]:
        self.found = Ranking(ranking.rows[:limit], ranking.scores[:limit])
        return ()


def walk(world: World, params: Params, by: str, limit: int = 99) -> tuple[FakeRun, list[tuple[str, int]]]:
    """(the run, queue length by hop from the trace)."""
    made: list[FakeRun] = []

    def begin(ctx: Any) -> Any:
        made.append(FakeRun(ctx, world, by, limit))
        for step in STEPS:
            patch.setattr(hoprag, step, getattr(made[0], step))
        return hoprag.retrieve(ctx.question, made[0], params)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        (outcome,) = run_rounds([(Question("q", "Who taught Marta Orlo?"), begin)], {})
    assert outcome.error is None, outcome.error
    return made[0], [(s.verb, s.n_candidates) for s in outcome.trace if s.verb.startswith("hop_") and "/" not in s.verb]


Choose = Callable[[World, int], "int | None"]


def by_similarity(world: World, vertex: int) -> int | None:
    edges = world.out[vertex]
    return max(edges, key=lambda e: (e.score, -e.edge)).target if edges else None


def by_script(world: World, vertex: int) -> int | None:
    edges = world.out[vertex]
    if not edges or vertex in world.none:
        return None
    return edges[world.pick(vertex, len(edges))].target


def reference(
    world: World, top_k: int, n_hop: int, choose: Choose, *, visits: str = "all", share: str = "sum",
    requeue: bool = False, ties: int = 1,
) -> tuple[list[int], list[tuple[int, float]]]:  # fmt: skip
    """(queue lengths by round, (passage, H) best first). The options are ways to get it wrong."""
    queue = deque(world.start[:top_k])
    count: Counter[int] = Counter(queue)
    lengths = []
    for _ in range(n_hop):
        if not queue:
            break
        lengths.append(len(queue))
        for _ in range(len(queue)):
            vertex = queue.popleft()
            target = choose(world, vertex)
            if target is None:
                continue
            if target not in count or requeue:
                queue.append(target)
            if target not in count or visits == "all":
                count[target] += 1
    total = sum(count.values()) if share == "sum" else max(count.values())
    h = {v: (world.near[v] + n / total) / 2 for v, n in count.items()}
    best: dict[int, float] = {}
    for v, score in h.items():
        best[world.passage[v]] = max(score, best.get(world.passage[v], score))
    return lengths, sorted(best.items(), key=lambda item: (-item[1], ties * item[0]))[:top_k]


def check(world: World, top_k: int, n_hop: int, by: str, limit: int = 99, **wrong: Any) -> None:
    verbs, hops = walk(world, Params(top_k=top_k, n_hop=n_hop, entry="edges"), by, limit)
    choose = by_similarity if by == "similarity" else by_script
    lengths, expected = reference(world, top_k, n_hop, choose, **wrong)
    assert hops == [(f"hop_{i}", n) for i, n in enumerate(lengths, 1)]
    assert verbs.widths == lengths, "one call a round for all vertices of the queue"
    assert verbs.found is not None
    assert list(zip(verbs.found.rows, verbs.found.scores)) == expected[:limit]


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 5), st.booleans())
@pytest.mark.parametrize("by", ["similarity", "llm"])
def test_the_walk_is_that_of_the_sequential_reference(
    by: str, seed: int, top_k: int, n_hop: int, sentences: bool
) -> None:
    check(world(seed, n_passages=5 if sentences else 12), top_k, n_hop, by)


def test_a_limit_below_top_k_cuts_the_end() -> None:
    check(world(3), 5, 4, "similarity", limit=2)


@pytest.mark.parametrize(
    "wrong", [{"visits": "first"}, {"share": "max"}, {"requeue": True}, {"ties": -1}], ids=lambda w: str(*w)
)
def test_wrong_walks_are_caught(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(60):
            check(world(seed), 5, 4, "similarity", **wrong)


def test_every_vertex_of_the_queue_with_a_choice_is_asked_about_once() -> None:
    for seed in range(10):
        w = world(seed)
        verbs, hops = walk(w, Params(top_k=5, n_hop=4, entry="edges"), "llm")
        visited = {v for _, v in verbs.asked}
        assert len(verbs.asked) == len(visited) <= sum(n for _, n in hops)
        assert visited >= {v for v in w.start[:5] if w.out[v]}


def test_by_hand() -> None:
    """0 and 1 hop to 2, which is new; 2 hops to 0, which is not, so the third round is empty."""
    out = [[OutEdge(0, 2, 0.9)], [OutEdge(1, 2, 0.5), OutEdge(2, 3, 0.4)], [OutEdge(3, 0, 0.1)], []]
    w = World([0, 1], out, [0.5, 0.6, 0.2, 1.0], [0, 1, 2, 3])
    params = Params(top_k=2, n_hop=4, entry="edges")
    verbs, hops = walk(w, params, "similarity")
    assert hops == [("hop_1", 2), ("hop_2", 1)]
    # counts 0: 2, 1: 1, 2: 2 of 5, so H = (.5 + .4) / 2, (.6 + .2) / 2, (.2 + .4) / 2
    assert verbs.found is not None
    assert verbs.found.rows == (0, 1) and verbs.found.scores == pytest.approx((0.45, 0.4))
    verbs, hops = walk(w, replace(params, entry="walk"), "similarity")  # the random walk takes all edges itself
    assert hops == [] and verbs.found == Ranking((0, 1), (0.7, 0.7 - 0.1)) and verbs.widths == [2]
    alone, hops = walk(w, replace(params, entry="walk"), "alone")  # so the rule is not asked at all
    assert hops == [] and alone.found == verbs.found and alone.widths == []
    verbs, hops = walk(w, replace(params, entry="walk"), "llm")  # only trusted choices move passages
    assert hops == [("hop_1", 2), ("hop_2", 1)] and verbs.found == Ranking((0, 1), (0.7, 0.7 - 0.1))


def test_nothing_to_start_from_finds_nothing() -> None:
    verbs, hops = walk(World([], [], [], []), Params(), "similarity")
    assert hops == [] and verbs.found == Ranking((), ())
