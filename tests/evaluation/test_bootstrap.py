"""The percentile bootstrap against scipy's, paired differences, and wrong intervals that are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import bootstrap

from gpu_rag.evaluation.bootstrap import interval, intervals, paired_difference, resample_means


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


def unpaired(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    return interval(resample_means(first[:, None], 1)[:, 0] - resample_means(second[:, None], 2)[:, 0])


def ninety_percent(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    return interval(resample_means((first - second)[:, None], 0)[:, 0], level=0.90)


def spread_of_scores(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(first - second, [0.025, 0.975])
    return float(low), float(high)


def half_the_questions(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    return interval(resample_means((first - second)[::2, None], 0)[:, 0])


@pytest.mark.parametrize("wrong", [unpaired, ninety_percent, spread_of_scores, half_the_questions])
def test_scipy_tells_wrong_intervals_apart(wrong: Callable[..., tuple[float, float]]) -> None:
    first, second = two_methods()
    assert not near(wrong(first, second), by_scipy(first - second), first - second)


def test_resamples_draw_n_of_n_with_replacement() -> None:
    means = resample_means(np.eye(4), seed=3, n_resamples=2000)  # column q: the share of question q in the resample
    assert means.shape == (2000, 4)
    assert np.allclose(means.sum(1), 1) and set(np.unique(means * 4)) == {0, 1, 2, 3, 4}
    assert np.allclose(means.mean(0), 0.25, atol=0.02)
    assert means.var(0) == pytest.approx(np.full(4, 0.25 * 0.75 / 4), rel=0.1)
    assert interval(np.arange(101.0)) == pytest.approx((2.5, 97.5))
    constant = intervals({"m": [0.5] * 7})["m"]
    assert constant == pytest.approx((0.5, 0.5))
