"""What plans extrapolate with: growth of distinct names, lines through noisy costs, even samples of streams."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import UsageError
from gpu_rag.plan.growth import LEAST_SHARE, distinct_in, fit_heaps, line_through, power_between
from gpu_rag.plan.sampling import EvenSample

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)

# --- distinct names --------------------------------------------------------------------------------

Passages = list[set[int]]


def frequencies(passages: Passages) -> np.ndarray:
    counts = Counter(name for passage in passages for name in passage)
    return np.asarray(sorted(counts.values()), np.int64)


def by_all_choices(passages: Passages, m: int) -> float:
    """The mean number of distinct names over every choice of m passages."""
    return mean(len(set().union(*chosen)) for chosen in itertools.combinations(passages, m))


def check_distinct(distinct: Callable[[np.ndarray, int, int], float], passages: Passages) -> None:
    n = len(passages)
    for m in range(n + 1):
        assert distinct(frequencies(passages), n, m) == pytest.approx(by_all_choices(passages, m), abs=1e-9)


@given(st.lists(st.sets(st.integers(0, 6), max_size=4), min_size=1, max_size=7))
@SETTINGS
def test_distinct_names_are_the_mean_over_all_choices(passages: Passages) -> None:
    check_distinct(distinct_in, passages)


def with_replacement(f: np.ndarray, n: int, m: int) -> float:
    return float((1 - (1 - f / n) ** m).sum())


def in_proportion(f: np.ndarray, n: int, m: int) -> float:
    return len(f) * m / n


@pytest.mark.parametrize("wrong", [with_replacement, in_proportion])
def test_the_check_of_distinct_names_sees_a_wrong_formula(wrong: Callable[..., float]) -> None:
    with pytest.raises(AssertionError):
        check_distinct(wrong, [{1, 2}, {2, 3}, {2}, {4}])


def test_more_passages_than_there_are() -> None:
    with pytest.raises(UsageError):
        distinct_in(np.asarray([1]), 3, 4)


def zipf(n_passages: int, seed: int) -> Passages:
    """Passages of 12 names drawn from a long-tailed distribution, as names in text are."""
    draw = np.random.default_rng(seed)
    return [set((draw.pareto(0.6, 12) * 10).astype(np.int64).tolist()) for _ in range(n_passages)]


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_foretells_how_names_grow(seed: int) -> None:
    passages = zipf(2000, seed)
    sample = random.Random(seed).sample(passages, 100)
    law = fit_heaps(frequencies(sample), 100)
    assert law.at(100) == pytest.approx(len(frequencies(sample)))
    assert law.at(2000) == pytest.approx(len(frequencies(passages)), rel=0.2)
    assert 0 < law.beta < 1 and len(frequencies(sample)) * 20 > 1.3 * len(frequencies(passages))  # linear would be off


def test_growth_without_repeats_and_without_news() -> None:
    assert fit_heaps(np.ones(30, np.int64), 10).beta == pytest.approx(1)
    assert fit_heaps(np.full(30, 10), 10).at(1000) == pytest.approx(30)
    assert fit_heaps(np.zeros(0, np.int64), 10).at(1000) == 0
    assert fit_heaps(np.ones(4, np.int64), 1).at(5) == 20  # one passage: nothing is known but the mean


# --- lines and powers ------------------------------------------------------------------------------


@given(st.floats(0, 100), st.floats(0, 10), st.floats(1, 50), st.floats(1.1, 9))
@SETTINGS
def test_an_exact_line_is_found(fixed: float, each: float, size: float, more: float) -> None:
    costs = [fixed + each * s for s in (size, size * more)]
    line = line_through(size, costs[0], size * more, costs[1])
    assert line.at(size * more) == pytest.approx(costs[1], abs=1e-6)
    if each * size * more >= LEAST_SHARE * costs[1]:
        assert line.at(1e4) == pytest.approx(fixed + 1e4 * each, rel=1e-6, abs=1e-3)


@given(st.floats(0, 5), st.floats(0, 5), st.floats(1, 9))
@SETTINGS
def test_noise_gives_neither_a_falling_nor_a_steeper_than_proportional_line(a: float, b: float, more: float) -> None:
    line = line_through(1, a, 1 + more, b)
    assert line.fixed >= -1e-9 and LEAST_SHARE * b / (1 + more) <= line.each * (1 + 1e-9) <= b / (1 + more) * (1 + 1e-6)


def test_nothing_to_extrapolate_from() -> None:
    assert line_through(0, 0, 0, 3).at(100) == 3


def test_powers() -> None:
    assert power_between(10, 10, 20, 40, 1, 3) == pytest.approx(2)
    assert power_between(10, 10, 20, 15, 1, 1.5) == 1
    assert power_between(10, 1, 20, 40, 1, 1.5) == 1.5
    assert power_between(10, 0, 20, 40, 1, 1.5) == 1


# --- even samples ----------------------------------------------------------------------------------


def sampled(n: int, k: int, seed: int) -> list[int]:
    sample: EvenSample[int] = EvenSample(k, seed)
    for i in range(n):
        sample.add(i)
    return sample.items()


def first_ones(n: int, k: int, seed: int) -> list[int]:
    return list(range(min(n, k)))


def always_the_same(n: int, k: int, seed: int) -> list[int]:
    return list(range(n)) if n <= k else [i * n // k for i in range(k)]


def by_lot(n: int, k: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(n), min(n, k)))


def check_sample(draw: Callable[[int, int, int], list[int]]) -> None:
    for n in (0, 1, 7, 8, 9, 15, 16, 17, 100, 1000):
        for seed in range(5):
            found = draw(n, 8, seed)
            assert found == draw(n, 8, seed) == sorted(set(found))
            assert len(found) == min(n, 8) and all(0 <= i < n for i in found)
    assert sampled(7, 8, 0) == list(range(7))
    draws = [draw(1000, 8, seed) for seed in range(300)]
    counts = np.bincount([i // 100 for found in draws for i in found], minlength=10) / 300
    assert np.all(abs(counts - 0.8) < 0.2)  # every part of the stream has its share ...
    assert len({i for found in draws for i in found}) > 800  # ... and any item may be drawn
    assert mean(max(b - a for a, b in itertools.pairwise([0, *found, 1000])) for found in draws) < 280  # no wide gaps


def test_a_sample_is_even_and_repeats() -> None:
    check_sample(sampled)


@pytest.mark.parametrize("wrong", [first_ones, always_the_same, by_lot])
def test_the_check_of_samples_sees_wrong_ones(wrong: Callable[[int, int, int], list[int]]) -> None:
    with pytest.raises(AssertionError):
        check_sample(wrong)
