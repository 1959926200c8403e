"""The routes: what clients can ask, and the application that answers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gpu_rag.errors import GpuRagError
from gpu_rag.serve import chat, describe
from gpu_rag.serve.admission import Admission
from gpu_rag.serve.bodies import read_ask, read_chat
from gpu_rag.serve.guard import ROUTE, Guard, read_body
from gpu_rag.serve.live import DEAD, READY
from gpu_rag.serve.metrics import Metrics
from gpu_rag.serve.refusal import Refusal, error_body, refusal_of
from gpu_rag.serve.responses import NDJSON, SSE, ClientGone, Json, Nothing, Streamed, collected, each_row

Endpoint = Callable[[Request], Awaitable[Response]]
StepWords = Callable[[str, int], str | None]
PAGE = {"/": ("index.html", "text/html"), "/explorer.js": ("explorer.js", "text/javascript"),
        "/explorer.css": ("explorer.css", "text/css")}  # fmt: skip


class Api:
    """The endpoints. step_words(step, n_candidates): words for a step of a trace, or None where its name has to do."""

    def __init__(self, admission: Admission, step_words: StepWords):
        self.admission, self.live, self.settings = admission, admission.live, admission.settings.serve
        self._step_words, self._began, self._created = step_words, time.monotonic(), int(time.time())
        self._passages = describe.Passages(self.live.engine.index)

    def routes(self) -> list[Route]:
        """All routes."""
        served: dict[tuple[str, str], Endpoint] = {
            ("POST", "/v1/answer"): self.ask,
            ("POST", "/v1/retrieve"): partial(self.ask, retrieval=True),
            ("POST", "/v1/chat/completions"): self.chat,
            ("GET", "/v1/models"): self.models,
            ("GET", "/v1/models/{name:path}"): self.model,
            ("GET", "/v1/methods"): self.methods,
            ("GET", "/v1/index"): self.index,
            ("GET", "/v1/passages/{name:path}"): self.passage,
            ("GET", "/health"): self.health,
            ("GET", "/ready"): self.ready,
            ("GET", "/metrics"): self.metrics,
            **{("GET", path): _page(*file) for path, file in PAGE.items()},
        }
        return [Route(path, _named(path, call), methods=[verb]) for (verb, path), call in served.items()]

    async def ask(self, request: Request, *, retrieval: bool = False) -> Response:
        """Rows as `gpu-rag answer` writes them. retrieval: evidence alone; no reader runs."""
        raw = await read_body(request, self.settings)
        body, questions, single = read_ask(raw, self.settings.params, retrieval=retrieval)
        prepared = await self.admission.prepare(body.method, retrieval, body.passages, body.params)
        batch = self.admission.ask(prepared, questions, partial(self._shaped, retrieval, bool(body.words)))
        if NDJSON in request.headers.get("accept", ""):
            return Streamed(batch, each_row(batch), NDJSON)
        rows = await collected(batch, request)
        return Json(rows[0] if single else {"answers": rows})

    def _shaped(self, retrieval: bool, words: bool, row: dict[str, Any]) -> dict[str, Any]:
        """The row for its client: a retrieval has no answer; `words`: the steps of the trace in words too."""
        if retrieval:
            row = {**row, "status": "failed" if row["status"] == "failed" else "retrieved"}
            del row["answer"]
        if words:
            steps = [(step["verb"], step["n_candidates"]) for step in row["trace"]]
            row["words"] = [self._step_words(*step) or step[0] for step in steps]
        return row

    async def chat(self, request: Request) -> Response:
        """A chat completion: the model is a method, the last user message the question."""
        body, question = read_chat(await read_body(request, self.settings))
        if body.method not in self.live.answering:
            raise chat.unknown_model(body.model, self.live.answering)
        batch = self.admission.ask(await self.admission.prepare(body.method, False), [question])
        if body.stream:
            return Streamed(batch, chat.events(batch, body), SSE)
        (row,) = await collected(batch, request)
        return Json(chat.completion(row, body.model))

    async def models(self, request: Request) -> Response:
        """The methods that answer here, as models."""
        return Json({"object": "list", "data": [chat.model(name, self._created) for name in self.live.answering]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        if name.removeprefix("gpu-rag/") not in self.live.answering:
            raise chat.unknown_model(name, self.live.answering)
        return Json(chat.model(name, self._created))

    async def methods(self, request: Request) -> Response:
        """Which methods this index can serve, and what the others lack."""
        return Json({"methods": describe.methods(self.live)})

    async def index(self, request: Request) -> Response:
        """Counts, sources and models."""
        return Json(await asyncio.to_thread(describe.index, self.live))

    async def passage(self, request: Request) -> Response:
        """The text of a passage, and where it stands."""
        return Json(self._passages(request.path_params["name"]))

    async def health(self, request: Request) -> Response:
        """Whether the process is worth keeping: not once its engine has ended for good."""
        return Json({"live": not self.live.gone}, 503 if self.live.gone else 200)

    async def ready(self, request: Request) -> Response:
        """Whether questions are taken."""
        ready = self.live.state == READY and not self.admission.closed
        state = self.live.state if ready or self.live.state == DEAD else "stopping"
        return Json({"ready": ready, "state": state, "reason": self.live.reason or None}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Counts for Prometheus."""
        metrics = Metrics(self.admission.counts, self.live, self.admission.n_open, self._began)
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def make_app(admission: Admission, step_words: StepWords, host: str, key: str | None) -> ASGIApp:
    """The application behind its guard. host: the address bound; key: what clients must send, or None."""

    async def explained(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            return Nothing()  # and the guard, which it is raised to, counts it
        if isinstance(error, HTTPException):
            given = f"{request.method} {request.url.path}"[:120]
            error = Refusal(error.status_code, error.detail, given=given, headers=dict(error.headers or {}))
        elif not isinstance(error, GpuRagError):
            error = Refusal(500, "internal error", kind=type(error).__name__)
        refusal = refusal_of(error)
        return Json(error_body(refusal, request.url.path), refusal.status, headers=refusal.headers)

    handlers: dict[Any, Any] = dict.fromkeys((GpuRagError, HTTPException, Exception), explained)
    app = Starlette(routes=Api(admission, step_words).routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirect repeats the Host header
    return Guard(app, host, admission.settings.serve, key, admission.counts)


def _named(path: str, call: Endpoint) -> Endpoint:
    """An endpoint that says its path in the scope, for the counts."""

    async def endpoint(request: Request) -> Response:
        request.scope[ROUTE] = path
        return await call(request)

    return endpoint


def _page(name: str, media_type: str) -> Endpoint:
    content = (files("gpu_rag.serve") / "explorer" / name).read_bytes()

    async def page(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return page
