"""Requests of one client, and their refusals: a server in this process, without a socket."""

import json
import shutil
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.errors import RequestFailed
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.serve.guard import allowed_hosts
from gpu_rag.settings.sections import ServeSettings

JSON = {"content-type": "application/json"}
QUESTION = "Who founded the University of Loss?"


def post(server, path: str = "/v1/answer", **body: Any):
    return server.ask("POST", path, json={"method": "ppr", **body})


def message(response) -> str:
    return response.json()["error"]["message"]


def test_a_row_is_that_of_answer(here, index, cli):
    from gpu_rag import Index
    from gpu_rag.jobs import row_of
    from gpu_rag.types import Question

    llm = ScriptedLLM(lambda request: cli.say(request.prompt))
    (answer,) = Index.open(index).answer(
        [Question("q1", QUESTION)], method="ppr", settings={"models": {"embedder": "hash"}}, llm=llm
    )
    server = here()
    got = post(server, id="q1", question=QUESTION, method="ppr", support=False)
    assert got.status_code == 200
    assert cli.settled(got.json()) == cli.settled(json.loads(json.dumps(row_of(answer))))
    assert list(got.json()) == list(row_of(answer)), "the same keys in the same order"
    asked = [{"id": "b", "question": "Who was born in 1871?"}, {"id": "q1", "question": QUESTION}]
    many = post(server, questions=asked, support=False)
    assert [row["id"] for row in many.json()["answers"]] == ["b", "q1"]
    assert cli.settled(many.json()["answers"][1]) == cli.settled(got.json())


def test_a_retrieval_asks_no_model_and_has_no_answer(here, index, cli):
    asked = []
    server = here(llm=lambda: ScriptedLLM(lambda request: asked.append(request) or "x"))
    row = post(server, "/v1/retrieve", question=QUESTION, method="dense", passages=2).json()
    assert (row["status"], len(row["evidence"]), asked) == ("retrieved", 2, []) and "answer" not in row
    assert len(post(server, "/v1/retrieve", question=QUESTION, method="dense", passages=1).json()["evidence"]) == 1
    assert "unknown key; given passages" in message(post(server, question=QUESTION, passages=2))


def test_without_a_method_auto_answers(here):
    server = here()
    by_default = server.ask("POST", "/v1/retrieve", json={"question": QUESTION}).json()
    chosen = post(server, "/v1/retrieve", question=QUESTION, method="auto").json()
    assert by_default["config_hash"] == chosen["config_hash"] and by_default["method"] == chosen["method"] != "ppr"


def test_sentences_come_with_answers_and_with_retrievals_on_demand(here):
    server = here()
    row = post(server, question=QUESTION).json()
    (first, *_), texts = row["support"], {item["passage_id"]: item["text"] for item in row["evidence"]}
    assert (
        texts[first["passage_id"]][first["start"] : first["end"]] == first["text"]
        and row["grounding"]["status"] == "supported"
    )
    assert "support" not in post(server, question=QUESTION, support=False).json()
    assert "support" not in post(server, "/v1/retrieve", question=QUESTION).json()
    retrieved = post(server, "/v1/retrieve", question=QUESTION, support=True).json()
    assert retrieved["support"] == row["support"]


def test_without_a_language_model_the_evidence_is_the_answer(here):
    server = here({"models": {"llm": "none"}}, llm=lambda: None)
    row = post(server, question=QUESTION).json()
    assert (row["status"], row["answer"], row["grounding"]["status"], row["usage"]["llm_calls"]) == (
        "retrieved",
        None,
        "none",
        0,
    )
    assert row["evidence"] and row["support"] and row["paths"]
    methods = {row["method"]: row for row in server.ask("GET", "/v1/methods").json()["methods"]}
    assert methods["ppr"]["answers"] and methods["ppr"]["missing"] is None and methods["hoprag"]["missing"]
    body = chat(server).json()
    content = body["choices"][0]["message"]["content"]
    assert body["gpu_rag"]["status"] == "retrieved"
    assert all(sentence["text"] in content for sentence in row["support"])
    streamed = chat(server, stream=True)
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, *_, last, _, _ = streamed.text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == content
    assert json.loads(last.removeprefix("data: "))["gpu_rag"]["support"] == body["gpu_rag"]["support"]


