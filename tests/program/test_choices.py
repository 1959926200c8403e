"""Choices with mass: agreement by exact fractions, trust by pairs, any order, and what they leave as it is."""

from fractions import Fraction
from random import Random
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.program.choices import CHANCE, MASS, SURE, Choices
from gpu_rag.program.decide import MODEL, RULE
from gpu_rag.program.run import Decider, Run
from gpu_rag.program.search import Ranking

Choice = tuple[list[tuple[int, ...]], set[int]]  # the passages of each option, and chosen positions
WALKED, PLAIN = Ranking((5, 6, 7), (1.0, 0.9, 0.8)), Ranking((6, 5, 7), (0.9, 0.5, 0.3))


class _Run:
    def __init__(self, decider: Decider):
        self.decider = decider


def counted(choices: list[Choice], decider: Decider = MODEL) -> Choices:
    made = Choices()
    for options, chosen in choices:
        made.add(cast(Run, _Run(decider)), range(len(options)), chosen, options.__getitem__)
    return made


def ranked(made: Choices, limit: int, trust: float = 1.0, walked: Ranking = WALKED) -> Ranking:
    with patch.object(Choices, "trust", lambda self, ranking: trust if ranking == PLAIN.rows else 0.0):
        return made.ranked(PLAIN, walked, limit)


def agreement(choices: list[Choice], passage: int, *, shared: bool = True) -> Fraction:
    """The formula of the module; without `shared` each option weighs 1, which is wrong."""
    taken, offered = Fraction(0), Fraction(0)
    for options, chosen in choices:
        for position, passages in enumerate(options):
            if passage in passages:
                weight = Fraction(1, len(passages) if shared else 1)
                offered += weight
                taken += weight * (position in chosen)
    return taken / (offered + 1)


def trust(
    choices: list[Choice], ranking: list[int], *, passed_over: bool = True, shrunk: bool = True, news: bool = True
) -> float:
    """The formula of the module. Wrong are: pairs with all options, no doubt about few choices, all choices alike."""
    leans: dict[bool, list[Fraction]] = {True: [], False: []}
    for options, chosen in choices:
        best = [min((ranking.index(p) for p in option if p in ranking), default=len(ranking)) for option in options]
        left = [place for i, place in enumerate(best) if i not in chosen or not passed_over]
        signs = [(place > best[i]) - (place < best[i]) for i in chosen for place in left]
        if signs and len(chosen) < len(options):
            leans[news and sorted(chosen) == list(range(len(chosen)))].append(Fraction(sum(signs), len(signs)))
    near, new = leans[True], leans[False]
    counted = [*new, *[sum(near) / Fraction(len(near))] * min(len(near), len(new))] if near else new
    share = (float(sum(counted) / Fraction(len(counted) + shrunk)) - CHANCE) / (SURE - CHANCE) if counted else 0.0
    return min(1.0, max(0.0, share))


OPTIONS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=6)
CHOICES = st.lists(OPTIONS.flatmap(lambda o: st.tuples(st.just(o), st.sets(st.integers(0, len(o) - 1)))), max_size=5)


@given(CHOICES, st.permutations(range(5)), st.randoms())
def test_agreement_and_trust_are_the_formulas_in_any_order(
    choices: list[Choice], ranking: list[int], random: Any
) -> None:
    made, shuffled = counted(choices), counted(random.sample(choices, len(choices)))
    assert all(made.agreement().get(p, 0.0) == pytest.approx(float(agreement(choices, p)), abs=1e-9) for p in range(7))
    assert made.trust(ranking) == pytest.approx(trust(choices, ranking), abs=1e-9)
    assert shuffled.agreement() == made.agreement() and shuffled.trust(ranking) == made.trust(ranking)  # to the bit


def test_an_option_of_many_passages_speaks_less_for_each() -> None:
    choices: list[Choice] = [([(0,), (1, 2, 3, 4)], {0, 1})]
    found = counted(choices).agreement()
    assert found[0] > found[1] == pytest.approx(float(agreement(choices, 1)))
    assert found[1] != pytest.approx(float(agreement(choices, 1, shared=False)))


