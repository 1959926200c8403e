"""The routes of the server, and the application that answers them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import to_builtins
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from gpu_rag.errors import MissingLayer, UsageError
from gpu_rag.index.index import Index
from gpu_rag.index.where import matching
from gpu_rag.serve.admission import Admission, Batch, Shape, Streamed
from gpu_rag.serve.audit import Audit
from gpu_rag.serve.bodies import read_ask, read_chat, read_embeddings, read_responses
from gpu_rag.serve.changes import Changes, read_documents
from gpu_rag.serve.chat import ChatEvents, chat_completion
from gpu_rag.serve.embeddings import embedding_batch, embeddings_of
from gpu_rag.serve.explore import Explore
from gpu_rag.serve.guard import BELOW, Door, Endpoint, Guard, Json, deadline_s, read_body
from gpu_rag.serve.keys import FORBIDDEN, Access, Client, Keys
from gpu_rag.serve.live import DEAD, READY, EngineThread, ServedIndex, Wanted
from gpu_rag.serve.metrics import EngineMetrics
from gpu_rag.serve.openapi import NDJSON, SSE, openapi
from gpu_rag.serve.refusal import Refusal
from gpu_rag.serve.responses import ResponseEvents, response_of
from gpu_rag.types import Question

PAGE_FILES = ("page.css", "app.js", "server.js", "dom.js", "answer.js", "picture.js", "explore.js", "documents.js",
              "compare.js", "cytoscape.js")  # fmt: skip
StepWords = Callable[[str, int], str | None]  # (step of a trace, n_candidates): the step in words; None: its name
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_BUILD_COMMAND = re.compile(r"gpu-rag index .*? --for [\w-]+")  # in the advice of an error

# how OpenAI's protocols are read and written
CHAT: dict[str, Any] = {"read": read_chat, "whole": chat_completion, "events": ChatEvents}
RESPONSES: dict[str, Any] = {"read": read_responses, "whole": response_of, "events": ResponseEvents}


class Row(NamedTuple):
    """A row of the table of routes. call: the endpoint; access: who may use the route."""

    method: str
    path: str
    call: Endpoint
    access: Access


BOTH = ("", BELOW)  # places of the routes of an index
ANYBODY = Access()  # routes that show nothing of an index
METRICS, CHANGE = Access(("metrics",)), Access(("change",))
READ = Access(("read",))
FILTERED, ANSWER = Access(("read",), filtered=True), Access(("answer",), filtered=True)
KNOWN = Access(("read", "answer"), filtered=True)  # nothing in it comes from a document


def make_app(
    thread: EngineThread,
    admission: Admission,
    step_words: StepWords,
    host: str,
    keys: Keys | None = None,
    audit: Audit | None = None,
    changes: Changes | None = None,
) -> Guard:
    """Make the application, with the guard in front of it.

    host: the bound address; keys, audit: as in `Guard`. changes: runs changes of the indexes; None if no client may
    change them.
    """
    tables = {name: _IndexApi(admission, live, step_words, changes).rows() for name, live in thread.indexes.items()}
    of_index = next(iter(tables.values()))
    doors = [
        Door(method, f"{below}{path}", {name: table[place].call for name, table in tables.items()}, access)
        for place, (method, path, _, access) in enumerate(of_index)
        for below in BOTH
    ]
    whole = _Whole(thread, admission, keys).rows()
    whole += [Row("GET", f"/page/{name}", _page(name), ANYBODY) for name in PAGE_FILES]
    whole += [Row("GET", "/", _page("index.html"), ANYBODY)]
    whole += [Row("GET", "/openapi.json", partial(_described, [*of_index, *whole]), ANYBODY)]
    whole += [Row("GET", f"{BELOW}/", _page("index.html"), ANYBODY)]
    doors += [Door(method, path, {"": call}, access) for method, path, call, access in whole]
    return Guard(doors, next(iter(tables)), host, admission.settings.serve, keys, admission.counts, audit)


def _page(name: str) -> Endpoint:
    content = (files("gpu_rag.serve") / "page" / name).read_bytes()
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]

    async def page(request: Request) -> Response:
        """A file of the page."""
        return Response(content, media_type=media_type)

    return page


async def _described(rows: Sequence[Row], request: Request) -> Response:
    """This API in OpenAPI's form."""
    here = ("GET", "/openapi.json", partial(_described, rows))
    return Json(openapi([here, *((method, path, call) for method, path, call, _ in rows)]))


