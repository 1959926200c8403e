"""The input of bubble expansion: the part of the graph around a question's anchors, and what its nodes cost."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import FLOATS, INTEGERS, check_form
from gpu_rag.graph.common.dots import LONGEST, check_unit_rows, exact_dots
from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.csr import check_range
from gpu_rag.graph.ego import CheckedGraph, checked, ego_balls, without
from gpu_rag.graph.ragged import check_ragged, pieces_of, ragged_of_keys, row_of_value
from gpu_rag.types import CSR, Ragged

TOGETHER = 16  # questions whose balls are alive at once
STEPS = 1 << 14  # of cost between a cosine of 1 and one of 0

Costs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""costs(question i64[P], node i64[P]): what entering the node costs in the question, i32 or i64[P]."""


def node_costs(
    queries: torch.Tensor, vectors: torch.Tensor, question: torch.Tensor, node: torch.Tensor
) -> torch.Tensor:
    """1 + floor((1 - cos(q, u)) * 2^14) for pairs of a question and a node: i32[P], 1 to 32,769.

    queries: f16/f32[B, D]; vectors: f16/f32[N, D]; unit rows (to 1 %), or zeros (cost 16,385). Rows of `vectors` are
    too many to be checked in every call: only a product that unit rows cannot have is refused. question, node:
    i32/i64[P], in [0, B) and [0, N). Products are exact (see `dots`), so a cost is the same number on
    every machine, in any batch and order. Raises BadInput.
    """
    check_unit_rows(queries, "queries")
    device = queries.device
    check_form(vectors, "vectors do not fit the queries", FLOATS, ["N", queries.shape[1]], device)
    _check_pairs(queries, vectors, question, node)
    cosine = exact_dots(queries, question, vectors, node)
    bad = ~(cosine.abs() <= LONGEST * LONGEST)  # no product of unit rows
    if bool(bad.any()):
        at = int(bad.nonzero()[0, 0])
        given = f"product {float(cosine[at]):.6g} with node {int(node[at])}"
        raise BadInput("vectors are not unit rows", given=given, expected="length 1, or a row of zeros")
    return (((1 - cosine.clamp(-1, 1)) * STEPS).floor() + 1).int()


def _check_pairs(queries: torch.Tensor, vectors: torch.Tensor, question: torch.Tensor, node: torch.Tensor) -> None:
    """Raises BadInput unless both name rows, one of each a pair. The host waits for a device once."""
    check_form(question, "pairs are no lists", INTEGERS, ["P"], queries.device)
    check_form(node, "pairs are no lists", INTEGERS, question.shape, queries.device)
    ends = (question, queries.shape[0], "the question of a pair"), (node, vectors.shape[0], "the node of a pair")
    outside = [((ids < 0) | (ids.long() >= n)).any() for ids, n, _ in ends]
    if bool(torch.stack(outside).any()):
        for ids, n, what in ends:
            check_range(ids, n, what)


def localise(
    csr: CSR | CheckedGraph,
    anchors: Ragged,
    costs: Costs,
    *,
    hops: int = 6,
    limit: int = 20_000,
    implementation: str = "auto",
    threads: int = 1,
) -> Ragged:
    """The nodes within `hops` hops of any anchor, at most `limit` a question: Ragged of i32, ascending, each once.

    Where there are more, those with the most hops are dropped first, among them those that cost most, then those of
    the largest id; anchors always stay, however many. The result is what `induced_subgraphs` takes.
    csr: the adjacency, or `checked(csr)`; anchors: Ragged of i32/i64 nodes, a list a question. costs: asked only for
    the hop that does not fit. implementation, threads: as in `ego_balls`. A question alone has the same nodes in any
    batch. Memory: the balls of 16 questions, whole. Raises BadInput, UsageError, MissingBackend.

    Star with centre 0 and leaves 1, 2, 3 that cost 5, 4, 4: from [0] with limit 2 the nodes are [0, 2].
    """
    graph = checked(csr)
    if hops < 0 or limit < 1:
        raise BadInput("hops or limit is out of range", given=f"{hops}, {limit}", expected="hops >= 0, limit >= 1")
    check_ragged(anchors, "anchors", n=graph.csr.n, device=graph.csr.indptr.device)
    n, parts = max(graph.csr.n, 1), [anchors.offsets[:0]]

    def with_neighbours(starts: Ragged) -> Ragged:
        return ego_balls(graph, starts, 1, implementation=implementation, threads=threads)

    for first, own in pieces_of(anchors, TOGETHER):

        def of_all(question: torch.Tensor, node: torch.Tensor, first: int = first) -> torch.Tensor:
            return costs(question + first, node)

        parts.append(_grown(own, with_neighbours, hops, limit, of_all, n) + first * n)
    return ragged_of_keys(torch.cat(parts), anchors.batch, n)


def _grown(
    anchors: Ragged, with_neighbours: Callable[[Ragged], Ragged], hops: int, limit: int, costs: Costs, n: int
) -> torch.Tensor:
    """The local graphs of a few questions as ascending keys question * n + node."""
    kept = front = torch.unique(_keys(anchors, n))
    for _ in range(hops):
        front = without(_keys(with_neighbours(ragged_of_keys(front, anchors.batch, n)), n), kept)
        space = (limit - _sizes(kept, anchors.batch, n)).clamp(min=0)
        full = (_sizes(front, anchors.batch, n) > space)[front // n]
        front, dropped = front[~full], front[full]
        kept = torch.cat([kept, front, _cheapest(dropped, space, costs, n)]).sort().values
        if front.numel() == 0:
            break
    return kept


def _sizes(keys: torch.Tensor, batch: int, n: int) -> torch.Tensor:
    """The number of ascending keys question * n + node of each question: i64[B]."""
    return torch.searchsorted(keys, torch.arange(batch + 1, device=keys.device) * n).diff()


def _keys(lists: Ragged, n: int) -> torch.Tensor:
    """question * n + node, i64[T]."""
    return row_of_value(lists) * n + lists.values.long()


def _cheapest(keys: torch.Tensor, space: torch.Tensor, costs: Costs, n: int) -> torch.Tensor:
    """The first space[question] of the ascending keys question * n + node, by (cost, node)."""
    if keys.numel() == 0:
        return keys
    question, node = keys // n, keys % n
    cost = costs(question, node)
    check_form(cost, "costs are no integers of the pairs", INTEGERS, keys.shape)
    order = lexsort(cost.long(), question)
    first = torch.searchsorted(question, question[order])  # where the question of each place begins
    place = torch.arange(keys.shape[0], device=keys.device) - first
    return keys[order[place < space[question[order]]]]