def test_trust_is_earned_by_what_the_graph_holds_likely() -> None:
    right: list[Choice] = [([(8,), (5,), (9,)], {1})] * 3
    wrong: list[Choice] = [([(5,), (8,), (7,)], {1})] * 3
    ranking = [5, 6, 7]
    assert counted(right).trust(ranking) == 1.0 and counted(wrong).trust(ranking) == 0.0
    assert 0 < counted(right + wrong[:1] * 2).trust(ranking) < 1
    one: list[Choice] = [([(5,), (6,), (8,), (7,)], {1})]  # two pairs of three, less one: 1/3 by one choice is 1/6
    assert counted(one).trust(ranking) == pytest.approx(trust(one, ranking)) == pytest.approx((1 / 6 - 0.1) / 0.1)
    assert trust(one, ranking, passed_over=False) != trust(one, ranking) != trust(one, ranking, shrunk=False)
    nearest: list[Choice] = [([(5,), (8,), (9,)], {0})] * 9
    assert counted(nearest).trust(ranking) == 0.0 < trust(nearest, ranking, news=False)  # it says nothing new
    few: list[Choice] = [*nearest, ([(5,), (6,), (7,), (7,), (7,)], {4})]  # leans -1/2; of the others one counts
    assert counted(few).trust(ranking) == pytest.approx(trust(few, ranking)) == pytest.approx((0.5 / 3 - 0.1) / 0.1)
    assert trust(few, ranking, news=False) == 1.0
    assert counted([([(5,)], {0})]).trust(ranking) == 0.0  # nothing was passed over
    assert counted([([(5,), (6,)], set())]).trust(ranking) == Choices().trust(ranking) == 0.0


def test_random_choices_move_nothing_however_many_they_are() -> None:
    random, ranking = Random(3), list(range(100))
    trusts = []
    for _ in range(50):
        options = [[(p,) for p in random.sample(range(200), 20)] for _ in range(40)]
        trusts.append(counted([(option, {random.randrange(20)}) for option in options]).trust(ranking))
    assert sum(t > 0 for t in trusts) <= 10 and sum(trusts) / 50 < 0.1
    likely = [[(p,) for p in sorted(random.sample(range(200), 20), reverse=True)] for _ in range(3)]
    assert counted([(option, {19}) for option in likely]).trust(ranking) == 1.0  # three right choices


def test_a_passage_taken_on_every_occasion_passes_one_taken_on_few() -> None:
    choices: list[Choice] = [([(6,), (7,)], {1})] * 3 + [([(6,), (7,)], {0, 1})]
    made = counted(choices)
    first = ranked(made, 2)
    assert first.rows == (7, 6) and first.scores[0] == pytest.approx(0.8 + MASS * 4 / 5)
    half = ranked(made, 3, 0.5)
    assert half.rows == (7, 5, 6) and half.scores[0] == pytest.approx(0.8 + MASS * 0.5 * 4 / 5)
    outside = ranked(counted([([(8,)], {0})]), 4)
    assert outside.rows == (5, 6, 7, 8) and outside.scores[3] == pytest.approx(MASS / 2)


def test_all_choices_share_one_mass_so_a_model_that_always_takes_something_moves_little() -> None:
    near: list[Choice] = [([(7,), (8 + i,)], {0}) for i in range(6)] + [([(20 + i,), (40 + i,)], {0}) for i in range(9)]
    shares = sum(agreement(near, p) for p in (7, *range(20, 29)))
    assert shares == Fraction(6, 7) + Fraction(9, 2)
    walked = Ranking((5, 6, 7, 8), (1.0, 0.9, 0.4, 0.3))
    alone, among = ranked(counted(near[:6]), 4, 1.0, walked), ranked(counted(near), 4, 1.0, walked)
    assert alone.rows == (5, 7, 6, 8) and among.rows == (5, 6, 7, 8)  # not shared, both would be the first
    assert among.scores[2] == pytest.approx(0.4 + MASS * float(Fraction(6, 7) / shares))


def test_rules_empty_choices_and_no_trust_leave_the_ranking_without_a_model() -> None:
    assert not counted([([(7,), (6,)], {0})], RULE).made
    assert ranked(counted([([(7,)], {0})]), 2, 0.0) == Choices().ranked(PLAIN, WALKED, 2) == Ranking((6, 5), (0.9, 0.5))
    assert ranked(counted([([(7,), (6,)], set())]), 2) == Ranking((5, 6), (1.0, 0.9))
