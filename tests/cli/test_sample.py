"""The sample corpus and its questions: ids, links, hops and answers hold together."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.sample import corpus_path, questions_path, world_path

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def id_of(row: Row) -> str:
    return "p_" + hashlib.sha1(f"{row['title']}\n{row['text']}".encode()).hexdigest()[:12]


def mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


def linked(one: Row, other: Row) -> bool:
    """Whether either text names the other's title, or the last word of it."""
    pairs = ((one, other), (other, one))
    return any(mentions(a["text"], b["title"]) or mentions(a["text"], b["title"].split()[-1]) for a, b in pairs)


def check_articles(corpus: list[Row], questions: list[Row]) -> None:
    assert 60 <= len(corpus) <= 75
    for row in corpus:
        assert set(row) == {"id", "title", "text"}
        assert row["id"] == id_of(row)
        assert 50 <= len(row["text"].split()) <= 110, row["title"]
        assert row["text"] == " ".join(row["text"].split()), row["title"]
    for field in ("id", "title", "text"):
        assert len({row[field] for row in corpus}) == len(corpus), field


def check_links(corpus: list[Row], questions: list[Row]) -> None:
    titles = [row["title"] for row in corpus]
    out = {r["title"]: {t for t in titles if t != r["title"] and mentions(r["text"], t)} for r in corpus}
    incoming = set().union(*out.values())
    assert sum(map(len, out.values())) / len(corpus) >= 2
    assert [title for title in titles if not out[title] and title not in incoming] == []


def check_questions(corpus: list[Row], questions: list[Row]) -> None:
    passages = {row["id"]: row for row in corpus}
    assert [row["id"] for row in questions] == [f"q{n:02d}" for n in range(1, 31)]
    assert len({row["question"] for row in questions}) == 30
    assert Counter(row["hops"] for row in questions) == {2: 14, 3: 11, 4: 5}
    assert sum(row["answers"][0] in ("yes", "no") for row in questions) <= 2
    for row in questions:
        assert set(row) == {"id", "question", "answers", "hops", "type", "gold_ids"}
        assert len(row["gold_ids"]) == len(set(row["gold_ids"])) == row["hops"], row["id"]
        gold = [passages[key] for key in row["gold_ids"]]
        check_chain(row, gold)


def check_chain(row: Row, gold: list[Row]) -> None:
    answer = row["answers"][0]
    if row["type"] == "comparison":
        assert row["hops"] == 2
    else:
        assert row["type"] == ("bridge" if row["hops"] == 2 else "chain")
        assert all(linked(a, b) for a, b in zip(gold, gold[1:], strict=False)), row["id"]
        hidden = [g["title"] for g in gold[1:]]
        assert not any(mentions(row["question"], title) for title in hidden), row["id"]
        assert not mentions(row["question"], answer), row["id"]
        assert not any(mentions(g["text"], answer) for g in gold[:-1]), row["id"]
    if answer not in ("yes", "no"):
        assert mentions(gold[-1]["text"], answer), row["id"]


@pytest.fixture
def corpus() -> list[Row]:
    return read_rows(corpus_path())


@pytest.fixture
def questions() -> list[Row]:
    return read_rows(questions_path())


def test_the_sample(corpus, questions):
    for check in (check_articles, check_links, check_questions):
        check(corpus, questions)


@pytest.mark.parametrize(
    "file", [world_path("questions.jsonl"), Path(__file__).parent.parent / "fresh" / "world.jsonl"]
)
def test_the_larger_sample(file):
    corpus, questions = read_rows(world_path("corpus.jsonl")), read_rows(file)
    passages = {row["id"]: row for row in corpus}
    assert len(passages) == 440 and len({row["title"] for row in corpus}) == 440
    assert all(
        row["id"] == "p_" + hashlib.sha1(f"{row['title']}\n{row['text']}".encode()).hexdigest()[:12] for row in corpus
    )
    assert Counter(row["hops"] for row in questions) == {2: 24, 3: 24, 4: 12}
    for row in questions:
        assert len(set(row["gold_ids"])) == row["hops"] and row["type"] in ("bridge", "chain", "comparison")
        *before, last = [passages[key]["text"] for key in row["gold_ids"]]
        assert any(mentions(last, answer) for answer in row["answers"]), row["id"]
        assert not any(mentions(text, answer) for text in [row["question"], *before] for answer in row["answers"]), row[
            "id"
        ]


def test_the_sample_as_files(run, tmp_path):
    folder = tmp_path / "sample"
    lines = run("sample", str(folder), "--json").ok.document["lines"]
    assert (lines["corpus.jsonl"], lines["openie.jsonl"], lines["questions.jsonl"]) == (440, 440, 60)
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*.*")} == lines.keys()
    assert (folder / "questions.jsonl").read_bytes() == world_path("questions.jsonl").read_bytes()
    again = run("sample", str(folder))
    assert again.status == 2 and "DIR is not empty" in again.err
