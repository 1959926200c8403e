"""Choices with mass: support by exact fractions, any order of choices, and what rules leave as it is."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.program.choices import DOUBT, MASS, Choices
from gpu_rag.program.decide import MODEL, RULE
from gpu_rag.program.run import Decider, Run
from gpu_rag.program.search import Ranking

Choice = tuple[list[tuple[int, ...]], set[int]]  # the passages of each option, and chosen positions


class _Run:
    def __init__(self, decider: Decider):
        self.decider = decider


def counted(choices: list[Choice], decider: Decider = MODEL) -> Choices:
    found = Choices()
    for options, chosen in choices:
        found.add(cast(Run, _Run(decider)), range(len(options)), chosen, options.__getitem__)
    return found


def support(choices: list[Choice], passage: int, *, shared: bool = True) -> Fraction:
    """The formula of the module; without `shared` each option weighs 1, which is wrong."""
    taken, offered = Fraction(0), Fraction(0)
    for options, chosen in choices:
        for position, passages in enumerate(options):
            if passage in passages:
                weight = Fraction(1, len(passages) if shared else 1)
                offered += weight
                taken += weight * (position in chosen)
    return Fraction(MASS) * taken / (offered + Fraction(DOUBT))


OPTIONS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=6)
CHOICES = st.lists(OPTIONS.flatmap(lambda o: st.tuples(st.just(o), st.sets(st.integers(0, len(o) - 1)))), max_size=5)


@given(CHOICES, st.randoms())
def test_support_is_the_share_of_occasions_taken_in_any_order(choices: list[Choice], random: Any) -> None:
    found = counted(choices)
    for passage in range(7):
        assert found.support(passage) == pytest.approx(float(support(choices, passage)), abs=1e-9)
    shuffled = random.sample(choices, len(choices))
    walked = Ranking((3, 1), (0.9, 0.4))
    assert counted(shuffled).ranked(walked, 7) == found.ranked(walked, 7)  # to the bit


def test_an_option_of_many_passages_speaks_less_for_each() -> None:
    choices: list[Choice] = [([(0,), (1, 2, 3, 4)], {0, 1})]
    found = counted(choices)
    assert found.support(0) > found.support(1) == pytest.approx(float(support(choices, 1)))
    assert found.support(1) != pytest.approx(float(support(choices, 1, shared=False)))


def test_a_passage_taken_on_every_occasion_passes_one_taken_on_few() -> None:
    walked = Ranking((5, 6, 7), (1.0, 0.9, 0.8))
    choices: list[Choice] = [([(6,), (7,)], {1})] * 3 + [([(6,), (7,)], {0, 1})]
    ranked = counted(choices).ranked(walked, 2)
    assert ranked.rows == (7, 5) and ranked.scores[0] == pytest.approx(0.8 + MASS * 4 / (4 + DOUBT))
    outside = counted([([(8,)], {0})]).ranked(walked, 4)
    assert outside.rows == (5, 6, 7, 8) and outside.scores[3] == pytest.approx(MASS / (1 + DOUBT))


def test_rules_and_empty_choices_leave_the_ranking() -> None:
    walked = Ranking((5, 6, 7), (1.0, 0.9, 0.8))
    for found in (counted([([(7,)], {0})], RULE), counted([([(7,), (6,)], set())]), Choices()):
        assert found.ranked(walked, 2) == Ranking((5, 6), (1.0, 0.9)) and found.support(7) == 0
