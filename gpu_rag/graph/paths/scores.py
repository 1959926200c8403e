"""Scores of paths for their questions, and the best of each group."""

from __future__ import annotations

import numpy as np
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import FLOATS, check_form
from gpu_rag.graph.common.dots import MAX_LENGTH
from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.paths.sets import MAX_HOPS, PathSet, check_paths
from gpu_rag.graph.ragged import arrays_of, check_ragged, places_of, row_of_value
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

GRID = float(2**22)
_PATHS = 4096  # paths that a thread takes at a time
_FEW = 1 / 16  # if fewer of all edges are used, they are sorted; otherwise every edge of the graph gets a number
_PART = 1 << 22  # components converted at a time (torch)


def score_paths(
    paths: PathSet,
    queries: torch.Tensor,
    vectors: torch.Tensor,
    topics: Ragged,
    *,
    beam: int | None = None,
    weights: tuple[float, float] = (0.7, 0.3),
    implementation: str = "auto",
    threads: int = 1,
) -> tuple[PathSet, torch.Tensor]:
    """The best paths of each group, by (-score, nodes), in the order of `paths`, and their scores f64[P].

    score = w1 cos(q, m) + w2 |T & V| / |T or V|, where q is the query of the path's question, m the mean of the vectors
    of its edges, T the topics of the question and V the nodes of the path (HydraRAG's relevance with w = .7, .3). The
    cosine is 0 for a path without edges or a zero vector. queries: f32[B, D]; vectors: f16/f32[M, D], one row for each
    edge (`PathGraph.edge`); rows of length 1 (to 1 %) or zero. Checking all vectors would be too slow; only path sums
    that such rows cannot have are refused. topics: as in `start_paths`. beam: paths kept of each group, all if None.
    implementation: numba | torch | auto. threads: groups of 4,096 paths at once (numba). Components are on the grid of
    2^-22, so sums of at most MAX_HOPS rows have exact products: the bits do not depend on implementation, device,
    batch or threads. Time O(P W D). Raises BadInput, UsageError, MissingBackend.

    Topics [0, 3], path 0 - 1 - 3 whose two edges have the query as vector: 0.7 + 0.3 * 2 / 3.
    """
    check_ragged(topics, "topics", device=paths.nodes.device)
    check_paths(paths, topics.batch, queries.device)
    _check_vectors(paths, queries, vectors, topics.batch)
    check_threads(threads)
    if beam is not None and beam < 1:
        raise BadInput("beam is out of range", given=beam, expected=">= 1 paths, or None")
    chosen = pick_implementation(queries.device, implementation, "score_paths")
    rounded = queries.double().mul_(GRID).round_()
    if chosen == "numba":
        scores, sound = _by_numba(paths, rounded, vectors, topics, weights, threads)
    else:
        scores, unsound = _by_torch(paths, rounded, vectors, topics, weights)
        best = torch.ones_like(scores, dtype=torch.bool) if beam is None else best_of_groups(paths.group, scores, beam)
        broken, n_kept = torch.stack([unsound.long(), best.sum()]).tolist()  # one wait for the device
        sound, kept = not broken, places_of(best, n_kept)
    if not sound:
        raise BadInput("vectors are not unit rows", expected="length 1, or a row of zeros")
    if beam is None or scores.shape[0] <= beam:
        return paths, scores
    if chosen == "numba":
        kept = _best_by_numba(paths.group, scores, beam)
    return paths.rows(kept), scores[kept]


def _check_vectors(paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, batch: int) -> None:
    check_form(queries, "queries do not fit", ["f32"], [batch, "D"])
    check_form(vectors, "vectors are not a matrix, or differ", FLOATS, ["M", queries.shape[1]], queries.device)
    if paths.edges.shape[1] > MAX_HOPS:
        raise BadInput("paths are too long", given=f"{paths.edges.shape[1]} hops", expected=f"at most {MAX_HOPS}")
    if is_trusted(queries.device):
        return
    length = torch.linalg.vector_norm(queries, dim=1)
    unsound = (~((length - 1).abs() <= MAX_LENGTH - 1) & (length != 0)).any().long()
    last_edge_number = paths.edges.amax().long() if paths.edges.numel() else torch.full_like(unsound, -1)
    unsound, last_edge = torch.stack([unsound, last_edge_number]).tolist()  # one wait for the device
    if unsound:
        raise BadInput("queries are not unit rows", expected="length 1, or a row of zeros")
    if last_edge >= vectors.shape[0]:
        given = f"edge {last_edge}, {vectors.shape[0]} vectors"
        raise BadInput("an edge has no vector", given=given, expected="a row an edge")


