"""Putting paths together: parts between neighbouring topics from the hops of both, and whole paths from parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import compiled_checks, pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import check_form
from gpu_rag.graph.paths.sets import (
    MOST_HOPS,
    NO_END,
    Kind,
    PathGraph,
    PathSet,
    check_count,
    check_paths,
    in_order,
    padded,
)
from gpu_rag.graph.ragged import are_broken, arrays_of, check_ragged, check_tensors, expand, row_of_value
from gpu_rag.types import Ragged

Array = np.ndarray[Any, Any]

MOST_PAIRS = 1 << 26  # that one call may try, unless it says otherwise


@dataclass(frozen=True)
class Ends:
    """first, last: bool[B], whether the path goes on before the first and after the last topic of each question."""

    first: torch.Tensor
    last: torch.Tensor


@dataclass(frozen=True)
class Window:
    """A whole path of question b has more than least[b] and at most longest[b] hops: i64[B] each."""

    least: torch.Tensor
    longest: torch.Tensor


def n_steps(topics: Ragged) -> int:
    """The number of steps of `chain_paths`: a question with k topics has k + 1 places for a part, ends included."""
    return int(topics.offsets.diff().max()) + 1 if topics.batch and topics.values.numel() else 0


def path_parts(
    graph: PathGraph,
    topics: Ragged,
    hops: Sequence[PathSet],
    ends: Ends,
    *,
    most: int = MOST_PAIRS,
    implementation: str = "auto",
) -> PathSet:
    """The parts that whole paths are made of, each in the direction of the order.

    hops: the paths of 0, 1, .. D hops from each topic (`start_paths`, then `expand_paths`, pruned or not). Returns
    PathSet with group = topics.offsets[b] + b + s for part s of question b: s = 0 comes before the first topic and
    s = k after the last (paths of 1..D hops, only where that end is open), others lead from topic s to topic s + 1,
    counted from 1: the edge between them, or f hops from the one and f or f - 1 from the other that end in one node
    and share no other. So each is found once. Edges are carried along, whatever their numbers. most: raises BadInput
    where more pairs than this would have to be tried. implementation: numba | torch | auto, both give the same
    integers. Raises BadInput, UsageError, MissingBackend.
    """
    check_ragged(topics, "topics", n=graph.n, device=graph.device)
    check_ends(topics, ends)
    kind = Kind(topics.offsets, 1, 0, graph.n, padded=False)
    for paths in hops:
        check_paths(paths, topics.batch, graph.device, kind)
    if not hops or any(paths.edges.shape[1] != h for h, paths in enumerate(hops)):
        raise BadInput("hops are not in order", given=[p.edges.shape[1] for p in hops], expected="0, 1, 2, ..")
    if pick_implementation(graph.device, implementation, "path_parts") == "numba":
        return _parts_by_numba(graph, topics, hops, ends.first.numpy(), ends.last.numpy(), most)
    first, last = checked_ends(topics, ends)
    question = row_of_value(topics)
    place = torch.arange(question.shape[0], device=graph.device)
    slot = place + question  # of the part before each topic; the part after it is the next
    opens = (place == topics.offsets[question]) & first[question]
    closes = (place + 1 == topics.offsets[question + 1]) & last[question]
    found = [_direct(graph, topics, slot)]
    for h in range(1, len(hops)):
        before, behind = hops[h].rows(opens[hops[h].group]), hops[h].rows(closes[hops[h].group])
        found.append(PathSet(slot[before.group], before.question, before.nodes.flip(1), before.edges.flip(1)))
        found.append(replace(behind, group=slot[behind.group] + 1))
        for back in {max(h - 1, 1), h}:
            found.append(_met(hops[h], hops[back], topics, slot, graph.n, most))
    return in_order(_narrow(_together(found)))


def check_ends(topics: Ragged, ends: Ends) -> None:
    """Raises BadInput unless `ends` are flags of these questions."""
    for name, side in (("first", ends.first), ("last", ends.last)):
        check_form(side, f"ends.{name} does not fit", [torch.bool], [topics.batch], topics.offsets.device)


def checked_ends(topics: Ragged, ends: Ends) -> tuple[torch.Tensor, torch.Tensor]:
    """(first, last) of the checked ends; one topic without an open end is open after it."""
    check_ends(topics, ends)
    return ends.first, ends.last | (~ends.first & (topics.offsets.diff() == 1))


def _direct(graph: PathGraph, topics: Ragged, slot: torch.Tensor) -> PathSet:
    """The edges between a topic and the next one of its question."""
    question = row_of_value(topics)
    here = (question[:-1] == question[1:]).nonzero()[:, 0]
    one, other = topics.values[here].long(), topics.values[here + 1].long()
    rows, entries = [here[:0]], [here[:0]]
    for owner, entry in expand(graph.csr.indptr[one], graph.csr.indptr[one + 1]):
        hit = graph.csr.indices[entry] == other[owner]
        rows.append(owner[hit])
        entries.append(entry[hit])
    row, entry = torch.cat(rows), torch.cat(entries)
    nodes = torch.stack([one[row], other[row]], 1).int()
    return PathSet(slot[here[row]] + 1, question[here[row]], nodes, graph.edge[entry][:, None])


def _met(left: PathSet, right: PathSet, topics: Ragged, slot: torch.Tensor, n: int, most: int) -> PathSet:
    """Paths of `left` from a topic joined with paths of `right` from the next topic that end in the same node."""
    follows = torch.zeros(slot.shape[0], dtype=torch.bool, device=slot.device)  # whether a topic is not the first
    follows[1:] = slot[1:] == slot[:-1] + 1
    right = right.rows(follows[right.group])
    wanted = (left.group + 1) * n + left.nodes[:, -1]
    offered = right.group * n + right.nodes[:, -1]
    one, other = _disjoint_pairs(left.nodes[:, :-1], wanted, right.nodes[:, :-1], offered, most)
    nodes = torch.cat([left.nodes[one], right.nodes[other].flip(1)[:, 1:]], 1)
    edges = torch.cat([left.edges[one], right.edges[other].flip(1)], 1)
    return PathSet(slot[left.group[one]] + 1, left.question[one], nodes, edges)


def _disjoint_pairs(
    left: torch.Tensor, wanted: torch.Tensor, right: torch.Tensor, offered: torch.Tensor, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(i, j) with wanted[i] = offered[j] whose nodes left[i] and right[j] have none in common (-1 counts as none)."""
    offered, order = torch.sort(offered, stable=True)
    first, last = torch.searchsorted(offered, wanted), torch.searchsorted(offered, wanted, right=True)
    check_count(int((last - first).sum()), most, "joints")
    ones, others = [order[:0]], [order[:0]]
    for one, at in expand(first, last):
        other = order[at]
        free = torch.ones_like(one, dtype=torch.bool)
        for column in right.T:
            node = column[other]
            free &= ((left[one] != node[:, None]) | (node < 0)[:, None]).all(1)
        ones.append(one[free])
        others.append(other[free])
    return torch.cat(ones), torch.cat(others)


