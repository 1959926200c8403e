"""Core that all drivers share: steps programs, collects their calls, delivers results, and keeps the accounts.

A driver opens questions, calls `resume`, takes calls out of `waiting`, answers them, and `settle`s each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import islice
from time import perf_counter
from typing import Any, TypedDict

from gpu_rag.errors import ModelError, UsageError
from gpu_rag.runtime.accounts import CANCELLED, UNNOTED, Budget, Cost, RunStats, charge
from gpu_rag.runtime.gather import Gather
from gpu_rag.runtime.step import Call, Metered, Step
from gpu_rag.runtime.tasks import (
    FAILED,
    GAVE,
    RETURNED,
    Group,
    Outcome,
    Pending,
    QuestionRun,
    Task,
    attempt,
    cancel,
    fresh,
    strip_frames,
)
from gpu_rag.runtime.trace import Context, Slot
from gpu_rag.types import Question

Program = Callable[[Context], Coroutine[Any, Any, Any]]
# The step, its batch key, and the id of the question's own resource, 0 for the driver's.
Key = tuple[Step[Any, Any, Any, Any], tuple[Any, ...], int]


class CoreOptions(TypedDict, total=False):
    """Budget of each question, seed of all requests, and totals to add to."""

    budget: Budget | None
    run_seed: int
    stats: RunStats | None


class Core:
    """Open questions of one run. `on_end(order, outcome)` is called at once when a question ends.

    resources: inputs of steps, by the resource name of their kind.
    waiting: {rank: {Key: waiting calls}}, including calls of cancelled siblings (see `Task.alive`).
    on_cancel(task) is called for each cancelled task: the call that it may wait for is no longer wanted.
    """

    def __init__(
        self,
        resources: Mapping[str, Any],
        on_end: Callable[[int, Outcome], None],
        *,
        budget: Budget | None = None,
        run_seed: int = 0,
        stats: RunStats | None = None,
        on_cancel: Callable[[Task], None] | None = None,
    ):
        self.resources, self.on_end, self.budget, self.run_seed = resources, on_end, budget, run_seed
        self.on_cancel = on_cancel
        self.stats = RunStats() if stats is None else stats
        self.live: dict[int, QuestionRun] = {}
        self.waiting: dict[int, dict[Key, list[Pending]]] = {}
        self._ready: deque[tuple[Task, Any, BaseException | None]] = deque()
        self.n_opened = 0  # order of the next question

    # --- questions ---------------------------------------------------------------------------------

    def open(self, question: Question, program: Program) -> int:
        """Admit one question; its program first runs at the next `resume`. Returns its order."""
        order, self.n_opened = self.n_opened, self.n_opened + 1
        run = self.live[order] = QuestionRun(order, Context(question, self.run_seed), perf_counter())
        kind, coro = attempt(program, run.ctx)
        if kind == GAVE and isinstance(coro, Coroutine):
            run.root = Task(run, coro)
            self._ready.append((run.root, None, None))
        else:
            wrong = UsageError("a program is an async function", given=type(coro).__name__)
            self._end(run, None, coro if kind == FAILED else wrong)
        return order

    def admit(self, source: Iterator[tuple[Question, Program]], max_live: int) -> None:
        """Open and step new questions until max_live of them wait, or none is left."""
        while len(self.live) < max_live:
            if not [self.open(*item) for item in islice(source, max_live - len(self.live))]:
                return
            self.resume()

    def cancel_question(self, order: int, error: BaseException) -> None:
        """End an open question from outside, with `error` as its failure."""
        self._end(self.live[order], None, error)

    def close(self) -> None:
        """Cancel all open questions without an outcome. Calls in flight may still be settled, for the accounts."""
        self._ready.clear()
        self.waiting.clear()
        while self.live:
            _, run = self.live.popitem()
            if run.root is not None:
                self._cancel(run.root)

    def _cancel(self, task: Task) -> None:
        for member in cancel(task):
            if member.cost is not None:
                self.stats.add_stage(CANCELLED, member.cost)
                member.cost = None
            if self.on_cancel is not None:
                self.on_cancel(member)

    def _end(self, run: QuestionRun, draft: Any, error: BaseException | None) -> None:
        ctx, root = run.ctx, run.root
        if root is not None and root.alive:
            self._cancel(root)
        run.root = None  # tasks point at their run: leave no reference cycle
        del self.live[run.order]
        for name, cost in ctx.costs():
            self.stats.add_note(name, cost)
        if root is not None and root.cost is not None:
            self.stats.add_stage(UNNOTED, root.cost)
        ctx.usage.wall_s = perf_counter() - run.started
        ctx.task = None
        if isinstance(error, ModelError):
            raise error  # an engine is down: no question can continue
        if error is not None:
            strip_frames(error)
        self.on_end(run.order, Outcome(ctx.question, draft, error, ctx.steps(), ctx.usage))

    # --- stepping ----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Step every task that can continue, until each open question waits for calls."""
        ready = self._ready
        while ready:
            task, value, error = ready.popleft()
            if not task.alive:
                continue
            if task.coro is None:
                op, task.op = task.op, None
                if op is None:
                    self._finish(task, value, error)
                else:
                    self._wait(task, task.path, op)
                continue
            task.run.ctx.task = task
            if error is None:
                kind, value = attempt(task.coro.send, value)
            else:
                kind, value = attempt(task.coro.throw, error)
            if kind == GAVE:
                slot = (*task.path, task.n_awaits)
                task.n_awaits += 1
                self._wait(task, slot, value)
            else:
                self._finish(task, value if kind == RETURNED else None, value if kind == FAILED else None)

    def _wait(self, task: Task, slot: Slot, op: Any) -> None:
        if isinstance(op, Call):
            self._queue(task, slot, op)
        elif isinstance(op, Gather):
            children = [Task(task.run, item, (*slot, i), task, i) for i, item in enumerate(op.items)]
            if children:
                task.group = Group(children)
                self._ready.extend((child, None, None) for child in children)
            else:
                self._ready.append((task, [], None))
        else:
            wrong = UsageError("a program can await calls of steps and gathers only", given=type(op).__name__)
            self._ready.append((task, None, wrong))

    def _queue(self, task: Task, slot: Slot, call: Call[Any]) -> None:
        run = task.run
        run.n_calls += 1
        if self.budget is not None:
            exceeded = self.budget.check(run.n_calls, run.ctx.usage)
            if exceeded is not None:
                self._end(run, None, exceeded)
                return
        kind = call.step.kind
        own = run.ctx.resources.get(kind.resource)
        if own is None and kind.resource not in self.resources:
            known = ", ".join(sorted(self.resources)) or "none"
            given = f"{call.step.name}, which needs {kind.resource}"
            wrong = UsageError("this run lacks the resource of a step", given=given, expected=known)
            self._ready.append((task, None, wrong))
            return
        groups = self.waiting.setdefault(kind.rank, {})
        try:
            calls = groups.setdefault((call.step, call.key, 0 if own is None else id(own)), [])
        except TypeError:
            wrong = UsageError("the parameters of a step must be hashable", given=f"{call.step.name} {call.key!r}")
            self._ready.append((task, None, wrong))
            return
        calls.append(Pending(run.order, slot, task, call, perf_counter()))

    def _finish(self, task: Task, value: Any, error: BaseException | None) -> None:
        """End a task with a value or an error: end its question, or inform the siblings and the parent."""
        task.alive = False
        parent = task.parent
        if parent is None:
            self._end(task.run, value, error)
            return
        if task.cost is not None:
            if parent.cost is None:
                parent.cost = task.cost
            else:
                parent.cost.add(task.cost)
            task.cost = None
        group = parent.group
        if group is None:  # the parent was cancelled meanwhile
            return
        group.n_running -= 1
        if error is None:
            group.results[task.index] = value
        else:
            self._fail_group(group, task.index, error)
        if group.n_running == 0:
            parent.group = None
            if group.error is not None:
                for cost in parent.run.ctx.forget(group.children[0].path[:-1], group.limit):
                    self.stats.add_stage(CANCELLED, cost or Cost())
            self._ready.append((parent, group.results, group.error))

    def _fail_group(self, group: Group, index: int, error: BaseException) -> None:
        """Fail a gather by position: cancel the siblings after `index`; an earlier one may still fail instead."""
        later = [child for child in group.children[index + 1 : group.limit] if child.alive]
        group.limit, group.error = index, error
        group.n_running -= len(later)
        for child in later:
            self._cancel(child)

    # --- results -----------------------------------------------------------------------------------

    def settle(self, pending: Pending, result: Any, seconds: float) -> None:
        """Book one answered call, and pass its result to its task (which runs at the next `resume`).

        If the task was cancelled meanwhile, the call's cost is booked and its result is dropped.
        """
        task = pending.task
        cost = task.cost
        if cost is None:
            cost = Cost()
            if task.alive:
                task.cost = cost
        wait_s = perf_counter() - pending.since - seconds
        charge(task.run.ctx.usage, cost, pending.call.step.kind.service, seconds, wait_s, result)
        if not task.alive:
            self.stats.n_late_calls += 1
            self.stats.add_stage(CANCELLED, cost)
            return
        value = result.value if isinstance(result, Metered) else result
        failed = isinstance(value, Exception)
        self._ready.append((task, None, fresh(value)) if failed else (task, value, None))
