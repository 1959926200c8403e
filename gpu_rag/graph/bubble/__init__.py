"""Bubble expansion: small trees that join groups of anchors, found in the order in which growing bubbles meet.

It follows BubbleRAG's Algorithm 1 (heuristic group Steiner trees), with the per-group state that its text describes.
Every group grows from its anchors along the entries of a local graph; entering node u costs cost[u] >= 1. dist[g, v] is
the least cost from an anchor of g to v, pred[g, v] the node before v, ties to the smallest id. The bubbles grow in
event order: (dist[g, v], v, g) ascending. Candidates, in that order:
- `MEETING`: g reaches v after another group did. The tree is the union of the pred-paths from v of all groups that have
  reached v by then; leaves that are not anchors are cut off.
- `INSIDE`: g reaches v, and g reached a node u with an entry v -> u before, from another anchor; only the first time
  for each pair of anchors of g. The tree is both paths. It comes after the meeting at the same event, by (dist, u).
- Trees with equal nodes count once; the first one is kept.
- `ALONE`: if nothing meets, every anchor is a candidate by itself.

Integer costs >= 1 make every path strictly longer than its parts. So there is one fixpoint, the order of events is the
order in which a heap pops, and both can be computed after the fixpoint: the implementations agree bit by bit. Nothing
needs to be cut off either. If v is not an anchor and all groups have come to v from one node u, the tree of that event
is the tree at u (the same groups reached u before, in the same order), so such events are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.bubble.events import ALONE, INSIDE, MAX_GROUPS, MEETING, Candidates, trees_by_torch
from gpu_rag.graph.common.arrays import FLOATS, INTEGERS, check_form
from gpu_rag.graph.common.dots import MAX_LENGTH, check_unit_rows, exact_dots
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.csr import check_range
from gpu_rag.graph.ego import (
    CheckedGraph,
    Costs,
    blocks_around,
    cheapest,
    checked,
    ego_balls,
    induced_subgraphs,
    local_nodes,
    reached,
    sizes_of,
    without,
)
from gpu_rag.graph.memory import check_memory, is_small
from gpu_rag.graph.ragged import arrays_of, check_ragged, keys_of, pieces_of, ragged_of_keys, row_of_value
from gpu_rag.types import CSR, Blocks, Ragged

__all__ = ["ALONE", "INSIDE", "MAX_GROUPS", "MEETING", "Bubbles", "bubble_expansion"]

STATE, STATE_BY_TORCH = 28, 16  # minimum bytes in memory for a node and group
_QUESTIONS = 16  # questions that a thread takes at a time


@dataclass(frozen=True)
class Bubbles:
    """Candidates of B questions, on the device of the blocks; best first for each question.

    offsets: i64[B+1], the candidates of question b are offsets[b]..offsets[b+1]; nodes: Ragged of i32, one list for
    each candidate: its nodes in the whole graph, ascending; groups: i32[C], bit g is set if an anchor of group g is
    among the nodes; distance: i64[C], dist of its event; kind: i8[C], MEETING, INSIDE or ALONE.
    """

    offsets: torch.Tensor
    nodes: Ragged
    groups: torch.Tensor
    distance: torch.Tensor
    kind: torch.Tensor


def bubble_expansion(
    blocks: Blocks,
    costs: torch.Tensor,
    anchors: Ragged,
    groups: Ragged,
    *,
    limit: int = 10,
    cover_first: bool = False,
    n_groups: int | None = None,
    implementation: str = "auto",
    threads: int = 1,
) -> Bubbles:
    """The first `limit` candidates of each question; the module describes the candidates and their order.

    blocks: one local graph for each question, as `localise` and `induced_subgraphs` make them (normally undirected;
    bubbles grow along entries row -> column). costs: i32/i64[T], one for every row of blocks.csr; costs below 1 count
    as 1 (a cost of 0 would allow cycles). anchors: Ragged of i32/i64 nodes of the WHOLE graph, one list for each
    question, each node in its block. groups: Ragged of i32/i64 with the same offsets, the group of each anchor, 0 to
    15; a node may be in several. limit: >= 1. cover_first: order candidates by the number of groups without a member in
    them, then by event; this processes all events. n_groups: the largest group + 1, if known. implementation: numba
    (one heap for each question, which stops at `limit`) | torch (all questions to the fixpoint by `minplus_relax`) |
    auto; both give the same. threads: questions at once (numba). A question alone has the same candidates as in any
    batch. Memory: numba, 28 bytes a node and group for each thread; torch, about 40 bytes an entry and group of all
    blocks. Raises BadInput (blocks, costs, anchors, groups, a path that could cost 2^31), UsageError, MissingBackend.

    Path 0 - 1 - 2 - 3 with costs 1, groups {0} and {3}: at event (2, 1, 1) group 1 reaches node 1, where group 0 is;
    the tree is [0, 1, 2, 3]. It is the only one.
    """
    chosen = pick_implementation(blocks.csr.indptr.device, implementation, "bubble_expansion")
    rows = local_nodes(blocks, anchors, "anchors")
    check_ragged(groups, "groups", n=MAX_GROUPS, device=anchors.values.device, kind="group")
    trust = is_trusted(anchors.offsets.device)
    if not trust and not torch.equal(anchors.offsets, groups.offsets):
        raise BadInput("groups do not match the anchors", expected="equal offsets")
    paid = costs.long().clamp(min=1) if trust else _checked_costs(blocks, costs)
    check_threads(threads)
    if limit < 1:
        raise BadInput("limit is out of range", given=limit, expected=">= 1")
    _check_memory(blocks, groups, chosen, n_groups)
    if chosen == "numba":
        return _assembled(blocks, _joined(_by_numba(blocks, paid, rows, groups, limit, cover_first, threads)))
    return _assembled(blocks, trees_by_torch(blocks, paid, rows, groups, limit, cover_first, n_groups))


def _checked_costs(blocks: Blocks, costs: torch.Tensor) -> torch.Tensor:
    """The costs as i64[T], at least 1. Raises BadInput."""
    device = blocks.csr.indptr.device
    check_form(costs, "costs are not integers of the nodes", INTEGERS, [blocks.csr.n], device)
    sizes = blocks.offsets.diff()
    largest, n_nodes = (int(a.max()) if a.numel() else 0 for a in (costs, sizes))
    if largest * n_nodes >= 2**31 or n_nodes >= 2**28:
        given = f"{n_nodes} nodes with costs up to {largest}"
        raise BadInput("a path could cost too much", given=given, expected="nodes * cost < 2^31, fewer than 2^28 nodes")
    return costs.long().clamp(min=1)


def _check_memory(blocks: Blocks, groups: Ragged, chosen: str, known: int | None) -> None:
    """Raise BadInput if the state of the largest block (numba), or of all blocks (torch), cannot fit."""
    n, device = blocks.csr.n, groups.values.device
    if is_small(STATE * n * MAX_GROUPS):
        return
    what, do = "the state of nodes and groups", "expand fewer questions at a time, or smaller blocks"
    if chosen == "torch" and known is not None:
        return check_memory(STATE_BY_TORCH * n * known, device, what, do)
    sizes, n_groups = blocks.offsets.diff(), torch.zeros(groups.batch, dtype=torch.int64, device=device)
    n_groups.scatter_reduce_(0, row_of_value(groups), groups.values.long() + 1, "amax")
    if chosen == "torch":
        n_bytes = STATE_BY_TORCH * n * int(n_groups.max()) if groups.batch else 0
    else:
        n_bytes = STATE * int((sizes * n_groups).max()) if groups.batch else 0
    check_memory(n_bytes, device, what, do)


def _by_numba(
    blocks: Blocks, costs: torch.Tensor, anchors: Ragged, groups: Ragged, limit: int, cover_first: bool, threads: int
) -> list[Candidates[np.ndarray]]:
    from gpu_rag_kernels.bubble.numba import expand_blocks

    indptr, indices, paid = (a.contiguous().numpy() for a in (blocks.csr.indptr, blocks.csr.indices, costs))
    offsets, kinds = (a.long().contiguous().numpy() for a in (blocks.offsets, groups.values))
    nodes, bounds = arrays_of(anchors)

    def part(first: int) -> Candidates[np.ndarray]:
        last = min(first + _QUESTIONS, anchors.batch)
        anchors_of = nodes, kinds, bounds
        return Candidates(*expand_blocks(indptr, indices, paid, offsets, *anchors_of, first, last, limit, cover_first))

    return run_parts(part, range(0, anchors.batch, _QUESTIONS), threads)


def _joined(parts: list[Candidates[np.ndarray]]) -> Candidates[torch.Tensor]:
    columns = zip(*(vars(part).values() for part in parts)) if parts else [()] * 6
    none = np.zeros(0, np.int64)
    return Candidates(*(torch.from_numpy(c[0] if len(c) == 1 else np.concatenate([none, *c])) for c in columns))


def _assembled(blocks: Blocks, result: Candidates[torch.Tensor]) -> Bubbles:
    nodes = Ragged(blocks.global_ids[result.rows].int(), offsets_of(result.sizes))
    return Bubbles(offsets_of(result.counts), nodes, result.groups.int(), result.distance, result.kind.to(torch.int8))


TOGETHER = 16  # questions whose balls are in memory at once
STEPS = 1 << 14  # cost steps between cosine 1 and cosine 0


def node_costs(
    queries: torch.Tensor, vectors: torch.Tensor, question: torch.Tensor, node: torch.Tensor
) -> torch.Tensor:
    """1 + floor((1 - cos(q, u)) * 2^14) for pairs of a question and a node: i32[P], 1 to 32,769.

    queries: f16/f32[B, D]; vectors: f16/f32[N, D]; unit rows (to 1 %), or zeros (cost 16,385). Checking all rows of
    `vectors` in every call would be too slow; only products that unit rows cannot have are refused. question, node:
    i32/i64[P], in [0, B) and [0, N). Products are exact (see `dots`), so a cost is the same on every machine, in any
    batch and order. Raises BadInput.
    """
    check_unit_rows(queries, "queries")
    device = queries.device
    check_form(vectors, "vectors do not fit the queries", FLOATS, ["N", queries.shape[1]], device)
    _check_pairs(queries, vectors, question, node)
    cosine = exact_dots(queries, question, vectors, node)
    if not is_trusted(device) and not bool((cosine.abs() <= MAX_LENGTH * MAX_LENGTH).all()):  # no products of unit rows
        pair = int((~(cosine.abs() <= MAX_LENGTH * MAX_LENGTH)).nonzero()[0, 0])
        given = f"product {float(cosine[pair]):.6g} with node {int(node[pair])}"
        raise BadInput("vectors are not unit rows", given=given, expected="length 1, or a row of zeros")
    return (((1 - cosine.clamp(-1, 1)) * STEPS).floor() + 1).int()


def _check_pairs(queries: torch.Tensor, vectors: torch.Tensor, question: torch.Tensor, node: torch.Tensor) -> None:
    """Raise BadInput unless both are rows, one of each for every pair. The host waits for a device once."""
    check_form(question, "pairs are not lists", INTEGERS, ["P"], queries.device)
    check_form(node, "pairs are not lists", INTEGERS, question.shape, queries.device)
    ends = (question, queries.shape[0], "the question of a pair"), (node, vectors.shape[0], "the node of a pair")
    if is_trusted(queries.device):
        return
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
    """The nodes within `hops` hops of any anchor, at most `limit` for each question: Ragged of i32, ascending, each
    once.

    If there are more, the nodes with the most hops are dropped first; among them the nodes with the highest cost, then
    with the highest id. Anchors always stay. The result is the input of `induced_subgraphs`.
    csr: the adjacency, or `checked(csr)`; anchors: Ragged of i32/i64 nodes, one list for each question. costs: called
    only for the hop that does not fit. implementation, threads: as in `ego_balls`. A question alone has the same nodes
    as in any batch. Memory: the whole balls of 16 questions; torch: the entries of a frontier of all questions. Raises
    BadInput, UsageError, MissingBackend.

    Star with centre 0 and leaves 1, 2, 3 that cost 5, 4, 4: from [0] with limit 2 the nodes are [0, 2].
    """
    graph = checked(csr)
    if hops < 0 or limit < 1:
        raise BadInput("hops or limit is out of range", given=f"{hops}, {limit}", expected="hops >= 0, limit >= 1")
    check_ragged(anchors, "anchors", n=graph.csr.n, device=graph.csr.indptr.device)
    n, parts = max(graph.csr.n, 1), [anchors.offsets[:0]]
    if pick_implementation(graph.csr.indptr.device, implementation, "ego_balls") == "torch":
        keys = reached(graph.csr, anchors, min(hops, graph.csr.n), limit=limit, costs=costs).keys
        return ragged_of_keys(keys, anchors.batch, n)

    def with_neighbours(starts: Ragged) -> Ragged:
        return ego_balls(graph, starts, 1, implementation=implementation, threads=threads)

    for first, own in pieces_of(anchors, TOGETHER):

        def of_all(question: torch.Tensor, node: torch.Tensor, first: int = first) -> torch.Tensor:
            return costs(question + first, node)

        parts.append(_grown(own, with_neighbours, hops, limit, of_all, n) + first * n)
    return ragged_of_keys(torch.cat(parts), anchors.batch, n)


def local_graphs(
    csr: CSR | CheckedGraph, anchors: Ragged, costs: Costs, *, hops: int = 6, limit: int = 20_000, threads: int = 1
) -> Blocks:
    """The subgraphs on the nodes of `localise`, with the same arguments; on a device with fewer waits."""
    graph = checked(csr)
    if pick_implementation(graph.csr.indptr.device, "auto", "ego_balls") != "torch":
        nodes = localise(graph, anchors, costs, hops=hops, limit=limit, threads=threads)
        return induced_subgraphs(graph, nodes)
    return blocks_around(graph, anchors, hops, limit=limit, costs=costs)


def _grown(
    anchors: Ragged, with_neighbours: Callable[[Ragged], Ragged], hops: int, limit: int, costs: Costs, n: int
) -> torch.Tensor:
    """The local graphs of a few questions as ascending keys question * n + node."""
    kept = front = torch.unique(keys_of(anchors, n))
    for _ in range(hops):
        front = without(keys_of(with_neighbours(ragged_of_keys(front, anchors.batch, n)), n), kept)
        space, sizes = (limit - sizes_of(kept, anchors.batch, n)).clamp(min=0), sizes_of(front, anchors.batch, n)
        full = (sizes > space)[front // n]
        front, dropped = front[~full], front[full]
        if dropped.numel():
            kept = torch.cat([kept, cheapest(dropped, space, int(space[sizes > space].sum()), costs, n)])
        kept = torch.cat([kept, front]).sort().values
        if front.numel() == 0:
            break
    return kept