def _together(sets: Sequence[PathSet]) -> PathSet:
    hops = max(paths.edges.shape[1] for paths in sets)
    wide = [padded(paths, hops) for paths in sets]
    return PathSet(
        torch.cat([p.group for p in wide]), torch.cat([p.question for p in wide]),
        torch.cat([p.nodes for p in wide]), torch.cat([p.edges for p in wide]),
    )  # fmt: skip


def chain_paths(
    whole: PathSet | None,
    parts: PathSet,
    topics: Ragged,
    step: int,
    ends: Ends,
    window: Window,
    *,
    most: int = MOST_PAIRS,
    implementation: str = "auto",
) -> PathSet:
    """One more part for every question: step 0 gives the beginnings (whole = None), step s adds part s.

    parts: of `path_parts`, pruned or not. A path and a part are joined where they share the topic between them and no
    other node, and the sum has at most longest[b] hops; a closed end adds nothing; a question without part s keeps its
    paths. Behind its last part a question keeps the paths with more than least[b] hops. Returns PathSet with group =
    question, ascending by (question, nodes). most, implementation: as in `path_parts`. Raises BadInput, UsageError,
    MissingBackend.
    """
    check_tensors(topics, "topics", None)
    check_ends(topics, ends)
    _check_window(window, topics)
    check_paths(parts, topics.batch, topics.offsets.device, Kind(topics.offsets, 1, 1))
    if step < 0 or (step > 0 and whole is None):
        raise BadInput("a chain has no beginning", given=f"step {step}", expected="step 0 first")
    if step > 0 and whole is not None:
        check_paths(whole, topics.batch, topics.offsets.device, Kind(topics.offsets, 0, 1))
    if pick_implementation(topics.offsets.device, implementation, "chain_paths") == "numba":
        arrays = whole if step > 0 else None
        bounds = (window.least.contiguous().numpy(), window.longest.contiguous().numpy())
        return _chain_by_numba(arrays, parts, topics, step, ends.first.numpy(), ends.last.numpy(), bounds, most)
    opens, closes = checked_ends(topics, ends)
    slot = topics.offsets[parts.question] + parts.question + step
    added = parts.rows(parts.group == slot)
    added = PathSet(added.question, added.question, added.nodes, added.edges)
    size = topics.offsets.diff()
    if step == 0 or whole is None:
        closed = ((size > 0) & ~opens).nonzero()[:, 0]
        topic = topics.values[topics.offsets[closed]].int()[:, None]
        found = _together([added, PathSet(closed, closed, topic, topic[:, :0])])
    else:
        size_of, closes_of = size[whole.question], closes[whole.question]
        keep = (size_of < step) | ((size_of == step) & ~closes_of)
        found = _together([whole.rows(keep), *_extended(whole.rows(~keep), added, most)])
    length = (found.edges >= 0).sum(1)
    allowed = length <= window.longest[found.question]
    allowed &= (length > window.least[found.question]) | (size[found.question] > step)
    return in_order(_narrow(found.rows(allowed)))


