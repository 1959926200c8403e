"""Random programs and a slow service of random moods: the streaming driver gives the answers of the rounds driver.

The service answers any part of what is open, in any order, in any poll; an aborted request comes back late with its
reply, or as aborted. Plausible wrong drivers run through the same check and must fail it.
"""

import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_steps import (
    FirstInTimeWins,
    Toys,
    cost,
    embed,
    graph,
    grown,
    interpret,
    llm,
    metered,
    pairs,
    said,
    text,
    trees,
    visible,
    walk,
)

from gpu_rag.errors import BudgetExceeded, RequestFailed
from gpu_rag.runtime import Budget, RunStats, run_rounds, run_streaming, streaming
from gpu_rag.runtime.service import Flights
from gpu_rag.runtime.trace import Context

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")

STEPS = {"text": text, "graph": graph, "walk": walk, "embed": embed, "llm": llm}


def answered(name, queries):
    values = [said(name, *query) for query in queries]
    return [metered(value) for value in values] if name == "llm" else values


def toys():
    return Toys({name: lambda queries, k, name=name: answered(name, queries) for name in STEPS}).resources


class Moody:
    """A slow service without threads: each poll answers a random part of what is open, in random order."""

    def __init__(self, seed):
        self.random, self.open, self.lost, self.seen = random.Random(seed), {}, set(), 0

    def submit(self, key, query):
        assert key not in self.open
        self.open[key] = query
        self.seen += 1

    def poll(self, timeout_s):
        if timeout_s == 0.0 and self.random.random() < 0.6:
            return []
        keys = self.random.sample(sorted(self.open), self.random.randint(min(1, len(self.open)), len(self.open)))
        return [(key, self._answer(key)) for key in keys]

    def _answer(self, key):
        (result,) = answered("llm", [self.open.pop(key)])
        return RequestFailed("the request was aborted") if key in self.lost else result

    def abort(self, key):
        if self.random.random() < 0.5:
            self.lost.add(key)

    @property
    def n_open(self):
        return len(self.open)


def call(name, k, query, slot):
    return STEPS[name]((k, query), 0 if name == "llm" else k)  # a service is given the query alone


def programs(forest):
    return pairs(lambda ctx, tree=tree: interpret(tree, ctx, call) for tree in forest)


def both(forest, seed=0, max_live=1024, low_water=4, budget=None, driver=run_streaming):
    """(outcomes of rounds, outcomes of streaming), the accounts of the latter checked."""
    expected = run_rounds(programs(forest), toys(), budget=budget)
    stats, service = RunStats(), Moody(seed)
    found = driver(
        programs(forest), toys(), (llm, service), max_live=max_live, low_water=low_water, budget=budget, stats=stats
    )
    assert service.n_open == 0, "every key is taken, those of cancelled calls too"
    n_answered = stats.steps["llm"].n_calls if service.seen else 0
    assert sum(o.usage.llm_calls for o in found) <= n_answered == service.seen
    for name in ("llm_s", "embed_s", "graph_s"):
        asked = sum(getattr(o.usage, name) for o in found)
        assert asked == pytest.approx(sum(getattr(c, name) for c in stats.stages.values()), abs=1e-9)
    for name in ("llm_calls", "prompt_tokens", "generated_tokens"):
        asked = sum(getattr(o.usage, name) for o in found)
        assert asked == sum(getattr(c, name) for c in stats.stages.values())
    return expected, found


def check(forest, **options):
    for seed, max_live, low_water in ((0, 1024, 4), (1, 1, 64), (2, 3, 1)):
        expected, found = both(forest, seed, max_live, low_water, **options)
        assert [visible(o) for o in found] == [visible(o) for o in expected]
        for one, other in zip(expected, found):
            if one.error is None and "caught" not in str(one.draft):
                assert cost(one) == cost(other)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=1, max_size=6))
def test_answers_are_those_of_the_rounds_driver(forest):
    check(forest)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(trees(bad=False), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 99))
def test_a_budget_of_calls_ends_the_same_questions(forest, n, seed):
    expected, found = both(forest, seed, budget=Budget(max_calls=n))
    for one, other in zip(expected, found):
        assert (one.draft, type(one.error)) == (other.draft, type(other.error))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 99))
def test_a_budget_met_among_siblings_is_the_only_difference(forest, n, seed):
    expected, found = both(forest, seed, budget=Budget(max_tokens=n, max_calls=20))
    for one, other in zip(expected, found):
        if BudgetExceeded not in (type(one.error), type(other.error)):
            assert visible(one) == visible(other)


def test_many_large_programs():
    rng = random.Random(0)
    check([grown(rng, 4) for _ in range(60)])


FOREST = [
    ("gather", [("seq", [("call", "graph", 1, i), ("call", "llm", 1, i)]) for i in range(4)]),
    ("try", ("gather", [("seq", [("call", "llm", 1, -1)]), ("seq", [("call", "llm", 1, i) for i in range(9)])])),
    (
        "try",
        ("gather", [("seq", [("call", "llm", 1, 1), ("fail", 0)]), ("seq", [("call", "text", 1, 2), ("fail", 1)])]),
    ),
    ("seq", [("call", "graph", 1, 5), ("call", "embed", 2, 6), ("call", "llm", 1, 4)]),
]


class ResultsByArrival(Flights):
    def take(self, timeout_s):
        plain = self.slow[1].poll

        def poll(wait_s):  # the oldest open call gets whatever came first
            return list(zip(sorted(self.calls), (result for _, result in plain(wait_s))))

        with patch.object(self.slow[1], "poll", poll):
            return super().take(timeout_s)


def keeps_all_notes(self, path, after):
    return []


@pytest.mark.parametrize(
    "wrong",
    [
        patch.object(streaming, "Core", FirstInTimeWins),
        patch.object(streaming, "Flights", ResultsByArrival),
        patch.object(Context, "forget", keeps_all_notes),
    ],
    ids=["first in time wins", "results by arrival", "notes of cancelled siblings"],
)
def test_wrong_drivers_are_caught(wrong):
    check(FOREST)
    with wrong, pytest.raises((AssertionError, KeyError)):
        for seed in range(20):
            expected, found = both(FOREST, seed)
            assert [visible(o) for o in found] == [visible(o) for o in expected]
