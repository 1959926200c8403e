"""The description of the API by OpenAPI 3.1, made from the routes, their docstrings and the types of their bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec

from gpu_rag.serve.bodies import AskBody, AskedQuestion, ChatBody, EmbeddingsBody, ResponsesBody
from gpu_rag.serve.changes import Changed

JSON, NDJSON, SSE = "application/json", "application/x-ndjson", "text/event-stream"
BODIES = {  # {path of a POST route: schema of its body}
    "/v1/answer": "AskBody",
    "/v1/retrieve": "AskBody",
    "/v1/chat/completions": "ChatBody",
    "/v1/responses": "ResponsesBody",
    "/v1/embeddings": "EmbeddingsBody",
    "/v1/documents": "DocumentsBody",
}
STREAMS = {"/v1/answer": NDJSON, "/v1/retrieve": NDJSON, "/v1/chat/completions": SSE, "/v1/responses": SSE}
_TEXT, _FULL = {"type": "string"}, {"type": "string", "minLength": 1}
_DEADLINE = {"name": "X-Deadline-Seconds", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0}}


def openapi(routes: Iterable[tuple[str, str, Callable[..., Any]]]) -> dict[str, Any]:
    """The OpenAPI document of routes (method, path, endpoint). An operation's summary is the first sentence of its
    endpoint's docstring. `servers` says that routes of an index are also served below /w/NAME."""
    paths: dict[str, dict[str, Any]] = {}
    for method, route, endpoint in routes:
        path = re.sub(r":\w+}", "}", route)
        paths.setdefault(path, {})[method.lower()] = _operation(endpoint, path, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpu-rag", "version": version("gpu-rag"), "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}, {"url": "/w/{index}", "variables": {"index": {"default": "NAME"}}}],
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],  # a server may have no keys
    }


def _operation(endpoint: Callable[..., Any], path: str, method: str) -> dict[str, Any]:
    endpoint = endpoint.func if isinstance(endpoint, partial) else endpoint
    summary = " ".join((endpoint.__doc__ or "").split()).partition(". ")[0].rstrip(".")
    names = re.findall(r"{(\w+)}", path)
    parameters: list[dict[str, Any]] = [{"name": n, "in": "path", "required": True, "schema": _TEXT} for n in names]
    changes = path.startswith("/v1/changes") or (path.startswith("/v1/documents") and method != "GET")
    content = {JSON: {"schema": _ref("Changed") if changes else {"type": "object"}}}
    if path in STREAMS:
        parameters.append(_DEADLINE)
        content[STREAMS[path]] = {"schema": _TEXT}
    done: dict[str, Any] = {"description": "the result"}
    if path.startswith(("/v1/", "/health", "/ready", "/openapi")):
        done["content"] = content
    failed = {"description": "an error", "content": {JSON: {"schema": _ref("Error")}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "operationId": f"{method.lower()}{re.sub('[^a-z]+', '_', path)}",
        "parameters": parameters,
        "responses": {"202" if changes and method != "GET" else "200": done, "default": failed},
    }
    if method == "POST":
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(BODIES[path])}}}
    return operation


def _schemas() -> dict[str, Any]:
    """The schemas of bodies. A body may have the fields of one question in place of `questions`."""
    types = (AskBody, AskedQuestion, ChatBody, EmbeddingsBody, ResponsesBody, Changed)
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    several, asked = schemas["AskBody"], schemas["AskedQuestion"]
    shared = {name: value for name, value in several["properties"].items() if name != "questions"}
    single = {**several, "properties": {**asked["properties"], **shared}, "required": ["question"]}
    own = {"AskBody": {"oneOf": [several, single]}, "Error": _object(error=_object(type=_TEXT, message=_TEXT))}
    documents = {"type": "array", "items": _object(id=_FULL, text=_FULL), "minItems": 1}
    return {**schemas, **own, "DocumentsBody": _object(documents=documents)}


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties, all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
