"""`frontier` on the CPU: products by torch, pairs and lists by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.frontier import numba as kernels

from gpu_rag.graph.common.arrays import component_bits
from gpu_rag.graph.common.dots import GRID, f32_slack
from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.frontier.edges import QUESTION_TILE, Described, FrontierQuery, HopEdges, tiles
from gpu_rag.graph.ragged import arrays_of
from gpu_rag.types import Ragged, TopK

Array = np.ndarray[Any, Any]


def _of_questions(query: FrontierQuery) -> tuple[Array, Array, Array]:
    """Questions as arrays for the kernels: vectors, offsets and values of their keywords."""
    words, offsets = arrays_of(query.keywords, wide=True)
    return query.vectors.detach().contiguous().numpy(), offsets, words


def lists_by_numba(query: FrontierQuery, things: Described, lists: Ragged, threads: int) -> torch.Tensor:
    """`score_lists` of checked inputs."""
    questions, out = _of_questions(query), np.empty(lists.values.shape[0], np.float32)
    listed, offsets = arrays_of(lists, wide=True)
    thing_words, thing_offsets = arrays_of(things.keywords)
    vectors = component_bits(things.vectors.detach())

    def score(first: int) -> None:
        last = min(first + QUESTION_TILE, lists.batch)
        kernels.score_rows(*questions, first, last, offsets, listed, vectors, thing_offsets, thing_words, out)

    run_parts(score, range(0, lists.batch, QUESTION_TILE), threads)
    return torch.from_numpy(out)


def frontier_by_numba(query: FrontierQuery, edges: HopEdges, frontier: Ragged, k: int, threads: int) -> TopK:
    """`frontier_topk` of checked inputs."""
    questions, n = _of_questions(query), frontier.values.shape[0]
    ids, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    indptr, vector_of, vectors, edge_offsets, edge_words = edges.arrays
    vertices, offsets = arrays_of(frontier, wide=True)

    def search(first: int) -> None:
        last = min(first + QUESTION_TILE, frontier.batch)
        kernels.best_of_frontier(
            *questions, first, last, offsets, vertices, indptr, vector_of, vectors, edge_offsets, edge_words, ids,
            scores,
        )  # fmt: skip

    run_parts(search, range(0, frontier.batch, QUESTION_TILE), threads)
    return TopK(torch.from_numpy(ids), torch.from_numpy(scores))


def top_edges_by_numba(query: FrontierQuery, edges: HopEdges, k: int, threads: int) -> TopK:
    """`top_edges` of checked inputs."""
    questions, batch = _of_questions(query), query.keywords.batch
    on_grid = query.vectors.detach().double().mul_(GRID).round_().numpy()
    ids, scores = np.full((batch, k), -1, np.int32), np.full((batch, k), -np.inf, np.float32)
    targets = np.full((batch, k), -1, np.int64)
    slack = f32_slack(query.vectors.shape[1])  # covers the rounding of kept scores
    by = edges.by_vector
    whole = by.used.shape[0] == edges.vectors.shape[0]
    rows, used = edges.vectors.detach(), by.used.numpy()
    starts, column_of = by.starts.numpy(), by.column_of.numpy()
    order, target = by.order.numpy(), edges.target.numpy()
    edge_offsets, lists = edges.keywords.offsets.numpy(), (by.list_offsets.numpy(), by.list_places.numpy())
    vectors, parts = component_bits(edges.vectors.detach()), tiles(edges)

    def search(first: int) -> None:
        wanted = query.vectors[first : first + QUESTION_TILE]
        for u0, u1, _, _ in parts:
            tile = rows[u0:u1] if whole else rows[by.used[u0:u1]]
            dots = torch.mm(wanted, tile.float().T).numpy()
            kernels.search_tile(
                dots, on_grid, *questions[1:], first, u0, starts, column_of, order, used, target, vectors, edge_offsets,
                *lists, slack, ids, scores, targets,
            )  # fmt: skip

    run_parts(search, range(0, batch, QUESTION_TILE), threads)
    return TopK(torch.from_numpy(ids), torch.from_numpy(scores))
