"""Search for the edges most similar to each of B questions, among those that leave a frontier.

Each edge is described by one question of its own (HopRAG): a keyword set K_x and a unit vector v_x.
SIM(q, x) = (Jaccard(K_q, K_x) + v_q . v_x) / 2 is HopRAG's similarity; the Jaccard index of two empty sets is 0. It is
computed exactly in f64, with dot products on the grid of `dots`; `frontier_topk` rounds it once to f32. So a score has
the same bits for any batch, tile, implementation or device. Equal scores are ordered by id.
"""

from __future__ import annotations

from gpu_rag_kernels.dispatch import loaded, pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.common.threads import check_threads
from gpu_rag.graph.frontier.edges import (
    QUESTION_TILE,
    Described,
    FrontierQuery,
    HopEdges,
    check_keywords,
    described,
    hop_edges,
)
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.ragged import check_ragged
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged, TopK

__all__ = [
    "QUESTION_TILE", "Described", "FrontierQuery", "HopEdges", "described", "frontier_topk", "hop_edges",
    "pick_search", "score_lists",
]  # fmt: skip

KERNELS = {"torch": "reference", "triton": "triton"}  # kernel for dot products and for the best edges of a list

COMPILED = "gpu_rag.graph.frontier.numba_path"
ANY_KEYWORD = 2**63 - 1  # larger than every keyword of a question


def _check_query(query: FrontierQuery, vectors: torch.Tensor) -> None:
    if query.vectors.dtype != torch.float32:
        raise BadInput("questions are not f32 rows", given=query.vectors.dtype, expected="f32 [B, D]")
    check_unit_rows(query.vectors, "questions")
    check_keywords(query.keywords, query.vectors, ANY_KEYWORD, batch=query.vectors.shape[0], owners="questions")
    if query.vectors.shape[1] != vectors.shape[1] or query.vectors.device != vectors.device:
        given = f"{query.vectors.shape[1]} on {query.vectors.device} and {vectors.shape[1]} on {vectors.device}"
        raise BadInput("questions and edges differ in dimension or device", given=given, expected="one of each")


def _check_size(k: int, threads: int) -> None:
    if k < 1:
        raise BadInput("k is out of range", given=k, expected=">= 1")
    check_threads(threads)


def pick_search(device: torch.device, implementation: str = "auto", op: str = "frontier_topk") -> str:
    """Choose the implementation of `frontier_topk` and `score_lists`: numba | torch | triton; all give the same bits.
    Raises MissingBackend; UsageError if the name is unknown or does not work on this device."""
    return pick_implementation(device, implementation, op, "frontier")


def score_lists(
    query: FrontierQuery, things: Described, lists: Ragged, *, implementation: str = "auto", threads: int = 1
) -> torch.Tensor:
    """SIM(q, x) for every x in each question's list: f64[T], in the order of `lists`.

    lists: Ragged of i32/i64 rows of `things`, in any order, repeats allowed. implementation: see `pick_search`.
    Time: D multiply-adds per pair. Memory: the result; in addition D f64 per pair, in pieces (torch), or 16 bytes per
    pair (triton). Raises BadInput, UsageError, MissingBackend.

    Example: for q = [1, 0] with keywords {1, 2}, the things [1, 0] with {3} and [0.6, 0.8] with {1} score 0.5 and 0.55.
    """
    _check_query(query, things.vectors)
    check_ragged(lists, "rows", n=things.n, device=query.vectors.device, batch=query.keywords.batch)
    check_threads(threads)
    picked = pick_search(query.vectors.device, implementation, "score_lists")
    if picked == "numba":
        return loaded(COMPILED).lists_by_numba(query, things, lists, threads)
    from gpu_rag.graph.frontier.torch_path import lists_by_torch

    return lists_by_torch(query, things, lists, KERNELS[picked])


def frontier_topk(
    query: FrontierQuery, edges: HopEdges, frontier: Ragged, k: int, *, implementation: str = "auto", threads: int = 1
) -> TopK:
    """For every vertex in each question's frontier, its k out-edges with the highest SIM: TopK of i32, f32[T, k].

    Row t belongs to the vertex frontier.values[t]. Its ids are edges e in the order (-SIM(q, e), e), padded with (-1,
    -inf) if the vertex has fewer than k. k >= 1. frontier: Ragged of i32/i64 vertices, in any order, repeats allowed.
    implementation: see `pick_search`. threads: how many blocks of questions run at once (numba). Time: D multiply-adds
    per out-edge of the frontier; the [B, E] scores of all edges are never computed. Additional memory: torch gathers
    the vectors of the out-edges in pieces; triton reads them in place. Raises BadInput, UsageError, MissingBackend.

    Example: vertex 0 has the out-edges 0 ([1, 0], {3}) and 1 ([0.6, 0.8], {1}), vertex 1 has none. For q = [1, 0] with
    {1, 2}, frontier [[0, 1]] and k = 1 the ids are [[1], [-1]], the scores [[0.55], [-inf]].
    """
    _check_query(query, edges.vectors)
    check_ragged(frontier, "vertices", n=edges.n, device=query.vectors.device, batch=query.keywords.batch)
    _check_size(k, threads)
    check_memory(
        8 * k * frontier.values.shape[0], query.vectors.device, "the result", "ask for fewer edges or vertices"
    )
    picked = pick_search(query.vectors.device, implementation)
    if picked == "numba":
        return loaded(COMPILED).frontier_by_numba(query, edges, frontier, k, threads)
    from gpu_rag.graph.frontier.torch_path import frontier_by_torch

    return frontier_by_torch(query, edges, frontier, k, KERNELS[picked])
