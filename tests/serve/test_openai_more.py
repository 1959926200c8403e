"""Responses and embeddings by the official client: texts, streams, citations, vectors, refusals."""

import asyncio
import base64
import importlib.util
import json
import os

import numpy as np
import pytest

if importlib.util.find_spec("openai") is None and not os.environ.get("CI"):
    pytest.skip("the official client is in the extra `dev`", allow_module_level=True)

import openai
from openai.types import CreateEmbeddingResponse
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gpu_rag.errors import ModelError
from gpu_rag.jobs import NO_MODEL
from gpu_rag.models.embed import load_embedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.serve.bodies import ResponsesBody
from gpu_rag.serve.embeddings import TEXTS_A_STEP
from gpu_rag.serve.responses import ResponseEvents, citations

QUESTION = "Who founded the University of Loss?"
ANSWER = "Hugo Brandt founded the University of Loss"
EVENT = TypeAdapter(ResponseStreamEvent)


def asked(server, call, **options):
    """The result of `call(client)`, by a client that does not try again."""

    async def run():
        async with server.client() as http:
            client = openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="any", max_retries=0, http_client=http)
            return await call(client)

    return asyncio.run(run())


def respond(server, **body):
    return asked(server, lambda client: client.responses.create(**{"model": "bm25", "input": QUESTION, **body}))


def test_a_response_without_a_model_is_the_chat_reply(here):
    body = {"model": "bm25", "messages": [{"role": "user", "content": QUESTION}]}
    server = here({"models": {"llm": "none"}}, llm=lambda: None)
    done = respond(server)
    row, notes = done.gpu_rag, done.output[0].content[0].annotations
    chat = asked(server, lambda client: client.chat.completions.create(**body)).choices[0].message.content
    assert done.output_text == chat and chat.startswith(NO_MODEL) and chat.count("\n- ") == len(row["support"]) > 0
    assert {note.file_id for note in notes} == {sentence["passage_id"] for sentence in row["support"]}
    last = ResponseEvents(ResponsesBody(model="bm25", input=QUESTION))(row).decode().strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["response"]["output"][0]["content"][0]["text"] == chat


def embed(server, **body):
    return asked(server, lambda client: client.embeddings.create(**{"model": "hash", **body}))


def test_a_response_has_the_answer_its_usage_and_what_supports_it(here):
    server = here(llm=lambda: ScriptedLLM(lambda request: ANSWER))
    done = respond(server, instructions="be short", temperature=0.3, max_output_tokens=9)
    assert done.output_text == ANSWER and done.status == "completed" and done.usage.total_tokens > 0
    plain = done.to_dict(mode="json")
    assert set(Response.model_validate(plain, strict=True).model_extra) == {"gpu_rag"}
    row = done.gpu_rag
    assert row["question"] == QUESTION and row["grounding"]["status"] == "supported"
    notes = done.output[0].content[0].annotations
    supports = {sentence["passage_id"] for sentence in row["grounding"]["sentences"]}
    assert {note.file_id for note in notes} == supports and {note.index for note in notes} == {len(ANSWER)}
    assert {note.type for note in notes} == {"file_citation"} and all(note.filename for note in notes)
    passage = server.ask("GET", f"/v1/passages/{notes[0].file_id}").json()
    assert "Hugo Brandt" in passage["text"]
    # earlier messages, with the parts that the client writes
    before = [
        {"role": "developer", "content": "not read"},
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Where did he teach?"}]},
    ]
    small = here(llm=lambda: ScriptedLLM(lambda request: ANSWER, capable=False))
    row = respond(small, input=before).gpu_rag
    assert row["question"] == "Where did he teach?" and ANSWER.split(" founded")[0] in row["condensed"]