def _filter_of(request: Request) -> tuple[str, str]:
    """(name of the client, filter of its key); "" for a filter that the key does not have, and for both without
    keys."""
    caller: Client | None = request.scope["caller"]
    return ("", "") if caller is None else (caller.name, caller.settings.where)


class _Whole:
    """The endpoints of the whole server."""

    def __init__(self, thread: EngineThread, admission: Admission, keys: Keys | None):
        self._thread, self._admission = thread, admission
        admission.counts.registry.register(EngineMetrics(thread, lambda: admission.n_open, keys))

    def rows(self) -> list[Row]:
        return [
            Row("GET", "/v1/indexes", self.indexes, KNOWN),
            Row("GET", "/health", self.health, ANYBODY),
            Row("GET", "/ready", self.ready, ANYBODY),
            Row("GET", "/metrics", self.metrics, METRICS),
        ]

    async def indexes(self, request: Request) -> Response:
        """List the indexes that the client may use, the first index first. Digest and number of passages tell of all
        documents, so both are null for a key with a filter."""
        caller, (_, within) = request.scope["caller"], _filter_of(request)
        rows = list[dict[str, Any]]()
        for place, (name, live) in enumerate(self._thread.indexes.items()):
            if caller is None or caller.may_use(name):
                index, base = live.engine.index, f"{BELOW.format(index=name)}/" if place else "/"
                content = (None, None) if within else (index.manifest.digest(), index.counts().get("passages", 0))
                rows.append({"name": name, "base": base, **dict(zip(("digest", "passages"), content))})
        return Json({"indexes": rows})

    async def health(self, request: Request) -> Response:
        """Whether the process should be kept alive: false once its engine has stopped for good."""
        return Json({"live": not self._thread.gone}, 503 if self._thread.gone else 200)

    async def ready(self, request: Request) -> Response:
        """Whether questions are accepted."""
        thread = self._thread
        ready = thread.state == READY and not self._admission.closed
        state = thread.state if ready or thread.state == DEAD else "stopping"
        return Json({"ready": ready, "state": state, "reason": thread.reason or None}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Counts in the Prometheus format."""
        return Response(generate_latest(self._admission.counts.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class _IndexApi:
    """The endpoints of an index. The column of passage ids is read on creation, and again by the first request for a
    passage after the index was replaced."""

    def __init__(self, admission: Admission, live: ServedIndex, step_words: StepWords, changes: Changes | None):
        self._admission, self._live, self._settings = admission, live, admission.settings.serve
        self._step_words, self._created, self._maybe_changes = step_words, int(time.time()), changes
        index = self._live.engine.index
        if index.rows_of_passages:
            index.places([0])

    def rows(self) -> list[Row]:
        return [
            Row("POST", "/v1/answer", self.ask, ANSWER),
            Row("POST", "/v1/retrieve", partial(self.ask, retrieval=True), FILTERED),
            Row("POST", "/v1/chat/completions", partial(self.chat, **CHAT), ANSWER),
            Row("POST", "/v1/responses", partial(self.chat, **RESPONSES), ANSWER),
            Row("POST", "/v1/embeddings", self.embed, FILTERED),
            Row("GET", "/v1/models", self.models, KNOWN),
            Row("GET", "/v1/models/{name:path}", self.model, KNOWN),
            Row("GET", "/v1/methods", self.methods, KNOWN),
            Row("GET", "/v1/index", self.index, FILTERED),
            Row("GET", "/v1/passages/{name:path}", self.passage, FILTERED),
            Row("POST", "/v1/documents", self.add, CHANGE),
            Row("DELETE", "/v1/documents/{name:path}", self.remove, CHANGE),
            Row("GET", "/v1/changes/{name}", self.change, CHANGE),
            *(Row("GET", path, call, READ) for path, call in Explore(self._live).routes().items()),
        ]

    async def _asked(
        self, request: Request, wanted: Wanted, questions: Sequence[Question], shape: Shape = dict, **options: Any
    ) -> Batch:
        """`Admission.ask`, under the filters of the client's key and of the request; rows show only the request's.
        Raises Refusal (403) if the error of a filter would show the key's filter."""
        options["seconds"] = deadline_s(request)
        name, within = _filter_of(request)
        if not within:
            return await self._admission.ask(self._live, wanted, questions, shape=shape, **options)
        await asyncio.to_thread(self._part, name, within, wanted.where)
        both = f"({within}) and ({wanted.where})" if wanted.where else within

        def shaped(row: dict[str, Any]) -> dict[str, Any]:
            del row["where"]
            return shape({**row, "where": wanted.where} if wanted.where else row)

        try:
            filtered = replace(wanted, where=both)
            return await self._admission.ask(self._live, filtered, questions, shape=shaped, **options)
        except UsageError as error:
            if " ".join(within.split()) not in str(error):  # errors have single spaces
                raise
            raise Refusal(403, error.what, kind=FORBIDDEN, given=name) from error

    def _part(self, name: str, within: str, where: str = "") -> Index | None:
        """The documents that a client with a filter sees; None if there are none. It may take long.

        name: name of the client; within: its filter. where: a filter of the request. It is checked alone, so that it
        cannot close the brackets around the other one, and against the metadata that the client sees. Raises UsageError
        for it, and Refusal (403) if `within` does not fit the index.
        """
        try:
            part = self._live.engine.narrowed(within)
        except UsageError as error:  # the index has other columns than when the key was read
            raise Refusal(403, "the filter of this key does not fit the index", kind=FORBIDDEN, given=name) from error
        if where:
            metadata = pa.table({}) if part is None or part.metadata is None else part.metadata
            seen = [name for name in metadata.column_names if metadata[name].null_count < metadata.num_rows]
            matching(where, metadata.select(seen))
        return part

    async def ask(self, request: Request, *, retrieval: bool = False) -> Response:
        """Answer questions, with rows as `gpu-rag answer` writes them. retrieval: only evidence; no reader runs."""
        raw = await read_body(request, self._settings)
        body, questions, single = read_ask(raw, self._settings.params, retrieval=retrieval)
        support = not retrieval if body.support is None else body.support
        wanted = Wanted(body.method, retrieval, body.passages, body.params, body.where, support)
        shape = partial(self._shaped, retrieval, bool(body.words))
        batch = await self._asked(request, wanted, questions, shape)
        if NDJSON in request.headers.get("accept", ""):
            return Streamed(batch, lambda row: bytes(Json(row).body) + b"\n", NDJSON)
        rows = await batch.collect(request.receive)
        return Json(rows[0] if single else {"answers": rows})

    def _shaped(self, retrieval: bool, words: bool, row: dict[str, Any]) -> dict[str, Any]:
        """The row as the client gets it. retrieval: without answer; words: with the steps of the trace in words."""
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
        shape = partial(self._shaped, False, bool(body.words))
        batch = await self._asked(request, wanted, [question], shape, pieces=bool(body.stream), history=history)
        if body.stream:
            return Streamed(batch, events(body), SSE)
        (row,) = await batch.collect(request.receive)
        return Json(whole(row, body.model))

    async def embed(self, request: Request) -> Response:
        """Embed texts with the index's embedder."""
        body, texts = read_embeddings(await read_body(request, self._settings))
        batch = embedding_batch(self._admission, self._live, body, texts, deadline_s(request))
        (row,) = await batch.collect(request.receive)
        return Json(embeddings_of(row, body, texts))

    def _method_of(self, model: str) -> str:
        """The method that a model name means. Raises Refusal (404)."""
        names, method = self._live.answering, model.removeprefix("gpu-rag/")
        if method not in names:
            expected = " | ".join(names) or "none: this server has no language model"
            raise Refusal(404, "no such model", kind="model_not_found", given=model[:80], expected=expected)
        return method

    def _model_row(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "gpu-rag"}

    async def models(self, request: Request) -> Response:
        """List the methods that can answer on this server, as models, and the embedder."""
        names = [*self._live.answering, self._live.embedder["name"]]
        return Json({"object": "list", "data": [self._model_row(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Describe one of the models that `models` lists. Raises Refusal (404)."""
        name = request.path_params["name"]
        if name.removeprefix("gpu-rag/") != self._live.embedder["name"]:
            self._method_of(name)
        return Json(self._model_row(name))

    async def methods(self, request: Request) -> Response:
        """List every method: whether it retrieves and answers on this server, the reason if it does not, the command
        that builds the missing part of the index, and its parameters."""
        rows = []
        for name, lack in self._live.lacking.items():
            answers, command = name in self._live.answering, None
            missing = None if lack is None else str(lack)
            if isinstance(lack, MissingLayer):
                missing, command = f"{lack.what}: {lack.given}", _BUILD_COMMAND.search(lack.do or "")
            row = {"method": name, "retrieves": lack is None, "answers": answers, "missing": missing}
            params = vars(self._live.engine.params(name)) if lack is None else {}
            rows.append({**row, "run": command[0] if command else None, "params": params})
        return Json({"methods": rows})

    def index(self, request: Request) -> Response:
        """The content of the index, and the models that answer.

        A key with a filter gets counts of its own documents, and no digest and no sources. Not async, so it runs in a
        thread.
        """
        engine, (client, within) = self._live.engine, _filter_of(request)
        index, manifest = engine.index, engine.index.manifest
        counts = index.counts()
        if within:
            part = self._part(client, within)
            sizes = (0, 0) if part is None else (part.documents.num_rows, part.n_passages)
            counts = dict(zip(("documents", "passages"), sizes))
        document = {
            "index": Path(index.path).resolve().name,
            "digest": None if within else manifest.digest(),
            "layers": list(index.stages),
            "counts": counts,
            "sources": {} if within else manifest.sources,
            "models": {"embedder": manifest.model("embedder"), "llm": self._live.thread.llm},
            "reader_passages": engine.settings.reader.passages,
        }
        return Json(document)

    async def passage(self, request: Request) -> Response:
        """The text of a passage, its place in a file, and its metadata. Raises Refusal (404)."""
        name, (client, within) = request.path_params["name"], _filter_of(request)
        index = await asyncio.to_thread(self._part, client, within) if within else self._live.engine.index
        row = None if index is None else index.rows_of_passages.get(name)
        if index is None or row is None:
            raise Refusal(404, "no such passage", given=name[:80])
        (passage,) = index.passage_rows([row])
        file, place = index.places([row])[0]
        shown = {key: passage[key] for key in ("doc_id", "title", "text", "start", "end")}
        metadata = index.metadata_of(row)
        more: dict[str, Any] = {"metadata": metadata} if metadata else {}
        return Json({"passage_id": name, **shown, "file": file, "place": place, **more})

    @property
    def _changes(self) -> Changes:
        """The changes that clients asked for. Raises Refusal (403) if no client may change the index."""
        if self._maybe_changes is None:
            do = 'start it with --api-key-file FILE.toml, and rights = ["change"] for a key'
            raise Refusal(403, "nobody may change the index through this server", kind=FORBIDDEN, do=do)
        return self._maybe_changes

    def _owner(self, request: Request) -> tuple[str, str]:
        """(index, client): the owner of the changes that a request makes or sees."""
        caller: Client = request.scope["caller"]
        return self._live.name, caller.name

    @property
    def _folder(self) -> str:
        return str(self._live.engine.index.path)

    async def add(self, request: Request) -> Response:
        """Begin to add documents, and return the change."""
        changes = self._changes
        rows = read_documents(await read_body(request, self._settings))
        return Json(to_builtins(changes.add(self._owner(request), self._folder, rows)), 202)

    async def remove(self, request: Request) -> Response:
        """Begin to remove a document, and return the change."""
        change = self._changes.remove(self._owner(request), self._folder, request.path_params["name"])
        return Json(to_builtins(change), 202)

    async def change(self, request: Request) -> Response:
        """A change, and its result when it is done. Raises Refusal (404)."""
        return Json(to_builtins(self._changes.get(self._owner(request), request.path_params["name"])))
