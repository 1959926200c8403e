"""Edges that carry a question each: the best of all of them, and the best ones out of a frontier, for B questions.

SIM(q, x) = (Jaccard(K_q, K_x) + v_q . v_x) / 2, HopRAG's similarity of keyword sets and of unit vectors (0 for the
Jaccard index of two empty sets). It is computed exactly, with dot products on the grid of `dots`, and rounded once to
f32: a score has the same bits whatever the batch, the tile, the implementation or the device, and equal scores are
ordered by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.choice import pick_kernel

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph.common.backend import check_threads, chosen, pick_implementation, preferred
from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.csr import check_range
from gpu_rag.graph.memory import check_room
from gpu_rag.graph.ragged import are_sets, check_ascending, check_ragged, row_of_value
from gpu_rag.types import Ragged, TopK

__all__ = [
    "Asked", "Described", "HopEdges", "described", "frontier_topk", "hop_edges", "pick_search", "score_lists",
    "top_edges",
]  # fmt: skip

IMPLEMENTATIONS = ("numba", "torch", "triton")
KERNELS = {"torch": "reference", "triton": "triton"}  # that does the dot products and finds the best of a list

QUESTION_TILE = 64  # questions whose scores are alive together
EDGE_TILE = 16384  # and edges, or those of one vector if they are more
ANY_KEYWORD = 2**63 - 1  # above all that a question may ask for


@dataclass(frozen=True)
class Described:
    """N things by meaning and words; made by `described`. vectors: f16 or f32[N, D], unit rows (f32 on the CPU);
    keywords: Ragged of i32/i64 in [0, n_keywords), ascending."""

    vectors: torch.Tensor
    keywords: Ragged
    n_keywords: int

    @property
    def n(self) -> int:
        """Number of things."""
        return self.keywords.batch


@dataclass(frozen=True)
class Asked:
    """B questions. vectors: f32[B, D], unit rows; keywords: Ragged of i32/i64 >= 0, ascending. A number that is no
    keyword of what is searched counts in the size of a question's set alone."""

    vectors: torch.Tensor
    keywords: Ragged


@dataclass(frozen=True)
class HopEdges:
    """E directed edges between V vertices; made by `hop_edges`.

    indptr: i64[V+1], edge e leaves v where indptr[v] <= e < indptr[v+1]; target: i32[E]; vector_of: i32[E], the row
    of `vectors` f16 or f32[Q, D] that an edge carries (edges may share one); keywords: Ragged, a list an edge.
    For the search of all edges: used i64[U], the vectors that some edge carries; order i64[E], the edges by (vector,
    edge), starts i64[U+1], where those of each used vector begin, column_of i64[E], the used vector at each place of
    `order`; list_offsets i64[W+1], list_places i64[T]: the
    places in `order` whose edge has each keyword, ascending.
    """

    indptr: torch.Tensor
    target: torch.Tensor
    vector_of: torch.Tensor
    vectors: torch.Tensor
    keywords: Ragged
    n_keywords: int
    used: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    column_of: torch.Tensor
    list_offsets: torch.Tensor
    list_places: torch.Tensor

    @property
    def n(self) -> int:
        """Number of vertices V."""
        return int(self.indptr.shape[0]) - 1

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """indptr, vector_of, vectors, offsets and values of the keywords as arrays, for edges on the CPU: made once."""
        own = (self.indptr, self.vector_of, self.vectors.detach(), self.keywords.offsets, self.keywords.values)
        return tuple(a.contiguous().numpy() for a in own)


def described(vectors: torch.Tensor, keywords: Ragged, n_keywords: int) -> Described:
    """Checks what `score_lists` compares questions with. Raises BadInput."""
    check_unit_rows(vectors, "vectors")
    _check_keywords(keywords, vectors, n_keywords)
    if keywords.batch != vectors.shape[0]:
        given = f"{keywords.batch} lists for {vectors.shape[0]} vectors"
        raise BadInput("keywords do not match the vectors", given=given, expected="a list a vector")
    return Described(_held(vectors), keywords, n_keywords)


def _held(vectors: torch.Tensor) -> torch.Tensor:
    """As f32 on the CPU, where half-precision products are slow."""
    return vectors.float() if vectors.device.type == "cpu" else vectors


