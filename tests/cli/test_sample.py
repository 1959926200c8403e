"""The sample corpus and its questions: ids, links, hops and answers hold together."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.sample import corpus_path, questions_path, world_files, world_path

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


def test_same_surname_distractors(corpus):
    last = Counter(row["title"].split()[-1] for row in corpus)
    assert sum(n >= 2 for n in last.values()) >= 5


def test_the_larger_sample():
    corpus, questions = read_rows(world_path("corpus.jsonl")), read_rows(world_path("questions.jsonl"))
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


def test_ready_triples_stand_on_their_passages():
    passages = {row["id"]: row for row in read_rows(world_path("corpus.jsonl"))}
    rows = read_rows(world_path("openie.jsonl"))
    assert [row["id"] for row in rows] == list(passages)
    ends = [(row, end) for row in rows for subject, _, obj in row["triples"] for end in (subject, obj)]
    assert all(end in row["entities"] for row, end in ends)
    written = [end in passages[row["id"]]["title"] + " " + passages[row["id"]]["text"] for row, end in ends]
    assert sum(written) > 0.98 * len(written)


def test_facts_stand_on_their_passages():
    passages = {row["id"]: row["title"] + " " + row["text"] for row in read_rows(world_path("corpus.jsonl"))}
    first, *lines = world_path("facts.tsv").read_text(encoding="utf-8").splitlines()
    facts = [line.split("\t") for line in lines]
    assert first.split("\t") == ["head", "relation", "tail", "provenance"]
    assert len({tuple(fact[:3]) for fact in facts}) == len(facts) == 815
    assert 40 <= len({fact[1] for fact in facts}) <= 50
    # ends are titles where there is one: "Pressburg" of a passage is Bratislava
    written = [end.split(" (")[0] in passages[where] for head, _, tail, where in facts for end in (head, tail)]
    assert sum(written) > 0.96 * len(written)


def test_the_knowledge_base_is_of_the_same_facts():
    files = world_files()
    nodes = [json.loads(line) for line in files["world/nodes.jsonl"].splitlines()]
    edges = [line.split("\t") for line in files["world/edges.tsv"].splitlines()[1:]]
    ids = {node["id"] for node in nodes}
    assert len(ids) == len(nodes) == 1032 and {end for src, _, dst in edges for end in (src, dst)} <= ids
    texts = {row["text"] for row in read_rows(world_path("corpus.jsonl"))}
    assert {node["text"] for node in nodes if "text" in node} == texts
    asked = [json.loads(line) for line in files["kb-questions.jsonl"].splitlines()]
    assert len(asked) == 16 and {key for row in asked for key in row["answer_ids"]} <= ids


def test_the_sample_as_files(run, tmp_path):
    folder = tmp_path / "sample"
    lines = run("sample", str(folder), "--json").ok.document["lines"]
    assert (lines["corpus.jsonl"], lines["openie.jsonl"], lines["questions.jsonl"]) == (440, 440, 60)
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*.*")} == lines.keys()
    assert (folder / "questions.jsonl").read_bytes() == world_path("questions.jsonl").read_bytes()
    again = run("sample", str(folder))
    assert again.status == 2 and "DIR is not empty" in again.err
