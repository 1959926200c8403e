"""The OpenAPI document: it is valid, has every route, and its schemas admit what the server admits."""

import importlib.util
import json
import os

import pytest
from jsonschema import Draft202012Validator

if importlib.util.find_spec("openapi_spec_validator") is None and not os.environ.get("CI"):
    pytest.skip("the validator is in the extra `dev`", allow_module_level=True)

from openapi_spec_validator import OpenAPIV31SpecValidator

from gpu_rag.errors import GpuRagError
from gpu_rag.serve.changes import read_documents
from gpu_rag.serve.openapi import BODIES, STREAMS

QUESTION = "Who founded the University of Loss?"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def server(here):
    return here()


def test_it_is_valid_and_needs_no_key(here):
    got = here(key="a-long-secret").ask("GET", "/openapi.json")
    assert got.status_code == 200 and got.json()["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(got.json()).validate()
    names = [operation["operationId"] for path in got.json()["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names) and all(
        operation["summary"] for path in got.json()["paths"].values() for operation in path.values()
    )


def test_it_has_every_route_and_each_stream_and_body_is_of_one(server):
    described = {
        (path, method) for path, item in server.ask("GET", "/openapi.json").json()["paths"].items() for method in item
    }
    routes = [route for route in server.app._router.routes if not route.path.startswith("/w/")]
    served = {
        (route.path.replace(":path}", "}"), method.lower()) for route in routes for method in route.methods - {"HEAD"}
    }
    assert described == served and len(served) >= 20
    assert {path for path, method in served if method == "post"} == set(BODIES) >= set(STREAMS)


BODY = {
    "/v1/answer": [
        {"question": QUESTION}, {"question": QUESTION, "id": 7, "method": "bm25", "words": True},
        {"questions": [{"question": QUESTION}, {"question": "Who?", "id": "b"}], "where": "", "support": False},
        {}, {"question": 3}, {"questions": []}, {"question": QUESTION, "k": 3},
        {"questions": [{"question": QUESTION}], "question": QUESTION}, {"question": "x" * 4001},
    ],
    "/v1/retrieve": [
        {"question": QUESTION, "passages": 3}, {"questions": [{"question": QUESTION}], "passages": 100},
        {"question": QUESTION, "passages": 0}, {"question": QUESTION, "passages": 101}, {"passages": 3},
    ],
    "/v1/chat/completions": [
        {"model": "bm25", "messages": MESSAGES, "temperature": 0.5}, {"model": "bm25"}, {"messages": MESSAGES},
        {"model": "bm25", "messages": "text"}, {"model": "bm25", "messages": MESSAGES, "stream": "yes"},
    ],
    "/v1/responses": [
        {"model": "bm25", "input": QUESTION}, {"model": "bm25", "input": MESSAGES}, {"model": "bm25"},
        {"model": "bm25", "input": 3},
    ],
    "/v1/embeddings": [
        {"model": "hash", "input": "a"}, {"model": "hash", "input": ["a"] * 1024, "encoding_format": "base64"},
        {"model": "hash", "input": ["a"] * 1025}, {"model": "hash", "input": []}, {"model": "hash", "input": [3]},
        {"model": "hash", "input": "a", "encoding_format": "int8"}, {"input": "a"},
    ],
    "/v1/documents": [
        {"documents": [{"id": "a", "text": "b", "title": "c", "year": 1}]}, {"documents": []},
        {"documents": [{"id": "a"}]}, {"documents": [{"id": "", "text": "b"}]},
    ],
}  # fmt: skip


def test_its_schemas_admit_what_the_server_admits(server):
    document = server.ask("GET", "/openapi.json").json()
    assert set(BODY) == set(BODIES)
    for path, bodies in BODY.items():
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**reference, "components": document["components"]})
        valid = [validator.is_valid(body) for body in bodies]
        assert True in valid and False in valid
        if path == "/v1/documents":
            for body, fits in zip(bodies, valid, strict=True):
                if fits:
                    assert read_documents(json.dumps(body).encode()) == body["documents"]
                else:
                    with pytest.raises(GpuRagError):
                        read_documents(json.dumps(body).encode())
            continue
        for body, fits in zip(bodies, valid, strict=True):
            got = server.ask("POST", path, json=body)
            assert got.status_code == (200 if fits else 400), (path, str(body)[:200], got.text[:300])
            if not fits:
                error = {"$ref": "#/components/schemas/Error", "components": document["components"]}
                assert Draft202012Validator(error).is_valid(got.json())
