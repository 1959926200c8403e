"""Keys with rights and limits, deadlines of requests, audit lines, and connections as they are on the wire."""

import asyncio
import json
import shutil
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from gpu_rag.errors import BadInput, StorageError, UsageError
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.serve import keys as keys_module
from gpu_rag.serve import server as server_module
from gpu_rag.serve.audit import Audit
from gpu_rag.serve.keys import read_keys
from gpu_rag.settings.sections import ServeSettings

QUESTION = "Who founded the University of Loss?"
KEYS = """
[alice]
key = "key-of-alice"
rights = ["read", "answer"]
in_flight = 1
[reader]
variable = "READER_KEY"
rights = ["read"]
[prometheus]
key = "key-of-prometheus"
rights = ["metrics"]
[hurried]
key = "key-of-hurried"
per_minute = 3
"""
READER = "key-of-reader"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path: Path):
    (tmp_path / "keys.toml").write_text(KEYS)
    return read_keys(tmp_path / "keys.toml", {"READER_KEY": f"{READER}\n"})


def test_each_key_may_what_its_rights_say(here, keys):
    server = here(key=keys)
    asked = {"json": {"question": QUESTION, "method": "bm25"}}
    chat = {"json": {"model": "bm25", "messages": [{"role": "user", "content": QUESTION}]}}
    requests = {
        "GET /v1/index": ({}, {"key-of-alice", READER, "key-of-hurried"}),
        "GET /v1/passages/x": ({}, {"key-of-alice", READER}),
        "GET /v1/models": ({}, {"key-of-alice", READER}),
        "GET /v1/documents": ({}, {"key-of-alice", READER}),
        "GET /v1/entities/x": ({}, {"key-of-alice", READER}),
        "POST /v1/retrieve": (asked, {"key-of-alice", READER}),
        "POST /v1/answer": (asked, {"key-of-alice", "key-of-hurried"}),
        "POST /v1/chat/completions": (chat, {"key-of-alice"}),
        "POST /v1/responses": ({"json": {"model": "bm25", "input": QUESTION}}, {"key-of-alice"}),
        "POST /v1/embeddings": ({"json": {"model": "hash", "input": QUESTION}}, {"key-of-alice", READER}),
        "POST /v1/nothing": ({"json": {}}, {"key-of-alice", READER, "key-of-prometheus"}),
        "GET /metrics": ({}, {"key-of-prometheus", "key-of-hurried"}),
    }
    for request, (options, allowed) in requests.items():
        for key in ("key-of-alice", READER, "key-of-prometheus", "key-of-nobody"):
            status = server.ask(*request.split(), headers=bearer(key), **options).status_code
            wanted = 401 if key == "key-of-nobody" else 403 if key not in allowed else None
            assert status not in (401, 403) if wanted is None else status == wanted, (request, key)
    refused = server.ask("POST", "/v1/answer", headers=bearer(READER), **asked).json()["error"]
    assert refused["type"] == "Forbidden" and "given reader; expected one with the right answer" in refused["message"]
    assert server.ask("GET", "/health").status_code == 200


def test_requests_of_a_minute(here, keys, monkeypatch):
    server, now = here(key=keys), [1000.0]
    monkeypatch.setattr(keys_module.time, "monotonic", lambda: now[0])
    ask = lambda: server.ask("GET", "/v1/index", headers=bearer("key-of-hurried"))  # noqa: E731
    assert [ask().status_code for _ in range(4)] == [200, 200, 200, 429]
    now[0] += 45.5
    late = ask()
    assert (late.status_code, late.headers["retry-after"]) == (429, "15")
    assert server.ask("GET", "/v1/index", headers=bearer("key-of-alice")).status_code == 200
    now[0] += 14.5
    assert ask().status_code == 200


def test_requests_in_flight(here, keys):
    held = threading.Event()
    server = here(key=keys, llm=lambda: ScriptedLLM(lambda request: held.wait(300) and "x"))
    body = {"question": QUESTION, "method": "bm25"}

    async def two():
        async with server.client(headers=bearer("key-of-alice")) as client:
            first = asyncio.ensure_future(client.post("/v1/answer", json=body))
            while not server.admission.n_open:
                await asyncio.sleep(0.005)
            second = await client.post("/v1/answer", json=body)
            other = await client.get("/v1/index", headers=bearer(READER))
            held.set()
            return second, other, await first, await client.get("/v1/index")

    second, other, first, after = asyncio.run(two())
    assert (second.status_code, second.headers["retry-after"]) == (429, "1")
    assert [response.status_code for response in (other, first, after)] == [200] * 3


