"""A graph for sharded PageRank from edges that are spread over the ranks: no rank ever holds all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from gpu_rag.errors import BadInput
from gpu_rag.graph.csr import csr_from_edges, degrees
from gpu_rag.graph.pagerank.sharded.graph import (
    WIDEST,
    Shard,
    bounds_of,
    gathered,
    owner_of,
    place_in,
    places_of,
    stride_of,
)
from gpu_rag.types import CSR


def shard_edges(
    src: torch.Tensor,
    dst: torch.Tensor,
    n: int,
    weight: torch.Tensor | None = None,
    *,
    undirected: bool = True,
    group: Any = None,
) -> Shard:
    """This rank's rows of the graph of all ranks' edges. To be called by every rank, each with edges of its own.

    src, dst, n, weight and undirected as in `csr_from_edges`, on the device where rows shall be; self loops are left
    out; an edge given several times, by one rank or by several, is one entry, its weights summed by rank. A rank may
    give no edges; weights are given by all ranks or by none. group as in `shard_graph`. Ranks send each edge to the
    rank of its head (of a directed graph also to that of its tail, for the out-degrees), and 8 bytes a node.
    Raises BadInput (edges; ranks that do not agree on n, undirected or weights). Memory: a few times a rank's edges,
    and 8 N bytes a few times.
    """
    mine = csr_from_edges(src, dst, n, weight, undirected=undirected)
    group, rank, world = place_in(group)
    kinds = gathered(torch.tensor([n, int(undirected), int(weight is None)], device=src.device), group)
    if bool((kinds != kinds[0]).any()):
        given = f"(n, undirected, no weights) {kinds.tolist()} by rank"
        raise BadInput("ranks do not agree on their graph", given=given, expected="the same of every rank")
    tails = torch.repeat_interleave(torch.arange(n, device=src.device), mine.indptr.diff())
    heads = mine.indices.long()
    counts = torch.bincount(heads, minlength=n)
    indptr = torch.zeros(n + 1, dtype=torch.int64, device=src.device)
    indptr[1:] = gathered(counts, group).sum(0).cumsum(0)  # an edge of several ranks counts for each
    bounds = bounds_of(indptr, world)
    stride, lo, hi = stride_of(bounds), bounds[rank], bounds[rank + 1]
    pull = _rows(heads, tails, mine.weight, n, bounds, rank, group)
    outgoing = pull if undirected else _rows(tails, heads, mine.weight, n, bounds, rank, group)
    degree = degrees(outgoing)
    dangling = degree <= 0
    scale = torch.where(dangling, 1.0, degree)
    told = torch.ones(stride, dtype=torch.uint8, device=src.device)
    told[: hi - lo] = dangling
    whole = torch.cat([held[: b - a] for held, a, b in zip(gathered(told, group), bounds[:-1], bounds[1:])])
    wide = bool(((scale <= 1 / WIDEST) | (scale >= WIDEST)).any())
    facts = gathered(torch.tensor([pull.m, int(wide)], device=src.device), group)
    local = CSR(pull.indptr, places_of(pull.indices.long(), bounds, stride), pull.weight)
    entries, any_wide = int(facts[:, 0].sum()), bool(facts[:, 1].any())
    return Shard(rank, bounds, stride, local, scale, whole.bool().cpu(), undirected, entries, any_wide, group)


def _rows(
    rows: torch.Tensor, columns: torch.Tensor, weight: torch.Tensor | None, n: int, bounds: tuple[int, ...],
    rank: int, group: Any,
) -> CSR:  # fmt: skip
    """Own rows of the matrix of all ranks' entries (rows, columns): entries go to the rank of their row."""
    if group is not None:
        owner = owner_of(rows, bounds)
        order = torch.argsort(owner, stable=True)
        sent = torch.bincount(owner, minlength=len(bounds) - 1)
        arriving = gathered(sent, group)[:, rank].tolist()
        leaving = sent.tolist()

        def exchanged(values: torch.Tensor) -> torch.Tensor:
            found = values.new_empty(sum(arriving))
            dist.all_to_all_single(found, values[order], arriving, leaving, group=group)
            return found

        rows, columns = exchanged(rows), exchanged(columns)
        weight = None if weight is None else exchanged(weight)
    whole = csr_from_edges(rows, columns, n, weight, undirected=False)
    lo, hi = bounds[rank], bounds[rank + 1]
    return CSR(whole.indptr[lo : hi + 1].clone(), whole.indices, whole.weight)
