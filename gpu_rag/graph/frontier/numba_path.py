"""`frontier` on the CPU: products by torch, pairs and lists by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.frontier import numba as kernels

from gpu_rag.graph.common.arrays import component_bits
from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.frontier.edges import QUESTION_TILE, Described, FrontierQuery, HopEdges
from gpu_rag.graph.ragged import arrays_of
from gpu_rag.types import Ragged, TopK

Array = np.ndarray[Any, Any]


def _of_questions(query: FrontierQuery) -> tuple[Array, Array, Array]:
    """Questions as arrays for the kernels: vectors, offsets and values of their keywords."""
    words, offsets = arrays_of(query.keywords, wide=True)
    return query.vectors.detach().contiguous().numpy(), offsets, words


def lists_by_numba(query: FrontierQuery, things: Described, lists: Ragged, threads: int) -> torch.Tensor:
    """`score_lists` of checked inputs."""
    questions, out = _of_questions(query), np.empty(lists.values.shape[0])
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
