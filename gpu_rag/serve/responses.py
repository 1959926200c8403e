"""Rows as one JSON document, as lines of JSON, or as server-sent events; and a client that goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gpu_rag.serve.admission import Batch
from gpu_rag.serve.refusal import Refusal, refusal_of

T = TypeVar("T")
NDJSON, SSE = "application/x-ndjson", "text/event-stream"


class ClientGone(Exception):
    """The client closed its connection before the response was complete, or does not read it."""


class Nothing(Response):
    """No response: nobody is there to read one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends nothing."""


def dumped(value: Any) -> bytes:
    """JSON in UTF-8; half a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class Json(JSONResponse):
    """A JSON document of ours."""

    def render(self, content: Any) -> bytes:
        """The bytes of the document."""
        return dumped(content)


async def until_gone(receive: Receive) -> None:
    """Returns when the client is gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless(gone: asyncio.Task[None], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ClientGone when the client goes away first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
    if not task.done() or task.cancelled():
        raise ClientGone
    return task.result()


async def collected(batch: Batch, request: Request) -> list[dict[str, Any]]:
    """All rows of a batch in the order of its questions.

    Raises Refusal (503) when the engine died, and ClientGone; its questions are given up then.
    """
    rows: dict[int, dict[str, Any]] = {}
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        while len(rows) < len(batch.questions):
            place, row = await _unless(gone, batch.next_row())
            rows[place] = row
    finally:
        gone.cancel()
        batch.close()
    if batch.death is not None:
        raise Refusal(503, f"the engine has stopped: {refusal_of(batch.death)}", headers={"Retry-After": "5"})
    return [rows[place] for place in sorted(rows)]


async def each_row(batch: Batch) -> AsyncIterator[bytes]:
    """A line of JSON for each question, as it ends."""
    for _ in batch.questions:
        _, row = await batch.next_row()
        yield dumped(row) + b"\n"


class Streamed(Response):
    """A response in pieces, made while a batch runs; a client that goes away gives up the batch."""

    def __init__(self, batch: Batch, pieces: AsyncIterator[bytes], media_type: str):
        super().__init__(media_type=f"{media_type}; charset=utf-8")
        self._batch, self._pieces = batch, pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends what there is, piece by piece."""
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
            while (piece := await _unless(gone, _next(self._pieces))) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            self._batch.close()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
