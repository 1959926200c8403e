"""The model of `fused`: weights of a candidate's features, read from JSON, and their fitting.

Candidates are ranked by w . clip((x - mean) / scale, -CLIP, CLIP). `fit` finds w from questions with gold passages:
  loss(w) = the mean over questions of -log softmax(scores) at their gold candidates, plus
            pull / 2 * |w - w0|^2, so that few questions change little
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.program.search import Ranking

SHIPPED = Path(__file__).with_name("weights.json")
CLIP = 4.0
_STEPS = 200


@dataclass(frozen=True, eq=False)
class Model:
    """The weights of the model. names: the feature columns, see `batched`; lists: the methods whose lists are among
    them."""

    lists: tuple[str, ...]
    names: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray

    def standard(self, values: np.ndarray) -> np.ndarray:
        """Features f[..., n] standardised and clipped, f64."""
        return np.clip((values.astype(np.float64) - self.mean) / self.scale, -CLIP, CLIP)

    def scores(self, values: np.ndarray) -> np.ndarray:
        """f64[...]: the scores of features f[..., n]. Each candidate is summed alone, so its score does not depend on
        others."""
        scores: np.ndarray = (self.standard(values) * self.weights).sum(-1)
        return scores

    def ranked(self, first: Ranking, values: np.ndarray, k: int) -> Ranking:
        """The k best passages: candidates by their scores, then the passages without features in their order."""
        scores = self.scores(values).tolist()
        order = sorted(range(len(scores)), key=lambda candidate: (-scores[candidate], candidate))
        ranking = [(first.rows[candidate], scores[candidate]) for candidate in order]
        last = len(scores)
        for row, score in zip(first.rows[last:], first.scores[last:]):
            ranking.append((row, ranking[last - 1][1] - (first.scores[last - 1] - score)))
        return Ranking(tuple(row for row, _ in ranking[:k]), tuple(score for _, score in ranking[:k]))

    def document(self) -> dict[str, Any]:
        """The model as a JSON document."""
        columns = zip(self.names, self.mean.tolist(), self.scale.tolist(), self.weights.tolist())
        return {"lists": list(self.lists), "columns": {name: list(numbers) for name, *numbers in columns}}


def model_of(document: Mapping[str, Any], names: Sequence[str], whose: Path) -> Model:
    """A model from its JSON document. names: the required columns. Raises BadInput."""
    try:
        columns = document["columns"]
        mean, scale, weights = (np.array([float(columns[name][i]) for name in names]) for i in range(3))
        lists = tuple(map(str, document["lists"]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(
            "weights of fused cannot be used", given=f"{whose}: {type(error).__name__} {error}",
            expected="what gpu-rag tune writes", do="run gpu-rag tune again, or remove the file",
        ) from error  # fmt: skip
    if len(columns) != len(names) or not np.isfinite([mean, scale, weights]).all() or not (scale > 0).all():
        raise BadInput("weights of fused cannot be used", given=whose, do="run gpu-rag tune again, or remove the file")
    return Model(lists, tuple(names), mean, scale, weights)


@cache
def shipped() -> Mapping[str, Any]:
    """The weights file of the package."""
    document: Mapping[str, Any] = json.loads(SHIPPED.read_text("utf-8"))
    return document


@dataclass(frozen=True)
class Learnt:
    """Questions with gold. values: f[Q, c, n]; gold: bool[Q, c]; weight: f[Q], the weight of each question."""

    values: np.ndarray
    gold: np.ndarray
    weight: np.ndarray

    def part(self, rows: np.ndarray) -> Learnt:
        """Some of the questions."""
        return Learnt(self.values[rows], self.gold[rows], self.weight[rows])


def fit(start: Model, learnt: Learnt, pull: float, only: Sequence[str] = ()) -> Model:
    """The weights of lowest loss, see the module, starting from `start`. only: the columns whose weights change."""
    from scipy.optimize import minimize

    learnt = learnt.part(np.flatnonzero(learnt.gold.any(1)))
    if not len(learnt.gold):
        return start
    moved = np.array([not only or name in only for name in start.names])
    x, share = start.standard(learnt.values), learnt.weight / learnt.weight.sum()
    wanted = learnt.gold / learnt.gold.sum(1, keepdims=True) * share[:, None]
    flat = x.reshape(-1, x.shape[2])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        scores = x @ w
        scores -= scores.max(1, keepdims=True)
        powers = np.exp(scores)
        sums = powers.sum(1, keepdims=True)
        away = w - start.weights
        slope = (powers / sums * share[:, None] - wanted).ravel() @ flat + pull * away
        return float(-(wanted * (scores - np.log(sums))).sum() + pull * away @ away / 2), slope * moved

    weights = minimize(loss, start.weights, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    return replace(start, weights=weights)


def untrained(lists: Sequence[str], names: Sequence[str], learnt: Learnt) -> Model:
    """A model with zero weights, scaled by the given questions."""
    flat = learnt.values.reshape(-1, learnt.values.shape[2]).astype(np.float64)
    return Model(tuple(lists), tuple(names), flat.mean(0), flat.std(0) + 1e-9, np.zeros(len(names)))


def trained(lists: Sequence[str], names: Sequence[str], learnt: Learnt, pull: float) -> Model:
    """Weights trained from zero: first the score of `ppr` and its rank, then all columns."""
    first = fit(untrained(lists, names, learnt), learnt, 1e-3, ("score", "score rank"))
    return fit(first, learnt, pull)