def test_words_of_the_trace_come_on_demand(here):
    server = here()
    row = post(server, question=QUESTION, method="dense", words=True).json()
    assert (
        len(row["words"]) == 2 and "of 6" in row["words"][0] and "words" not in post(server, question=QUESTION).json()
    )


def test_a_failed_question_is_a_row_and_the_server_goes_on(here, cli):
    def failing(request):
        return RequestFailed("refused") if "Who was mayor" in request.prompt else cli.say(request.prompt)

    server = here(llm=lambda: ScriptedLLM(failing))
    asked = [{"id": row["id"], "question": row["question"]} for row in cli.QUESTIONS]
    rows = post(server, questions=asked, method="dense").json()["answers"]
    assert [row["status"] for row in rows] == ["answered", "answered", "answered", "failed", "unsupported"]
    assert rows[3]["error"] == {"type": "RequestFailed", "message": "refused"}
    assert post(server, question=QUESTION).json()["answer"] == "Hugo Brandt"


def test_a_question_that_takes_too_long_is_a_failed_row(here):
    import threading

    held = threading.Event()
    server = here({"serve": {"question_seconds": 0.15}}, llm=lambda: ScriptedLLM(lambda r: held.wait(300) and "x"))
    try:
        row = post(server, question=QUESTION, method="bm25").json()
        assert row["status"] == "failed" and row["error"]["type"] == "BudgetExceeded"
        assert "0.15 s" in row["error"]["message"]
    finally:
        held.set()
    unhurried = replace(server.admission.settings, serve=replace(server.admission.settings.serve, question_seconds=0.0))
    server.admission.settings = unhurried  # a busy machine may need longer
    assert post(server, "/v1/retrieve", question=QUESTION, method="bm25").json()["status"] == "retrieved"


def test_parameters_are_set_only_where_the_server_allows_it(here, cli):
    server = here({"serve": {"params": ["ppr.damping", "bubblerag.*", "hydrarag.*"]}})
    plain, other = post(server, question=QUESTION), post(server, question=QUESTION, params={"damping": 0.5})
    assert other.status_code == 200 and other.json()["config_hash"] != plain.json()["config_hash"]
    retrieved = post(server, "/v1/retrieve", question=QUESTION, method="bubblerag", params={"depth": 1})
    assert retrieved.status_code == 200
    refused = {
        ("ppr", "n_facts"): "a client may not set this parameter; given ppr.n_facts",
        ("ppr", "nonsense"): "a client may not set this parameter",
        ("hydrarag", "web"): "given hydrarag.web",  # a text may name a server: a star does not allow it
    }
    for (method, name), said in refused.items():
        got = post(server, question=QUESTION, method=method, params={name: 3})
        assert got.status_code == 400 and said in message(got)
    wrong = post(server, question=QUESTION, params={"damping": "high"})
    assert wrong.status_code == 400 and "setting method.ppr.damping has the wrong type" in message(wrong)
    unknown = post(server, question=QUESTION, method="bubblerag", params={"depht": 7})
    assert "did you mean depth?" in message(unknown)


def test_methods_say_what_they_lack_and_the_line_to_run(here, index):
    found = {row["method"]: row for row in here().ask("GET", "/v1/methods").json()["methods"]}
    assert found["ppr"]["answers"] and found["ppr"]["retrieves"] and found["ppr"]["params"]["damping"] == 0.85
    assert not found["hoprag"]["retrieves"] and "hop_edges" in found["hoprag"]["missing"]
    assert found["hoprag"]["run"] == f"gpu-rag index CORPUS --out {index} --for hoprag"


