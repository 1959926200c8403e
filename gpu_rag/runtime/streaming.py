"""Streaming driver: calls to a slow service (an LLM) are sent at once; cheap calls run in batches meanwhile.

While more LLM requests are open than the low-water mark, there is time: the cheapest waiting calls run as a full batch.
Otherwise the LLM may soon be idle: replies are handled first, then a small batch of the oldest questions' calls runs,
just large enough to reach the mark, so that requests reach the LLM soon. Equal replies give the same answers as in
`run_rounds`; batches, seconds, and the question at which a budget is exceeded among siblings, depend on time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import Any, Unpack

from gpu_rag.errors import Cancelled, ModelError, UsageError
from gpu_rag.runtime.batches import oldest_batch, run_batch
from gpu_rag.runtime.core import Core, CoreOptions, Program
from gpu_rag.runtime.handle import Handle, Turns
from gpu_rag.runtime.occupancy import DOING, PROGRAMS, QUESTIONS, WAITING
from gpu_rag.runtime.service import Flights, Slow
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.types import Question

LOW_WATER = 64
MAX_CHEAP = 256  # calls of a cheap batch: kept short, because no reply is taken while it runs
LIVE_WAIT_S, LONG_WAIT_S = 0.05, 1.0  # longest wait for replies during which a live driver does not see a new question
LATE_WAIT_S = 1.0  # wait for aborted calls at the end of a run: their replies are counted, and may be kept


class DriverOptions(CoreOptions, total=False):
    """Options of a `StreamingDriver`."""

    max_live: int
    low_water: int
    on_done: Callable[[Outcome], None] | None
    on_answer: Callable[[Any], None] | None


class StreamingDriver:
    """Driver of programs that arrive over time. Any thread may call `submit`, `cancel` and `close`; `run` belongs to
    the driver's own thread.

    resources: inputs of steps, by the resource name of their kind. slow: a step and the service that replaces its
    function. max_live: questions open at once; others wait. low_water: below this number of open LLM requests, LLM work
    goes first. budget, run_seed, stats: as in `run_rounds`. on_done(outcome), and
    on_answer(result) with each answer of the service: called in the driver's thread.
    """

    def __init__(
        self,
        resources: Mapping[str, Any],
        slow: Slow | None,
        *,
        max_live: int = 1024,
        low_water: int = LOW_WATER,
        on_done: Callable[[Outcome], None] | None = None,
        on_answer: Callable[[Any], None] | None = None,
        **options: Unpack[CoreOptions],
    ):
        if max_live < 1:
            raise UsageError("a run needs room for a question", given=f"max_live={max_live}", expected=">= 1")
        if low_water < 1:
            raise UsageError("the low-water mark is a number of requests", given=low_water, expected=">= 1")
        self._max_live, self._low_water, self._on_done = max_live, low_water, on_done
        self._core = Core(resources, self._ended, on_cancel=lambda task: self._flights.drop(task), **options)
        self._flights = Flights(self._core, slow, on_answer)
        self.outcomes: dict[int, Outcome] | None = None  # if set, it keeps the outcomes by order
        self._handles: dict[int, Handle] = {}
        self._feed = low_water
        self._change = threading.Condition()  # guards the fields below
        self._inbox = Turns()
        self._unwanted: list[Handle] = []
        self._closed = False

    # --- any thread --------------------------------------------------------------------------------

    def submit(
        self,
        question: Question,
        program: Program,
        on_end: Callable[[Outcome], None],
        group: Hashable = None,
    ) -> Handle:
        """Submit a question. Waiting groups take turns; within a group, first in, first out. Raises UsageError when
        closed. on_end(outcome): called once, in the driver's thread, maybe before this returns; an exception in it
        stops the run.
        """
        handle = Handle(question, program, on_end, group)
        with self._change:
            if self._closed:
                raise UsageError("the driver is closed", given=f"question {question.id}", expected="an open driver")
            self._inbox.append(handle)
            self._change.notify()
        return handle

    def cancel(self, handle: Handle, reason: BaseException | None = None) -> None:
        """Give up a question, unless it has ended by then: it fails with `reason`, or with Cancelled.

        It takes effect between batches: a running batch is not interrupted. `reason` must not be a ModelError, which
        would stop the run. A handle of another driver is ignored.
        """
        with self._change:
            handle.reason = handle.reason or reason
            self._unwanted.append(handle)
            self._change.notify()

    def close(self) -> None:
        """Accept no more questions; `run` returns when the accepted ones are answered."""
        with self._change:
            self._closed = True
            self._change.notify()

    @property
    def n_running(self) -> int:
        """Number of admitted questions that have not ended; it may have changed when read."""
        return len(self._core.live)

    # --- the driver's thread -----------------------------------------------------------------------

    def run(self, programs: Iterable[tuple[Question, Program]] = ()) -> None:
        """Drive submitted questions, and `programs`, drawn as they are admitted, until the driver is closed and
        drained.

        ModelError, Cancelled out of a service or a step, KeyboardInterrupt, and exceptions of `programs` or `on_done`
        stop the run: requests in flight are aborted, coroutines closed, and handles end with Cancelled, whose
        `__cause__` is the exception.
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
        """Run one turn of the loop; False when nothing is left and nothing can come."""
        core, flights = self._core, self._flights
        self._obey()
        core.resume()
        core.admit(chain(self._arrivals(), source), self._max_live)
        n_sent = flights.send()
        self._mark(PROGRAMS)
        n_taken = flights.take(0.0) if flights.n_open else 0
        if n_taken:
            core.resume()
            n_sent += flights.send()
            self._mark(PROGRAMS)
        n_open = flights.n_open
        if core.waiting and (n_open > self._low_water or not n_taken):
            self._flush(n_open, n_sent)
        elif flights.n_open and not n_taken:
            self._mark(WAITING)
            flights.take(LONG_WAIT_S if self._closed else LIVE_WAIT_S)
            self._mark(PROGRAMS)
        return bool(n_taken or core.waiting or flights.n_open or core.live) or self._await_questions()

    def _flush(self, n_open: int, n_sent: int) -> None:
        core, flights = self._core, self._flights
        if n_open > self._low_water or flights.slow is None:
            batch = oldest_batch(core, [min(core.waiting)], MAX_CHEAP)
        else:
            if n_sent:
                self._feed = self._low_water
            batch = oldest_batch(core, list(core.waiting), self._feed - n_open)
            self._feed = min(2 * self._feed, MAX_CHEAP)  # doubled while that leads to no requests
        if batch is None:
            return
        started = perf_counter()
        for pending, result, seconds in run_batch(core, batch):
            core.settle(pending, result, seconds)
        if n_open and flights.take(0.0) and not flights.calls:
            self._mark(PROGRAMS)
            core.stats.llm.ran_dry(perf_counter() - started, DOING[batch.step.kind.service])

    def _arrivals(self) -> Iterator[tuple[Question, Program]]:
        """Questions that wait for admission; each is opened before the next is taken."""
        while True:
            with self._change:
                if not self._inbox:
                    return
                handle = self._inbox.popleft()
            handle.order = self._core.n_opened
            self._handles[handle.order] = handle
            yield handle.question, handle.program

    def _ended(self, order: int, outcome: Outcome) -> None:
        handle = self._handles.pop(order, None)
        if self.outcomes is not None:
            self.outcomes[order] = outcome
        try:
            if self._on_done is not None:
                self._on_done(outcome)
        finally:
            if handle is not None:
                handle.on_end(outcome)

    def _obey(self) -> None:
        """Carry out the requests of `cancel`."""
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
        """Wait for a question when nothing is open. False when the driver is closed and there is none."""
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
        self._core.stats.llm.mark(perf_counter(), len(self._flights.calls), doing)

    def _stop(self, cause: BaseException | None) -> None:
        """Abort and close everything still open (at a normal end nothing is), and take finished replies."""
        with self._change:
            self._closed = True
            unfinished = self._inbox.drain()
        self._core.close()
        with suppress(ModelError, Cancelled):  # a dead service has already reported it
            self._flights.take(0.0)  # finished replies are counted, and kept by a cache below
        unfinished += self._handles.values()
        self._handles.clear()
        for handle in unfinished:
            error = Cancelled("the run was stopped", do="submit the question again")
            error.__cause__ = cause
            handle.end_by(error)


def run_streaming(
    programs: Iterable[tuple[Question, Program]],
    resources: Mapping[str, Any],
    slow: Slow | None,
    *,
    keep: bool = True,
    **options: Unpack[DriverOptions],
) -> list[Outcome]:
    """Run programs like `run_rounds`, with a slow service: same arguments, outcomes, failures and order."""
    outcomes: dict[int, Outcome] = {}
    driver = StreamingDriver(resources, slow, **options)
    if keep:
        driver.outcomes = outcomes
    driver.close()
    driver.run(programs)
    return [outcomes[order] for order in sorted(outcomes)]
