"""The official client of OpenAI's protocol against a real server: replies, streams, models, errors; and batch rows."""

import importlib.util
import os
import time

import pytest

if importlib.util.find_spec("openai") is None and not os.environ.get("CI"):
    pytest.skip("the official client is in the extra `dev`", allow_module_level=True)

import httpx
import openai
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.shared import ErrorObject

QUESTION = "Who founded the University of Loss?"
ANSWER = "Hugo Brandt founded the University of Loss"
ASKED = {"model": "gpu-rag/bm25", "messages": [{"role": "user", "content": QUESTION}]}
COLD = ("--set", "serve.warm=false")


def says(prompt):
    return 200, ANSWER


def official(process, **options):
    """The client; it does not try again, so that errors are seen."""
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key="any-key", max_retries=0, **options)


def strictly(shape, body):
    """The body as the client's own type, without coercion; what it does not know is only our row."""
    found = shape.model_validate(body, strict=True)
    assert set(found.model_extra or ()) <= {"gpu_rag"}
    return found


def test_replies_models_and_errors(served, index, chat_server):
    model = chat_server(says)
    process = served(index, "--set", f"models.llm={model.spec}", *COLD)
    bodies = []
    hooks = {"response": [lambda response: bodies.append(response.read() and response.json())]}
    client = official(process, http_client=httpx.Client(event_hooks=hooks, timeout=300))
    done = client.chat.completions.create(**ASKED)
    assert done.choices[0].message.content == ANSWER and done.choices[0].finish_reason == "stop"
    assert abs(done.created - time.time()) < 3600 and done.usage.total_tokens > 0
    strictly(ChatCompletion, bodies[-1])
    assert done.gpu_rag["grounding"]["status"] == "supported" and done.gpu_rag["support"] and done.gpu_rag["evidence"]
    assert "bm25" in [one.id for one in client.models.list()]
    for card in bodies[-1]["data"]:
        strictly(Model, card)
    assert client.models.retrieve("gpu-rag/bm25").owned_by == "gpu-rag"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**ASKED, "model": "gpt-4"})
    assert (missing.value.code, missing.value.type) == ("model_not_found", "invalid_request_error")
    strictly(ErrorObject, bodies[-1]["error"])
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ASKED, n=2)
    assert refused.value.code == "BadInput" and "one answer" in refused.value.message
    model.behave = lambda prompt: (400, "no")
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(model="bm25", messages=[{"role": "user", "content": "Who was mayor?"}])
    assert failed.value.code == "RequestFailed"
    strictly(ErrorObject, bodies[-1]["error"])
    with pytest.raises(openai.APIError, match="no"):
        list(official(process).chat.completions.create(**ASKED, stream=True))


def test_the_answer_streams_and_its_grounding_comes_last(served, index, chat_server):
    model = chat_server(says, pace=0.05)
    process = served(index, "--set", f"models.llm={model.spec}", *COLD)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    client, chunks, times = official(process), [], []
    for chunk in client.chat.completions.create(**ASKED, **options):
        strictly(ChatCompletionChunk, chunk.to_dict(mode="json"))
        chunks.append(chunk)
        times.append(time.perf_counter())
    pieces = [c.choices[0].delta.content for c in chunks[:-2]]
    assert {c.choices[0].finish_reason for c in chunks[:-2]} == {None}
    assert "".join(pieces) == ANSWER and len(pieces) >= 4 and chunks[0].choices[0].delta.role == "assistant"
    assert times[len(pieces) - 1] - times[0] > 0.1, "they came as they were said"
    last, usage = chunks[-2:]
    assert last.choices[0].finish_reason == "stop" and last.gpu_rag["grounding"]["status"] == "supported"
    assert last.gpu_rag["answer"] == ANSWER and last.gpu_rag["support"]
    assert usage.choices == [] and usage.usage.total_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.usage for chunk in chunks[:-1]} == {None}
    # a reply that breaks off, and comes again, is not said twice
    model.broken, model.n_streamed = 1, 0
    assert "".join(pieces_of(client, f"{QUESTION} Again.")) == ANSWER and model.n_streamed == 2
    check_first_token(client, model)


def pieces_of(client, text):
    asked = [{"role": "user", "content": text}]
    for chunk in client.chat.completions.create(model="bm25", messages=asked, stream=True):
        yield chunk.choices[0].delta.content or ""


def check_first_token(client, model):
    """It takes at most 1.2 times what the model takes; on a busy machine one good run of a few is enough."""
    model.seconds, ratios = 0.4, []
    for i in range(4):
        pieces = pieces_of(client, f"{QUESTION} ({i})")
        next(filter(None, pieces))
        ratios.append((time.perf_counter() - model.came[-1]) / (model.sent_first[-1] - model.came[-1]))
        pieces.close()
        if ratios[-1] <= 1.2:
            return
    raise AssertionError(ratios)
