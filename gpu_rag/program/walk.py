"""Passages ranked by a random walk with restart: shared parts of graph methods. Data with one number per graph node
stays on the device of the index; a tile of questions is copied there at once.

For a question with text t and unit vector q, and x(p) its nearness to each passage (a temperature times a cosine):
  f(e)      = the mean cosine (not below 0) of q with its n_facts nearest facts, over the facts with e as an end, scaled
              to sum to 1
  l(p)      = BM25(t, p)^2 over the n_words best passages by BM25, scaled to sum to 1
  d(p)      = softmax of x over all passages
  r(p)      = (1 - word_share) d + word_share l, the restart on passages; d alone without a passage of BM25 above 0;
              if titles are named, (1 - TITLE_SHARE) of it and TITLE_SHARE t, see program.seeds
  pi        = mass * w on other nodes, for their weights w, (1 - mass) * r on passages; r alone without w
  score(p)  = minmax(log max(rank(p), 1e-12)) + fusion * minmax(near(p)), both over all passages of the question
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gpu_rag_kernels.dispatch import is_cpu

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import Array, to_device
from gpu_rag.graph.common.dots import products
from gpu_rag.graph.common.segments import row_sums, segment_sums
from gpu_rag.graph.fuse import minmax_rows
from gpu_rag.graph.memory import free_bytes
from gpu_rag.graph.nearest.best import selected, topk_of
from gpu_rag.graph.pagerank import Restarts
from gpu_rag.graph.pagerank.plan import LANES
from gpu_rag.index.index import Index
from gpu_rag.program.search import Ranking, best_by_words, rankings, stage_rows
from gpu_rag.types import TopK

TILE = 64  # questions that are ranked together on a CPU, and rows of a product of fixed shape
PAIR_BYTES = 160  # free memory for each question and passage of a larger tile, which takes a quarter of it
GPU_TILE = 128  # the same on a GPU, where a tile has about 500 launches whatever its size
N_WORDS = 20  # passages by BM25 in the restart
TITLE_SHARE = 0.5  # share of the restart on passages for titles that a question names
_ROWS, _GPU_ROWS = 1 << 12, 1 << 16  # vectors multiplied at a time; a CPU converts f16 ones to f32, in a cache
_FLOOR = 1e-12  # minimum of a probability before its logarithm


Listed = tuple[Array, Array]
"""Few rows of each question, i64[B, S], and their weights, f64[B, S]; what fills up a row weighs 0."""


@dataclass(frozen=True)
class Seeds:
    """Weights of a few nodes of each question, on the device.

    nodes: i64[B, S], ascending; weights: f64[B, S]. If a node repeats, its whole weight is at its first place and the
    others are 0. A row sums to 1, or to 0.
    """

    nodes: torch.Tensor
    weights: torch.Tensor


def walk_tile(index: Index) -> int:
    """The number of questions that are ranked together on the device of the index. On a CPU as many as its
    threads compute the PageRank of at once, if the matrices of questions and passages fit, and at least TILE."""
    if not is_cpu(torch.device(index.device)):
        return GPU_TILE
    tiles = index.threads * LANES[-1] // TILE
    if tiles > 1:  # free memory is a file of the system
        tiles = min(tiles, free_bytes(torch.device("cpu")) // (TILE * PAIR_BYTES * max(index.n_passages, 1)))
    return TILE * max(tiles, 1)


def passage_cosines(index: Index, queries: torch.Tensor) -> torch.Tensor:
    """f32[B, P]: the cosines of B questions, f32[B, D], with all passages. They are as exact as f32 products, even for
    f16 rows; a cosine rounded to f16 would be off by up to 2^-12."""
    base = index.vectors("passage_vectors")
    cosines = torch.empty((len(queries), len(base)), dtype=torch.float32, device=base.device)
    step = _ROWS if is_cpu(base.device) else _GPU_ROWS
    for first in range(0, len(queries), TILE):
        part = queries[first : first + TILE]
        padded = torch.zeros((TILE, part.shape[1]), dtype=torch.float32, device=part.device)
        padded[: len(part)] = part  # fixed shape: same bits in any batch
        for row in range(0, len(base), step):
            block = products(padded, base[row : row + step])
            cosines[first : first + len(part), row : row + step] = block[: len(part)]
    return cosines


def word_weights(index: Index, texts: Sequence[str], n_words: int = N_WORDS) -> tuple[torch.Tensor, torch.Tensor]:
    """l of passages as rows and weights, see `Listed`, on the device: rows sum to 1, or are zero."""
    if not n_words:
        none = torch.zeros((len(texts), 0), dtype=torch.float64, device=index.device)
        return none.long(), none
    return weights_by_words(best_by_words(index, texts, n_words))


def weights_by_words(top: TopK) -> tuple[torch.Tensor, torch.Tensor]:
    """l by the best rows of `best_by_words`, see `word_weights`."""
    weights = torch.where(top.ids >= 0, top.scores, 0.0).double() ** 2
    return torch.where(top.ids >= 0, top.ids, top.ids[:, :1]).clamp(min=0).long(), _scaled(weights)


def listed(lists: Sequence[Sequence[int]], counts: Array) -> Listed:
    """The given rows, each weighted by 1 / its count (1 for 0). Shorter lists are padded with their first entry."""
    width = max(map(len, lists), default=0)
    rows = np.array([[*row, *[row[0] if len(row) else 0] * (width - len(row))] for row in lists], np.int64)
    rows = rows.reshape(len(lists), width)
    is_entry = np.arange(width) < np.array([len(row) for row in lists], np.int64)[:, None]
    return rows, np.where(is_entry, 1 / np.maximum(counts[rows], 1), 0.0) if rows.size else np.zeros(rows.shape)


def uploaded(index: Index, vectors: Sequence[Array], *lists: Listed) -> tuple[torch.Tensor, ...]:
    """Vectors f32[D] as f32[B, D], and rows and weights of each list, on the device of the index, in one copy."""
    return to_device(index.device, np.stack(vectors).astype(np.float32), *(part for pair in lists for part in pair))


def restart(
    near: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, share: float = 0.2,
    places: tuple[torch.Tensor, int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """r f32[B, P]; rows sum to 1. near: x f32[B, P]; rows, weights: l. places: (i64[P], n) if l is over n other rows:
    the row of l for each of P."""
    return blended(torch.softmax(near, dim=1), rows, weights, share, places)


def blended(
    ranking: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, share: float,
    places: tuple[torch.Tensor, int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """(1 - share) ranking + share of a list, in place; a row with an empty list stays unchanged. See `restart`."""
    if not rows.shape[1]:
        return ranking
    share_of = torch.where(row_sums(weights)[:, None] > 0, share, 0.0)
    each, lanes = (share_of * weights).float(), torch.arange(len(rows), device=ranking.device)[:, None]
    ranking.mul_((1 - share_of).float())
    first = (weights > 0) & (torch.arange(rows.shape[1], device=ranking.device) > 0)
    kept = torch.where(first, rows, rows[:, :1])  # padding repeats the first write
    each = torch.where(first, each, each[:, :1])
    if places is None:
        ranking[lanes, kept] = ranking[lanes, kept] + each
        return ranking
    dense = torch.zeros(len(rows), places[1], device=ranking.device)
    dense[lanes, kept] = each
    return ranking.add_(dense[:, places[0]])


def near_facts(
    index: Index, stage: str, queries: torch.Tensor, n_facts: int, proved: bool
) -> tuple[TopK, torch.Tensor]:
    """(nearest facts of each question by the vectors of a stage, bool[B] whether they are proved nearest), on the
    device.

    proved: they must be proved, which makes the host wait; otherwise nothing waits.
    """
    rows = stage_rows(index, stage)
    n_facts = min(n_facts, rows.base.shape[0])
    if proved or not n_facts:
        nearest = rows.search(queries, n_facts)
        return nearest, torch.ones(len(queries), dtype=torch.bool, device=queries.device)
    return rows.proposed(queries, n_facts)


def ends_of(index: Index, stage: str, ends: tuple[Array, Array]) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of the facts of a stage, i64[R] each, on the device; copied once."""

    def load(index: Index) -> tuple[torch.Tensor, torch.Tensor]:
        subjects, objects = to_device(index.device, *ends)
        return subjects, objects

    return index.loaded(f"ends of {stage}", load)