def test_a_method_that_the_index_cannot_serve(here):
    got = post(here(), question=QUESTION, method="hoprag")
    assert got.status_code == 409 and got.json()["error"]["type"] == "MissingLayer"
    assert "gpu-rag index CORPUS --out" in message(got)
    assert "did you mean ppr?" in message(post(here(), question=QUESTION, method="pppr"))


def test_passages_by_id(here, index):
    from gpu_rag import Index

    held, server = Index.open(index), here()
    for row, name in enumerate(held.passage_ids):
        found = server.ask("GET", f"/v1/passages/{name}").json()
        assert (found["passage_id"], found["text"]) == (name, held.passages["text"][row].as_py())
        assert (found["file"], found["place"]) == held.places([row])[0]
    lost = server.ask("GET", "/v1/passages/..%2f..%2fetc/passwd")
    assert lost.status_code == 404 and lost.json()["error"]["type"] == "NotFound"


def test_index_and_health(here):
    server = here()
    found = server.ask("GET", "/v1/index").json()
    assert found["counts"]["passages"] == 6 and found["models"]["llm"]["name"] == "scripted"
    assert server.ask("GET", "/health").json() == {"live": True}
    assert server.ask("GET", "/ready").json() == {"ready": True, "state": "ready", "reason": None}
    got = server.ask("GET", "/v1/nothing")
    assert got.status_code == 404
    assert message(got) == "Not Found; given GET /v1/nothing; GET /openapi.json lists the routes"
    assert server.ask("DELETE", "/v1/answer").status_code == 405
    assert server.ask("GET", "/v1/index/").status_code == 404, "no redirect to what the Host header says"


def chat(server, content: Any = QUESTION, **more: Any):
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "an earlier one"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": content},
    ]
    return post(server, "/v1/chat/completions", **{"model": "gpu-rag/ppr", "messages": messages, **more})


def test_a_chat_completion(here):
    server = here()
    body = chat(server, temperature=0.7, max_tokens=5, user="me").json()
    assert list(body) == ["id", "created", "object", "model", "choices", "usage", "gpu_rag"]
    assert (body["object"], body["model"]) == ("chat.completion", "gpu-rag/ppr")
    (choice,) = body["choices"]
    message = {"role": "assistant", "content": "Hugo Brandt"}
    assert choice == {"index": 0, "message": message, "finish_reason": "stop"}
    assert body["gpu_rag"]["question"] == QUESTION and body["gpu_rag"]["evidence"]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"] > 0
    parts = [{"type": "text", "text": QUESTION}]
    assert chat(server, parts, model="ppr", n=None, tools=None).json()["choices"] == body["choices"]
    listed = server.ask("GET", "/v1/models").json()
    assert [m["id"] for m in listed["data"]][:2] == ["dense", "bm25"] and listed["object"] == "list"
    assert server.ask("GET", "/v1/models/gpu-rag/ppr").json()["owned_by"] == "gpu-rag"
    assert server.ask("GET", "/v1/models/gpt-4").status_code == 404


def test_what_was_said_before_is_condensed_into_the_question(here, cli):
    before = [
        {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": "Hugo Brandt"},
        {"role": "tool", "content": "not read"},
    ]
    asked, prompts = {"role": "user", "content": "Where did he teach?"}, []

    def say(request):
        prompts.append(request.prompt)
        if "Last question:" in request.prompt:
            return '{"question": "Where did Hugo Brandt teach?"}'
        return "University of Loss"

    row = chat(here(llm=lambda: ScriptedLLM(say)), messages=[*before, asked]).json()["gpu_rag"]
    assert (row["question"], row["condensed"]) == ("Where did he teach?", "Where did Hugo Brandt teach?")
    assert row["trace"][0]["verb"] == "condense/model" and "not read" not in prompts[0]
    assert f"<data>\nQuestion: {QUESTION}\nAnswer: Hugo Brandt\n</data>" in prompts[0]
    assert "Question: Where did Hugo Brandt teach?" in prompts[-1] and "he teach" not in prompts[-1]
    small = here(llm=lambda: ScriptedLLM(lambda request: "University of Loss", capable=False))
    row = chat(small, messages=[*before, asked]).json()["gpu_rag"]
    assert row["condensed"] == "Where did he teach? (Hugo Brandt; University of Loss)"
    assert row["trace"][0]["verb"] == "condense/rule"
    assert "condensed" not in chat(small, messages=[*before, {"role": "user", "content": QUESTION}]).json()["gpu_rag"]
    assert "condensed" not in chat(small, messages=[asked]).json()["gpu_rag"]
    late = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "begun"}]
    assert chat(small, messages=late).json()["gpu_rag"]["question"] == QUESTION


