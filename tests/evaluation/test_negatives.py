"""Planted wrong answers: the search for them against going through all answers, and that it stays fast."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.evaluation import judged
from gpu_rag.evaluation.judge import Claim, claim_order
from gpu_rag.evaluation.judged import Negatives, plant, words_of
from gpu_rag.evaluation.metrics import normalise_answer, token_f1
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Question

SAID = st.lists(
    st.sampled_from(["yes", "no", "noanswer", "a", "the", "Rome", "rome.", "Bern", "km", "x y", "é"]), max_size=3
)
ANSWER = SAID.map(" ".join)


def one_by_one(answers: Sequence[str], place: int, gold: Sequence[str]) -> int | None:
    """By its definition: behind `place`, in a circle."""
    for step in range(1, len(answers)):
        at = (place + step) % len(answers)
        if normalise_answer(answers[at]) and token_f1(answers[at], gold) == 0:
            return at
    return None


def check(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> None:
    others = Negatives(answers)
    for place, gold in enumerate(golds):
        assert others.after(place, gold) == one_by_one(answers, place, gold)


ROWS = st.lists(st.tuples(ANSWER, st.lists(ANSWER, max_size=2)), min_size=1, max_size=12)


@given(ROWS)
def test_the_next_answer_without_a_common_word_is_found(rows):
    check([answer for answer, _ in rows], [[answer, *more] for answer, more in rows])


@given(ROWS)
def test_whatever_the_gold_answers_are(rows):
    check([answer for answer, _ in rows], [more for _, more in rows])


@given(ANSWER, ANSWER)
def test_a_common_word_is_an_f1_above_zero(left, right):
    assert bool(words_of(left) & words_of(right)) == (token_f1(left, [right]) > 0)


def test_words_that_are_compared_one_by_one_alone_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plausible mistake: yes and no as words like others."""
    monkeypatch.setattr(judged, "words_of", lambda answer: frozenset(normalise_answer(answer).split()))
    with pytest.raises(AssertionError):
        check(["no", "no sir"], [["no"], ["no sir"]])


@given(ROWS, st.integers(0, 8))
def test_what_is_planted_is_what_going_through_all_answers_plants(rows, n):
    given_rows = [
        QuestionRow(Question(f"q{k}", f"Is it {k}?"), (), (answer, *more), {}, "plain")
        for k, (answer, more) in enumerate(rows)
    ]
    own = sorted((Claim(r.question.text, tuple(r.answers), r.answers[0]) for r in given_rows), key=claim_order)
    wrong: list[Claim] = []
    for place, claim in enumerate(own):
        found = one_by_one([other.answer for other in own], place, claim.gold)
        if found is not None and len(wrong) < n:
            wrong.append(Claim(claim.question, claim.gold, own[found].answer))
    assert plant(given_rows, n) == {"planted_right": own[:n], "planted_wrong": wrong}


@pytest.mark.parametrize(
    "gold",
    [
        lambda k: [f"{k} km"],  # one word that all share
        lambda k: [f"{k} {'km' if k % 2 else 'miles'}", f"{2 * k} {'miles' if k % 2 else 'km'}"],  # two, in turn
        lambda k: ["yes"],
    ],
)
def test_answers_of_which_none_differs_take_no_square_of_time(gold):
    n = 20_000
    golds = [gold(k) for k in range(n)]
    others = Negatives([some[0] for some in golds])
    started = time.process_time()
    assert all(others.after(place, some) is None for place, some in enumerate(golds))
    assert time.process_time() - started < 5  # one by one it would be hours
