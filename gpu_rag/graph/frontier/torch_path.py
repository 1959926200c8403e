"""`frontier` in torch, on any device; dot products and the best of lists by the kernel `ragged_gather_dot_topk`."""

from __future__ import annotations

import torch
from gpu_rag_kernels.frontier import gather_dots, ragged_gather_dot_topk

from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.frontier.edges import Described, FrontierQuery, HopEdges
from gpu_rag.graph.ragged import expand, row_of_value
from gpu_rag.types import Ragged, TopK


def _shares(query: Ragged, b: torch.Tensor, things: Described | HopEdges, thing: torch.Tensor) -> torch.Tensor:
    """The Jaccard index of the keywords of question b[p] and thing[p]: f64[P]."""
    width = things.n_keywords + 1  # other words are in no list; a large one would not fit a key
    known = row_of_value(query) * width + query.values.long().clamp(max=things.n_keywords)  # ascending
    shared = torch.zeros(b.shape, dtype=torch.float64, device=b.device)
    for pair, place in expand(things.keywords.offsets[thing], things.keywords.offsets[thing + 1]):
        wanted = b[pair] * width + things.keywords.values[place]
        position = torch.searchsorted(known, wanted).clamp_(max=max(known.shape[0] - 1, 0))
        is_shared = known[position] == wanted if known.numel() else torch.zeros_like(wanted, dtype=torch.bool)
        shared.index_add_(0, pair, is_shared.double())
    united = things.keywords.offsets.diff()[thing] + query.offsets.diff()[b] - shared
    return shared / united.clamp_(min=1)


def lists_by_torch(query: FrontierQuery, things: Described, lists: Ragged, kernel: str) -> torch.Tensor:
    """`score_lists` of checked inputs. kernel: for the dot products, reference | triton."""
    b, rows = row_of_value(lists), lists.values.long()
    dots = gather_dots(query.vectors.detach(), b, things.vectors.detach(), lists.values, implementation=kernel)
    return (_shares(query.keywords, b, things, rows) + dots) / 2


def frontier_by_torch(query: FrontierQuery, edges: HopEdges, frontier: Ragged, k: int, kernel: str) -> TopK:
    """`frontier_topk` of checked inputs. kernel: for the best edges of each vertex, reference | triton."""
    vertices, question = frontier.values.long(), row_of_value(frontier)
    ids = torch.full((vertices.shape[0], k), -1, dtype=torch.int32, device=vertices.device)
    scores = torch.full(ids.shape, -torch.inf, device=vertices.device)
    first, last = edges.indptr[vertices], edges.indptr[vertices + 1]
    for owner, edge in expand(first, last):  # an owner is never cut
        counts = torch.zeros_like(vertices).index_add_(0, owner, torch.ones_like(owner))  # 0 for owners in other pieces
        offsets = offsets_of(counts)
        top = ragged_gather_dot_topk(
            query.vectors.detach(), edges.vectors.detach(), Ragged(edges.vector_of[edge], offsets), k,
            owner=question, bias=_shares(query.keywords, question[owner], edges, edge), implementation=kernel,
        )  # fmt: skip
        ids = torch.where(top.ids < 0, ids, (first[:, None] + top.ids).int())
        scores = torch.where(top.ids < 0, scores, top.scores / 2)  # halving is exact: the sum was rounded once
    return TopK(ids, scores)