@pytest.mark.parametrize(
    "body",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"conversation": "conv_1"},
        {"tools": [{"type": "web_search"}]},
        {"text": {"format": {"type": "json_object"}}},
        {"input": []},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
        {"input": " "},
    ],
)
def test_what_a_response_cannot_be_is_refused(here, body):
    with pytest.raises(openai.BadRequestError) as refused:
        respond(here(), **body)
    assert (refused.value.code, refused.value.type) == ("BadInput", "invalid_request_error")
    if len(body) == 1 and next(iter(body)) not in ("input", "text"):
        assert next(iter(body)) in refused.value.message


def test_a_failed_question_and_another_model_are_errors(here):
    with pytest.raises(openai.NotFoundError) as missing:
        respond(here(), model="gpt-5")
    assert missing.value.code == "model_not_found"

    def dies(request):
        raise ModelError("the model is gone")

    with pytest.raises(openai.InternalServerError) as failed:
        respond(here(llm=lambda: ScriptedLLM(dies)))
    assert failed.value.status_code == 503


def test_a_response_streams_by_its_events(served, index, chat_server):
    model = chat_server(lambda prompt: (200, ANSWER), pace=0.05)
    process = served(index, "--set", f"models.llm={model.spec}", "--set", "serve.warm=false")
    client = openai.OpenAI(base_url=f"{process.url}/v1", api_key="any", max_retries=0)
    with client.responses.stream(model="bm25", input=QUESTION) as stream:  # it puts the pieces together by itself
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == ANSWER and final.gpu_rag["grounding"]["status"] == "supported"
    raw = list(client.responses.create(model="bm25", input=f"{QUESTION} Again.", stream=True))
    for event in raw:
        EVENT.validate_python(event.to_dict(mode="json"))
    kinds = [event.type for event in raw]
    n_pieces, n_notes = kinds.count("response.output_text.delta"), kinds.count("response.output_text.annotation.added")
    assert n_pieces >= 4 and n_notes >= 1 and len(events) >= len(raw) - 2
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * n_pieces, *["response.output_text.annotation.added"] * n_notes,
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert "".join(event.delta for event in raw if event.type == "response.output_text.delta") == ANSWER
    assert len({event.response.id for event in raw if hasattr(event, "response")}) == 1
    notes = [event.annotation for event in raw if event.type == "response.output_text.annotation.added"]
    assert [dict(note) for note in notes] == [
        note.to_dict() for note in raw[-1].response.output[0].content[0].annotations
    ]
    model.behave = lambda prompt: (400, "no")
    last = list(client.responses.create(model="bm25", input="Who was mayor?", stream=True))[-1]
    assert last.type == "response.failed" and last.response.error.code == "server_error"
    # vectors over a socket, also to the embedder that this program uses for servers
    served_by = load_embedder(f"{process.url}/v1#hash", connections=1)
    assert np.allclose(served_by.embed([QUESTION, ANSWER]), load_embedder("hash").embed([QUESTION, ANSWER]), atol=1e-6)
    n_before = process.metric("questions_total", method="embeddings")
    vector = client.embeddings.create(model="hash", input=QUESTION).data[0].embedding
    assert len(vector) == load_embedder("hash").dim
    assert process.metric("questions_total", method="embeddings") == n_before + 1


ROW = {
    "status": "answered",
    "answer": "Hugo Brandt [2], as said [7][1].",
    "evidence": [
        {"passage_id": "a", "title": "A", "file": ""},
        {"passage_id": "b", "title": "B", "file": "b.pdf"},
        {"passage_id": "c", "title": "C", "file": "c.pdf"},
    ],
    "grounding": {"status": "supported", "sentences": [{"passage_id": "b"}, {"passage_id": "c"}]},
    "usage": {"prompt_tokens": 3, "generated_tokens": 2, "cached_tokens": 1},
}


