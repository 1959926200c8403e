"""Admission of clients' questions to the engine, and return of their rows. All runs in the event loop's thread."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpu_rag.engine import answer_of
from gpu_rag.errors import BudgetExceeded, Cancelled, GpuRagError
from gpu_rag.jobs import row_of
from gpu_rag.program.history import Turn
from gpu_rag.runtime.handle import Handle
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.serve.live import Ready, ServedIndex, Wanted
from gpu_rag.serve.metrics import Counts
from gpu_rag.serve.refusal import ClientGone, Refusal, refusal_of
from gpu_rag.settings import Settings
from gpu_rag.types import Question

Shape = Callable[[dict[str, Any]], dict[str, Any]]
N_RECENT = 256
MAX_RETRY_S = 60


class Batch:
    """The questions of one request. Closing cancels the open questions.

    pieces: whether `rows` also gives the pieces of answers as they arrive. history: history of the request's only
    question. seconds: the client's time limit, in addition to the limit of the settings.
    """

    def __init__(
        self,
        admission: Admission,
        live: ServedIndex,
        ready: Ready,
        questions: Sequence[Question],
        shape: Shape = dict,
        pieces: bool = False,
        history: Sequence[Turn] = (),
        seconds: float | None = None,
    ):
        """Submit the questions. Raises Refusal."""
        self.handles: dict[int, Handle] = {}  # handles of open questions
        self._admission, self._thread, self._prepared = admission, live.thread, ready.prepared
        self._n_questions, self._shape = len(questions), shape
        self._death: GpuRagError | None = None  # error that ended the engine before one of the questions
        self._rows: asyncio.Queue[tuple[int, dict[str, Any] | str] | None] = asyncio.Queue()  # None: the client is gone
        self._began, self._loop = time.perf_counter(), asyncio.get_running_loop()
        limit_s = min(admission.settings.serve.question_seconds or math.inf, seconds or math.inf)
        late = BudgetExceeded("the question ran out of time", expected=f"an answer within {limit_s:g} s")
        self._timer = self._loop.call_later(limit_s, self.close, late) if limit_s < math.inf else None
        try:
            for place, question in enumerate(questions):
                self.handles[place] = live.submit(
                    ready, question, partial(self._on_end, place), group=self,
                    on_text=partial(self._on_text, place) if pieces else None, history=history,
                )  # fmt: skip
        except Refusal:
            self.close()
            raise
        finally:
            if self.handles:
                admission.batches.add(self)

    def _on_end(self, place: int, outcome: Outcome) -> None:
        """Hand the end of a question to the loop; called in the engine's thread."""
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._add_row, place, outcome)

    def _on_text(self, place: int, piece: str) -> None:
        """Hand a piece of an answer to the loop; called in a thread of a model."""
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._add_piece, place, piece)

    def _add_piece(self, place: int, piece: str) -> None:
        if place in self.handles:
            self._rows.put_nowait((place, piece))

    def _add_row(self, place: int, outcome: Outcome) -> None:
        del self.handles[place]
        self._admission.ends.append(time.monotonic())
        if not self.handles:
            self._admission.batches.discard(self)
            self.close()
        cause = outcome.error.__cause__ if isinstance(outcome.error, Cancelled) else None
        if isinstance(cause, GpuRagError):
            self._death = cause
            outcome = replace(outcome, error=cause)
        row = self.row(outcome)
        self._admission.counts.ended(row, time.perf_counter() - self._began)
        self._rows.put_nowait((place, row))

    def row(self, outcome: Outcome) -> dict[str, Any]:
        """The row of a question that ended."""
        return self._shape(row_of(answer_of(outcome, self._prepared)))

    async def rows(self, receive: Receive) -> AsyncGenerator[tuple[int, dict[str, Any] | str], None]:
        """(place of the question, its row) in the order in which questions end, and the pieces of an answer before its
        row. Raises ClientGone when `receive` reports a disconnect first; the body must have been read from it."""
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            n_open = self._n_questions
            while n_open:
                row = await self._rows.get()
                if row is None:
                    raise ClientGone
                n_open -= isinstance(row[1], dict)
                yield row
        finally:
            watching.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._rows.put_nowait(None)

    async def collect(self, receive: Receive) -> list[dict[str, Any]]:
        """All rows in the order of the questions. Raises Refusal (503) when the engine died, and ClientGone."""
        with closing(self):
            rows = {place: row async for place, row in self.rows(receive) if isinstance(row, dict)}
        if self._death is not None:
            reason = f"the engine has stopped: {refusal_of(self._death)}"
            raise Refusal(503, reason, headers={"Retry-After": "5"})
        return [rows[place] for place in sorted(rows)]

    def close(self, reason: BaseException | None = None) -> None:
        """Cancel all open questions."""
        if self._timer is not None:
            self._timer.cancel()
        for handle in self.handles.values():
            self._thread.driver.cancel(handle, reason)  # it ignores questions that ended or are another driver's


