"""`nearest` in torch alone, for any device: a little more than k rows by fast scores, then exact scores of these rows.

If the k-th exact score is above every possible score of an omitted row, the k best are known, and the host has waited
for a device once. The other queries, with many rows of equal or close scores, are searched again with many more rows;
for what is still in doubt, every row is scored that may be among the best.
"""

from __future__ import annotations

from gpu_rag.graph.common.dots import MAX_LENGTH_F16, MAX_PRODUCT, products, products_slack, takes_f16
from gpu_rag.graph.nearest.best import (
    QUERY_TILE,
    best_of_two,
    by_exact_scores,
    refuse_infinite,
    selected,
    tile_of,
    topk_of,
    topk_rows,
)
from gpu_rag.lazy import torch
from gpu_rag.types import TopK

SUMS = 32  # see `nearest`
COMPONENTS = 1 << 22  # components scored at a time: few enough for a processor's cache
COMPONENTS_GPU = 1 << 24  # the same on a GPU: enough to justify its launches
MORE, MANY = 32, 1024  # scored rows beyond k: at first, and for queries in doubt
F16_ERROR = 2.0**-36  # absolute error of a component in two f16 parts
TINY = 2.0**-60  # component size below which squares vanish in f32


def nearest_by_torch(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> TopK:
    """`nearest` of checked vectors, all of them non-empty, k >= 1."""
    top, sure = proposed_by_torch(queries, base, k, tile)
    doubt = (~sure).nonzero()[:, 0]
    if len(doubt) and k + MORE < base.shape[0]:
        again, sure = proposed_by_torch(queries[doubt], base, k, tile, more=MANY)
        top.ids[doubt], top.scores[doubt] = again.ids, again.scores
        doubt = doubt[(~sure).nonzero()[:, 0]]
    if not len(doubt):
        return top
    refuse_infinite(queries[doubt], "queries")
    for rows in doubt.split(QUERY_TILE):
        exact = _block(queries[rows], base, k, tile)
        top.ids[rows], top.scores[rows] = exact.ids, exact.scores
    return top


def proposed_by_torch(
    queries: torch.Tensor, base: torch.Tensor, k: int, tile: int | None = None, more: int = 0
) -> tuple[TopK, torch.Tensor]:
    """The rows of `nearest`, and bool[B]: True for queries whose result is proved exact. No wait for a device. more:
    rows beyond k that are scored exactly, MORE if 0."""
    wide = min(k + (more or MORE), base.shape[0])
    ids, approx, longest = _proposed(queries, base, wide, tile_of(queries) if tile is None else tile)
    length = torch.linalg.vector_norm(queries.double(), dim=1)
    sure = length * longest < MAX_PRODUCT  # false if a vector is not finite
    if takes_f16(base):
        sure &= length < MAX_LENGTH_F16
    scores, ids = by_exact_scores(ids, lambda b, j: scores_of(queries, b, base, j))
    if wide < base.shape[0]:
        beyond = (approx[:, -1].double() + _slack(base, length, longest)).float()  # upper bound for every omitted row
        sure &= scores[:, k - 1] > beyond
    return topk_of(scores, ids, k), sure


def _slack(rows: torch.Tensor, length: torch.Tensor, longest: torch.Tensor) -> torch.Tensor:
    """The largest distance of a query's fast score from the exact one: f64[B]."""
    unit, root = products_slack(rows), rows.shape[1] ** 0.5
    error = F16_ERROR * root if takes_f16(rows) else 0.0
    return (1.001 * unit * length + error) * (longest + TINY * root) + 2.0**-100


def _proposed(
    queries: torch.Tensor, base: torch.Tensor, wide: int, tile: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `wide` best rows by fast scores: i64[B, wide], scores f32[B, wide]; and the longest row's length f64[]."""
    best = [(queries.new_zeros(0, dtype=torch.int64), queries.new_zeros(0)) for _ in range(0, len(queries), QUERY_TILE)]
    longest = queries.new_zeros((), dtype=torch.float64)
    for lo in range(0, base.shape[0], tile):
        rows = base[lo : lo + tile]
        rows = rows if takes_f16(rows) else rows.float()
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32)
        longest = torch.maximum(longest, lengths.max().double())
        for place, (ids_before, scores_before) in enumerate(best):
            approx = products(queries[place * QUERY_TILE : (place + 1) * QUERY_TILE], rows)
            columns, values = selected(approx, min(wide, approx.shape[1]))
            if lo:
                pool, ids = torch.cat([scores_before, values], 1), torch.cat([ids_before, columns + lo], 1)
                picked, values = selected(pool, min(wide, pool.shape[1]))
                columns = ids.gather(1, picked)
            best[place] = columns, values
    return torch.cat([ids for ids, _ in best]), torch.cat([scores for _, scores in best]), longest


def scores_of(queries: torch.Tensor, b: torch.Tensor, base: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """The score of `nearest` of query b[p] and row j[p], before it is rounded to f32: f64[P]."""
    step = max(1, (COMPONENTS if base.device.type == "cpu" else COMPONENTS_GPU) // max(1, base.shape[1]))
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


def _block(queries: torch.Tensor, base: torch.Tensor, k: int, tile: int) -> TopK:
    """`nearest_by_torch`, tile by tile: every row that a fast score leaves in doubt is scored exactly."""
    best = topk_rows(queries.new_zeros(queries.shape[0], 0), k)
    length = torch.linalg.vector_norm(queries.double(), dim=1)
    for lo in range(0, base.shape[0], tile):
        rows = base[lo : lo + tile].float()
        lengths = torch.linalg.vector_norm(rows, dim=1)
        if not bool(torch.isfinite(lengths).all()):
            refuse_infinite(rows, "base", lo)
        slack = _slack(rows, length, lengths.max().double())
        best = best_of_two(best, _tile_best(queries, rows, best, slack, k, lo), k)
    return best


def _tile_best(queries: torch.Tensor, rows: torch.Tensor, best: TopK, slack: torch.Tensor, k: int, lo: int) -> TopK:
    """The k best rows of one tile among those that may beat `best`; slack f64[B]: the error of a fast score."""
    approx = queries @ rows.T
    if bool(approx.sum().isfinite()):
        kth = topk_rows(approx, min(k, approx.shape[1])).scores[:, -1].double()
        reach = torch.maximum(best.scores[:, -1].double(), kth - slack) - slack
    else:  # the sums overflow f32: every row is in doubt
        reach = torch.full_like(slack, -torch.inf)
        approx.zero_()
    b, j = (approx >= reach[:, None]).nonzero().T
    exact = torch.full_like(approx, -torch.inf)
    exact[b, j] = scores_of(queries, b, rows, j).float()
    return topk_rows(exact, k, lo=lo)
