"""The streaming driver: calls to a slow service (an LLM) leave as they come, cheap calls run in batches meanwhile.

Above the low-water mark of open LLM requests there is time: the cheapest calls that wait run as a full batch. Below it
the LLM may soon be idle: replies that have come are handled first, then only so many cheap calls run as are missing
for the mark, those of the oldest questions, so that requests reach the LLM soon. Answers are those of `run_rounds`,
given the same replies; batches, seconds, and the question at which a budget is met among siblings, depend on time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import Any

from gpu_rag.errors import Cancelled, ModelError, UsageError
from gpu_rag.runtime.accounts import Budget, RunStats
from gpu_rag.runtime.batches import oldest_batch, run_batch
from gpu_rag.runtime.core import Core, Program
from gpu_rag.runtime.handle import Handle, Turns
from gpu_rag.runtime.occupancy import DOING, PROGRAMS, QUESTIONS, WAITING
from gpu_rag.runtime.service import AnyStep, Flights, SlowService
from gpu_rag.runtime.tasks import Outcome, Task
from gpu_rag.types import Question

LOW_WATER = 64
LARGEST = 256  # calls of a cheap batch: while it runs no reply is taken, so it is kept short
LIVE_WAIT_S, LONG_WAIT_S = 0.05, 1.0  # how long a wait for replies keeps a live driver from seeing a new question
LATE_WAIT_S = 1.0  # how long the end of a run waits for aborted calls: their replies are counted, and may be kept


class StreamingDriver:
    """Drives programs as they come. `submit`, `cancel` and `close` are for any thread, `run` for the driver's own.

    resources: what steps are given, by the name of their kind. services: {step: slow service that answers it in place
    of its function; its kind says where the seconds are booked}. max_live: questions open at once; others wait.
    low_water: open LLM requests below which the LLM is fed first. budget, run_seed, stats: as in `run_rounds`.
    on_done(outcome): called in the driver's thread.
    """

    def __init__(
        self,
        resources: Mapping[str, Any],
        services: Mapping[AnyStep, SlowService],
        *,
        max_live: int = 1024,
        low_water: int = LOW_WATER,
        budget: Budget | None = None,
        run_seed: int = 0,
        on_done: Callable[[Outcome], None] | None = None,
        stats: RunStats | None = None,
    ):
        _check(max_live, low_water)
        self._max_live, self._low_water, self._on_done = max_live, low_water, on_done
        self._core = Core(
            resources, self._ended, budget=budget, run_seed=run_seed, stats=stats, on_cancel=self._cancelled
        )
        self._flights = Flights(self._core, services)
        self.outcomes: dict[int, Outcome] | None = None  # a dict: outcomes are kept in it, by place
        self._handles: dict[int, Handle] = {}
        self._feed = low_water
        self._change = threading.Condition()  # guards what follows
        self._inbox = Turns()
        self._unwanted: list[Handle] = []
        self._closed = False

    # --- any thread --------------------------------------------------------------------------------

    def submit(
        self,
        question: Question,
        program: Program,
        on_end: Callable[[Outcome], None] | None = None,
        group: Hashable = None,
    ) -> Handle:
        """Have a question answered; waiting groups take turns, within one the first comes first. Raises UsageError when
        closed. on_end(outcome): called once, in the driver's thread, maybe before this returns; raising stops the run.
        """
        handle = Handle(question, program, on_end, group)
        with self._change:
            if self._closed:
                raise UsageError("the driver is closed", given=f"question {question.id}", expected="an open driver")
            self._inbox.append(handle)
            self._change.notify()
        return handle

    def cancel(self, handle: Handle, reason: BaseException | None = None) -> None:
        """Give up a question, unless it has ended by then: it fails with `reason`, or Cancelled without one.

        It is looked at between batches: one that runs is not interrupted. `reason` is no ModelError, which would stop
        the run. A handle of another driver is ignored.
        """
        with self._change:
            handle.reason = handle.reason or reason
            self._unwanted.append(handle)
            self._change.notify()

    def close(self) -> None:
        """Take no more questions; `run` returns when those that it has are answered."""
        with self._change:
            self._closed = True
            self._change.notify()

    @property
    def n_running(self) -> int:
        """Questions that were admitted and have not ended; a moment old when it is read."""
        return len(self._core.live)

    # --- the driver's thread -----------------------------------------------------------------------

    def run(self, programs: Iterable[tuple[Question, Program]] = ()) -> None:
        """Drive what is submitted, and `programs`, drawn as they are admitted, until the driver is closed and drained.

        ModelError, Cancelled out of a service or a step, KeyboardInterrupt, and whatever `programs` or `on_done`
        raise stop the run: requests in flight are aborted, coroutines closed, and handles end with Cancelled, whose
        `__cause__` is what stopped the run.
        """
        started, source = perf_counter(), iter(programs)
        self._core.stats.llm.begin(started)
        cause: BaseException | None = None
        try:
            while self._turn(source):
                pass
        except BaseException as error:
            cause = error
            raise
        finally:
            self._stop(cause)
            ended = perf_counter()
            self._core.stats.llm.end(ended)
            self._core.stats.wall_s += ended - started

    def _turn(self, source: Iterator[tuple[Question, Program]]) -> bool:
        """One turn of the loop; False when nothing is left and nothing can come."""
        core, flights = self._core, self._flights
        self._obey()
        core.resume()
        self._admit(source)
        sent = flights.send()
        self._mark(PROGRAMS)
        n_taken = flights.take(0.0) if flights.n_open else 0
        if n_taken:
            core.resume()
            sent += flights.send()
            self._mark(PROGRAMS)
        n_open = flights.n_open
        if core.waiting and (n_open > self._low_water or not n_taken):
            self._flush(n_open, sent)
        elif flights.n_open and not n_taken:
            self._mark(WAITING)
            flights.take(LONG_WAIT_S if self._closed else LIVE_WAIT_S)
            self._mark(PROGRAMS)
        return bool(n_taken or core.waiting or flights.n_open or core.live) or self._await_questions()

    def _flush(self, n_open: int, sent: int) -> None:
        """Run one batch of cheap calls."""
        core, flights = self._core, self._flights
        if n_open > self._low_water or not flights.services:
            batch = oldest_batch(core, [min(core.waiting)], LARGEST)
        else:
            if sent:
                self._feed = self._low_water
            batch = oldest_batch(core, list(core.waiting), self._feed - n_open)
            self._feed = min(2 * self._feed, LARGEST)  # more and more, while that leads to no requests
        if batch is None:
            return
        started = perf_counter()
        for pending, result, seconds in run_batch(core, batch):
            core.settle(pending, result, seconds)
        if n_open and flights.take(0.0) and not flights.n_llm:
            self._mark(PROGRAMS)
            core.stats.llm.ran_dry(perf_counter() - started, DOING[batch.step.kind.service])

    def _admit(self, source: Iterator[tuple[Question, Program]]) -> None:
        """Open and step new questions until max_live of them wait, or none is left."""
        core = self._core
        while (room := self._max_live - len(core.live)) > 0:
            with self._change:
                handles = [self._inbox.popleft() for _ in range(min(room, len(self._inbox)))]
            for handle in handles:
                handle.order = core.n_opened
                self._handles[handle.order] = handle
                core.open(handle.question, handle.program)
            admitted = list(islice(source, room - len(handles)))
            for question, program in admitted:
                core.open(question, program)
            if not handles and not admitted:
                return
            core.resume()

    def _ended(self, order: int, outcome: Outcome) -> None:
        handle = self._handles.pop(order, None)
        if self.outcomes is not None:
            self.outcomes[order] = outcome
        try:
            if self._on_done is not None:
                self._on_done(outcome)
        finally:
            if handle is not None:
                handle.end(outcome)

    def _cancelled(self, task: Task) -> None:
        self._flights.drop(task)

    def _obey(self) -> None:
        """Do what `cancel` asked for."""
        if not self._unwanted:
            return
        with self._change:
            unwanted, self._unwanted = self._unwanted, []
        for handle in unwanted:
            with self._change:
                waiting = self._inbox.remove(handle)
            if waiting:
                handle.end_by(handle.cancelled())
            elif handle.order is not None and self._handles.get(handle.order) is handle:
                self._core.cancel_question(handle.order, handle.cancelled())

    def _await_questions(self) -> bool:
        """Nothing is open: wait for a question. False when the driver is closed and there is none."""
        self._mark(QUESTIONS)
        until = perf_counter() + LATE_WAIT_S
        while self._flights.n_late and not (self._inbox or self._unwanted):
            if self._closed and perf_counter() >= until:
                break
            self._flights.take(LIVE_WAIT_S)
        with self._change:
            self._change.wait_for(lambda: self._inbox or self._unwanted or self._closed)
            more = bool(self._inbox or self._unwanted)
        self._mark(PROGRAMS)
        return more

    def _mark(self, doing: str) -> None:
        self._core.stats.llm.mark(perf_counter(), self._flights.n_llm, doing)

    def _stop(self, cause: BaseException | None) -> None:
        """Abort and close whatever is still open (at a normal end there is nothing), and take what has come."""
        with self._change:
            self._closed = True
            left = self._inbox.drain()
        self._core.close()
        with suppress(ModelError, Cancelled):  # a dead service has said so before
            self._flights.take(0.0)  # replies that have come are counted, and kept by a cache below
        left += self._handles.values()
        self._handles.clear()
        for handle in left:
            error = Cancelled("the run was stopped", do="submit the question again")
            error.__cause__ = cause
            handle.end_by(error)


def _check(max_live: int, low_water: int) -> None:
    if max_live < 1:
        raise UsageError("a run needs room for a question", given=f"max_live={max_live}", expected=">= 1")
    if low_water < 1:
        raise UsageError("the low-water mark is a number of requests", given=low_water, expected=">= 1")


def run_streaming(
    programs: Iterable[tuple[Question, Program]],
    resources: Mapping[str, Any],
    services: Mapping[AnyStep, SlowService],
    *,
    keep: bool = True,
    **options: Any,
) -> list[Outcome]:
    """`run_rounds` with slow services beside: the same outcomes, failures and order of what is returned.

    options: as of `StreamingDriver`. keep: whether outcomes are returned.
    """
    outcomes: dict[int, Outcome] = {}
    driver = StreamingDriver(resources, services, **options)
    if keep:
        driver.outcomes = outcomes
    driver.close()
    driver.run(programs)
    return [outcomes[order] for order in sorted(outcomes)]
