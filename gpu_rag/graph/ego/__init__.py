"""Neighbourhoods of many questions at once: r-hop balls, and the subgraphs induced by lists of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from gpu_rag_kernels import ego as ego_loops
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import INTEGERS, check_form, shortened
from gpu_rag.graph.common.segments import are_first, lexsort, offsets_of
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.csr import check_csr, row_of_entry, transpose
from gpu_rag.graph.memory import check_memory, threads_that_fit
from gpu_rag.graph.ragged import (
    EXPAND_AT_ONCE,
    arrays_of,
    check_ragged,
    expand,
    keys_of,
    pieces_of,
    places_of,
    ragged_of_keys,
    row_of_value,
)
from gpu_rag.lazy import torch
from gpu_rag.types import CSR, Blocks, Ragged

__all__ = ["CheckedGraph", "checked", "ego_balls", "induced_subgraphs"]

Ranges = Sequence[tuple[int, int]]
READ_AT_ONCE = 1 << 27  # row entries of blocks that are cut out together; most of this memory is never written


@dataclass(frozen=True)
class CheckedGraph:
    """A CSR that `checked` has verified; ops do not verify it again."""

    csr: CSR


def checked(csr: CSR | CheckedGraph) -> CheckedGraph:
    """Check `csr` (BadInput, as `check_csr`), once for each graph; then pass the result to the ops."""
    if isinstance(csr, CheckedGraph):
        return csr
    check_csr(csr)
    return CheckedGraph(csr)


def ego_balls(
    csr: CSR | CheckedGraph,
    seeds: Ragged,
    radius: int,
    *,
    limit: int | None = None,
    include: Ranges | None = None,
    implementation: str = "auto",
    threads: int = 1,
) -> Ragged:
    """The nodes within `radius` hops of each seed set: Ragged of i32 nodes, ascending, each once.

    Ball b = {v : the shortest path from a seed of b to v along entries row -> column has at most radius edges}. csr:
    the adjacency, weights are ignored; or `checked(csr)`. seeds: Ragged of i32/i64 nodes, one list for each question;
    an empty list has an empty ball. radius >= 0. limit: maximum nodes of a ball, the first by (hop, node); hops are
    counted in the whole ball. include: ranges (lo, hi) of nodes lo <= v < hi; a node other than a seed is reached, and
    passed through, only if it is in one of them (any node if None). implementation: numba | torch | auto, all give the
    same integers. threads: groups of 64 questions at once (numba). Memory: the result and, for each thread, 36 N bytes
    (numba); torch: the edges of a frontier, in pieces, or on a GPU with Triton and no limit 96 N bytes and the words of
    `balls_by_words`. Raises BadInput, UsageError, MissingBackend.

    Path 0 - 1 - 2 - 3, radius 1: seeds [[0], [1, 3]] give [[0, 1], [0, 1, 2, 3]]; with limit 3, [[0, 1], [0, 1, 3]].
    """
    graph = checked(csr).csr
    check_ragged(seeds, "seeds", n=graph.n, device=graph.indptr.device)
    if radius < 0:
        raise BadInput("radius is out of range", given=radius, expected=">= 0 hops")
    if limit is not None and limit < 0:
        raise BadInput("limit is out of range", given=limit, expected=">= 0 nodes, or None")
    check_threads(threads)
    allowed, radius = node_mask(graph, include), min(radius, graph.n)  # no shortest path is longer
    if pick_implementation(graph.indptr.device, implementation, "ego_balls") == "numba":
        threads = threads_that_fit(min(threads, -(-seeds.batch // WORD)), lambda threads: 36 * graph.n * threads)
        check_memory(36 * graph.n, graph.indptr.device, "marks of nodes", "ask a smaller graph")
        return _balls_by_numba(graph, seeds, radius, limit, allowed, threads)
    if limit is None and pick_implementation(graph.indptr.device, family="loops") == "triton":
        return balls_by_words(graph, seeds, radius, allowed)
    keys = reached(graph, seeds, radius, limit=limit, allowed=allowed).keys
    return ragged_of_keys(keys, seeds.batch, max(graph.n, 1))


def node_mask(graph: CSR, include: Ranges | None) -> torch.Tensor | None:
    """The nodes in the ranges of `include`: bool[N]; None if `include` is None."""
    if include is None:
        return None
    mask = torch.zeros(graph.n, dtype=torch.bool, device=graph.indptr.device)
    for lo, hi in include:
        if not 0 <= lo <= hi <= graph.n:
            raise BadInput("a range of nodes is not in the graph", given=f"({lo}, {hi})", expected=f"0..{graph.n}")
        mask[lo:hi] = True
    return mask


def _balls_by_numba(
    graph: CSR, seeds: Ragged, radius: int, limit: int | None, allowed: torch.Tensor | None, threads: int
) -> Ragged:
    from gpu_rag_kernels.ego import numba as kernels

    n = graph.n
    indptr, indices = graph.indptr.contiguous().numpy(), graph.indices.contiguous().numpy()
    sources, offsets = arrays_of(seeds, wide=True)
    most_nodes = -1 if limit is None else limit
    may = np.zeros(0, np.bool_) if allowed is None else allowed.numpy()

    def balls(first: int) -> tuple[np.ndarray, np.ndarray]:
        last = min(first + kernels.WORD, seeds.batch)
        seen, fresh, bits = (np.zeros(n, np.uint64) for _ in range(3))
        touched, reached_nodes, front = (np.empty(n, np.int32) for _ in range(3))
        n_touched = kernels.search(
            indptr, indices, may, sources, offsets, first, last, radius, most_nodes,
            seen, fresh, touched, reached_nodes, front, bits,
        )  # fmt: skip
        sizes = np.zeros(last - first, np.int64)
        kernels.ball_sizes(seen, touched[:n_touched], sizes)
        nodes = np.empty(sizes.sum(), np.int32)
        kernels.write_balls(seen, touched[:n_touched], np.cumsum(sizes) - sizes, nodes)
        return nodes, sizes

    done = run_parts(balls, range(0, seeds.batch, kernels.WORD), threads)
    nodes = np.concatenate([np.zeros(0, np.int32), *(nodes for nodes, _ in done)])
    sizes = np.concatenate([np.zeros(1, np.int64), *(sizes for _, sizes in done)])
    return Ragged(torch.from_numpy(nodes), torch.from_numpy(np.cumsum(sizes)))


@dataclass(frozen=True)
class Reached:
    """Nodes that a search has found: keys question * N + node i64[T], ascending; hop i64[T], the hop of each;
    n_entries: the total number of entries in their rows, if known; left: hops not done, see `reached`."""

    keys: torch.Tensor
    hop: torch.Tensor
    n_entries: int | None
    left: int = 0


Costs: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""costs(question i64[P], node i64[P]): what entering the node costs in the question, i32 or i64[P]."""