def hop_edges(
    indptr: torch.Tensor, target: torch.Tensor, vector_of: torch.Tensor, vectors: torch.Tensor, keywords: Ragged,
    n_keywords: int,
) -> HopEdges:  # fmt: skip
    """Checks edges and prepares their search, once. Arguments as in `HopEdges`; all on one device. Raises BadInput."""
    check_unit_rows(vectors, "vectors")
    _check_keywords(keywords, vectors, n_keywords)
    check_ragged(Ragged(target, indptr), "targets", n=indptr.numel() - 1, device=vectors.device)
    if vector_of.shape != target.shape or keywords.batch != target.shape[0] or vector_of.device != vectors.device:
        given = f"{tuple(target.shape)} targets, {tuple(vector_of.shape)} vectors, {keywords.batch} keyword lists"
        raise BadInput("edges do not match", given=given, expected="one of each an edge, on one device")
    check_range(vector_of, vectors.shape[0], "the vector of an edge")
    check_room(16 * n_keywords, vectors.device, f"lists of {n_keywords:,} keywords", "number the keywords that occur")
    order = torch.argsort(vector_of.long(), stable=True)
    used, columns, counts = torch.unique(vector_of.long(), return_inverse=True, return_counts=True)
    starts = torch.zeros(used.shape[0] + 1, dtype=torch.int64, device=used.device)
    starts[1:] = counts.cumsum(0)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0], device=order.device)
    words, edge = keywords.values.long(), row_of_value(keywords)
    by_place = torch.argsort(place[edge], stable=True)
    by_word = by_place[torch.argsort(words[by_place], stable=True)]
    list_offsets = torch.zeros(n_keywords + 1, dtype=torch.int64, device=order.device)
    list_offsets[1:] = torch.bincount(words, minlength=n_keywords).cumsum(0)
    return HopEdges(
        indptr, target, vector_of, _held(vectors), keywords, n_keywords, used, order, starts, columns[order],
        list_offsets, place[edge][by_word],
    )  # fmt: skip


def _check_keywords(keywords: Ragged, vectors: torch.Tensor, n_keywords: int | None) -> None:
    if n_keywords is not None and n_keywords < 0:
        raise BadInput("a negative number of keywords", given=n_keywords, expected=">= 0")
    check_ragged(keywords, "keywords", n=n_keywords, device=vectors.device)
    check_ascending(keywords, "keywords")


def _check_asked(asked: Asked, vectors: torch.Tensor) -> None:
    if asked.vectors.dtype != torch.float32:
        raise BadInput("questions are no f32 rows", given=asked.vectors.dtype, expected="f32 [B, D]")
    check_unit_rows(asked.vectors, "questions")
    if asked.keywords.values.device != asked.vectors.device or not are_sets(asked.keywords, ANY_KEYWORD):
        _check_keywords(asked.keywords, asked.vectors, None)
        if asked.keywords.values.numel() and int(asked.keywords.values.min()) < 0:
            raise BadInput("a keyword is negative", given=int(asked.keywords.values.min()), expected=">= 0")
    if asked.keywords.batch != asked.vectors.shape[0]:
        given = f"{asked.keywords.batch} lists for {asked.vectors.shape[0]} questions"
        raise BadInput("keywords do not match the questions", given=given, expected="a list a question")
    if asked.vectors.shape[1] != vectors.shape[1] or asked.vectors.device != vectors.device:
        given = f"{asked.vectors.shape[1]} on {asked.vectors.device} and {vectors.shape[1]} on {vectors.device}"
        raise BadInput("questions and edges differ in dimension or device", given=given, expected="one of each")


def _check_lists(lists: Ragged, asked: Asked, n: int, name: str) -> None:
    check_ragged(lists, name, n=n, device=asked.vectors.device)
    if lists.batch != asked.keywords.batch:
        given = f"{lists.batch} lists for {asked.keywords.batch} questions"
        raise BadInput(f"{name} do not match the questions", given=given, expected="a list a question")


def pick_search(device: torch.device, implementation: str = "auto", op: str = "frontier_topk") -> str:
    """Which implementation of `frontier_topk` and `score_lists` runs: numba | torch | triton; all give the same bits.

    auto: what is preferred for the family `ops`, else numba on the CPU where it is installed, triton on a GPU where it
    is (the kernel `ragged_gather_dot_topk`, never run on a GPU yet), else torch. triton runs on the CPU only where its
    interpreter is switched on. Raises MissingBackend, or UsageError for a name that does not exist or cannot take this
    device.
    """
    implementation = preferred("ops", implementation)
    if implementation not in (*IMPLEMENTATIONS, "auto"):
        raise UsageError("no such implementation", given=implementation, expected=", ".join((*IMPLEMENTATIONS, "auto")))
    if implementation == "triton" or (implementation == "auto" and pick_kernel(op, device) == "triton"):
        return chosen(op, pick_kernel(op, device, "triton"))
    return pick_implementation(device, implementation, op)


