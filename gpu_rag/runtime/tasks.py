"""The parts that a driver advances: tasks (strands of a program), groups of siblings, and one guarded step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu_rag.errors import Cancelled, ModelError
from gpu_rag.runtime.accounts import Cost
from gpu_rag.runtime.gather import Gather
from gpu_rag.runtime.step import Call
from gpu_rag.runtime.trace import Context, Slot
from gpu_rag.types import Draft, Question, TraceStep, Usage

# Result of `attempt`: the step gave an object (a coroutine gives what it awaits), returned, or raised.
GAVE, RETURNED, FAILED = 0, 1, 2
# Awaits of a cancelled coroutine that are refused, one per `finally`, before it is forced to end.
MAX_REFUSED_AWAITS = 32


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one question: `draft` is the return value of its program, `error` the reason why it did not return.

    usage may still grow: the cost of a call that a driver could not cancel is added even after the question ended.
    """

    question: Question
    draft: Draft | Any | None
    error: BaseException | None
    trace: tuple[TraceStep, ...]
    usage: Usage


class Group:
    """Siblings of one gather. limit: siblings from this index on are cancelled, and their results are dropped."""

    __slots__ = ("children", "error", "limit", "n_running", "results")

    def __init__(self, children: list[Task]):
        self.children = children
        self.results: list[Any] = [None] * len(children)
        self.n_running = self.limit = len(children)
        self.error: BaseException | None = None


@dataclass(eq=False, slots=True)
class QuestionRun:
    """One open question: its order, its context and its root task."""

    order: int
    ctx: Context
    started: float
    root: Task | None = None
    n_calls: int = 0


class Task:
    """One strand of a program: a coroutine; or a call or gather that was given directly to a gather.

    coro: the coroutine, or None; op: the call or gather, until it begins. path: position in the program; await number k
    of the task has the slot (*path, k). cost: cost of its calls since its last note in the trace.
    """

    __slots__ = ("alive", "coro", "cost", "group", "index", "n_awaits", "op", "parent", "path", "run")

    def __init__(self, run: QuestionRun, item: Any, path: Slot = (), parent: Task | None = None, index: int = 0):
        self.run, self.path, self.parent, self.index = run, path, parent, index
        direct = isinstance(item, (Call, Gather))
        self.coro: Coroutine[Any, Any, Any] | None = None if direct else item
        self.op: Call[Any] | Gather | None = item if direct else None
        self.group: Group | None = None
        self.alive = True
        self.n_awaits = 0
        self.cost: Cost | None = None


class Pending(NamedTuple):
    """A call that waits for its result. (order, slot) is unique in a run, so sorting never compares later fields."""

    order: int
    slot: Slot
    task: Task
    call: Call[Any]
    since: float


def attempt(step: Callable[[Any], Any], arg: Any) -> tuple[int, Any]:
    """Run code of a program or a step once. Returns (GAVE | RETURNED | FAILED, object or error)."""
    try:
        return GAVE, step(arg)
    except StopIteration as stop:
        return RETURNED, stop.value
    # The only place that catches everything. A bug in one program is recorded as the failure of its question, with
    # type and message, and the run goes on. KeyboardInterrupt and SystemExit pass.
    except (Exception, GeneratorExit) as error:  # noqa: BLE001
        return FAILED, error


def cancel(task: Task) -> list[Task]:
    """Cancel a task and all tasks below it, innermost first. Returns them; none gets a result afterwards."""
    members = [task]
    for member in members:  # the list grows during iteration: no recursion, however deep the gathers
        member.alive = False
        if member.group is not None:
            members.extend(child for child in member.group.children if child.alive)
            member.group = None
    for member in reversed(members):
        if member.coro is not None:
            member.run.ctx.task = member
            _unwind(member.coro)
        elif isinstance(member.op, Gather):
            member.op.discard()
    return members


def _unwind(coro: Coroutine[Any, Any, Any]) -> None:
    """Raise Cancelled in a coroutine until it ends. Refuses its awaits, and drops the errors that it raises."""
    for _ in range(MAX_REFUSED_AWAITS):
        kind, op = attempt(coro.throw, Cancelled("the work was cancelled", do="a sibling failed or the run stopped"))
        if kind != GAVE:
            return
        if isinstance(op, Gather):
            op.discard()
    kind, op = attempt(coro.throw, GeneratorExit())
    if kind == GAVE and isinstance(op, Gather):
        op.discard()


def blame(error: ModelError, calls: Iterable[Pending]) -> None:
    """Store in the error the id of the question whose request the engine blames, if it blames one."""
    if error.request is not None:
        error.question = next((p.task.run.ctx.question.id for p in calls if p.call.query == error.request), None)


def fresh(error: BaseException) -> BaseException:
    """A copy of an error without its traceback. One object raised in many programs would collect all their frames."""
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error.__cause__
    return twin


def strip_frames(error: BaseException) -> None:
    """Drop the frames of an error and of its causes: a kept failure must not keep a program's data alive."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]