def reached(
    graph: CSR, seeds: Ragged, radius: int, *, limit: int | None = None, allowed: torch.Tensor | None = None,
    costs: Costs | None = None, max_entries: int | None = None,
) -> Reached:  # fmt: skip
    """The balls of `ego_balls`, all questions hop by hop along the rows of the nodes that the last hop found.

    costs: seeds always stay; if a hop does not fit, the nodes with the lowest cost are taken, then the lower node.
    max_entries: the search ends before a hop with more entries than this. The host waits once for each hop, for the
    number of new nodes; with costs once more if a question is full.
    """
    n, batch = max(graph.n, 1), seeds.batch
    ball = torch.zeros(0, dtype=torch.int64, device=graph.indptr.device)
    candidates, fronts, total, hops_left = keys_of(seeds, n).sort().values, [ball], 0, 0
    size, counted = torch.zeros(batch, dtype=torch.int64, device=ball.device), True
    for hop in range(radius + 1):
        new = _are_new(candidates, ball)
        if hop and allowed is not None:
            new &= allowed[candidates % n]
        kept, goes_on = new, new  # goes_on: the start of the next hop
        if limit is not None:
            kept, size = _within_limit(candidates, new, size, n, limit if hop or costs is None else candidates.shape[0])
            goes_on = kept & (size < limit)[candidates // n]
        degree = graph.indptr[candidates % n + 1] - graph.indptr[candidates % n] if graph.n else new.long()
        sizes = [kept.sum(), goes_on.sum(), (new & ~goes_on).sum(), (degree * kept).sum(), (degree * goes_on).sum()]
        n_kept, n_on, n_over, n_rows, n_entries = torch.stack(sizes).tolist()
        front = whole = candidates[places_of(goes_on, n_on)]
        if n_kept > n_on:
            whole = candidates[places_of(kept, n_kept)]
            if costs is not None and hop and n_over > n_kept - n_on:
                surplus = candidates[places_of(new & ~goes_on, n_over)]
                before = candidates[places_of(kept & ~goes_on, n_kept - n_on)]
                chosen = cheapest(surplus, sizes_of(before, batch, n), n_kept - n_on, costs, n)
                whole = torch.cat([front, chosen]).sort().values
                counted = False
        total += n_rows
        fronts.append(whole)
        ball = torch.cat([ball, whole]).sort().values
        if hop == radius or n_entries == 0:
            break
        if max_entries is not None and n_entries > max_entries:
            hops_left = radius - hop
            break
        candidates = _neighbours(graph, front, n_entries)
    keys = torch.cat(fronts)
    order = keys.argsort()
    hops = torch.cat([torch.full_like(front, hop) for hop, front in enumerate(fronts[1:])])
    return Reached(keys[order], hops[order], total if counted else None, hops_left)


def cheapest(over: torch.Tensor, space: torch.Tensor, size: int, costs: Costs, n: int) -> torch.Tensor:
    """The first space[question] of the ascending keys question * n + node, by (cost, node); `size` in all."""
    question, node = over // n, over % n
    cost = costs(question, node)
    check_form(cost, "costs are not integers of the pairs", INTEGERS, over.shape)
    order = lexsort(cost.long(), question)
    place = torch.arange(over.shape[0], device=over.device) - torch.searchsorted(question, question[order])
    return over[order[places_of(place < space[question[order]], size)]]


def sizes_of(keys: torch.Tensor, batch: int, n: int) -> torch.Tensor:
    """The number of ascending keys question * n + node for each question: i64[B]."""
    return torch.searchsorted(keys, torch.arange(batch + 1, device=keys.device) * n).diff()


def _are_new(keys: torch.Tensor, ball: torch.Tensor) -> torch.Tensor:
    """Whether a key is the first of equal ascending keys and not in the ascending `ball`: bool[T]."""
    new = are_first(keys)
    if ball.shape[0]:
        new &= ball[torch.searchsorted(ball, keys).clamp_(max=ball.shape[0] - 1)] != keys
    return new


def _within_limit(
    keys: torch.Tensor, new: torch.Tensor, size: torch.Tensor, n: int, limit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new keys for which their balls, of `size` nodes now, have space, first keys first; and the new sizes."""
    batch = size.shape[0]
    starts = torch.searchsorted(keys, torch.arange(batch + 1, device=keys.device) * n)
    before = offsets_of(new)
    full = before[starts[:-1]] + limit - size  # place of the first new key without space
    kept = new & (before[:-1] < full[keys // n])
    return kept, (size + before[starts].diff()).clamp_(max=limit)


def _neighbours(graph: CSR, keys: torch.Tensor, n_entries: int) -> torch.Tensor:
    """The keys question * N + neighbour of ascending keys; ascending, with repeats if there is only one piece."""
    node = keys % max(graph.n, 1)
    questions, pieces = keys - node, []
    for owner, entry in expand(graph.indptr[node], graph.indptr[node + 1], n_entries):
        reached = questions[owner] + graph.indices[entry]
        pieces.append(reached if n_entries <= EXPAND_AT_ONCE else torch.unique(reached))
    return torch.cat(pieces).sort().values


def without(keys: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """The keys that are not in the ascending `known`."""
    return keys[torch.searchsorted(known, keys) == torch.searchsorted(known, keys, right=True)]


def induced_subgraphs(
    csr: CSR | CheckedGraph, nodes: Ragged, *, n_entries: int | None = None, implementation: str = "auto"
) -> Blocks:
    """The subgraph on each list of nodes, as blocks of one block-diagonal CSR.

    Block b has the listed nodes in their order, and every entry of `csr` between two of them, with its weight. nodes:
    Ragged of i32/i64 nodes, ascending, each once (as from `ego_balls`). n_entries: the total number of entries in their
    rows, if known. Returns Blocks: csr with local indices, offsets i64[B+1], global_ids i32[T]; symmetric if `csr` is.
    implementation: numba | torch | auto, all give the same. Time: the rows of the listed nodes. Memory: the result
    (twice if these rows have more than 2^27 entries) and 4 N bytes; 4 bytes an entry of the rows, 12 with weights, are
    reserved and mostly never written. Raises BadInput, UsageError, MissingBackend.

    Path 0 - 1 - 2 - 3 with [[0, 1], [1, 3]] gives two blocks, 0 - 1 and two lone nodes: global_ids [0, 1, 1, 3], indptr
    [0, 1, 2, 2, 2], indices [1, 0].
    """
    graph = checked(csr).csr
    check_ragged(nodes, "nodes", n=graph.n, device=graph.indptr.device, ascending=True)
    picked = pick_implementation(graph.indptr.device, implementation, "induced_subgraphs")
    total = nodes.values.shape[0]
    if total >= 2**31:
        raise BadInput("too many nodes in all blocks", given=total, expected="fewer than 2^31")
    n_bytes = 12 * total + (4 * graph.n if picked == "numba" else 12 * total)
    check_memory(n_bytes, graph.indptr.device, "the blocks", "cut out fewer questions at a time")
    kept = Ragged(nodes.values.int(), nodes.offsets)
    indptr, columns, entries = (
        _inside_by_numba(graph, kept) if picked == "numba" else _inside_by_torch(graph, kept, n_entries)
    )
    weight = None if graph.weight is None else graph.weight[entries]
    return Blocks(CSR(indptr, columns, weight), kept.offsets, kept.values)


Inside: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"


def blocks_around(
    graph: CheckedGraph, seeds: Ragged, radius: int, *, limit: int | None = None, costs: Costs | None = None
) -> Blocks:
    """The subgraphs on the nodes of `reached`; on a device with fewer waits than by two calls."""
    csr = graph.csr
    check_ragged(seeds, "seeds", n=csr.n, device=csr.indptr.device)
    pulls = limit is None and pick_implementation(csr.indptr.device, family="loops") == "triton"
    max_entries = csr.m * -(-seeds.batch // WORD) // PULL_FROM if pulls else None
    ball = reached(csr, seeds, min(radius, csr.n), limit=limit, costs=costs, max_entries=max_entries)
    if ball.left:
        return induced_subgraphs(graph, ego_balls(graph, seeds, radius))
    nodes = ragged_of_keys(ball.keys, seeds.batch, max(csr.n, 1))
    return induced_subgraphs(graph, nodes, n_entries=ball.n_entries)


def part_of_blocks(blocks: Blocks, kept: torch.Tensor) -> Blocks:
    """The blocks on the marked rows, bool[T], as `induced_subgraphs` would give them, without weights. One wait."""
    csr, row = CSR(blocks.csr.indptr, blocks.csr.indices), row_of_entry(blocks.csr)
    before = offsets_of(kept)
    offsets = before[blocks.offsets]
    if kept.device.type == "cpu":
        rows = kept.nonzero()[:, 0]
        part = induced_subgraphs(CheckedGraph(csr), Ragged(rows.int(), offsets))
        return Blocks(part.csr, offsets, blocks.global_ids[rows])
    inside = kept[row] & kept[csr.indices.long()]
    n_rows, n_entries = torch.stack([kept.sum(), inside.sum()]).tolist()
    rows, entries = places_of(kept, n_rows), places_of(inside, n_entries)
    counts = offsets_of(inside)[csr.indptr].diff()[rows]
    return Blocks(CSR(offsets_of(counts), before[csr.indices[entries].long()].int()), offsets, blocks.global_ids[rows])


def _inside_by_numba(graph: CSR, nodes: Ragged) -> Inside:
    """indptr i64[T+1] of the blocks, local columns i32[M], and the entry numbers in `graph` i64[M] (or [0])."""
    from gpu_rag_kernels.ego.numba import cut_out, forget, rows_before

    indptr, indices = graph.indptr.contiguous().numpy(), graph.indices.contiguous().numpy()
    listed, offsets = arrays_of(nodes)
    read = np.empty(nodes.batch + 1, np.int64)
    rows_before(indptr, listed, offsets, read)
    local, ends = np.empty(graph.n, np.int32), np.zeros(len(listed) + 1, np.int64)
    forget(indptr, indices, listed, read[-1], local)
    columns: list[np.ndarray] = []
    entries: list[np.ndarray] = []
    first = 0
    while first < nodes.batch:  # as many blocks as can be read at once, at least one
        last = max(first + 1, int(np.searchsorted(read, read[first] + READ_AT_ONCE, "right")) - 1)
        local_columns = np.empty(read[last] - read[first] + 1, np.int32)
        numbers = None if graph.weight is None else np.empty(len(local_columns), np.int64)
        size = cut_out(indptr, indices, listed, offsets, first, last, local, ends, local_columns, numbers)
        columns.append(shortened(local_columns, size))
        if numbers is not None:
            entries.append(shortened(numbers, size))
        first = last
    return torch.from_numpy(ends), _joined(columns, np.int32), _joined(entries, np.int64)


def _joined(pieces: list[np.ndarray], dtype: type) -> torch.Tensor:
    return torch.from_numpy(pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, dtype), *pieces]))


def _inside_by_torch(graph: CSR, nodes: Ragged, n_entries: int | None) -> Inside:
    """`_inside_by_numba` in torch: neighbours are looked up in the ascending keys block * N + node."""
    node, block = nodes.values.long(), row_of_value(nodes) * graph.n
    known = block + node
    counts = torch.zeros_like(node)
    columns, entries = [node[:0]], [node[:0]]
    for owner, entry in expand(graph.indptr[node], graph.indptr[node + 1], n_entries):
        wanted = block[owner] + graph.indices[entry]
        place = torch.searchsorted(known, wanted)
        hit = known[place.clamp(max=known.shape[0] - 1)] == wanted
        counts.index_add_(0, owner, hit.long())
        hits = hit.nonzero()[:, 0]
        columns.append(place[hits])
        entries.append(entry[hits])
    indptr = offsets_of(counts)
    return indptr, torch.cat(columns).int(), torch.cat(entries)


WORD = 64  # questions
TILE = 4 * WORD  # questions searched together: three arrays with four words a node
PULL_FROM = 14  # a hop is pulled if it has more than 1 / 14 of all entries (Beamer 2012: alpha = 14)


@cache
def _pulls() -> Any:
    """{indices: (indptr, pull)}: a graph is transposed once."""
    return torch.utils.weak.WeakTensorKeyDictionary()


def pull_of(graph: CSR) -> CSR:
    """The pattern whose row v lists the nodes with an entry in column v."""
    cached = _pulls().get(graph.indices)
    if cached is None or cached[0] is not graph.indptr:  # other graphs may share the columns
        cached = _pulls()[graph.indices] = graph.indptr, transpose(CSR(graph.indptr, graph.indices))
    pull: CSR = cached[1]
    return pull


def balls_by_words(graph: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None) -> Ragged:
    """The balls of `ego_balls` without a limit, for checked input.

    The search is direction-optimising (Beamer, Asanovic and Patterson, 2012). While a hop has few entries, it pushes
    along lists. From the first hop with more than a 14th of all entries for each word, every node pulls the words of
    its neighbours. Memory: 96 N bytes, and 128 for each node that 64 questions reach. The host waits once, once for
    each pushed hop, and five times for each pulled tile.
    """
    parts = []
    for _, tile in pieces_of(seeds, TILE):
        max_entries = graph.m * -(-tile.batch // WORD) // PULL_FROM
        pushed = reached(graph, tile, radius, allowed=allowed, max_entries=max_entries)
        if pushed.left:
            seen = _search(pull_of(graph), pushed, tile.batch, allowed)
            parts.append(_listed(seen, tile.batch))
        else:
            parts.append(ragged_of_keys(pushed.keys, tile.batch, max(graph.n, 1)))
    values = torch.cat([seeds.values[:0].int(), *(part.values for part in parts)])
    sizes = torch.cat([seeds.offsets[:0], *(part.offsets.diff() for part in parts)])
    return Ragged(values, offsets_of(sizes))


def _search(pull: CSR, pushed: Reached, batch: int, allowed: torch.Tensor | None) -> torch.Tensor:
    """Pull the remaining hops: i64[N, W], where bit q % 64 of word q // 64 of a node means that it is in ball q."""
    width = (batch + WORD - 1) // WORD
    node, question = pushed.keys % pull.n, pushed.keys // pull.n
    bit = torch.ones_like(node) << (question % WORD)  # each pair once: bits are added up
    last = torch.where(pushed.hop == pushed.hop.amax(), bit, 0)
    words = torch.zeros(2, pull.n * width, dtype=torch.int64, device=node.device)
    words.scatter_add_(1, (node * width + question // WORD).expand(2, -1), torch.stack([bit, last]))
    seen, front = words.view(2, pull.n, width)
    for _ in range(pushed.left):
        fresh, after = ego_loops.msbfs_or(pull, front, seen)
        if allowed is not None:
            fresh = torch.where(allowed[:, None], fresh, 0)
            after = seen | fresh
        front, seen = fresh, after
    return seen


def _listed(seen: torch.Tensor, batch: int) -> Ragged:
    """The nodes of each question, ascending."""
    values, sizes = [], []
    bits = torch.arange(8, dtype=torch.uint8, device=seen.device)
    touched_by = (seen != 0).sum(0).tolist()
    for first, n_touched in zip(range(0, batch, WORD), touched_by):
        word = seen[:, first // WORD]
        touched = places_of(word != 0, n_touched)
        eighths = word[touched].view(torch.uint8).view(-1, 8).T  # bit q is bit q % 8 of byte q // 8
        inside = ((eighths[:, None] >> bits[:, None]) & 1).flatten(0, 1)[: min(WORD, batch - first)]
        values.append(touched[inside.nonzero()[:, 1]].int())
        sizes.append(inside.sum(1, dtype=torch.int64))
    return Ragged(torch.cat(values), offsets_of(torch.cat(sizes)))


def local_nodes(blocks: Blocks, lists: Ragged, name: str) -> Ragged:
    """Convert nodes of the whole graph to rows of `blocks.csr`: i64[T], list b looked up in block b.

    Raises BadInput if a node is not in its block, or if there are not as many lists as blocks.
    """
    check_ragged(lists, name, device=blocks.offsets.device, batch=blocks.offsets.shape[0] - 1, owners="blocks")
    row, node = row_of_value(lists), lists.values.long()
    if node.numel() == 0:
        return Ragged(node, lists.offsets)
    width = 2**31  # above every id
    known = row_of_value(Ragged(blocks.global_ids, blocks.offsets)) * width + blocks.global_ids
    wanted = row * width + node
    rows = torch.searchsorted(known, wanted)
    missing = (node < 0) | (node >= width) | (torch.searchsorted(known, wanted, right=True) == rows)
    if not is_trusted(rows.device) and bool(missing.any()):
        first = int(missing.nonzero()[0, 0])
        given = f"node {int(node[first])} in list {int(row[first])}"
        raise BadInput(f"one of the {name} is not in its block", given=given, expected="a node of the block")
    return Ragged(rows, lists.offsets)
