"""`frontier` in torch, on any device; dot products and the best of lists by the kernel `ragged_gather_dot_topk`."""

from __future__ import annotations

import torch
from gpu_rag_kernels.ragged_gather_dot_topk import gather_dots, ragged_gather_dot_topk

from gpu_rag.graph.dots import exact_dots, filter_for
from gpu_rag.graph.frontier import QUESTION_TILE, Asked, Described, HopEdges, tiles
from gpu_rag.graph.ragged import expand, row_of_value
from gpu_rag.types import Ragged, TopK


def _scores(
    asked: Asked, b: torch.Tensor, vectors: torch.Tensor, row: torch.Tensor, keywords: Ragged, thing: torch.Tensor
) -> torch.Tensor:
    """f32[P]: SIM of question b[p] and thing[p], whose vector is row[p]."""
    dots = exact_dots(asked.vectors.detach(), b, vectors.detach(), row)
    return ((_shares(asked.keywords, b, keywords, thing) + dots) / 2).float()


def _shares(asked: Ragged, b: torch.Tensor, keywords: Ragged, thing: torch.Tensor) -> torch.Tensor:
    """f64[P]: the Jaccard index of the keywords of question b[p] and thing[p]."""
    shared = _shared(asked, b, keywords, thing)
    union = asked.offsets.diff()[b] + keywords.offsets.diff()[thing] - shared
    return shared.double() / union.clamp_(min=1).double()  # two empty sets: 0 / 1


def _shared(asked: Ragged, b: torch.Tensor, keywords: Ragged, thing: torch.Tensor) -> torch.Tensor:
    """i64[P]: how many keywords question b[p] and thing[p] share."""
    found = torch.zeros_like(b)
    if not asked.values.numel() or not keywords.values.numel():
        return found
    width = 1 + int(keywords.values.max())
    own = asked.values < width  # others are in no list; a large one would not fit a key
    known = row_of_value(asked)[own] * width + asked.values[own].long()  # ascending
    if not known.numel():
        return found
    for pair, place in expand(keywords.offsets[thing], keywords.offsets[thing + 1]):
        wanted = b[pair] * width + keywords.values[place].long()
        at = torch.searchsorted(known, wanted).clamp_(max=known.shape[0] - 1)
        found += torch.bincount(pair[known[at] == wanted], minlength=found.shape[0])
    return found


def lists_by_torch(asked: Asked, things: Described, lists: Ragged, kernel: str) -> torch.Tensor:
    """`score_lists` of checked inputs. kernel: that of the dot products, reference | triton."""
    b, rows = row_of_value(lists), lists.values.long()
    dots = gather_dots(asked.vectors.detach(), b, things.vectors.detach(), lists.values, implementation=kernel)
    return ((_shares(asked.keywords, b, things.keywords, rows) + dots) / 2).float()


def frontier_by_torch(asked: Asked, edges: HopEdges, frontier: Ragged, k: int, kernel: str) -> TopK:
    """`frontier_topk` of checked inputs. kernel: what finds the best of each vertex's edges, reference | triton."""
    vertices, question = frontier.values.long(), row_of_value(frontier)
    ids = torch.full((vertices.shape[0], k), -1, dtype=torch.int32, device=vertices.device)
    scores = torch.full(ids.shape, -torch.inf, device=vertices.device)
    first, last = edges.indptr[vertices], edges.indptr[vertices + 1]
    for owner, edge in expand(first, last):  # an owner is never cut
        row, counts = torch.unique_consecutive(owner, return_counts=True)
        offsets = torch.zeros(row.shape[0] + 1, dtype=torch.int64, device=row.device)
        offsets[1:] = counts.cumsum(0)
        found = ragged_gather_dot_topk(
            asked.vectors.detach(), edges.vectors.detach(), Ragged(edges.vector_of[edge], offsets), k,
            owner=question[row], bias=_shares(asked.keywords, question[owner], edges.keywords, edge),
            implementation=kernel,
        )  # fmt: skip
        ids[row] = torch.where(found.ids < 0, -1, first[row, None] + found.ids).int()
        scores[row] = found.scores / 2  # halving is exact: the sum was rounded once
    return TopK(ids, scores)