def fact_weights(ends: tuple[torch.Tensor, torch.Tensor], near: TopK) -> Seeds:
    """f of each question. ends: i64[R] entities of each fact; near: the nearest facts, on the device. Sums have a
    fixed order, so the bits are reproducible."""
    facts, cosine = near.ids.long(), near.scores.double().clamp(min=0)
    subjects, objects = (side[facts] for side in ends)
    is_distinct = (objects != subjects).double()
    nodes, counted = torch.cat([subjects, objects], 1), torch.cat([torch.ones_like(is_distinct), is_distinct], 1)
    nodes, total, count = summed(nodes, torch.cat([cosine, cosine], 1) * counted, counted)
    return Seeds(nodes, _scaled(total / count.clamp(min=1)))


def seeds_of(nodes: torch.Tensor, weights: torch.Tensor) -> Seeds:
    """Uploaded lists as seeds."""
    nodes, weights = summed(nodes, weights)
    return Seeds(nodes, _scaled(weights))


def mixed(first: Seeds, second: Seeds, share: float) -> Seeds:
    """(1 - share) first + share second; if one row is empty, the other alone."""
    weights = torch.cat([(1 - share) * first.weights, share * second.weights], 1)
    return seeds_of(torch.cat([first.nodes, second.nodes], 1), weights)