class Streamed(Response):
    """A streamed response: the result of `form` for each row of a batch as its question ends, and for each piece of an
    answer. If the client disconnects, the batch is cancelled."""

    def __init__(self, batch: Batch, form: Callable[[Any], bytes], media_type: str):
        super().__init__(media_type=f"{media_type}; charset=utf-8")
        del self.headers["content-length"]
        self._batch, self._form = batch, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the items one by one."""
        with closing(self._batch):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._batch.rows(receive)) as rows:
                async for _, row in rows:
                    await send({"type": "http.response.body", "body": self._form(row), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Admission:
    """Admits questions over all indexes up to a limit, and tracks all open ones. counts: see `Counts`."""

    def __init__(self, settings: Settings):
        self.settings, self.counts = settings, Counts()
        self.batches: set[Batch] = set()  # batches with open questions
        self.closed = False
        self.ends: deque[float] = deque(maxlen=N_RECENT)  # times of the last ends
        self._limit = settings.runtime.max_live + settings.serve.max_queue

    @property
    def n_open(self) -> int:
        """Number of open questions."""
        return sum(len(batch.handles) for batch in self.batches)

    async def ask(
        self, live: ServedIndex, wanted: Wanted, questions: Sequence[Question], *, shape: Shape = dict,
        pieces: bool = False, history: Sequence[Turn] = (), seconds: float | None = None,
    ) -> Batch:  # fmt: skip
        """Submit questions over an index to a method, prepared by `ServedIndex.prepare`. shape: turns a row into the
        client's form; pieces, history, seconds: see `Batch`.

        Raises Refusal: 429 beyond the limit, 503 when the engine is down or stopping. Also raises the errors of
        `prepare`.
        """
        ready = live.cached(wanted)
        if ready is None:
            ready = await asyncio.to_thread(live.prepare, wanted)
        self.check_room(len(questions))
        return Batch(self, live, ready, questions, shape, pieces, history, seconds)

    def check_room(self, n_questions: int) -> None:
        """Raise Refusal if the server is stopping or has no room for this many further questions."""
        if self.closed:
            raise Refusal(503, "the server is stopping", headers={"Connection": "close"})
        n_open = self.n_open
        n_over = n_open + n_questions - self._limit
        if n_over > 0:
            self.counts.refused.labels("overloaded").inc(n_questions)
            # Seconds until enough questions may have ended, by the rate of the last ones.
            each_s = (time.monotonic() - self.ends[0]) / len(self.ends) if self.ends else 0.0
            later = {"Retry-After": str(min(max(math.ceil(n_over * each_s), 1), MAX_RETRY_S))}
            given, expected = f"{n_open} open, {n_questions} more", f"at most {self._limit}"
            raise Refusal(429, "too many questions wait", given=given, expected=expected, headers=later)

    async def close(self, grace_s: float) -> None:
        """Take no more questions. Wait for open questions up to grace_s seconds, then fail them."""
        self.closed = True
        until = time.monotonic() + grace_s
        while self.batches and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.fail_all()

    def fail_all(self) -> None:
        """Fail all open questions now."""
        self.closed = True
        for batch in list(self.batches):
            batch.close(Cancelled("the server was stopped", do="ask again when it is back"))