def _sorted(row: torch.Tensor, score: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
    """The order by (row, -score, edge)."""
    order = torch.argsort(edge, stable=True)
    order = order[torch.argsort(score[order], descending=True, stable=True)]
    return order[torch.argsort(row[order], stable=True)]


def _fill(ids: torch.Tensor, scores: torch.Tensor, row: torch.Tensor, edge: torch.Tensor, score: torch.Tensor) -> None:
    """Writes the first entries of each row, which come sorted by row."""
    place = torch.arange(row.shape[0], device=row.device) - torch.searchsorted(row, row)
    kept = place < ids.shape[1]
    ids[row[kept], place[kept]] = edge[kept].int()
    scores[row[kept], place[kept]] = score[kept]


def top_edges_by_torch(asked: Asked, edges: HopEdges, k: int) -> TopK:
    """`top_edges` of checked inputs."""
    batch = asked.keywords.batch
    ids = torch.full((batch, k), -1, dtype=torch.int32, device=edges.indptr.device)
    scores = torch.full((batch, k), -torch.inf, device=edges.indptr.device)
    for first in range(0, batch, QUESTION_TILE):
        last = min(first + QUESTION_TILE, batch)
        offsets = asked.keywords.offsets[first : last + 1]
        values = asked.keywords.values[int(offsets[0]) : int(offsets[-1])]
        part = Asked(asked.vectors[first:last].detach(), Ragged(values, offsets - offsets[0]))
        _search(part, edges, ids[first:last], scores[first:last])
    return TopK(ids, scores)


def _search(asked: Asked, edges: HopEdges, ids: torch.Tensor, scores: torch.Tensor) -> None:
    """Fills the rows of some questions, tile after tile of edges."""
    fast = filter_for(asked.vectors[:0], edges.vectors[:0], dtype=torch.float32)
    slack = fast.slack  # which has room for the f32 sum with a share
    sizes, words = edges.keywords.offsets.diff(), asked.keywords.offsets.diff()
    for u0, u1 in tiles(edges):
        p0, p1 = int(edges.starts[u0]), int(edges.starts[u1])
        edge = edges.order[p0:p1]
        column = edges.column_of[p0:p1] - u0
        dots = fast.product(asked.vectors, edges.vectors[edges.used[u0:u1]].float())
        shared = _overlaps(asked.keywords, edges, p0, p1)
        rough = dots[:, column] + shared / (words[:, None] + sizes[edge] - shared).clamp_(min=1)
        reach = torch.maximum(2 * scores[:, -1].double(), _least(rough, edges.target[edge], ids.shape[1]) - slack)
        row, place = (rough >= (reach - slack)[:, None]).nonzero().T
        found = edge[place]
        score = _scores(asked, row, edges.vectors, edges.vector_of[found].long(), edges.keywords, found)
        _merge(ids, scores, row, found, score, edges.target)


def _overlaps(asked: Ragged, edges: HopEdges, p0: int, p1: int) -> torch.Tensor:
    """f32[B, p1 - p0]: how many keywords each question shares with the edge at each place."""
    shared = torch.zeros(asked.batch, p1 - p0, device=edges.indptr.device)
    known = asked.values < edges.n_keywords
    words, question = asked.values[known].long(), row_of_value(asked)[known]
    for owner, at in expand(edges.list_offsets[words], edges.list_offsets[words + 1]):
        place = edges.list_places[at]
        inside = (place >= p0) & (place < p1)
        pair = question[owner[inside]] * (p1 - p0) + place[inside] - p0
        shared.view(-1).index_add_(0, pair, torch.ones_like(pair, dtype=shared.dtype))
    return shared


def _least(rough: torch.Tensor, target: torch.Tensor, k: int) -> torch.Tensor:
    """f64[B]: the k-th best of the largest entries of each target; -inf where there are fewer targets."""
    targets, place = torch.unique(target, return_inverse=True)
    if targets.shape[0] < k:
        return torch.full(rough.shape[:1], -torch.inf, dtype=torch.float64, device=rough.device)
    peaks = torch.full((rough.shape[0], targets.shape[0]), -torch.inf, device=rough.device)
    peaks.scatter_reduce_(1, place.expand_as(rough), rough, "amax")
    return torch.topk(peaks, k, dim=1).values[:, -1].double()


def _merge(
    ids: torch.Tensor, scores: torch.Tensor, row: torch.Tensor, edge: torch.Tensor, score: torch.Tensor,
    target: torch.Tensor,
) -> None:  # fmt: skip
    """Updates the lists in place with further edges."""
    held_row, held_place = (ids >= 0).nonzero().T
    row = torch.cat([held_row, row])
    edge = torch.cat([ids[held_row, held_place].long(), edge])
    score = torch.cat([scores[held_row, held_place], score])
    n = max(int(target.max()) + 1, 1)
    best = _sorted(row * n + target[edge].long(), score, edge)  # each target's best edge first
    key = (row * n + target[edge].long())[best]
    leads = torch.ones_like(key, dtype=torch.bool)
    leads[1:] = key[1:] != key[:-1]
    best = best[leads]
    best = best[_sorted(row[best], score[best], edge[best])]
    _fill(ids, scores, row[best], edge[best], score[best])
