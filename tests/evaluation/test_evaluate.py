"""Metrics and comparisons: hand cases, slow twins written from the definitions, and wrong versions of each."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_rag
from gpu_rag.api import evaluate, load_questions
from gpu_rag.errors import BadInput, GpuRagError, RequestFailed
from gpu_rag.evaluation.metrics import (
    exact_match,
    normalise_answer,
    ranked_documents,
    recall_at,
    retrieval_f1_at,
    token_f1,
)
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Question, Request

# --- retrieval ---------------------------------------------------------------------------------------


def slow_recall(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    hits = [g for i, g in enumerate(gold) if g not in gold[:i] and g in [*ranking][:k]]
    return len(hits) / len(dict.fromkeys(gold))


def slow_f1(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    shown = [*ranking][:k]
    hits = slow_recall(ranking, gold, k) * len(set(gold))
    if not hits:
        return 0.0
    precision, recall = hits / len(shown), hits / len(set(gold))
    return 2 * precision * recall / (precision + recall)


RANKINGS = st.permutations(list("abcdefg")).flatmap(lambda p: st.integers(0, 7).map(lambda n: p[:n]))
GOLD = st.lists(st.sampled_from("abcdefgxyz"), min_size=1, max_size=5)


@given(RANKINGS, GOLD, st.integers(1, 9))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_recall_and_f1_against_their_definitions(ranking: list[str], gold: list[str], k: int) -> None:
    assert recall_at(ranking, gold, k) == pytest.approx(slow_recall(ranking, gold, k))
    assert retrieval_f1_at(ranking, gold, k) == pytest.approx(slow_f1(ranking, gold, k))


def test_recall_and_f1_by_hand() -> None:
    ranking = ["a", "b", "c", "d"]
    assert [recall_at(ranking, ["b", "z"], k) for k in (1, 2, 9)] == [0.0, 0.5, 0.5]
    assert recall_at(ranking, ["b", "b", "d"], 4) == 1.0  # a gold id given twice counts once
    assert recall_at([], ["a"], 5) == 0.0
    assert retrieval_f1_at(ranking, ["a", "b"], 2) == 1.0
    assert retrieval_f1_at(ranking, ["a", "z"], 4) == pytest.approx(2 * (1 / 4) * (1 / 2) / (3 / 4))
    assert retrieval_f1_at(["a"], ["a", "z"], 5) == pytest.approx(2 * 1 * 0.5 / 1.5)  # precision over what came back
    assert retrieval_f1_at([], ["a"], 5) == 0.0
    assert ranked_documents(["d2", "d1", "d2", "d3", "d1"]) == ["d2", "d1", "d3"]


def hit_rate(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    return float(bool(set(gold) & set(ranking[:k])))


def precision(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    return len(set(gold) & set(ranking[:k])) / k


def cut_late(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    return recall_at(ranking, gold, k + 1)


def repeats_counted(ranking: Sequence[str], gold: Sequence[str], k: int) -> float:
    return sum(g in ranking[:k] for g in set(gold)) / len(gold)


@pytest.mark.parametrize("wrong", [hit_rate, precision, cut_late, repeats_counted])
def test_the_cases_tell_wrong_recalls_apart(wrong: Callable[..., float]) -> None:
    cases = [(["a", "b", "c"], ["b", "b", "z"], 2), (["a", "b"], ["b", "c"], 1), (["a", "b", "c"], ["c"], 3)]
    assert all(recall_at(*case) == slow_recall(*case) for case in cases)
    assert any(wrong(*case) != slow_recall(*case) for case in cases)


# --- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("A an THE", ""),
        ("Theatre of a theme", "theatre of theme"),  # articles are whole words
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),
        ("the-end", "theend"),  # punctuation goes before articles
        ("A.D. 70", "ad 70"),
        ("Beyoncé's «song»", "beyoncés «song»"),  # ASCII punctuation alone
        ("  ", ""),
    ],
)
def test_normal_forms(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


def slow_normal(text: str) -> str:
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    words, word = [], ""
    for c in bare + " ":
        if c.isalnum() or c == "_":
            word += c
            continue
        words.append("" if word in ("a", "an", "the") else word)
        words.append(c)
        word = ""
    return " ".join("".join(words).split())


def slow_token_f1(answer: str, gold: str) -> float:
    a, g = slow_normal(answer), slow_normal(gold)
    if a != g and {a, g} & {"yes", "no", "noanswer"}:
        return 0.0
    left, common = g.split(), 0
    for token in a.split():
        if token in left:
            left.remove(token)
            common += 1
    if common == 0:
        return 0.0
    p, r = common / len(a.split()), common / len(g.split())
    return 2 * p * r / (p + r)


WORDS = st.sampled_from(["a", "The", "an", "yes", "No", "new", "York", "york", "1902", "U.S.", "-", "é", "noanswer"])
PHRASES = st.lists(WORDS, max_size=5).map(" ".join)


@given(PHRASES, st.lists(PHRASES, min_size=1, max_size=3))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_answers_against_their_definitions(answer: str, gold: list[str]) -> None:
    assert normalise_answer(answer) == slow_normal(answer)
    assert exact_match(answer, gold) == float(any(slow_normal(answer) == slow_normal(g) for g in gold))
    assert token_f1(answer, gold) == pytest.approx(max(slow_token_f1(answer, g) for g in gold))


def test_answers_by_hand() -> None:
    assert exact_match("the Eiffel Tower.", ["Louvre", "Eiffel tower"]) == 1.0
    assert exact_match("Eiffel", ["Eiffel tower"]) == 0.0
    assert exact_match(None, ["x"]) == token_f1(None, ["x"]) == token_f1("x", []) == 0.0
    assert token_f1("Eiffel Tower", ["the tower"]) == pytest.approx(2 / 3)
    assert token_f1("new new york", ["new york york"]) == pytest.approx(2 / 3)  # tokens as often as both have them
    assert token_f1("b c", ["a x", "b c d"]) == pytest.approx(0.8)  # the best of the gold answers
    assert token_f1("yes, it is", ["yes"]) == 0.0 and token_f1("yes", ["no", "Yes!"]) == 1.0
    assert token_f1("no man", ["no"]) == 0.0 and token_f1("no", ["no man"]) == 0.0


def as_sets(answer: str, gold: str) -> float:
    a, g = set(slow_normal(answer).split()), set(slow_normal(gold).split())
    return 2 * len(a & g) / (len(a) + len(g))


def yes_with_company(answer: str, gold: str) -> float:
    return slow_token_f1(answer + " x", gold + " x")


def articles_kept(answer: str, gold: str) -> float:
    return slow_token_f1(answer.replace("the", "le"), gold.replace("the", "le"))


@pytest.mark.parametrize("wrong", [as_sets, yes_with_company, articles_kept])
def test_the_cases_tell_wrong_f1s_apart(wrong: Callable[[str, str], float]) -> None:
    cases = [("new new york", "new york york"), ("yes it is", "yes"), ("the tower", "tower")]
    assert all(token_f1(a, [g]) == pytest.approx(slow_token_f1(a, g)) for a, g in cases)
    assert any(abs(wrong(a, g) - slow_token_f1(a, g)) > 1e-9 for a, g in cases)


# --- compare -----------------------------------------------------------------------------------------

FAST = {"models": {"embedder": "hash", "llm": "none"}}


@pytest.fixture
def index(tiny_corpus: Path, tmp_path: Path) -> gpu_rag.Index:
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25", "dense"], settings=FAST)
    return gpu_rag.Index.open(tmp_path / "ix")


ROWS = [
    QuestionRow(Question("q1", "Who designed the Halden Bridge?"), ("d0",), ("Marta Orlo",), {}, "jsonl"),
    QuestionRow(Question("q2", "When was the lighthouse of Tamsin built?"), ("d4", "d1"), ("1902",), {}, "jsonl"),
    QuestionRow(Question("q3", "Is Kerling a town?"), (), ("yes",), {}, "jsonl"),
    QuestionRow(Question("q4", "Who founded the university?"), ("d5",), (), {}, "jsonl"),
]


def test_retrieval_scores_are_means_over_questions_with_gold(index: gpu_rag.Index) -> None:
    result = evaluate(index, ROWS, methods=["bm25", "dense"], retrieval_only=True, at=(1, 2), settings=FAST)
    document = result.document
    assert document["n"] == 4 and set(document["methods"]) == {"bm25", "dense"}
    for method in ("bm25", "dense"):
        entry = document["methods"][method]
        rankings = [[e.passage_id for e in answer.evidence] for answer in result.answers[method]]
        for k in (1, 2):
            per_question = [slow_recall(r, row.gold_ids, k) for r, row in zip(rankings, ROWS) if row.gold_ids]
            assert result.scores[method][f"recall@{k}"] == per_question and len(per_question) == 3
            assert entry[f"recall@{k}"] == pytest.approx(np.mean(per_question))
        assert entry["em"] is entry["f1"] is entry["unsupported"] is None
        assert (entry["failed"], entry["llm_calls"]) == (0, 0)
        low, high = entry["ci95"]["recall@2"]
        assert low <= entry["recall@2"] <= high
    assert list(document["paired"]) == ["dense - bm25"]
    pair = document["paired"]["dense - bm25"]["recall@1"]
    means = {m: document["methods"][m]["recall@1"] for m in ("dense", "bm25")}
    assert pair["diff"] == pytest.approx(means["dense"] - means["bm25"])
    assert json.loads(json.dumps(document)) == document


def test_a_failed_question_counts_as_zero(index: gpu_rag.Index) -> None:
    def say(request: Request) -> str | RequestFailed:
        if "lighthouse" in request.prompt.split("Question:")[1]:
            return RequestFailed("no")
        return "Marta Orlo" if "designed" in request.prompt.split("Question:")[1] else "Yes."

    result = evaluate(index, ROWS, methods=["bm25"], settings=FAST, llm=ScriptedLLM(say))
    entry = result.document["methods"]["bm25"]
    assert (entry["failed"], entry["unsupported"]) == (1, 0)
    assert result.scores["bm25"]["em"] == [1.0, 0.0, 1.0]  # q4 has no answer to compare with
    assert entry["em"] == entry["f1"] == pytest.approx(2 / 3)
    assert result.scores["bm25"]["recall@2"] == [1.0, 0.0, pytest.approx(1.0)]  # a failure has no evidence
    assert entry["llm_calls"] == 1.0  # the request that failed was made too


def test_gold_that_is_no_document_is_refused(index: gpu_rag.Index) -> None:
    lost = QuestionRow(Question("q9", "Who?"), ("d0", "zz"), (), {}, "jsonl")
    with pytest.raises(BadInput, match="1 gold ids are not documents .* question q9 with zz"):
        evaluate(index, [*ROWS, lost], methods=["bm25"], retrieval_only=True, settings=FAST)
    with pytest.raises(GpuRagError, match="two questions have one id; given q1"):
        evaluate(index, [ROWS[0], ROWS[0]], methods=["bm25"], retrieval_only=True, settings=FAST)
    with pytest.raises(BadInput, match="no question"):
        evaluate(index, [], methods=["bm25"], retrieval_only=True, settings=FAST)


def test_questions_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows: list[Any] = [{"id": "a", "question": "A?"}, "no row", {"id": "b", "question": "B?"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read, rejects = load_questions(path)
    assert [row.question.id for row in read] == ["a", "b"] and [r.line for r in rejects] == [2]
    assert [row.question.id for row in load_questions(path, 1)[0]] == ["a"]
    path.write_text("no row\n")
    with pytest.raises(BadInput, match="q.jsonl:1"):
        load_questions(path)