def test_marks_in_the_text_are_citations_where_they_stand():
    cited = [(note["file_id"], note["filename"], note["index"]) for note in citations(ROW)]
    answer = ROW["answer"]
    marks = [("b", "b.pdf", answer.index("[2]")), ("a", "A", answer.index("[1]"))]
    assert cited == [*marks, ("c", "c.pdf", len(answer))], "a mark beyond the passages cites none"
    assert citations({**ROW, "answer": None, "grounding": {"sentences": []}}) == []
    quoted = {"passage_id": "a", "start": 0, "end": 8, "text": "Ida [2].", "score": 1.0}
    assert [note["file_id"] for note in citations({**ROW, "status": "retrieved", "support": [quoted]})] == ["a"]


def test_pieces_that_begin_another_answer_stay_and_citations_move():
    events = ResponseEvents(ResponsesBody("bm25", QUESTION))
    sent = events("Hu") + events("no") + events(ROW)
    lines = [line.removeprefix(b"data: ") for line in sent.split(b"\n") if line.startswith(b"data: ")]
    parsed = [EVENT.validate_json(line) for line in lines]
    text = "".join(event.delta for event in parsed if event.type == "response.output_text.delta")
    final = parsed[-1].response.output[0].content[0]
    assert text == final.text == f"Huno\n{ROW['answer']}"
    assert [text[note.index : note.index + 3] for note in final.annotations] == ["[2]", "[1]", ""]


def test_vectors_are_those_of_the_embedder(here):
    server, texts = here(), [f"text {number}" for number in range(2 * TEXTS_A_STEP + 1)]
    wanted = load_embedder("hash").embed(texts)
    assert len({tuple(row) for row in wanted.tolist()}) > TEXTS_A_STEP
    for form in ({}, {"encoding_format": "base64"}, {"encoding_format": "float"}):
        got = embed(server, input=texts, **form)
        assert (got.object, got.model) == ("list", "hash") and [item.index for item in got.data] == [*range(len(texts))]
        vectors = [
            np.frombuffer(base64.b64decode(item.embedding), "<f4")
            if isinstance(item.embedding, str)
            else np.array(item.embedding, np.float32)
            for item in got.data
        ]
        assert np.array_equal(np.stack(vectors), wanted), form
    assert got.usage.prompt_tokens == got.usage.total_tokens == 2 * len(texts)
    CreateEmbeddingResponse.model_validate(got.to_dict(mode="json"), strict=True)
    one = embed(server, input=texts[3], model="gpu-rag/hash", dimensions=wanted.shape[1], user="me")
    assert np.array_equal(np.array(one.data[0].embedding, np.float32), wanted[3])
    assert server.admission.n_open == 0


@pytest.mark.parametrize(
    "body",
    [
        {"input": ""}, {"input": []}, {"input": ["a", " "]}, {"input": [1, 2]}, {"input": [[1, 2]]},
        {"input": "a", "dimensions": 7}, {"input": "a", "encoding_format": "int8"}, {"input": ["a"] * 1025},
    ],
)  # fmt: skip
def test_texts_that_cannot_be_embedded_are_refused(here, body):
    with pytest.raises(openai.BadRequestError) as refused:
        embed(here(), **body)
    assert refused.value.type == "invalid_request_error"


def test_embeddings_are_bounded_by_the_server_s_limits(here):
    with pytest.raises(openai.NotFoundError) as missing:
        embed(here(), input="a", model="text-embedding-3-small")
    assert missing.value.code == "model_not_found" and "hash" in missing.value.message
    server = here({"runtime": {"max_live": 1}, "serve": {"max_queue": 0}})
    server.admission.closed = True
    with pytest.raises(openai.InternalServerError) as stopping:
        embed(server, input="a")
    assert stopping.value.status_code == 503
    server.admission.closed = False

    async def two(client):
        calls = (client.embeddings.create(model="hash", input=["a"] * 1024) for _ in range(8))
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asked(server, two)
    assert any(isinstance(result, openai.RateLimitError) for result in results)
    assert any(isinstance(result, CreateEmbeddingResponse) for result in results)
