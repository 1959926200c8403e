"""Graphs with typed edges: the nodes that each question's chain of relations leads to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gpu_rag_kernels.dispatch import loaded, pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import INTEGERS, check_form, dtype_of
from gpu_rag.graph.common.segments import are_first, lexsort
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.csr import check_range
from gpu_rag.graph.memory import check_memory, is_small
from gpu_rag.graph.ragged import (
    are_broken,
    check_ragged,
    check_tensors,
    expand,
    keys_of,
    ragged_of_keys,
    row_of_value,
)
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

__all__ = ["ANY", "EITHER", "IN", "OUT", "TypedGraph", "lowest_ways", "reachable", "typed_graph"]

COMPILED = "gpu_rag_kernels.reach.numba"
OUT, IN, EITHER = 1, 2, 3  # directions of a step: tail to head, head to tail, both
ANY = -1  # any relation
MARKS = 5  # bytes for each node in a step of many entries (numba)
_QUESTIONS = 256  # questions that a thread takes at a time


def reachable(
    graph: TypedGraph,
    starts: Ragged,
    relations: Ragged,
    directions: Ragged,
    *,
    implementation: str = "auto",
    threads: int = 1,
) -> Ragged:
    """The nodes at the end of each question's chain of relations: Ragged of i32 nodes, ascending, each once.

    S_0 = starts, S_k = {v : some u in S_(k-1) has an edge u -> v (OUT), v -> u (IN) or one of both (EITHER) of the k-th
    relation}; the result is the last S. A walk may return to earlier nodes. An empty chain gives the starts. graph:
    made by `typed_graph`. starts: Ragged of i32/i64 nodes. relations: Ragged of i32/i64, each question's chain, of any
    length; ANY follows all relations. directions: Ragged of i32/i64 with the same offsets, OUT, IN or EITHER.
    implementation: numba | torch | auto, all give the same integers. threads: groups of questions at once (numba).
    Time: the followed edges, one binary search for each frontier node. Memory: the result and, for each thread with a
    step of more than a few hundred edges, 9 N bytes; torch: a frontier's edges, in pieces. Raises BadInput, UsageError,
    MissingBackend.

    Edges (0, 0, 1), (2, 0, 1), (1, 1, 3): from [0] by [0, 1] OUT is [3]; from [3] by 1 IN, 0 IN is [0, 2].
    """
    chosen = pick_implementation(graph.device, implementation, "reachable")
    arrays = _arrays_of(graph, starts, relations, directions) if chosen == "numba" else None
    longest = 0 if arrays is not None else _checked(graph, starts, relations, directions)
    check_threads(threads)
    if arrays is not None:
        return _reachable_by_numba(graph, arrays, threads)
    return _reachable_by_torch(graph, starts, relations, directions, longest)


def _checked(graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged) -> int:
    """The length of the longest chain, found together with all checks in one wait. Raises BadInput."""
    for lists, name in ((starts, "starts"), (relations, "relations"), (directions, "directions")):
        check_tensors(lists, name, graph.device)
    ranges = (relations.values, ANY, graph.n_relations - 1, "relation"), (directions.values, OUT, EITHER, "direction")
    alike = relations.values.shape == directions.values.shape and relations.batch == directions.batch
    if alike and relations.batch == starts.batch:
        broken = are_broken(starts, graph.n) | are_broken(relations, None) | are_broken(directions, None)
        broken |= (relations.offsets != directions.offsets).any()
        for values, low, high, _ in ranges:
            broken |= _are_outside(values, low, high).any()
        chain = relations.offsets.diff().max() if relations.batch else relations.offsets[0]
        is_broken, longest = torch.stack([broken.long(), chain]).tolist()
        if not is_broken:
            return int(longest)
    check_ragged(starts, "starts", n=graph.n)  # these checks name the fault
    check_ragged(directions, "directions")
    check_ragged(relations, "relations", batch=starts.batch, owners="starts")
    if not torch.equal(relations.offsets, directions.offsets):
        raise BadInput("directions do not match the relations", expected="equal offsets")
    for values, low, high, what in ranges:
        bad = _are_outside(values, low, high).nonzero()[:1, 0].tolist()
        if bad:
            given = f"{int(values[bad[0]])} at position {bad[0]}"
            raise BadInput(f"no such {what}", given=given, expected=f"{low} <= {what} <= {high}")
    return 0


def _are_outside(values: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return (values < low) | (values.long() > high)


def _arrays_of(graph: TypedGraph, *lists: Ragged) -> tuple[np.ndarray, ...] | None:
    """Values i64 and offsets of starts, relations and directions, if a compiled pass finds them sound; else None."""
    arrays: list[np.ndarray] = []
    for side in lists:
        for tensor in (side.values, side.offsets):
            if tensor.device != graph.device or tensor.dim() != 1 or dtype_of(tensor) not in INTEGERS:
                return None
            arrays.append(tensor.long().contiguous().numpy())
        if side.offsets.dtype != torch.int64:
            return None
    sound: bool = loaded(COMPILED).are_questions(*arrays, graph.n, graph.n_relations)
    return tuple(arrays) if sound else None


def _reachable_by_numba(graph: TypedGraph, arrays: tuple[np.ndarray, ...], threads: int) -> Ragged:
    nodes, offsets, chain, chain_offsets, directions, _ = arrays
    walk, batch = loaded(COMPILED).walk_questions, len(offsets) - 1
    question = (nodes, offsets, chain, directions, chain_offsets)
    if not is_small(MARKS * graph.n) and loaded(COMPILED).marks_soon(graph.sides, *question):
        check_memory(MARKS * graph.n, graph.device, "marks of nodes", "ask a smaller graph")

    def walks(first: int) -> tuple[np.ndarray, np.ndarray]:
        ends: tuple[np.ndarray, np.ndarray] = walk(graph.sides, *question, first, min(first + _QUESTIONS, batch))
        return ends

    parts = [walks(0)] if 0 < batch <= _QUESTIONS else run_parts(walks, range(0, batch, _QUESTIONS), threads)
    if len(parts) == 1:
        return Ragged(torch.from_numpy(parts[0][0]), torch.from_numpy(parts[0][1]))
    heads = np.concatenate([np.zeros(0, np.int32), *(values for values, _ in parts)])
    sizes = np.concatenate([np.zeros(1, np.int64), *(np.diff(ends) for _, ends in parts)])
    return Ragged(torch.from_numpy(heads), torch.from_numpy(np.cumsum(sizes)))


def _reachable_by_torch(
    graph: TypedGraph, starts: Ragged, relations: Ragged, directions: Ragged, longest: int
) -> Ragged:
    """All questions step by step, as ascending keys question * N + node. One wait for each step, one at the end."""
    n, lengths = max(graph.n, 1), relations.offsets.diff()
    check_memory(16 * starts.values.shape[0], graph.device, "the starts", "ask fewer questions at a time")
    fronts = [keys_of(starts, n).sort().values]
    for k in range(longest):
        question = fronts[-1] // n
        place = relations.offsets[question] + k
        fronts.append(_stepped(graph, fronts[-1], relations, directions, place, lengths[question] > k))
    keys = torch.cat(fronts)
    after = torch.cat([torch.full_like(front, k) for k, front in enumerate(fronts)])
    at_end = torch.where(lengths[keys // n] == after, keys, -1).sort().values
    return ragged_of_keys(at_end[are_first(at_end) & (at_end >= 0)], starts.batch, n)


def _stepped(
    graph: TypedGraph, front: torch.Tensor, relations: Ragged, directions: Ragged, place: torch.Tensor, go: torch.Tensor
) -> torch.Tensor:
    """Keys one edge away from a front's keys where `go` is true, ascending, with repeats; `place`: in the lists."""
    n = max(graph.n, 1)
    place = place.clamp(0, max(relations.values.shape[0] - 1, 0))
    direction = torch.where(go & are_first(front), directions.values[place].long(), 0)
    pieces = [front[:0]]
    for source, node in _followed(graph, front % n, relations.values[place].long(), direction):
        pieces.append((front[source] // n * n + node).sort().values)
    return pieces[1] if len(pieces) == 2 else torch.unique(torch.cat(pieces))


def _followed(
    graph: TypedGraph, nodes: torch.Tensor, relation: torch.Tensor, direction: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(place in nodes, node one edge of relation[i] away), in pieces; direction[i]: OUT, IN or EITHER, 0 for none."""
    wanted, firsts, lasts = nodes * graph.n_relations + relation, [], []
    for bit, indptr, sorted_edges in zip((OUT, IN), (graph.out_indptr, graph.in_indptr), graph.keys, strict=True):
        first = torch.where(relation < 0, indptr[nodes], torch.searchsorted(sorted_edges, wanted))
        last = torch.where(relation < 0, indptr[nodes + 1], torch.searchsorted(sorted_edges, wanted, right=True))
        firsts.append(first)
        lasts.append(torch.where((direction & bit) > 0, last, first))
    size = nodes.shape[0]
    for owner, edge in expand(torch.cat(firsts), torch.cat(lasts)):
        inward = owner >= size
        yield owner - size * inward, torch.where(inward, graph.in_node[edge], graph.out_node[edge])


def lowest_ways(
    graph: TypedGraph, starts: Ragged, ends: torch.Tensor, relations: Ragged, directions: Ragged, longest: int
) -> torch.Tensor:
    """One path from any start of each question to its end, along its chain of relations: i64[B, longest + 1].

    S_0 = {end}, S_j = {v : an edge of the j-th last relation leads from v to a node of S_(j-1)}. The path begins at the
    lowest start in S_L, where L is the length of the chain; every step takes the lowest node in the next set. A row has
    -1 after its chain, and from the point where there is no path. starts, relations and directions as in `reachable`,
    ends: i64[B]; longest: the length of the longest chain (all unchecked). The host waits twice for each step.

    Edges (0, 0, 1), (2, 0, 1), (1, 1, 3): from [2, 0] to 3 by [0, 1] OUT is [0, 1, 3].
    """
    n, batch, lengths = max(graph.n, 1), starts.batch, relations.offsets.diff()
    bits = directions.values
    turned = Ragged((bits & OUT) << 1 | (bits & IN) >> 1, directions.offsets)  # EITHER stays
    fronts = [torch.arange(batch, device=graph.device) * n + ends]
    for k in range(longest):
        question = fronts[-1] // n
        place = relations.offsets[question + 1] - 1 - k
        fronts.append(_stepped(graph, fronts[-1], relations, turned, place, lengths[question] > k))
    leading = torch.cat([front + left * batch * n for left, front in enumerate(fronts)])

    def lowest(question: torch.Tensor, nodes: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        wanted = (left * batch + question) * n + nodes
        is_there = leading[torch.searchsorted(leading, wanted).clamp_(max=leading.shape[0] - 1)] == wanted
        best = torch.full((batch,), n, dtype=torch.int64, device=graph.device)
        best.scatter_reduce_(0, question, torch.where(is_there, nodes, n), "amin")
        return torch.where(best < n, best, -1)

    question = row_of_value(starts)
    path = [lowest(question, starts.values.long(), lengths[question])]
    for k in range(longest):
        place = (relations.offsets[:-1] + k).clamp(max=max(relations.values.shape[0] - 1, 0))
        direction = torch.where((path[-1] >= 0) & (lengths > k), bits[place].long(), 0)
        best = torch.full_like(ends, -1)
        for source, node in _followed(graph, path[-1].clamp(min=0), relations.values[place].long(), direction):
            lower = lowest(source, node.long(), lengths[source] - k - 1)
            best = torch.where((best < 0) | ((lower >= 0) & (lower < best)), lower, best)
        path.append(best)
    return torch.stack(path, 1)


Side = tuple[np.ndarray, ...]  # indptr, relations, nodes


@dataclass(frozen=True)
class TypedGraph:
    """N nodes and M distinct edges (tail, relation, head), by tail for outgoing walks and by head for incoming walks.

    out_indptr i64[N+1], out_relation i32[M], out_node i32[M]: the edges of each tail, by (relation, head); in_indptr,
    in_relation, in_node: the edges of each head, by (relation, tail). Made by the functions of this module, which
    check.
    """

    out_indptr: torch.Tensor
    out_relation: torch.Tensor
    out_node: torch.Tensor
    in_indptr: torch.Tensor
    in_relation: torch.Tensor
    in_node: torch.Tensor
    n_relations: int

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.out_indptr.shape[0]) - 1

    @property
    def device(self) -> torch.device:
        """The device of the graph and of results."""
        return self.out_indptr.device

    def edges_at(self, nodes: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(position in `nodes`, edge, relation of each edge, its other end) of all edges at nodes i64, in pieces: out,
        then in. Relations and ends are those of a whole side, for edges to be looked up."""
        out_side = self.out_indptr, self.out_relation, self.out_node
        for indptr, relation, other in (out_side, (self.in_indptr, self.in_relation, self.in_node)):
            for position, edge in expand(indptr[nodes], indptr[nodes + 1]):
                yield position, edge, relation, other

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """The out and the in side as arrays, for a graph on the CPU; cached, because a call on a few nodes is short."""
        out_side = self.out_indptr, self.out_relation, self.out_node
        in_side = self.in_indptr, self.in_relation, self.in_node
        out_arrays, in_arrays = (tuple(a.contiguous().numpy() for a in side) for side in (out_side, in_side))
        return out_arrays, in_arrays

    @cached_property
    def keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """node * n_relations + relation of each edge, i64[M] ascending, out and in; cached."""
        sides = ((self.out_indptr, self.out_relation), (self.in_indptr, self.in_relation))
        nodes = torch.arange(self.n, device=self.device)
        rows = (torch.repeat_interleave(nodes, ends.diff(), output_size=kinds.shape[0]) for ends, kinds in sides)
        out_keys, in_keys = (row * self.n_relations + kinds for row, (_, kinds) in zip(rows, sides, strict=True))
        return out_keys, in_keys


def typed_graph(tail: torch.Tensor, relation: torch.Tensor, head: torch.Tensor, n: int, n_relations: int) -> TypedGraph:
    """The graph of edges tail -> head with a relation; a repeated edge counts once, loops are kept.

    tail, head: i32/i64[M], nodes in [0, n); relation: i32/i64[M] in [0, n_relations). n, n_relations < 2^31. Several
    relations between two nodes are several edges. The edges of a CSR are (row_of_entry(csr), its relations,
    csr.indices). O(M log M) time, O(M) memory. Raises BadInput.

    Edges (0, 0, 1), (2, 0, 1) and (1, 1, 3): out along relation 0 from node 2 is node 1, in along 0 from 1 is {0, 2}.
    """
    if not 0 <= n < 2**31 or not 0 <= n_relations < 2**31:
        given = f"n={n}, n_relations={n_relations}"
        raise BadInput("the size of a graph is out of range", given=given, expected=">= 0 and < 2^31")
    for name, ids, size in (("tail", tail, n), ("relation", relation, n_relations), ("head", head, n)):
        check_form(ids, f"the {name} ids are not a list", INTEGERS, tail.shape if tail.dim() else ["M"], tail.device)
        check_range(ids, size, f"the {name} of an edge", "relation" if name == "relation" else "node")
    check_memory(24 * (n + tail.shape[0]), tail.device, f"a graph of {n:,} nodes", "split it by relations")
    tail, relation, head = tail.long(), relation.long(), head.long()
    order = lexsort(head, relation, tail)
    tail, relation, head = tail[order], relation[order], head[order]
    new = are_first(tail, relation, head)  # each edge once
    tail, relation, head = tail[new], relation[new], head[new]
    nodes = torch.arange(n + 1, device=tail.device)
    order = lexsort(relation, head)  # by (head, relation, tail): the tails were ascending
    return TypedGraph(
        torch.searchsorted(tail, nodes), relation.int(), head.int(),
        torch.searchsorted(head[order], nodes), relation[order].int(), tail[order].int(), n_relations,
    )  # fmt: skip
