"""A server whose index changes while it answers: documents that clients add and remove, and builds beside it."""

import asyncio
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import gpu_rag
from gpu_rag.serve.changes import Changes
from gpu_rag.serve.keys import read_keys

KEYS = """
[reader]
key = "key-of-reader"
[owner]
key = "key-of-owner"
rights = ["read", "change"]
"""
QUESTION = "Who built the lighthouse of Quill?"
READER = {"authorization": "Bearer key-of-reader"}
OWNER = {"authorization": "Bearer key-of-owner"}
COLD = ("--set", "serve.warm=false")


def lighthouse(number: int) -> dict[str, str]:
    return {
        "id": f"new{number}",
        "title": "Quill",
        "text": f"The lighthouse of Quill was built by Anna{number} Stroud.",
    }


@pytest.fixture
def made(tmp_path: Path, run: Any, cli: Any) -> Path:
    """An index of a few documents of our own, made by the command: it remembers its sources on this machine."""
    rows = [{"id": f"d{n}", "text": f"The bridge of Kerling{n} was built by Jan Vos."} for n in range(12)]
    source = cli.write_rows(tmp_path / "corpus.jsonl", rows)
    assert run("index", source, "--out", tmp_path / "ix", "--for", "ppr", *cli.HASH).status == 0
    return tmp_path / "ix"


def test_a_key_needs_the_right_to_change(here: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    server = here(key=read_keys(tmp_path / "keys.toml", {}))
    requests = (("POST", "/v1/documents"), ("DELETE", "/v1/documents/x"), ("GET", "/v1/changes/c1"))
    for method, path in requests:
        body = {"json": {"documents": [lighthouse(1)]}} if method == "POST" else {}
        assert server.ask(method, path, headers=READER, **body).status_code == 403
        answer = server.ask(method, path, headers=OWNER, **body)
        assert answer.status_code == 403 and "api-key-file" in answer.json()["error"]["message"]  # made without changes
    assert server.ask("POST", "/v1/retrieve", json={"question": QUESTION, "method": "bm25"}, headers=OWNER).is_success


def test_a_change_that_cannot_be_run_has_failed() -> None:
    """A word with NUL, a program that is not there, and one that prints no document."""

    async def outcomes() -> list[str]:
        talker = [sys.executable, "-c", "print('no document')"]
        made = [(Changes(talker), "a\0b"), (Changes(["/no/such/program"]), "a"), (Changes(talker), "a")]
        begun = [(changes, changes.remove("me", "ix", document).change) for changes, document in made]
        assert len({name for _, name in begun}) == len(begun)  # a server that starts again repeats no name
        while any(changes.get("me", name).status in ("waiting", "running") for changes, name in begun):
            await asyncio.sleep(0.02)
        return [changes.get("me", name).status for changes, name in begun]

    assert asyncio.run(outcomes()) == ["failed"] * 3


@pytest.mark.slow
def test_fifty_clients_ask_while_documents_come_and_go(served: Any, made: Path, tmp_path: Path) -> None:
    """No request fails. Each row is that of the index before a change or after it, and later ones show the change."""
    (tmp_path / "keys.toml").write_text(KEYS)
    process = served(made, "--api-key-file", tmp_path / "keys.toml", *COLD)
    rows: list[tuple[int, dict[str, Any]]] = []
    over = threading.Event()

    async def change(client: httpx.AsyncClient, method: str, path: str, **body: Any) -> dict[str, Any]:
        begun = await client.request(method, path, headers=OWNER, **body)
        assert begun.status_code == 202, begun.text
        while (now := (await client.get(f"/v1/changes/{begun.json()['change']}", headers=OWNER)).json())["status"] in (
            "waiting", "running",
        ):  # fmt: skip
            await asyncio.sleep(0.1)
        assert now["status"] == "done", now
        return now

    async def digest(client: httpx.AsyncClient) -> str:
        return str((await client.get("/v1/index", headers=READER)).json()["digest"])

    async def asks(client: httpx.AsyncClient, number: int) -> None:
        while not over.is_set():
            body = {"question": QUESTION, "method": ("ppr", "bm25", "dense")[number % 3]}
            answer = await client.post("/v1/retrieve", json=body, headers=READER)
            assert answer.status_code == 200, answer.text
            rows.append((number, answer.json()))
            await asyncio.sleep(0.5)

    async def follows(client: httpx.AsyncClient, before: str) -> None:
        async with asyncio.timeout(60):
            while await digest(client) == before:
                await asyncio.sleep(0.1)

    async def changes(client: httpx.AsyncClient) -> None:
        try:
            before = await digest(client)
            added = await change(client, "POST", "/v1/documents", json={"documents": [lighthouse(1), lighthouse(2)]})
            assert added["result"]["added"] == 2
            await follows(client, before)
            got = await client.post("/v1/retrieve", json={"question": QUESTION, "method": "ppr"}, headers=READER)
            assert {e["passage_id"] for e in got.json()["evidence"][:2]} == {"new1", "new2"}
            removed = await change(client, "DELETE", "/v1/documents/new1")
            assert removed["result"]["removed"] == 1 and Path(removed["result"]["receipt"]).is_file()
            got = await client.post("/v1/retrieve", json={"question": QUESTION, "method": "ppr"}, headers=READER)
            assert "Anna1" not in got.text and "Anna2" in got.text
            gone = await client.delete("/v1/documents/nobody", headers=OWNER)
            path = f"/v1/changes/{gone.json()['change']}"
            while (await client.get(path, headers=OWNER)).json()["status"] != "failed":
                await asyncio.sleep(0.1)
            assert (
                await client.post("/v1/documents", json={"documents": [{"id": "x"}]}, headers=OWNER)
            ).status_code == 400
        finally:
            over.set()

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=60, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=process.url, timeout=300, limits=limits) as client:
            await asyncio.gather(changes(client), *(asks(client, number) for number in range(50)))

    asyncio.run(all_of_them())
    assert process.stop() == 0, process.err
    assert process.err.count("the index has changed") == 2, process.err
    versions = [{"new1", "new2"}, {"new2"}, set()]
    for _, row in rows:
        found = {e["passage_id"] for e in row["evidence"] if e["passage_id"].startswith("new")}
        assert row["status"] == "retrieved" and found in versions
    assert gpu_rag.verify(made).ok
    for path in made.rglob("*"):
        assert not path.is_file() or b"Anna1" not in path.read_bytes(), path


def test_documents_from_standard_input(made: Path, run: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(lines: str) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        return run("add", made, "-", "--json", *cli.HASH)

    assert add("".join(json.dumps(lighthouse(n)) + "\n" for n in range(3))).ok.document["added"] == 3
    bad = add('{"id": "x", "text": "y"}\n{"id"\n')
    assert bad.status == 2 and "line 2" in bad.err
