"""The work of each model server, in the documents, the summaries and the reports."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_rag.models.llm.interface import ServerAccount

KEYS = set(ServerAccount("").__dict__) | {"busy_share"}


def test_two_servers_are_accounted_for(
    cli: Any, index: Path, questions: Path, tmp_path: Path, misbehaving: Callable[..., Any]
) -> None:
    two = [misbehaving(share=0.0) for _ in range(2)]
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
