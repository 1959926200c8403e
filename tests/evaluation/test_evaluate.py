"""Metrics, intervals and comparisons: hand cases, slow twins written from the definitions, scipy, wrong intervals."""

import string
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

import gpu_rag
from gpu_rag import evaluate
from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.evaluation.bootstrap import interval, intervals, paired_difference, resample_means
from gpu_rag.evaluation.metrics import (
    exact_match,
    normalise_answer,
    ranked_documents,
    recall_at,
    retrieval_f1_at,
    token_f1,
)
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Question


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


FAST = {"models": {"embedder": "hash", "llm": "none"}}


@pytest.fixture
def index(tiny_corpus: Path, tmp_path: Path) -> gpu_rag.Index:
    gpu_rag.build(tiny_corpus, tmp_path / "ix", methods=["bm25", "dense"], settings=FAST)
    return gpu_rag.Index.open(tmp_path / "ix")


ASKED = QuestionRow(Question("q1", "Who designed the Halden Bridge?"), ("d0",), ("Marta Orlo",), {}, "jsonl")


def test_questions_that_cannot_be_compared_are_refused(index: gpu_rag.Index) -> None:
    with pytest.raises(GpuRagError, match="two questions have one id; given q1"):
        evaluate(index, [ASKED, ASKED], methods=["bm25"], retrieval_only=True, settings=FAST)
    with pytest.raises(BadInput, match="no question"):
        evaluate(index, [], methods=["bm25"], retrieval_only=True, settings=FAST)


def two_methods(n: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """F1-like scores of two methods that agree on most questions."""
    generator = np.random.default_rng(1)
    first = generator.random(n) ** 0.5
    return first, np.where(generator.random(n) < 0.8, first, generator.random(n))


def by_scipy(scores: np.ndarray) -> tuple[float, float]:
    found = bootstrap((scores,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(7))
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def near(found: Sequence[float], expected: Sequence[float], scores: np.ndarray) -> bool:
    """Ends of intervals within a tenth of a standard error: what resampling noise may do."""
    return bool(np.abs(np.subtract(found, expected)).max() < 0.1 * scores.std() / np.sqrt(len(scores)))


def test_intervals_against_scipy() -> None:
    first, second = two_methods()
    found = intervals({"first": first.tolist(), "second": second.tolist()})
    assert near(found["first"], by_scipy(first), first) and near(found["second"], by_scipy(second), second)
    assert found == intervals({"first": first.tolist(), "second": second.tolist()})  # the seed fixes the resamples
    alone = intervals({"second": second.tolist()})["second"]
    assert alone == pytest.approx(found["second"], abs=1e-12)  # one set of resamples serves all


def test_paired_differences_against_scipy() -> None:
    first, second = two_methods()
    one, two = first.tolist(), second.tolist()
    found = paired_difference(one, two)
    assert near((found["low"], found["high"]), by_scipy(first - second), first - second)
    assert found["diff"] == pytest.approx(first.mean() - second.mean())
    assert (found["wins"], found["losses"]) == ((first > second).sum(), (first < second).sum())
    back = paired_difference(two, one)
    assert (back["low"], back["high"]) == pytest.approx((-found["high"], -found["low"]))
    assert paired_difference(one, one) == {"diff": 0, "low": 0, "high": 0, "wins": 0, "losses": 0}


def means(scores: np.ndarray, seed: int = 0) -> np.ndarray:
    return resample_means(scores[:, None], seed)[:, 0]


WRONG: dict[str, Callable[[np.ndarray, np.ndarray], Sequence[float]]] = {
    "unpaired": lambda first, second: interval(means(first, 1) - means(second, 2)),
    "ninety percent": lambda first, second: interval(means(first - second), level=0.90),
    "the spread of scores": lambda first, second: np.quantile(first - second, [0.025, 0.975]).tolist(),
    "half of the questions": lambda first, second: interval(means((first - second)[::2])),
}


@pytest.mark.parametrize("name", WRONG)
def test_scipy_tells_wrong_intervals_apart(name: str) -> None:
    first, second = two_methods()
    assert not near(WRONG[name](first, second), by_scipy(first - second), first - second)


def test_resamples_draw_n_of_n_with_replacement() -> None:
    means = resample_means(np.eye(4), seed=3, n_resamples=2000)  # column q: the share of question q in the resample
    assert means.shape == (2000, 4)
    assert np.allclose(means.sum(1), 1) and set(np.unique(means * 4)) == {0, 1, 2, 3, 4}
    assert np.allclose(means.mean(0), 0.25, atol=0.02)
    assert means.var(0) == pytest.approx(np.full(4, 0.25 * 0.75 / 4), rel=0.1)
    assert interval(np.arange(101.0)) == pytest.approx((2.5, 97.5))
    constant = intervals({"m": [0.5] * 7})["m"]
    assert constant == pytest.approx((0.5, 0.5))
