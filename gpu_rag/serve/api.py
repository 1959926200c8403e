"""The routes of the server, and the application that answers them."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gpu_rag.errors import MissingLayer
from gpu_rag.serve.admission import Admission, Streamed
from gpu_rag.serve.audit import Audit
from gpu_rag.serve.bodies import read_ask, read_chat, read_embeddings, read_responses
from gpu_rag.serve.changes import Changes, read_documents
from gpu_rag.serve.chat import ChatEvents, chat_completion
from gpu_rag.serve.embeddings import embedding_batch, embeddings_of
from gpu_rag.serve.guard import Guard, Json, deadline_s, read_body
from gpu_rag.serve.keys import Keys
from gpu_rag.serve.live import DEAD, READY, Wanted
from gpu_rag.serve.metrics import EngineMetrics
from gpu_rag.serve.openapi import NDJSON, SSE, openapi
from gpu_rag.serve.refusal import Refusal
from gpu_rag.serve.responses import ResponseEvents, response_of

Endpoint = Callable[[Request], Awaitable[Response] | Response]
StepWords = Callable[[str, int], str | None]
PAGE = {"/": ("index.html", "text/html"), "/explorer.js": ("explorer.js", "text/javascript"),
        "/explorer.css": ("explorer.css", "text/css")}  # fmt: skip
_LINE = re.compile(r"gpu-rag index .*? --for [\w-]+")


def make_app(
    admission: Admission,
    step_words: StepWords,
    host: str,
    keys: Keys | None,
    audit: Audit | None = None,
    changes: Changes | None = None,
) -> ASGIApp:
    """Make the application, with the guard in front of it.

    step_words(step, n_candidates): a step of a trace in words, or None to show its name. host: the bound address; keys,
    audit: as in `Guard`. changes: runs changes of the index; None if no client may change it.
    """
    api = _Api(admission, step_words, changes)
    served: dict[str, Endpoint] = {
        "/v1/models": api.models,
        "/v1/models/{name:path}": api.model,
        "/v1/methods": api.methods,
        "/v1/index": api.index,
        "/v1/passages/{name:path}": api.passage,
        "/v1/changes/{name}": api.change,
        "/health": api.health,
        "/ready": api.ready,
        "/metrics": api.metrics,
        **{path: _page(*file) for path, file in PAGE.items()},
    }
    posted: dict[str, Endpoint] = {
        "/v1/answer": api.ask,
        "/v1/retrieve": partial(api.ask, retrieval=True),
        "/v1/chat/completions": partial(api.chat, read=read_chat, whole=chat_completion, events=ChatEvents),
        "/v1/responses": partial(api.chat, read=read_responses, whole=response_of, events=ResponseEvents),
        "/v1/embeddings": api.embed,
        "/v1/documents": api.add,
    }
    routes = [Route(path, call, methods=["POST"]) for path, call in posted.items()]
    routes += [Route(path, call, methods=["GET"]) for path, call in served.items()]
    routes += [Route("/v1/documents/{name:path}", api.remove, methods=["DELETE"])]
    routes += [Route("/openapi.json", partial(api.describe, routes), methods=["GET"])]
    return Guard(routes, host, admission.settings.serve, keys, admission.counts, audit)


def _page(name: str, media_type: str) -> Endpoint:
    content = (files("gpu_rag.serve") / "explorer" / name).read_bytes()

    async def page(request: Request) -> Response:
        """A file of the page."""
        return Response(content, media_type=media_type)

    return page


class _Api:
    """The endpoints. The column of passage ids is read on creation, and again by the first request for a passage after
    the index was replaced."""

    def __init__(self, admission: Admission, step_words: StepWords, changes: Changes | None):
        self._admission, self._live, self._settings = admission, admission.live, admission.settings.serve
        self._step_words, self._created, self._maybe_changes = step_words, int(time.time()), changes
        index = self._live.engine.index
        if index.rows_of_passages:
            index.places([0])
        admission.counts.registry.register(EngineMetrics(self._live, lambda: admission.n_open))

    async def ask(self, request: Request, *, retrieval: bool = False) -> Response:
        """Answer questions, with rows as `gpu-rag answer` writes them. retrieval: only evidence; no reader runs."""
        raw = await read_body(request, self._settings)
        body, questions, single = read_ask(raw, self._settings.params, retrieval=retrieval)
        support = not retrieval if body.support is None else body.support
        wanted = Wanted(body.method, retrieval, body.passages, body.params, body.where, support)
        shape = partial(self._shaped, retrieval, bool(body.words))
        batch = await self._admission.ask(wanted, questions, shape=shape, seconds=deadline_s(request))
        if NDJSON in request.headers.get("accept", ""):
            return Streamed(batch, lambda row: bytes(Json(row).body) + b"\n", NDJSON)
        rows = await batch.collected(request.receive)
        return Json(rows[0] if single else {"answers": rows})

    def _shaped(self, retrieval: bool, words: bool, row: dict[str, Any]) -> dict[str, Any]:
        """The row that the client gets. A retrieval has no answer; `words` adds the steps of the trace in words."""
        if retrieval:
            row = {name: value for name, value in row.items() if name not in ("answer", "grounding")}
        if words:
            steps = [(step["verb"], step["n_candidates"]) for step in row["trace"]]
            row["words"] = [self._step_words(*step) or step[0] for step in steps]
        return row

    async def chat(self, request: Request, *, read: Any, whole: Any, events: Any) -> Response:
        """Answer the last user message by OpenAI's protocol. The model's name is a method, and earlier messages are the
        question's history.

        read: checks the body; whole, events: the forms of the reply, see `chat_completion` and `ChatEvents`.
        """
        body, question, history = read(await read_body(request, self._settings))
        wanted = Wanted(self._method_of(body.model), False, where=body.where, support=True)
        batch = await self._admission.ask(
            wanted, [question], pieces=bool(body.stream), history=history, seconds=deadline_s(request)
        )
        if body.stream:
            return Streamed(batch, events(body), SSE)
        (row,) = await batch.collected(request.receive)
        return Json(whole(row, body.model))

    async def embed(self, request: Request) -> Response:
        """The vectors of texts, by the index's embedder."""
        body, texts = read_embeddings(await read_body(request, self._settings))
        batch = embedding_batch(self._admission, body, texts, deadline_s(request))
        (row,) = await batch.collected(request.receive)
        return Json(embeddings_of(row, body, texts))

    def _method_of(self, model: str) -> str:
        """The method that a model name stands for. Raises Refusal (404)."""
        names, method = self._live.answering, model.removeprefix("gpu-rag/")
        if method not in names:
            expected = " | ".join(names) or "none: this server has no language model"
            raise Refusal(404, "no such model", kind="model_not_found", given=model[:80], expected=expected)
        return method

    def _described(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "gpu-rag"}

    async def describe(self, routes: Sequence[Route], request: Request) -> Response:
        """This API in OpenAPI's form."""
        return Json(openapi(routes))

    async def models(self, request: Request) -> Response:
        """List the methods that can answer on this server, as models, and the embedder."""
        names = [*self._live.answering, self._live.embedder["name"]]
        return Json({"object": "list", "data": [self._described(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Describe one of the models that `models` lists. Raises Refusal (404)."""
        name = request.path_params["name"]
        if name.removeprefix("gpu-rag/") != self._live.embedder["name"]:
            self._method_of(name)
        return Json(self._described(name))

    async def methods(self, request: Request) -> Response:
        """List every method: whether it retrieves and answers on this server, the reason if it does not, the command
        that builds the missing part of the index, and its parameters."""
        rows = []
        for name, lack in self._live.lacking.items():
            answers, line = name in self._live.answering, None
            missing = None if lack is None else str(lack)
            if isinstance(lack, MissingLayer):
                missing, line = f"{lack.what}: {lack.given}", _LINE.search(lack.do or "")
            row = {"method": name, "retrieves": lack is None, "answers": answers, "missing": missing}
            params = vars(self._live.engine.params(name)) if lack is None else {}
            rows.append({**row, "run": line[0] if line else None, "params": params})
        return Json({"methods": rows})

    def index(self, request: Request) -> Response:
        """The content of the index, and the models that answer. Not async, so Starlette runs it in a thread."""
        engine = self._live.engine
        index, manifest = engine.index, engine.index.manifest
        document = {
            "index": Path(index.path).resolve().name,
            "digest": manifest.digest(),
            "layers": list(index.stages),
            "counts": index.counts(),
            "sources": manifest.sources,
            "models": {"embedder": manifest.model("embedder"), "llm": self._live.llm},
            "reader_passages": engine.settings.reader.passages,
        }
        return Json(document)

    async def passage(self, request: Request) -> Response:
        """The text of a passage, and its place. Raises Refusal (404)."""
        name = request.path_params["name"]
        index = self._live.engine.index
        row = index.rows_of_passages.get(name)
        if row is None:
            raise Refusal(404, "no such passage", given=name[:80])
        (passage,) = index.passage_rows([row])
        file, place = index.places([row])[0]
        kept = {key: passage[key] for key in ("doc_id", "title", "text", "start", "end")}
        metadata = index.metadata_of(row)
        more: dict[str, Any] = {"metadata": metadata} if metadata else {}
        return Json({"passage_id": name, **kept, "file": file, "place": place, **more})

    @property
    def _changes(self) -> Changes:
        if self._maybe_changes is None:
            do = 'start it with --api-key-file FILE.toml, and rights = ["change"] for a key'
            raise Refusal(403, "nobody may change the index through this server", kind="Forbidden", do=do)
        return self._maybe_changes

    async def add(self, request: Request) -> Response:
        """Begin to add documents, and return the change."""
        changes = self._changes
        rows = read_documents(await read_body(request, self._settings))
        return Json(to_builtins(changes.add(rows)), 202)

    async def remove(self, request: Request) -> Response:
        """Begin to remove a document, and return the change."""
        return Json(to_builtins(self._changes.remove(request.path_params["name"])), 202)

    async def change(self, request: Request) -> Response:
        """A change, and its result when it is done. Raises Refusal (404)."""
        return Json(to_builtins(self._changes.get(request.path_params["name"])))

    async def health(self, request: Request) -> Response:
        """Whether the process should be kept alive: no longer once its engine has stopped for good."""
        return Json({"live": not self._live.gone}, 503 if self._live.gone else 200)

    async def ready(self, request: Request) -> Response:
        """Whether questions are accepted."""
        live = self._live
        ready = live.state == READY and not self._admission.closed
        state = live.state if ready or live.state == DEAD else "stopping"
        return Json({"ready": ready, "state": state, "reason": live.reason or None}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Counts in the Prometheus format."""
        return Response(generate_latest(self._admission.counts.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