def _check_window(window: Window, topics: Ragged) -> None:
    """Raises BadInput unless `window` and the lists of the topics are sound. The host waits for a device once."""
    for name, side in (("least", window.least), ("longest", window.longest)):
        check_form(side, f"window.{name} does not fit", [torch.int64], [topics.batch], topics.offsets.device)
    if compiled_checks(topics.offsets.device) is not None:
        from gpu_rag_kernels.checks import are_lists

        if are_lists(*arrays_of(topics), NO_END) and window.longest.numpy().max(initial=0) <= MOST_HOPS:
            return  # the slow check below says what is wrong
    elif not bool((window.longest > MOST_HOPS).any() | are_broken(topics, NO_END)):
        return
    check_ragged(topics, "topics", n=NO_END)
    given = f"longest={int(window.longest.max())}"
    raise BadInput("paths are too long", given=given, expected=f"at most {MOST_HOPS} hops")


def _extended(whole: PathSet, parts: PathSet, most: int) -> Iterator[PathSet]:
    """Every path joined with every part of its question, by the hops that the path has."""
    length = (whole.edges >= 0).sum(1)
    for hops in torch.unique(length).tolist():
        left = whole.rows(length == hops)
        one, other = _disjoint_pairs(left.nodes[:, :hops], left.question, parts.nodes[:, 1:], parts.question, most)
        nodes = torch.cat([left.nodes[one][:, : hops + 1], parts.nodes[other][:, 1:]], 1)
        edges = torch.cat([left.edges[one][:, :hops], parts.edges[other]], 1)
        yield PathSet(left.question[one], left.question[one], nodes, edges)


def _narrow(paths: PathSet) -> PathSet:
    """The same paths without columns that are padding throughout."""
    hops = int((paths.edges >= 0).sum(1).max()) if paths.size else 0
    return PathSet(paths.group, paths.question, paths.nodes[:, : hops + 1], paths.edges[:, :hops])


def _parts_by_numba(
    graph: PathGraph, topics: Ragged, hops: Sequence[PathSet], opens: Array, last: Array, most: int
) -> PathSet:
    """`path_parts` of checked inputs by compiled loops. opens, last: bool[B], the two flags of `Ends`."""
    from gpu_rag_kernels.paths import numba as kernels

    csr, (values, offsets) = graph.csr, arrays_of(topics, wide=True)
    closes = _open_behind(opens, last, np.diff(offsets))
    arrays, width = [paths.columns for paths in hops], max(2 * (len(hops) - 1), 1)
    number = graph.edge.contiguous().numpy()
    indptr, indices = csr.indptr.contiguous().numpy(), csr.indices.contiguous().numpy()
    found = [kernels.direct(indptr, indices, number, values, offsets, width)]
    for h in range(1, len(hops)):
        if opens.any() or closes.any():
            found.append(kernels.beyond(arrays[h], offsets, opens, closes, width))
        for back in {max(h - 1, 1), h}:
            spans = np.empty((hops[h].size, 2), np.int64)
            keys, pairs = kernels.meeting(arrays[h], arrays[back], offsets, spans)
            check_count(pairs, most, "joints")
            found.append(kernels.join(arrays[h], arrays[back], keys, spans, pairs, width))
    return _sorted_by_numpy(*(np.concatenate(column) for column in zip(*found)))


def _chain_by_numba(
    whole: PathSet | None, parts: PathSet, topics: Ragged, step: int, opens: Array, last: Array,
    window: tuple[Array, Array], most: int,
) -> PathSet:  # fmt: skip
    """`chain_paths` of checked inputs. opens, last: bool[B], the two flags of `Ends`; window: (least, longest)."""
    from gpu_rag_kernels.paths import numba as kernels

    values, offsets = arrays_of(topics, wide=True)
    least, longest = window
    added, size = parts.columns, np.diff(offsets)
    space = max(int(longest.max(initial=0)), 0)
    if whole is None:
        width = min(parts.edges.shape[1], space)
        question, nodes, edges = kernels.begin(added, values, offsets, opens, least, longest, width)
    else:
        arrays, spans = whole.columns, kernels.spans_of_parts(added, offsets, step)
        goes_on = (size > step) | ((size == step) & _open_behind(opens, last, size))
        check_count(kernels.tried(arrays, spans, goes_on), most, "joints")
        width = min(whole.edges.shape[1] + parts.edges.shape[1], space)
        question, nodes, edges = kernels.go_on(arrays, added, spans, goes_on, size <= step, least, longest, width)
    return _sorted_by_numpy(question, question, nodes, edges)


def _open_behind(opens: Array, last: Array, size: Array) -> Array:
    """bool[B]: whether the path goes on after the last topic; see `checked_ends`."""
    return last | (~opens & (size == 1))


def _sorted_by_numpy(group: Array, question: Array, nodes: Array, edges: Array) -> PathSet:
    """Ascending by (group, nodes), without columns that are padding throughout."""
    hops = int((edges >= 0).any(0).sum())
    nodes, edges = nodes[:, : hops + 1], edges[:, :hops]
    order = np.lexsort((*nodes.T[::-1], group))
    return PathSet(*(torch.from_numpy(column[order]) for column in (group, question, nodes, edges)))
