"""`frontier` in torch, on any device; dot products and the best of lists by the kernel `ragged_gather_dot_topk`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpu_rag_kernels.frontier import gather_dots, ragged_gather_dot_topk

from gpu_rag.graph.common.dots import exact_dots, f32_slack
from gpu_rag.graph.common.segments import lexsort, offsets_of
from gpu_rag.graph.frontier.edges import QUESTION_TILE, Described, FrontierQuery, HopEdges, tiles
from gpu_rag.graph.join.pairs import jaccard_by_keys
from gpu_rag.graph.ragged import expand, pieces_of, row_of_value
from gpu_rag.types import Ragged, TopK


def _shares(query: Ragged, b: torch.Tensor, things: Described | HopEdges, thing: torch.Tensor) -> torch.Tensor:
    """The Jaccard index of the keywords of question b[p] and thing[p]: f64[P]."""
    width = things.n_keywords + 1  # other words are in no list; a large one would not fit a key
    known = row_of_value(query) * width + query.values.long().clamp(max=things.n_keywords)  # ascending
    return jaccard_by_keys(things.keywords, query, known, width, thing, b)


def lists_by_torch(query: FrontierQuery, things: Described, lists: Ragged, kernel: str) -> torch.Tensor:
    """`score_lists` of checked inputs. kernel: for the dot products, reference | triton."""
    b, rows = row_of_value(lists), lists.values.long()
    dots = gather_dots(query.vectors.detach(), b, things.vectors.detach(), lists.values, implementation=kernel)
    return ((_shares(query.keywords, b, things, rows) + dots) / 2).float()


def frontier_by_torch(query: FrontierQuery, edges: HopEdges, frontier: Ragged, k: int, kernel: str) -> TopK:
    """`frontier_topk` of checked inputs. kernel: for the best edges of each vertex, reference | triton."""
    vertices, question = frontier.values.long(), row_of_value(frontier)
    ids = torch.full((vertices.shape[0], k), -1, dtype=torch.int32, device=vertices.device)
    scores = torch.full(ids.shape, -torch.inf, device=vertices.device)
    first, last = edges.indptr[vertices], edges.indptr[vertices + 1]
    for owner, edge in expand(first, last):  # an owner is never cut
        counts = torch.zeros_like(vertices).index_add_(0, owner, torch.ones_like(owner))  # 0 of those of other pieces
        offsets = offsets_of(counts)
        top = ragged_gather_dot_topk(
            query.vectors.detach(), edges.vectors.detach(), Ragged(edges.vector_of[edge], offsets), k,
            owner=question, bias=_shares(query.keywords, question[owner], edges, edge), implementation=kernel,
        )  # fmt: skip
        ids = torch.where(top.ids < 0, ids, (first[:, None] + top.ids).int())
        scores = torch.where(top.ids < 0, scores, top.scores / 2)  # halving is exact: the sum was rounded once
    return TopK(ids, scores)


def top_edges_by_torch(query: FrontierQuery, edges: HopEdges, k: int) -> TopK:
    """`top_edges` of checked inputs."""
    batch = query.keywords.batch
    ids = torch.full((batch, k), -1, dtype=torch.int32, device=edges.indptr.device)
    scores = torch.full((batch, k), -torch.inf, device=edges.indptr.device)
    vectors = query.vectors.detach()
    parts = [
        (first, FrontierQuery(vectors[first : first + words.batch], words))
        for first, words in pieces_of(query.keywords, QUESTION_TILE)
    ]
    by_vector = edges.by_vector
    for u0, u1, p0, p1 in tiles(edges):
        edge, column, used = by_vector.order[p0:p1], by_vector.column_of[p0:p1] - u0, by_vector.used[u0:u1]
        targets, number = torch.unique(edges.target[edge], return_inverse=True)
        part_of_edges = _Tile(p0, edge, column, edges.vectors[used].float(), targets.shape[0], number)
        for first, part in parts:
            last = first + part.keywords.batch
            _search(part, edges, part_of_edges, ids[first:last], scores[first:last])
    return TopK(ids, scores)


@dataclass(frozen=True)
class _Tile:
    """Edges that are searched together. first: the place in `order` of the first; edge i64[P]; column i64[P], the row
    of `vectors` f32[U, D] of each edge; targets: the number of targets; target i64[P], the target number of each edge.
    """

    first: int
    edge: torch.Tensor
    column: torch.Tensor
    vectors: torch.Tensor
    targets: int
    target: torch.Tensor


def _search(query: FrontierQuery, edges: HopEdges, tile: _Tile, ids: torch.Tensor, scores: torch.Tensor) -> None:
    """Merge the edges of a tile into the rows of some questions."""
    slack = f32_slack(query.vectors.shape[1])  # it covers the f32 sum with a share
    sizes, words = edges.keywords.offsets.diff(), query.keywords.offsets.diff()
    dots = torch.mm(query.vectors, tile.vectors.T)
    shared = _overlaps(query.keywords, edges, tile)
    approx = dots[:, tile.column] + shared / (words[:, None] + sizes[tile.edge] - shared).clamp_(min=1)
    reach = torch.maximum(2 * scores[:, -1].double(), _least(approx, tile, ids.shape[1]) - slack)
    row, place = (approx >= (reach - slack)[:, None]).nonzero().T
    candidates = tile.edge[place]
    exact = exact_dots(query.vectors, row, edges.vectors.detach(), edges.vector_of[candidates].long())
    _merge(ids, scores, row, candidates, ((_shares(query.keywords, row, edges, candidates) + exact) / 2).float(), edges)


def _overlaps(query: Ragged, edges: HopEdges, tile: _Tile) -> torch.Tensor:
    """The number of keywords that each question shares with the edge at each place: f32[B, P]."""
    size = tile.edge.shape[0]
    shared = torch.zeros(query.batch, size, device=edges.indptr.device)
    known, words = query.values < edges.n_keywords, query.values.long().clamp(max=max(edges.n_keywords - 1, 0))
    list_offsets, question = edges.by_vector.list_offsets, row_of_value(query)
    first = list_offsets[words]
    last = torch.where(known, list_offsets[(words + 1).clamp(max=edges.n_keywords)], first)
    for owner, entry in expand(first, last):
        place = edges.by_vector.list_places[entry] - tile.first
        inside = ((place >= 0) & (place < size)).nonzero()[:, 0]
        pair = question[owner[inside]] * size + place[inside]
        shared.view(-1).index_add_(0, pair, torch.ones_like(pair, dtype=shared.dtype))
    return shared


def _least(approx: torch.Tensor, tile: _Tile, k: int) -> torch.Tensor:
    """The k-th best of the largest entries of each target: f64[B]; -inf if there are fewer targets."""
    if tile.targets < k:
        return torch.full(approx.shape[:1], -torch.inf, dtype=torch.float64, device=approx.device)
    peaks = torch.full((approx.shape[0], tile.targets), -torch.inf, device=approx.device)
    peaks.scatter_reduce_(1, tile.target.expand_as(approx), approx, "amax")
    return torch.topk(peaks, k, dim=1).values[:, -1].double()


def _merge(
    ids: torch.Tensor, scores: torch.Tensor, row: torch.Tensor, edge: torch.Tensor, score: torch.Tensor,
    edges: HopEdges,
) -> None:  # fmt: skip
    """Merge further edges into the lists, in place. The padding of a list is also a candidate, without a vertex."""
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(ids)
    row = torch.cat([rows.flatten(), row])
    edge = torch.cat([ids.flatten().long(), edge])
    score = torch.cat([scores.flatten(), score])
    target = torch.where(edge >= 0, edges.target[edge.clamp(min=0)].long(), edges.n)
    key = row * (edges.n + 1) + target
    best = lexsort(edge, -score, key)  # each target's best edge first
    leads = torch.ones_like(key, dtype=torch.bool)
    leads[1:] = key[best][1:] != key[best][:-1]
    best = best[leads]
    best = best[lexsort(edge[best], -score[best], row[best])]
    row = row[best]
    place = torch.arange(row.shape[0], device=row.device) - torch.searchsorted(row, row)
    kept = (place < ids.shape[1]).nonzero()[:, 0]  # the first entries of each row
    cells = row[kept], place[kept]
    ids[cells], scores[cells] = edge[best[kept]].int(), score[best[kept]]