def score_lists(
    asked: Asked, things: Described, lists: Ragged, *, implementation: str = "auto", threads: int = 1
) -> torch.Tensor:
    """SIM(q, x) for every x in each question's list: f32[T], in the order of `lists`.

    lists: Ragged of i32/i64 rows of `things`, any order, repeats allowed. implementation: see `pick_search`. Time: D of
    multiply and add a pair; memory: the result (torch: D f64 a pair, in pieces; triton: 16 bytes a pair).
    Raises BadInput, UsageError, MissingBackend.

    q = [1, 0] with words {1, 2}; things [1, 0] with {3} and [0.6, 0.8] with {1}: scores 0.5 and 0.55.
    """
    _check_asked(asked, things.vectors)
    _check_lists(lists, asked, things.n, "rows")
    check_threads(threads)
    picked = pick_search(asked.vectors.device, implementation, "score_lists")
    if picked == "numba":
        return _compiled().lists_by_numba(asked, things, lists, threads)
    from gpu_rag.graph.frontier.torch_path import lists_by_torch

    return lists_by_torch(asked, things, lists, KERNELS[picked])


def frontier_topk(
    asked: Asked, edges: HopEdges, frontier: Ragged, k: int, *, implementation: str = "auto", threads: int = 1
) -> TopK:
    """The k out-edges of highest SIM of every vertex in each question's frontier: TopK of i32, f32[T, k].

    Row t belongs to frontier.values[t]; ids are edges e of that vertex by (-SIM(q, e), e), padded with (-1, -inf)
    where a vertex has fewer. frontier: Ragged of i32/i64 vertices, any order, repeats allowed. k >= 1.
    implementation: see `pick_search`. threads: blocks of questions at once (numba).
    Time: D of multiply and add an out-edge of the frontier; no [B, E] scores exist. Memory beside the result: torch
    gathers the vectors of the out-edges in pieces, triton reads them where they lie.
    Raises BadInput, UsageError, MissingBackend.

    Vertex 0 with out-edges 0: [1, 0], {3} and 1: [0.6, 0.8], {1}; vertex 1 with none. q = [1, 0] with {1, 2}, frontier
    [[0, 1]], k = 1: ids [[1], [-1]], scores [[0.55], [-inf]].
    """
    _check_asked(asked, edges.vectors)
    _check_lists(frontier, asked, edges.n, "vertices")
    _check_k(k)
    check_threads(threads)
    check_room(8 * k * frontier.values.shape[0], asked.vectors.device, "the result", "ask for fewer edges or vertices")
    picked = pick_search(asked.vectors.device, implementation)
    if picked == "numba":
        return _compiled().frontier_by_numba(asked, edges, frontier, k, threads)
    from gpu_rag.graph.frontier.torch_path import frontier_by_torch

    return frontier_by_torch(asked, edges, frontier, k, KERNELS[picked])


def top_edges(asked: Asked, edges: HopEdges, k: int, *, implementation: str = "auto", threads: int = 1) -> TopK:
    """The first edge into each of the first k distinct targets, down the ranking of all edges: TopK i32, f32[B, k].

    All edges are ranked by (-SIM(q, e), e) and walked from the top; an edge whose target was met before is passed
    over, until k targets are found. Padded with (-1, -inf) where edges have fewer targets. k >= 1.
    implementation: numba | torch | auto, all give the same bits. threads: tiles of questions at once (numba).

    Method: tiles of approximate scores (QUESTION_TILE x EDGE_TILE) with a proved error, in which the overlaps of
    keywords are exact, from inverted lists; an edge is computed exactly where its score may reach the k found so far.
    Time: B U D of multiply and add for U distinct vectors. Memory: a few tiles a thread.
    Raises BadInput, UsageError, MissingBackend.
    """
    _check_asked(asked, edges.vectors)
    _check_k(k)
    check_threads(threads)
    check_room(8 * k * asked.keywords.batch, asked.vectors.device, "the result", "ask for fewer edges or questions")
    if pick_implementation(asked.vectors.device, implementation, "top_edges") == "numba":
        return _compiled().top_edges_by_numba(asked, edges, k, threads)
    from gpu_rag.graph.frontier.torch_path import top_edges_by_torch

    return top_edges_by_torch(asked, edges, k)


@cache
def _compiled() -> Any:
    """The module of the numba versions; kept, as an import statement in a call of 50 us is seen."""
    from gpu_rag.graph.frontier import numba_path as frontier_numba

    return frontier_numba


def _check_k(k: int) -> None:
    if k < 1:
        raise BadInput("k is out of range", given=k, expected=">= 1")


def tiles(edges: HopEdges) -> list[tuple[int, int, int, int]]:
    """Ranges (u0, u1) of used vectors with at most EDGE_TILE edges each, or one vector if it has more, and the places
    (p0, p1) of their edges in `order`."""
    found, first, n = [], 0, int(edges.used.shape[0])
    ends = edges.starts.cpu()
    while first < n:
        room = ends[first] + EDGE_TILE
        last = max(first + 1, int(torch.searchsorted(ends, room, right=True)) - 1)
        found.append((first, last, int(ends[first]), int(ends[last])))
        first = last
    return found
