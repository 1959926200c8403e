"""The model of `fused`: weights of a candidate's features in two passes, their JSON document, and their fitting.

With z = clip((x - mean) / scale, -CLIP, CLIP) for each column, and the features v(j) and pairs(i, j) of candidates:
  a       = softmax of u . z(v(j)) over the candidates, the first pass
  x(j)    = v(j), then the sum over i of a(i) pairs(i, j)
  score   = w . z(x(j)), by which they are ranked
  two     = score(i) + score(j) + t . (pairs(i, j) + pairs(j, i)); the two of the AMONG first for which it is highest
            come before the others
`fit` finds w from questions with gold passages, and leaves the first pass as it is:
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
from gpu_rag.methods.fused.batched import PAIRS
from gpu_rag.program.search import Ranking

SHIPPED = Path(__file__).with_name("weights.json")
CLIP = 4.0
AMONG = 12
_STEPS = 200


@dataclass(frozen=True, eq=False)
class Model:
    """The weights of the model. names: the columns of features and pairs, see `batched`; lists: the methods whose lists
    are among them; first: u, 0 for pairs; weights: w; together: t."""

    lists: tuple[str, ...]
    names: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    first: np.ndarray
    weights: np.ndarray
    together: np.ndarray

    def inputs(self, values: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """x of the c candidates of each question, f64[..., c, n + m]. values: f[..., c, n]; pairs: f[..., c, c, m]."""
        n = values.shape[-1]
        alone = np.clip((values.astype(np.float64) - self.mean[:n]) / self.scale[:n], -CLIP, CLIP)
        scores = (alone * self.first[:n]).sum(-1, keepdims=True)
        powers = np.exp(scores - scores.max(-2, keepdims=True))
        beside = (powers[..., None] * pairs).sum(-3) / powers.sum(-2, keepdims=True)
        return np.concatenate([values, beside], -1)

    def standard(self, values: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """z(x) of candidates, f64[..., c, n + m]."""
        return np.clip((self.inputs(values, pairs) - self.mean) / self.scale, -CLIP, CLIP)

    def scores(self, values: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """f64[..., c]: the scores of candidates. They do not depend on other questions of the batch."""
        scores: np.ndarray = (self.standard(values, pairs) * self.weights).sum(-1)
        near, sums, mutual = pair_sums(scores, pairs)
        if near.shape[-1] < 2:
            return scores
        best = (sums + (mutual * self.together).sum(-1)).argmax(-1)
        places = np.stack([side[best] for side in np.triu_indices(near.shape[-1], 1)], -1)
        chosen = np.take_along_axis(near, places, -1)
        own = np.take_along_axis(scores, chosen, -1)
        np.put_along_axis(scores, chosen, own - own[..., 1:] + scores.max(-1, keepdims=True) + 1, -1)
        return scores

    def ranked(self, first: Ranking, values: np.ndarray, pairs: np.ndarray, k: int) -> Ranking:
        """The k best passages: candidates by their scores, then the passages without features in their order."""
        by_model = self.scores(values, pairs)
        order, scores = np.argsort(-by_model, kind="stable").tolist(), by_model.tolist()
        ranking = [(first.rows[candidate], scores[candidate]) for candidate in order]
        last = len(scores)
        for row, score in zip(first.rows[last:], first.scores[last:]):
            ranking.append((row, ranking[last - 1][1] - (first.scores[last - 1] - score)))
        return Ranking(tuple(row for row, _ in ranking[:k]), tuple(score for _, score in ranking[:k]))

    def document(self) -> dict[str, Any]:
        """The model as a JSON document."""
        numbers = np.stack([self.mean, self.scale, self.first, self.weights], axis=1).tolist()
        for column, weight in zip(reversed(numbers), self.together[::-1].tolist()):
            column.append(weight)
        return {"lists": list(self.lists), "columns": dict(zip(self.names, numbers))}


def pair_sums(scores: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The AMONG first candidates i64[..., c], and of every two of them the sums of their scores f64[..., T] and of
    their numbers in both directions f64[..., T, m]."""
    near = np.argsort(-scores, axis=-1, kind="stable")[..., :AMONG]
    one, other = np.triu_indices(near.shape[-1], 1)
    own, among = np.take_along_axis(scores, near, -1), np.take_along_axis(pairs, near[..., None, None], -3)
    among = np.take_along_axis(among, near[..., None, :, None], -2)
    return near, own[..., one] + own[..., other], among[..., one, other, :] + among[..., other, one, :]


def model_of(document: Mapping[str, Any], names: Sequence[str], path: Path) -> Model:
    """A model from its JSON document. names: the required columns. Without t, as older files are, it is 0. Raises
    BadInput."""
    try:
        columns = document["columns"]
        mean, scale, first, weights = (np.array([float(columns[name][i]) for name in names]) for i in range(4))
        together = np.array([float([*columns[name], 0][4]) for name in names[-len(PAIRS) :]])
        lists = tuple(map(str, document["lists"]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(
            "weights of fused cannot be used", given=f"{path}: {type(error).__name__} {error}",
            expected="a file written by gpu-rag tune", do="run gpu-rag tune again, or remove the file",
        ) from error  # fmt: skip
    if (
        len(columns) != len(names)
        or not np.isfinite([*mean, *scale, *first, *weights, *together]).all()
        or not (scale > 0).all()
    ):
        raise BadInput("weights of fused cannot be used", given=path, do="run gpu-rag tune again, or remove the file")
    return Model(lists, tuple(names), mean, scale, first, weights, together)


@cache
def shipped() -> Mapping[str, Any]:
    """The weights file of the package."""
    document: Mapping[str, Any] = json.loads(SHIPPED.read_text("utf-8"))
    return document


@dataclass(frozen=True)
class Learnt:
    """Questions with gold. values: f[Q, c, n]; pairs: f[Q, c, c, m]; gold: bool[Q, c]; weight: f[Q], the weight of each
    question."""

    values: np.ndarray
    pairs: np.ndarray
    gold: np.ndarray
    weight: np.ndarray

    @property
    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """values and pairs."""
        return self.values, self.pairs

    def part(self, rows: np.ndarray) -> Learnt:
        """Some of the questions."""
        return Learnt(self.values[rows], self.pairs[rows], self.gold[rows], self.weight[rows])


def fit(start: Model, learnt: Learnt, pull: float) -> Model:
    """`start` with the weights of lowest loss, see the module. pull: how strongly they are held at the weights of
    `start`."""
    from scipy.optimize import minimize

    learnt = learnt.part(np.flatnonzero(learnt.gold.any(1)))
    if not len(learnt.gold):
        return start
    x, share = start.standard(*learnt.inputs), learnt.weight / learnt.weight.sum()
    wanted = learnt.gold / learnt.gold.sum(1, keepdims=True) * share[:, None]
    flat = x.reshape(-1, x.shape[2])

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        scores = x @ w
        scores -= scores.max(1, keepdims=True)
        powers = np.exp(scores)
        sums = powers.sum(1, keepdims=True)
        moved = w - start.weights
        gradient = (powers / sums * share[:, None] - wanted).ravel() @ flat + pull * moved
        return float(-(wanted * (scores - np.log(sums))).sum() + pull * moved @ moved / 2), gradient

    weights = minimize(loss, start.weights, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    return replace(start, weights=weights)
