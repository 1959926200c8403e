"""The work of each model server, in the documents, the summaries and the reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.models import packaged
from gpu_rag.models.llm.interface import ServerAccount
from gpu_rag.models.misbehave import Manners, MisbehavingServer

KEYS = set(ServerAccount("").__dict__) | {"busy_share"}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[MisbehavingServer]]:
    monkeypatch.setattr(packaged, "_cache_dir", tmp_path / "cache")
    servers = [MisbehavingServer(Manners(share=0.0)) for _ in range(2)]
    yield servers
    for server in servers:
        server.close()


def test_two_servers_are_accounted_for(
    cli: Any, index: Path, questions: Path, tmp_path: Path, two: list[MisbehavingServer]
) -> None:
    urls = [server.url for server in two]
    words = (*cli.HASH, "--set", f"models.llm={','.join(urls)}", "--set", "models.capable=true")
    (tmp_path / "c.jsonl").write_text('{"id": "d", "title": "Ann", "text": "Ann knows Bo."}\n')
    for command in (
        ("answer", index, questions, "--method", "ppr", "--out", tmp_path / "a.jsonl"),
        ("eval", index, questions, "--method", "dense,ppr"),
        ("index", tmp_path / "c.jsonl", "--set", "index.extractor=llm", "--out", tmp_path / "ix"),
    ):
        before = sum(server.done.total() for server in two)
        document = cli.run(*command, "--json", *words).document
        asked = sum(server.done.total() for server in two) - before
        rows = document["servers"]
        assert [row["name"] for row in rows] == urls and all(set(row) == KEYS for row in rows)
        assert sum(row["requests"] for row in rows) == asked > 0
        assert sum(row["busy_share"] for row in rows) > 0 and not any(row["failures"] for row in rows)
    text = cli.run("eval", index, questions, "--method", "ppr", *words).out
    assert f"{urls[0]}: requests " in text and "preempted -" in text