def test_chat_errors_have_openai_s_shape(here):
    server = here(llm=lambda: ScriptedLLM(lambda request: RequestFailed("refused")))
    cases = [
        (chat(server, model="gpt-4"), 404, "model_not_found"),
        (chat(server, n=2), 400, "BadInput"),
        (chat(server, tools=[{"type": "function"}]), 400, "BadInput"),
        (chat(server, response_format={"type": "json_object"}), 400, "BadInput"),
        (chat(server, [{"type": "image_url"}]), 400, "BadInput"),
        (chat(server, "  "), 400, "BadInput"),
        (chat(server, None), 400, "BadInput"),
        (chat(server, messages=[]), 400, "BadInput"),
        (chat(server, messages=[{"role": "system", "content": "x"}]), 400, "BadInput"),
        (chat(server), 500, "RequestFailed"),
    ]
    for got, status, code in cases:
        error = got.json()["error"]
        assert (got.status_code, error["code"], error["param"]) == (status, code, None), got.text
        assert error["type"] == ("server_error" if status == 500 else "invalid_request_error")
    for got, said in ((chat(server, " "), "last user message"), (chat(server, messages=None), "at messages")):
        assert said in message(got)
    streamed = chat(server, stream=True).text.split("\n\n")
    assert json.loads(streamed[0].removeprefix("data: "))["error"]["message"] == "refused"
    assert streamed[1:] == ["data: [DONE]", ""]