def _by_torch(
    paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: Ragged, weights: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores f64[P], and bool[], whether the vectors cannot be unit rows. queries: in steps of the grid."""
    dot, square = _sums(paths, queries, vectors)
    length = (paths.edges >= 0).sum(1).double()
    unsound = ~(square <= (MAX_LENGTH * GRID * length) ** 2).all()
    norm = square * (queries * queries).sum(1)[paths.question]
    # correctly rounded: torch on the CPU may use a library root whose last bit can differ
    norm = torch.from_numpy(np.sqrt(norm.numpy())) if norm.device.type == "cpu" else norm.sqrt()
    cosine = torch.where(norm > 0, dot / norm, 0.0)
    return weights[0] * cosine + weights[1] * _jaccard(paths, topics), unsound


def _sums(paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(dot of the query and the sum of the vectors, squared length of the sum), f64[P] each, in steps of the grid."""
    dot, square = (queries.new_zeros(paths.size) for _ in range(2))
    step = max(1, _PART // vectors.shape[1]) if vectors.shape[1] else max(paths.size, 1)
    for first in range(0, paths.size, step):
        part = slice(first, first + step)
        total = queries.new_zeros(paths.nodes[part].shape[0], vectors.shape[1])
        for edge in paths.edges[part].T.long() if vectors.shape[0] else ():
            steps = vectors[edge.clamp_min(0)].double().mul_(GRID).round_()
            total += torch.where(edge[:, None] >= 0, steps, 0.0)
        dot[part] = (total * queries[paths.question[part]]).sum(1)
        square[part] = (total * total).sum(1)
    return dot, square


def _by_numba(
    paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: Ragged, weights: tuple[float, float],
    threads: int,
) -> tuple[torch.Tensor, bool]:  # fmt: skip
    """`_by_torch` in compiled loops. f16 vectors are converted to f32 only for the edges of these paths."""
    from gpu_rag_kernels.paths.numba import relevance, vector_sums

    edges = paths.edges
    if vectors.dtype == torch.float16:
        edges, vectors = _in_f32(edges, vectors)
    nodes, along, question, stored, wanted_queries = (
        a.contiguous().numpy() for a in (paths.nodes, edges, paths.question, vectors, queries)
    )
    wanted, squares = arrays_of(topics), (queries * queries).sum(1).numpy()
    scores = queries.new_empty(paths.size)
    to_scores = scores.numpy()

    def part(first: int) -> bool:
        span = slice(first, first + _PATHS)
        dot, square = np.empty(len(question[span])), np.empty(len(question[span]))
        vector_sums(stored, along[span], wanted_queries, question[span], dot, square)
        return bool(relevance(
            nodes[span], along[span], question[span], *wanted, dot, square, squares, MAX_LENGTH * GRID, weights,
            to_scores[span],
        ))  # fmt: skip

    return scores, all(run_parts(part, range(0, paths.size, _PATHS), threads))


def _in_f32(edges: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The edges renumbered by rank among the used edges, and the f32 vectors of these."""
    stored = edges.numpy()
    if edges.numel() < _FEW * vectors.shape[0]:
        used_edges = np.unique(stored)
        used_edges = used_edges[np.searchsorted(used_edges, 0) :]
        numbered = np.where(stored >= 0, np.searchsorted(used_edges, stored), -1)
    else:
        used = np.zeros(vectors.shape[0] + 1, np.bool_)  # padding, -1, indexes the last place
        used[stored] = True
        used_edges = np.flatnonzero(used[:-1])
        numbered = np.where(stored >= 0, (np.cumsum(used) - 1)[stored], -1)
    return torch.from_numpy(numbered), vectors[torch.from_numpy(used_edges).long()].float()


def _jaccard(paths: PathSet, topics: Ragged) -> torch.Tensor:
    """Shared nodes divided by all nodes of the path and its question's topics: f64[P]."""
    nodes = paths.nodes.long()
    width = 2**31  # above every node
    own = (topics.values >= 0) & (topics.values < width)  # no other topic is on a path; a large one would not fit a key
    known = torch.where(own, row_of_value(topics) * width + topics.values, -2).sort().values
    shared = torch.zeros(paths.size, dtype=torch.int64, device=nodes.device)
    first = paths.question * width
    for column in nodes.T if known.numel() else ():
        key = torch.where(column >= 0, first + column, -1)
        shared += known[torch.searchsorted(known, key).clamp_(max=known.shape[0] - 1)] == key
    size = topics.offsets.diff()[paths.question]
    union = size + (nodes >= 0).sum(1) - shared
    return shared.double() / union.clamp_min(1).double()


def best_of_groups(group: torch.Tensor, scores: torch.Tensor, beam: int) -> torch.Tensor:
    """The `beam` best rows of each group by (-score, row): bool[P]. group: ascending."""
    order = lexsort(-scores, group)
    place = torch.arange(group.shape[0], device=group.device)
    rank = place - torch.searchsorted(group, group)  # `group` ascends: sorted by it, the rows of a group stay in place
    kept = torch.empty_like(group, dtype=torch.bool)
    kept[order] = rank < beam
    return kept


def _best_by_numba(group: torch.Tensor, scores: torch.Tensor, beam: int) -> torch.Tensor:
    """`best_of_groups` as the rows that are kept: i64[K], ascending."""
    from gpu_rag_kernels.paths.numba import best_rows

    rows = np.empty(scores.shape[0], np.int64)
    count = best_rows(group.contiguous().numpy(), scores.contiguous().numpy(), beam, rows)
    return torch.from_numpy(rows[:count])
