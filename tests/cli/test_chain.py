"""The chain of a question: which facts join its passages, as a tree."""

import json
from typing import Any

import pytest

import gpu_rag
from gpu_rag.report.chain import Stop, chain_of, chain_text
from gpu_rag.sample import world_path
from gpu_rag.types import Answer, Sentence


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in world_path(name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def question() -> dict[str, Any]:
    (found,) = [row for row in rows("questions.jsonl") if row["id"] == "q26"]
    return found


@pytest.fixture(scope="module")
def index(question, tmp_path_factory) -> gpu_rag.Index:
    """An index of the passages of the question alone."""
    folder = tmp_path_factory.mktemp("chain")
    for name in ("corpus.jsonl", "openie.jsonl"):
        kept = [json.dumps(row) for row in rows(name) if row["id"] in question["gold_ids"]]
        (folder / name).write_text("\n".join(kept), "utf-8")
    settings = {"models": {"embedder": "hash", "llm": "none"}}
    gpu_rag.build(folder / "corpus.jsonl", folder / "ix", openie=folder / "openie.jsonl", settings=settings)
    return gpu_rag.Index.open(folder / "ix")


@pytest.fixture(scope="module")
def stops(index, question) -> list[Stop]:
    first, _, last = question["gold_ids"]
    (text,) = [row["text"] for row in index.passages.to_pylist() if row["doc_id"] == first]
    passages = dict(zip(index.passage_doc_ids, index.passage_ids))
    support = (Sentence(passages[first], 0, text.index(".") + 1, "", 1.0),)
    evidence = index.evidence([index.passage_doc_ids.index(gold) for gold in (last, first)], [1.0, 0.5], "")
    answers = {"ppr": Answer("q26", "", "ppr", "unsupported", None, evidence=evidence, support=support)}
    return chain_of(index, question["gold_ids"], question["answers"], answers)


def test_stops_hang_on_what_names_them(stops):
    assert [stop.title for stop in stops] == [
        "River Tamar (Tasmania)",
        "Launceston (Tasmania)",
        "Launceston (Cornwall)",
    ]
    assert [stop.parent for stop in stops] == [-1, 0, 1]
    assert stops[1].facts == ("Tamar of Tasmania - begins in - Launceston",)
    # both towns are called Launceston: a man born in one joins them
    assert stops[2].facts == (
        "Launceston - is named after the birthplace of - Philip Gidley King",
        "Philip Gidley King - was born in - Launceston",
    )
    assert [stop.ranks for stop in stops] == [{"ppr": 2}, {"ppr": None}, {"ppr": 1}]


def test_sentences_support_or_hold_the_answer(stops):
    (first,), middle, (last,) = (stop.sentences for stop in stops)
    assert "kanamaluka" in first and middle == () and "Charles Causley" in last


def test_what_nothing_joins_hangs_on_the_question(index, question):
    gold = [question["gold_ids"][2], question["gold_ids"][0]]
    assert [stop.parent for stop in chain_of(index, gold, [], {"ppr": Answer("q", "", "ppr", "answered", None)})] == [
        -1,
        -1,
    ]


def test_the_tree_has_the_stops_in_order(stops):
    tree = chain_text("Who <of> all?", "Causley", stops).splitlines()
    assert tree[1].startswith("└─ [River Tamar (Tasmania)]   rank: ppr 2")
    assert tree[-2].startswith("         ") and tree[-1].startswith("answer: Causley")
    assert max(map(len, tree)) <= 100
    lines = [line.strip() for line in tree]
    places = [lines.index(next(line for line in lines if stop.title in line)) for stop in stops]
    assert places == sorted(places) and all(
        any(fact in line for line in lines) for stop in stops for fact in stop.facts
    )