def test_only_names_of_ours_on_loopback(here):
    server = here()
    for name, status in {
        "127.0.0.1": 200, "localhost:8080": 200, "LOCALHOST": 200, "[::1]:80": 200, "evil.example": 421,
        "127.0.0.1.evil.example": 421, "localhost.": 421, "": 421, "[::1]x": 421, "127.0.0.1:80:80": 421,
    }.items():  # fmt: skip
        assert server.ask("GET", "/health", headers={"host": name}).status_code == status, name
    named = here({"serve": {"hosts": ["rag.example"]}})
    assert named.ask("GET", "/health", headers={"host": "RAG.example:443"}).status_code == 200
    assert here(host="0.0.0.0").ask("GET", "/health", headers={"host": "any.example"}).status_code == 200
    assert allowed_hosts("0.0.0.0", []) is None
    assert allowed_hosts("0.0.0.0", ["a.example"]) == {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", "a.example"}


def test_pages_of_other_sites_are_refused(here):
    server = here()
    for origin, status in {
        "http://evil.example": 403,
        "null": 403,
        "http://127.0.0.1": 200,
        "http://127.0.0.1:1": 403,
    }.items():
        got = server.ask("POST", "/v1/retrieve", json={"question": QUESTION}, headers={"origin": origin})
        assert got.status_code == status, origin
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        got = server.ask("POST", "/v1/answer", content=b"{}", headers={"content-type": kind})
        assert got.status_code == 415, "what a page can post without asking is no JSON"
    assert "access-control-allow-origin" not in server.ask("GET", "/v1/index").headers


def test_the_key(here):
    server = here(key="a-secret-key")
    for sent, status in {
        None: 401, "Bearer a-secret-key": 200, "bearer a-secret-key": 200, "Bearer a-secret-kez": 401, "Bearer": 401,
        "Basic a-secret-key": 401, "a-secret-key": 401, "Bearer a-secret-key x": 401,
    }.items():  # fmt: skip
        headers = {} if sent is None else {"authorization": sent}
        for path in ("/v1/index", "/metrics", "/v1/passages/x", "/v1/models", "/v1/nothing"):
            got = server.ask("GET", path, headers=headers)
            assert (got.status_code == 401) == (status == 401), (sent, path)
            assert "a-secret" not in got.text
    assert server.ask("GET", "/v1/index").headers["www-authenticate"] == "Bearer"
    assert server.ask("GET", "/v1/models").json()["error"]["type"] == "authentication_error"
    for path in ("/", "/page/app.js", "/page/page.css", "/health", "/ready"):
        assert server.ask("GET", path).status_code == 200, "these hold nothing of the index"


def test_headers_that_browsers_obey(here):
    for path in ("/", "/v1/index", "/nothing"):
        headers = here().ask("GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_sizes(here, monkeypatch):
    server = here()
    rows = [{"question": f"number {i}?"} for i in range(257)]
    assert post(server, "/v1/retrieve", questions=rows[:256], method="bm25").status_code == 200
    assert "length <= 256 - at questions" in message(post(server, questions=rows))
    assert post(server, "/v1/retrieve", question="x" * 4000, passages=100, method="bm25").status_code == 200
    assert "length <= 4000 - at questions[0].question" in message(post(server, question="x" * 4001))
    assert "int <= 100 - at passages" in message(post(server, "/v1/retrieve", question="x", passages=101))
    sent = server.ask("POST", "/v1/answer", content=b" " * 30_000_000, headers=JSON)  # longer than a socket holds
    assert sent.status_code == 413 and "at most 1024 KiB" in message(sent)
    monkeypatch.setattr(ServeSettings, "max_body_kib", 2)
    big = json.dumps({"question": "x" * 3000}).encode()
    assert server.ask("POST", "/v1/answer", content=big, headers=JSON).status_code == 413

    async def pieces():  # without Content-Length
        for i in range(0, len(big), 500):
            yield big[i : i + 500]

    assert server.ask("POST", "/v1/answer", content=pieces(), headers=JSON).status_code == 413


BAD = [
    (b"", "the body is not JSON"),
    (b"{", "the body is not JSON"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b"[]", "the body is not an object; given a list"),
    (b'{"question": NaN}', "NaN is not a JSON number"),
    (b'{"question": "x", "question": "y"}', "comes twice"),
    (b'{"question": "\\ud800"}', "half of a surrogate pair"),
    (b'{"question": "a\\u0000b"}', "NUL"),
    (b"[" * 100_000, "nested too deeply"),
    (b"{}", "missing required field question - at questions[0]"),
    (b'{"question": 5}', "Expected str, got int - at questions[0].question"),
    (b'{"question": null}', "Expected str, got null - at questions[0].question"),
    (b'{"question": " \\n"}', "question is empty"),
    (b'{"question": "x", "id": ""}', "id has 0 characters"),
    (b'{"question": "x", "id": []}', "got array - at questions[0].id"),
    (b'{"question": "x", "method": 3}', "Expected str, got int - at method"),
    (b'{"question": "x", "params": []}', "got array - at params"),
    (b'{"question": "x", "words": 1}', "got int - at words"),
    (b'{"question": "x", "gold_ids": []}', "unknown key; given gold_ids; expected question | id | questions"),
    (b'{"query": "x"}', "unknown key; given query; expected question"),
    (b'{"questions": []}', "length >= 1 - at questions"),
    (b'{"questions": {}}', "got object - at questions"),
    (b'{"questions": ["x"]}', "Expected object, got str - at questions[0]"),
    (b'{"questions": [{"question": "x"}], "question": "y"}', "unknown field question"),
    (b'{"questions": [{"id": 1, "question": "x"}, {"id": "1", "question": "y"}]}', "two questions have the id 1"),
]  # fmt: skip


def test_bad_bodies(here):
    server = here()
    for body, said in BAD:
        got = server.ask("POST", "/v1/answer", content=body, headers=JSON)
        assert got.status_code == 400 and said in message(got), (body[:60], got.text)
    assert "gpu_rag_questions_total{" not in server.ask("GET", "/metrics").text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["id", "question", "questions", "method", "params", "passages", "words", "model", "messages"]
KEYS += ["stream", "n", "tools", "support", "input", "dimensions"]
BODIES = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), VALUES, max_size=6)


