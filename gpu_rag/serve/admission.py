"""Admission: takes questions of clients to the engine, and rows back; all of it in the event loop's thread."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpu_rag.engine import Given, Prepared, answer_of
from gpu_rag.errors import BudgetExceeded, Cancelled, GpuRagError
from gpu_rag.jobs import row_of
from gpu_rag.runtime.handle import Handle
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.serve.live import Live
from gpu_rag.serve.metrics import Counts
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings import Settings
from gpu_rag.types import Question

Shape = Callable[[dict[str, Any]], dict[str, Any]]
N_RECENT = 256
LONGEST_RETRY_S = 60


class Batch:
    """The questions of one request. Rows come in the order in which questions end; closing gives up the rest.

    death: what ended the engine before a question of it, if that happened.
    """

    def __init__(self, admission: Admission, prepared: Prepared, questions: Sequence[Question], shape: Shape):
        self.questions, self.handles = questions, dict[int, Handle]()
        self.death: GpuRagError | None = None
        self._admission, self._prepared, self._shape = admission, prepared, shape
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._rows: asyncio.Queue[tuple[int, dict[str, Any]]] = asyncio.Queue()
        self._began = time.perf_counter()

    async def next_row(self) -> tuple[int, dict[str, Any]]:
        """(place of the question, its row), of the question that ended next."""
        return await self._rows.get()

    def send(self) -> None:
        """Submit all questions. Raises Refusal, and then none is open."""
        try:
            for place, question in enumerate(self.questions):
                self._send_one(place, question)
        except Refusal:
            self.close()
            raise

    def _send_one(self, place: int, question: Question) -> None:
        loop, live = asyncio.get_running_loop(), self._admission.live

        def ended(outcome: Outcome) -> None:  # in the engine's thread
            with suppress(RuntimeError):  # the loop is closed: the server has ended meanwhile
                loop.call_soon_threadsafe(self._ended, place, outcome)

        handle = self.handles[place] = live.submit(self._prepared, question, ended, group=self)
        self._admission.one_sent(self)
        if limit_s := self._admission.settings.serve.question_seconds:
            late = BudgetExceeded("the question ran out of time", expected=f"an answer within {limit_s:g} s")
            self._timers[place] = loop.call_later(limit_s, live.cancel, handle, late)

    def _ended(self, place: int, outcome: Outcome) -> None:
        del self.handles[place]
        if place in self._timers:
            self._timers.pop(place).cancel()
        self._admission.one_ended(self)
        cause = outcome.error.__cause__ if isinstance(outcome.error, Cancelled) else None
        if isinstance(cause, GpuRagError):
            self.death = cause
            outcome = replace(outcome, error=cause)
        row = self._shape(row_of(answer_of(outcome, self._prepared.method, self._prepared.config_hash)))
        self._admission.counts.ended(row, time.perf_counter() - self._began)
        self._rows.put_nowait((place, row))

    def close(self, reason: BaseException | None = None) -> None:
        """Give up what is still open."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for handle in self.handles.values():
            self._admission.live.cancel(handle, reason)


class Admission:
    """Admits questions up to a limit, and knows all that are open. counts: see `Counts`."""

    def __init__(self, live: Live, settings: Settings):
        self.live, self.settings, self.counts = live, settings, Counts()
        self.batches: set[Batch] = set()  # with questions that are open
        self.n_open = 0
        self.closed = False
        self._ends: deque[float] = deque(maxlen=N_RECENT)
        self._limit = settings.runtime.max_live + settings.serve.max_queue

    async def prepare(
        self, method: str, retrieval: bool, passages: int | None = None, params: Given = None
    ) -> Prepared:
        """The method as the engine runs it. Raises Refusal and GpuRagError."""
        chosen = (method, retrieval, passages, params)
        found = self.live.cached(*chosen)
        return await asyncio.to_thread(self.live.prepare, *chosen) if found is None else found

    def ask(self, prepared: Prepared, questions: Sequence[Question], shape: Shape = dict) -> Batch:
        """Submit questions. shape: makes of a row what the client gets.

        Raises Refusal: 429 beyond the limit, 503 when the engine is down or stopping.
        """
        if self.closed:
            raise Refusal(503, "the server is stopping", headers={"Connection": "close"})
        n_over = self.n_open + len(questions) - self._limit
        if n_over > 0:
            self.counts.refused["overloaded"] += len(questions)
            given, later = f"{self.n_open} open, {len(questions)} more", {"Retry-After": str(self._retry_s(n_over))}
            raise Refusal(429, "too many questions wait", given=given, expected=f"at most {self._limit}", headers=later)
        batch = Batch(self, prepared, questions, shape)
        batch.send()
        return batch

    def _retry_s(self, n_over: int) -> int:
        """Seconds after which as many questions may have ended, by the rate of the last ones."""
        seconds = time.monotonic() - self._ends[0] if self._ends else 0.0
        rate = len(self._ends) / seconds if seconds > 0 else 0.0
        return min(max(math.ceil(n_over / rate), 1), LONGEST_RETRY_S) if rate else 1

    def one_sent(self, batch: Batch) -> None:
        """A question of a batch is open."""
        self.batches.add(batch)
        self.n_open += 1

    def one_ended(self, batch: Batch) -> None:
        """A question of a batch has ended."""
        self._ends.append(time.monotonic())
        self.n_open -= 1
        if not batch.handles:
            self.batches.discard(batch)

    async def close(self, grace_s: float) -> None:
        """Take no more questions; give those that are open some time, then fail the rest."""
        self.closed = True
        until = time.monotonic() + grace_s
        while self.batches and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.fail_all()

    def fail_all(self) -> None:
        """Fail what is open, now."""
        self.closed = True
        for batch in list(self.batches):
            batch.close(Cancelled("the server was stopped", do="ask again when it is back"))
