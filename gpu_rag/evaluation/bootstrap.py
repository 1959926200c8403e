"""Percentile bootstrap over questions: intervals of a mean, and of a paired difference of two methods.

Source: Efron and Tibshirani 1993, chapters 13 and 16. The seed fixes the resamples. All methods use the same resamples,
so differences are paired by question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

N_RESAMPLES = 10_000
BLOCK = 4_000_000  # entries per matrix of draws: 32 MB


def resample_means(scores: np.ndarray, seed: int = 0, n_resamples: int = N_RESAMPLES) -> np.ndarray:
    """Means of resamples: f64[n_resamples, M] for scores f64[n, M] (questions by measures)."""
    n = len(scores)
    generator = np.random.default_rng(seed)
    # Draw counts per question: matrix products of bounded size instead of n_resamples gathers.
    size = max(1, BLOCK // n)
    blocks = []
    for start in range(0, n_resamples, size):
        counts = generator.multinomial(n, np.full(n, 1 / n), size=min(size, n_resamples - start))
        blocks.append(counts @ scores / n)
    return np.concatenate(blocks)


def interval(means: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central interval of resampled means that holds `level` of them."""
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def intervals(per_method: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each method's mean. All methods must have the same questions in the same order."""
    names = list(per_method)
    means = resample_means(np.stack([np.asarray(per_method[name], float) for name in names], axis=1))
    return {name: interval(means[:, column]) for column, name in enumerate(names)}


def paired_difference(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """{"diff": mean(first - second), "low", "high": its 95 % interval, "wins", "losses": questions}."""
    difference = np.asarray(first, float) - np.asarray(second, float)
    low, high = interval(resample_means(difference[:, None])[:, 0])
    return {
        "diff": float(difference.mean()),
        "low": low,
        "high": high,
        "wins": float((difference > 0).sum()),
        "losses": float((difference < 0).sum()),
    }