def test_no_body_is_an_internal_error(here):
    server = here()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=60))
    def check(body):
        for path in ("answer", "retrieve", "chat/completions", "responses", "embeddings"):
            got = server.ask("POST", f"/v1/{path}", content=body, headers=JSON)
            assert got.status_code in (200, 400, 404, 409), got.text
            if got.status_code != 200:
                assert message(got)

    check()
    assert post(server, question=QUESTION).json()["answer"] == "Hugo Brandt"


def test_a_bug_is_an_internal_error_that_tells_nothing(here):
    server = here()
    server.thread.stats = None  # what /metrics reads
    got = server.ask("GET", "/metrics")
    assert got.status_code == 500
    assert got.json() == {"error": {"type": "AttributeError", "message": "internal error"}}


def test_a_filter_a_request(here, tmp_path, cli):
    from gpu_rag.engine import MAX_VIEWS

    rows = [
        {"id": f"d{i}", "title": f"Bridge {i}", "text": f"Marta Orlo designed bridge {i} in Tamsin.", "year": 2000 + i}
        for i in range(12)
    ]
    corpus = cli.write_rows(tmp_path / "dated.jsonl", rows)
    assert cli.run("index", corpus, "--out", tmp_path / "dated", "--for", "dense,ppr", *cli.NO_LLM).status == 0
    server = here(index=tmp_path / "dated")

    def asked(path="/v1/retrieve", **body):
        got = post(server, path, question="Who designed the bridge?", **body)
        return got.status_code, got.json()

    for year in (2003, 2007):
        status, row = asked(method="ppr", where=f"year < {year}", passages=20)
        assert status == 200 and row["where"] == f"year < {year}"
        assert {e["metadata"]["year"] for e in row["evidence"]} == set(range(2000, year))
    assert len(asked(passages=20)[1]["evidence"]) == 12
    assert asked("/v1/answer", where="year > 3000")[1]["status"] == "unsupported"
    status, document = asked(where="yeer = 1")
    assert status == 400 and "did you mean year?" in document["error"]["message"]
    assert server.ask("GET", "/v1/passages/d3").json()["metadata"] == {"year": 2003}
    chat = {"model": "ppr", "messages": [{"role": "user", "content": "Who designed the bridge?"}]}
    got = server.ask("POST", "/v1/chat/completions", json={**chat, "where": "year = 2003"}).json()
    assert [e["passage_id"] for e in got["gpu_rag"]["evidence"]] == ["d3"]
    for year in range(2003, 2012):  # parts of the index are let go
        asked(method="dense", where=f"year = {year}")
    assert sum(bool(ready.prepared.where) for ready in server.live._ready.values()) == MAX_VIEWS


def test_rejects_that_cannot_be_read_are_named(here, index, tmp_path):
    shutil.copytree(index, tmp_path / "ix")
    whole = {"file": "a.jsonl", "line": 2, "reason": "no text", "id": ""}
    (tmp_path / "ix" / "rejects.jsonl").write_text('{"reason"\n' + json.dumps(whole))
    server = here(index=tmp_path / "ix")
    got = server.ask("GET", "/v1/rejects")
    assert (got.status_code, got.json()["error"]["type"]) == (500, "IndexCorrupt")
    assert "rejects.jsonl" in message(got) and str(tmp_path) not in got.text
    assert server.ask("GET", "/v1/rejects?offset=1").json()["rejects"] == [whole]
