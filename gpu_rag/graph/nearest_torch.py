"""`nearest` in torch alone, for any device: rough scores by tiles, then exact ones of the rows that they leave."""

from __future__ import annotations

import torch

from gpu_rag.graph.dots import filter_for
from gpu_rag.graph.nearest import QUERY_TILE, best_of_two, refuse_infinite, topk_rows
from gpu_rag.types import TopK

SUMS = 32  # see `nearest`
COMPONENTS = 1 << 22  # that are scored at a time


def scores_of(queries: torch.Tensor, b: torch.Tensor, base: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """f64[P]: the score of `nearest` of query b[p] and row j[p], before it is rounded to f32."""
    step = max(1, COMPONENTS // max(1, base.shape[1]))
    parts = [_scores(queries[b[p : p + step]], base[j[p : p + step]]) for p in range(0, b.shape[0], step)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=base.device)


def _scores(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    whole = left.shape[1] // SUMS * SUMS
    products = left.double().mul_(right.double())
    sums = torch.zeros(left.shape[0], SUMS, dtype=torch.float64, device=left.device)
    for k in range(0, whole, SUMS):
        sums += products[:, k : k + SUMS]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    total = sums[:, 0]
    for k in range(whole, left.shape[1]):
        total = total + products[:, k]
    return total


def nearest_by_torch(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> TopK:
    """`nearest` of checked vectors, none of them empty, k >= 1."""
    refuse_infinite(queries, "queries")
    found = [_block(queries[b : b + QUERY_TILE], base, k, tile) for b in range(0, queries.shape[0], QUERY_TILE)]
    return TopK(torch.cat([f.ids for f in found]), torch.cat([f.scores for f in found]))


def _block(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> TopK:
    """A block of queries, tile after tile of the base in ascending rows."""
    best = topk_rows(queries.new_zeros(queries.shape[0], 0), k)
    unit = filter_for(queries[:0], dtype=torch.float32).slack
    length = torch.linalg.vector_norm(queries.double(), dim=1)
    for lo in range(0, base.shape[0], tile):
        rows = base[lo : lo + tile].float()
        lengths = torch.linalg.vector_norm(rows, dim=1)
        if not bool(torch.isfinite(lengths).all()):
            refuse_infinite(rows, "base", lo)
        slack = 1.001 * unit * length * lengths.max().double() + 2.0**-100
        best = best_of_two(best, _tile_best(queries, rows, best, slack, k, lo), k)
    return best


def _tile_best(queries: torch.Tensor, rows: torch.Tensor, best: TopK, slack: torch.Tensor, k: int, lo: int) -> TopK:
    """The k best of one tile among the rows that may beat `best`; slack f64[B]: the error of a rough score."""
    rough = queries @ rows.T
    if bool(rough.sum().isfinite()):
        kth = topk_rows(rough, min(k, rough.shape[1])).scores[:, -1].double()
        reach = torch.maximum(best.scores[:, -1].double(), kth - slack) - slack
    else:  # f32 has no room for the sums: every row is in doubt
        reach = torch.full_like(slack, -torch.inf)
        rough.zero_()
    b, j = (rough >= reach[:, None]).nonzero().T
    exact = scores_of(queries, b, rows, j).float()
    count = torch.bincount(b, minlength=queries.shape[0])
    place = torch.arange(b.shape[0], device=b.device) - (count.cumsum(0) - count)[b]
    table = torch.full((queries.shape[0], int(count.max())), -torch.inf, device=b.device)
    table[b, place] = exact
    found = topk_rows(table, k)  # places rise with rows, so equal scores keep their order
    ids = torch.full(table.shape, -1, dtype=torch.int64, device=b.device)
    ids[b, place] = j + lo
    if not ids.shape[1]:
        return found
    return TopK(torch.where(found.ids >= 0, ids.gather(1, found.ids.clamp(min=0).long()), -1).int(), found.scores)