def restarts_of(seeds: Seeds, passages: torch.Tensor, mass: float) -> Restarts:
    """pi: `mass` on a question's seeds, if any, the rest on passages r f32[B, P], the last nodes; changes r."""
    masses = torch.where(row_sums(seeds.weights)[:, None] > 0, mass, 0.0)
    return Restarts(seeds.nodes, (masses * seeds.weights).float(), passages.mul_((1 - masses).float()))


def ranked(ranks: torch.Tensor, near: torch.Tensor, fusion: float, k: int) -> TopK:
    """The k passages of highest score for each question, on the device. ranks, near: f32[B, P]. Nothing waits: a NaN
    score comes first, and `passages_of` detects it."""
    scores = minmax_rows(ranks.clamp_min(_FLOOR).log()) + fusion * minmax_rows(near)
    columns, values = selected(scores, min(k, ranks.shape[1]))
    return topk_of(values, columns, min(k, ranks.shape[1]))


def passages_of(ids: torch.Tensor, scores: torch.Tensor) -> list[Ranking]:
    """Rankings from the result of `ranked`, on the host. Raises BadInput if a score is NaN."""
    if bool(scores.isnan().any()):
        raise BadInput("a score is not a number", given="NaN", expected="finite vectors of questions and passages")
    return rankings(TopK(ids, scores))


def summed(nodes: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Nodes i64[B, S], ascending in each row, and each weight f64[B, S] summed over equal nodes, in order. The sum is
    at the node's first place, 0 at the others. Nothing waits."""
    if not nodes.numel():
        return nodes, *weights
    nodes, order = nodes.sort(dim=1, stable=True)
    batch, width = nodes.shape
    place = torch.arange(batch * width, device=nodes.device).view(batch, width)
    leads = torch.ones_like(nodes, dtype=torch.bool)
    leads[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
    # end of the run of each place: the next place that starts one
    ahead = torch.where(leads, place, batch * width).flatten()
    ends = torch.cat([ahead[1:], ahead.new_full((1,), batch * width)]).flip(0).cummin(0).values.flip(0)
    starts = torch.where(leads.flatten(), place.flatten(), ends)
    offsets = torch.cat([starts, starts.new_full((1,), batch * width)])
    sums = (segment_sums(weight.gather(1, order).flatten(), offsets).view(batch, width) for weight in weights)
    return nodes, *sums


def scaled(rows: Array) -> Array:
    """Rows divided by their sums; rows of zeros stay."""
    sums = rows.sum(1, keepdims=True)
    return np.asarray(rows / np.where(sums > 0, sums, 1))


def _scaled(weights: torch.Tensor) -> torch.Tensor:
    sums = row_sums(weights)[:, None]
    return weights / torch.where(sums > 0, sums, 1.0)