def test_files_of_keys_that_are_none(tmp_path):
    file = tmp_path / "keys.toml"
    sound = '[a]\nkey = "long-enough"\n'
    for text, fact in (
        ("", "keys.toml"), ("a = 1", "given a"), ("[a]", "none for a"), (f'{sound}variable = "V"', "none for a"),
        ('[a]\nkey = "short"', "5 characters"), ('[a]\nvariable = "V"', "given V, for a"),
        (f"{sound}right = []", "rights"), (f"{sound}rights = []", "none of a"),
        (f'{sound}rights = ["write"]', "write of a"),
        (f"{sound}in_flight = -1", "keys.a.in_flight"), (f"{sound}{sound.replace('[a]', '[b]')}", "a and b"),
        ("[a", "keys.toml"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(UsageError) as caught:
            read_keys(file, {})
        assert fact in str(caught.value) and "long-enough" not in str(caught.value), "no key is printed"
    (tmp_path / "key").write_text("one-key-alone\n")
    assert read_keys(tmp_path / "key", {}).client("Bearer one-key-alone").name == "key"


def test_a_deadline_ends_a_question_and_its_row_says_so(here):
    held = threading.Event()
    server = here(llm=lambda: ScriptedLLM(lambda request: held.wait(300) and "x"))
    try:
        for path, body in {
            "/v1/answer": {"question": QUESTION, "method": "bm25"},
            "/v1/chat/completions": {"model": "bm25", "messages": [{"role": "user", "content": QUESTION}]},
        }.items():
            got = server.ask("POST", path, json=body, headers={"x-deadline-seconds": "0.1"}).json()
            assert "an answer within 0.1 s" in got["error"]["message"]
        body = {"question": QUESTION, "method": "bm25"}
        row = server.ask("POST", "/v1/answer", json=body, headers={"x-deadline-seconds": "0.1"}).json()
        assert (row["status"], row["error"]["type"]) == ("failed", "BudgetExceeded")
        for wrong in ("", "0", "-1", "nan", "inf", "1e999", "soon"):
            refused = server.ask("POST", "/v1/answer", json=body, headers={"x-deadline-seconds": wrong})
            assert refused.status_code == 400 and "not a deadline" in refused.json()["error"]["message"], wrong
    finally:
        held.set()


def test_a_line_a_request_without_a_word_of_the_question(here, keys, tmp_path):
    said: list[str] = []
    audit = Audit(tmp_path / "audit.jsonl", said.append)
    server = here(key=keys, audit=audit)
    alice = bearer("key-of-alice")
    body = {"question": f"{QUESTION} secret-word", "method": "bm25"}
    got = server.ask("POST", "/v1/answer", json=body, headers={**alice, "x-request-id": "req-1"})
    assert got.headers["x-request-id"] == "req-1"
    made_up = server.ask("GET", "/v1/index?q=secret-word", headers={"x-request-id": "a b"}).headers["x-request-id"]
    server.ask("POST", "/v1/answer", json=body, headers=bearer(READER))
    server.ask("GET", "/v1/passages/%0a%1b[2J" + "x" * 300, headers=alice)
    server.ask("GET", "/health")
    text = (tmp_path / "audit.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["key"], row["method"], row["status"]) for row in rows] == [
        ("alice", "POST", 200), (None, "GET", 401), ("reader", "POST", 403), ("alice", "GET", 404), (None, "GET", 200),
    ]  # fmt: skip
    assert [row["path"] for row in rows[:3]] == ["/v1/answer", "/v1/index", "/v1/answer"] and len(
        rows[3]["path"]
    ) == 200
    assert [row["request_id"] for row in rows[:2]] == ["req-1", made_up] and len(made_up) == 16
    assert all(row["ms"] > 0 and row["time"].endswith("+00:00") for row in rows)
    assert not any(word in text for word in ("secret-word", "key-of", "\x1b", QUESTION)) and said == []
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600
    audit.close()
    assert server.ask("GET", "/health").status_code == server.ask("GET", "/health").status_code == 200
    assert said == [f"the audit cannot be written: {tmp_path / 'audit.jsonl'}"], "said once, and the server goes on"
    with pytest.raises(StorageError, match="audit"):
        Audit(tmp_path / "none" / "a.jsonl", said.append)


async def exchange(app, settings: ServeSettings, sent: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """All that comes back for these bytes, until the server closes the connection."""
    config = server_module.config_of(app, settings)
    config.load()
    state = server_module.uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: config.http_protocol_class(config, state, {}, loop), "127.0.0.1", 0, ssl=config.ssl
    )
    try:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(sent)
        found = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return found
    finally:
        listening.close()


INNER = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/answer", "/health"])
@pytest.mark.parametrize("framing", ["both", "old"])
def test_a_body_of_uncertain_length_closes_the_connection(here, framing, path):
    """A proxy that believes the length would hand us the inner request as one of another client."""
    length = f"content-length: {len(INNER) + 5}\r\n" if framing == "both" else ""
    version = "1.1" if framing == "both" else "1.0"
    head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}"
    sent = head.encode() + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER
    found = asyncio.run(exchange(here().app, ServeSettings(), sent))
    assert found.startswith(b"HTTP/1.1 400") and found.count(b"HTTP/1.1 ") == 1, found[:2000]
    assert b"connection: close" in found.lower() and b"the length of the body is not certain" in found


def certificate(folder: Path, *options: str) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", cert, "-days", "2", *options]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_https_by_files(here, tmp_path, run, cli, index):
    cert, key = certificate(tmp_path, "-nodes")
    settings = ServeSettings(tls_cert=str(cert), tls_key=str(key))
    assert server_module.check_tls(settings) and not server_module.check_tls(ServeSettings())
    trusting = ssl.create_default_context(cafile=str(cert))
    app = here().app
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert asyncio.run(exchange(app, settings, request, trusting)).startswith(b"HTTP/1.1 200")
    assert asyncio.run(exchange(app, settings, request)) == b"", "no http beside it"
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(exchange(app, settings, request, ssl.create_default_context()))
    (tmp_path / "locked").mkdir()
    locked = certificate(tmp_path / "locked", "-passout", "pass:secret")
    for files in ((cert, ""), ("", key), (cert, tmp_path / "none"), (key, cert), (cert, locked[1]), locked):
        with pytest.raises(BadInput, match="certificate"):
            server_module.check_tls(ServeSettings(tls_cert=str(files[0]), tls_key=str(files[1])))
    result = run("serve", index, *cli.NO_LLM, "--set", f"serve.tls_cert={cert}", "--set", f"serve.tls_key={cert}")
    assert result.status == 2 and "the certificate or its key cannot be used" in result.error
