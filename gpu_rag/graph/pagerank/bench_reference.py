"""PageRank by power iteration in f64, and the bytes that a call must move, counted from a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from gpu_rag.bench.peers import adjacency
from gpu_rag.graph.pagerank.graph import PageRankGraph
from gpu_rag.graph.pagerank.job import Job, Options
from gpu_rag.graph.pagerank.plan import Array
from gpu_rag.graph.pagerank.solve import Tile
from gpu_rag.graph.pagerank.teleport import teleport_of
from gpu_rag.types import CSR, Ragged

EXACT = 1e-9  # L1 error of the reference


def row_normalised(matrix: Any) -> tuple[Any, Array]:
    """(P^T, dangling): rows divided by their sums, transposed; bool[N], rows that have no weight."""
    degree = np.asarray(matrix.sum(1)).ravel()
    dangling = degree <= 0
    scaled = csr_matrix((matrix.data / np.repeat(degree, np.diff(matrix.indptr)), matrix.indices, matrix.indptr))
    scaled.resize(matrix.shape)
    return scaled.T.tocsr(), dangling


def pull_matrix(matrix: Any) -> tuple[Any, Array]:
    """(P^T in f32, the rows that have no weight)."""
    pull, dangling = row_normalised(matrix)
    return pull.astype(np.float32), np.flatnonzero(dangling)


def dense_columns(seeds: Ragged, weights: Ragged, questions: Array, n: int, dtype: Any) -> Array:
    """dtype[N, len(questions)]: the restart distributions as columns that sum to 1."""
    pi = np.zeros((n, len(questions)))
    offsets = seeds.offsets.numpy()
    for column, question in enumerate(questions):
        span = slice(offsets[question], offsets[question + 1])
        np.add.at(pi[:, column], seeds.values.numpy()[span], weights.values.double().numpy()[span])
    return (pi / pi.sum(0)).astype(dtype)


def solve_exactly(csr: CSR, pi: Array, damping: float) -> Array:
    """f64[N, Q]: p = (1-d) pi + d (P^T p + lost(p) pi) by power iteration from pi.

    A step of L1 length s leaves an error of at most d s / (1-d); it stops when that is below EXACT.
    """
    pull, dangling = row_normalised(adjacency(csr))
    p = pi.copy()
    while True:
        following = (1 - damping) * pi + damping * (pull @ p + p[dangling].sum(0) * pi)
        step = float(np.abs(following - p).sum(0).max())
        p = following
        if damping * step <= EXACT * (1 - damping):
            return p


class _Counted:
    """A tile that counts its passes over the graph, step by step: it has no other way to be driven."""

    def __init__(self, tile: Tile):
        self.tile, self.passes = tile, 0
        self.width, self.slack, self.coarsest = tile.width, tile.slack, tile.coarsest

    def sweep(self, omegas: Array, fine: bool) -> Array:
        self.passes += len(omegas)
        return self.tile.sweep(omegas, fine)

    def check(self, rows: Array) -> tuple[Array, Array]:
        self.passes += 1
        return self.tile.check(rows)


def count_passes(
    graph: PageRankGraph, seeds: Ragged, weights: Ragged, implementation: str, options: Options, batch: int
) -> tuple[int, dict[int, int]]:
    """(tile width, passes over the graph by bytes of a state's number) of the first tile of `batch` questions.

    A pass is a step of the iteration or the check in f64 that ends it.
    """
    job = Job(graph, teleport_of(graph, seeds, weights, None), implementation, options)
    make = job.new_tile
    tiles: list[tuple[int, _Counted]] = []

    def counting(dtype: torch.dtype, questions: Array, result: torch.Tensor, lo: int) -> Tile:
        tile = _Counted(make(dtype, questions, result, lo))
        tiles.append((dtype.itemsize, tile))
        return tile

    job.new_tile = counting
    first = min(batch, job.width)
    job.solve(0, first, torch.empty(first, graph.n, dtype=torch.float32, device=graph.device), 0)
    passes: Counter[int] = Counter()
    for itemsize, tile in tiles:
        passes[itemsize] += tile.passes
    if job.f16_steps:
        passes[2] += job.f16_steps  # of the first tile, before it was made
    return job.width, dict(passes)


def solve_bytes(n: int, m: int, weighted: bool, batch: int, width: int, passes: Mapping[int, int]) -> int:
    """Bytes that solving `batch` questions must move, when every pass moves each byte once.

    A pass over a tile of b questions with numbers of s bytes reads the column indices (4 m), the row pointers
    (8 (n + 1)) and the weights, if any (4 m), and reads and writes the state (2 n b s). There is a tile for every
    `width` questions. What a pass reads again because it no longer lies in a cache does not count.
    """
    n_tiles = -(-batch // width)
    graph = 4 * m + 8 * (n + 1) + (4 * m if weighted else 0)
    return sum(count * (n_tiles * graph + 2 * n * batch * size) for size, count in passes.items())
