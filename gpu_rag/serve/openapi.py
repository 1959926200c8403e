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
BODIES = {
    "/v1/answer": "AnswerBody",
    "/v1/retrieve": "RetrieveBody",
    "/v1/chat/completions": "ChatBody",
    "/v1/responses": "ResponsesBody",
    "/v1/embeddings": "EmbeddingsBody",
    "/v1/documents": "DocumentsBody",
}
STREAMS = {"/v1/answer": NDJSON, "/v1/retrieve": NDJSON, "/v1/chat/completions": SSE, "/v1/responses": SSE}
_TEXT = {"type": "string"}
_DOCUMENT = {
    "type": "object",
    "properties": {"id": {**_TEXT, "minLength": 1}, "text": {**_TEXT, "minLength": 1}, "title": _TEXT},
    "required": ["id", "text"],
}
_DOCUMENTS = {
    "type": "object",
    "properties": {"documents": {"type": "array", "items": _DOCUMENT, "minItems": 1}},
    "required": ["documents"],
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}, "required": ["type", "message"]}
    },
    "required": ["error"],
}
_DEADLINE = {"name": "X-Deadline-Seconds", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0}}


def openapi(routes: Iterable[tuple[str, str, Callable[..., Any]]]) -> dict[str, Any]:
    """The OpenAPI document of routes (method, path, endpoint). Each operation's summary is the first sentence of its
    endpoint's docstring. Routes of an index are also served below /w/NAME, which is said by `servers`."""
    paths: dict[str, dict[str, Any]] = {}
    for method, route, endpoint in routes:
        path = re.sub(r":\w+}", "}", route)
        paths.setdefault(path, {})[method.lower()] = _operation(endpoint, path, method)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpu-rag", "version": version("gpu-rag"), "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}, {"url": "/w/{index}", "variables": {"index": {"default": "NAME"}}}],
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": {"key": bearer}},
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
        body = {JSON: {"schema": _ref(BODIES[path])}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _schemas() -> dict[str, Any]:
    """The schemas of bodies. One question may stand in a body itself, in place of `questions`."""
    types = (AskBody, AskedQuestion, ChatBody, EmbeddingsBody, ResponsesBody, Changed)
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    several, asked = schemas.pop("AskBody"), schemas["AskedQuestion"]
    shared = {name: value for name, value in several["properties"].items() if name != "questions"}
    single = {**several, "properties": {**asked["properties"], **shared}, "required": ["question"]}
    forms = {"Questions": several, "Question": single}
    for name, more in (("Answer", ()), ("Retrieve", ("passages",))):
        for form, schema in forms.items():
            kept = {key: value for key, value in schema["properties"].items() if key != "passages" or key in more}
            schemas[f"{name}{form}"] = {**schema, "title": f"{name}{form}", "properties": kept}
        schemas[f"{name}Body"] = {"oneOf": [_ref(f"{name}{form}") for form in forms]}
    return {**schemas, "DocumentsBody": _DOCUMENTS, "Error": _ERROR}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
