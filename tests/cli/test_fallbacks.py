"""Exit status 3 and a loud line where rules decided in place of the model, and the counts in every document."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Serve = Callable[..., Any]


def words(cli: Any, url: str) -> tuple[str, ...]:
    return (*cli.HASH, "--set", f"models.llm={url}", "--set", "models.capable=true")


def test_answers_by_rule_end_in_status_3_and_say_so(
    cli: Any, index: Path, questions: Path, tmp_path: Path, misbehaving: Serve
) -> None:
    asked = ("answer", index, questions, "--method", "ppr", "--json")
    silent = words(cli, misbehaving(share=1.0, faults=("empty",)).url)
    result = cli.run(*asked, "--out", tmp_path / "a.jsonl", *silent)
    n = result.document["usage"]["replies_read"]
    assert result.status == 3 and n == 5
    assert result.document["fallbacks"] == {"read": {"lenient": 0, "salvaged": 0, "repaired": 0, "rule": n}}
    assert "RULES DECIDED IN PLACE OF THE MODEL: 5 of 5 replies" in result.err and "read 5" in result.err
    assert [row["fallbacks"] for row in cli.read_rows(tmp_path / "a.jsonl")] == [{"read": 1}] * 5
    again = cli.run(*asked, "--out", tmp_path / "a.jsonl", *silent)  # the rows of an earlier run count too
    assert (again.status, again.document["fallbacks"]) == (3, result.document["fallbacks"])
    allowed = cli.run(*asked, "--out", tmp_path / "b.jsonl", "--max-fallbacks", "100%", *silent)
    assert allowed.status == 0
    fenced = cli.run(*asked, "--out", tmp_path / "c.jsonl", *words(cli, misbehaving(share=1.0, faults=("fenced",)).url))
    assert fenced.status == 0 and fenced.document["fallbacks"]["read"]["lenient"] == 5


def test_eval_and_index_count_them_too(
    cli: Any, index: Path, questions: Path, tmp_path: Path, misbehaving: Serve
) -> None:
    silent = words(cli, misbehaving(share=1.0, faults=("whitespace",)).url)
    result = cli.run("eval", index, questions, "--method", "dense,ppr", "--json", *silent)
    entry = result.document["methods"]["ppr"]
    assert result.status == 3 and entry["fallbacks"]["read"]["rule"] == entry["replies_read"] == 5
    (tmp_path / "c.jsonl").write_text('{"id": "d", "title": "Ann", "text": "Ann knows Bo."}\n')
    built = ("index", tmp_path / "c.jsonl", "--json", "--set", "index.extractor=llm", "--set", "index.min_yield=0")
    result = cli.run(*built, "--out", tmp_path / "ix", "--max-failures", "1", *silent)
    assert result.status == 3 and "RULES DECIDED" in result.err
    assert result.document["fallbacks"]["extraction"]["rule"] == result.document["replies_read"] == 1
    assert result.document["stages"]["extraction"]["fallbacks"] == {"extraction/rule": 1}


def test_coreference_that_fails_everywhere_is_no_success(cli: Any, tmp_path: Path, misbehaving: Serve) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "d", "title": "Ann", "text": "Ann was here. She knows Bo."}\n')
    silent = words(cli, misbehaving(share=1.0, faults=("empty",)).url)
    result = cli.run("index", tmp_path / "c.jsonl", "--out", tmp_path / "ix", "--json", *silent,
                     "--set", "index.coref=llm", "--for", "higra-retriever")  # fmt: skip
    assert result.status == 3 and result.document["fallbacks"]["coreference"]["rule"] == 1


@pytest.mark.parametrize("limit", ["many", "-1", "20%%"])
def test_a_limit_that_cannot_be_read(cli: Any, index: Path, questions: Path, tmp_path: Path, limit: str) -> None:
    out = ("--out", tmp_path / "a.jsonl", "--max-fallbacks", limit)
    assert cli.run("answer", index, questions, "--method", "ppr", *out).status == 2
