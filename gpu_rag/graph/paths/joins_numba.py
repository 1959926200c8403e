"""`path_parts` and `chain_paths` by compiled loops on the CPU: the same integers as by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.paths import joins as kernels

from gpu_rag.graph.paths.sets import PathGraph, PathSet, check_count
from gpu_rag.types import Ragged

Array = np.ndarray[Any, Any]
Window = tuple[Array, Array]


def parts_by_numba(
    graph: PathGraph, topics: Ragged, hops: Sequence[PathSet], opens: Array, last: Array, most: int
) -> PathSet:
    """`path_parts` of checked inputs. opens, last: bool[B], the two flags of `Ends`."""
    csr, (values, offsets) = graph.csr, _topics_of(topics)
    closes = _open_behind(opens, last, np.diff(offsets))
    held, width = [paths.columns for paths in hops], max(2 * (len(hops) - 1), 1)
    number = graph.edge.contiguous().numpy()
    indptr, indices = csr.indptr.contiguous().numpy(), csr.indices.contiguous().numpy()
    found = [kernels.direct(indptr, indices, number, values, offsets, width)]
    for h in range(1, len(hops)):
        if opens.any() or closes.any():
            found.append(kernels.beyond(held[h], offsets, opens, closes, width))
        for back in {max(h - 1, 1), h}:
            spans = np.empty((hops[h].size, 2), np.int64)
            keys, pairs = kernels.meeting(held[h], held[back], offsets, spans)
            check_count(pairs, most, "joints")
            found.append(kernels.join(held[h], held[back], keys, spans, pairs, width))
    return _in_order(*(np.concatenate(column) for column in zip(*found)))


def chain_by_numba(
    whole: PathSet | None, parts: PathSet, topics: Ragged, step: int, opens: Array, last: Array, window: Window,
    most: int,
) -> PathSet:  # fmt: skip
    """`chain_paths` of checked inputs. opens, last: bool[B], the two flags of `Ends`; window: (least, longest)."""
    values, offsets = _topics_of(topics)
    least, longest = window
    added, size = parts.columns, np.diff(offsets)
    room = max(int(longest.max(initial=0)), 0)
    if whole is None:
        width = min(parts.edges.shape[1], room)
        question, nodes, edges = kernels.begin(added, values, offsets, opens, least, longest, width)
    else:
        held, spans = whole.columns, kernels.spans_of_parts(added, offsets, step)
        goes_on = (size > step) | ((size == step) & _open_behind(opens, last, size))
        check_count(kernels.tried(held, spans, goes_on), most, "joints")
        width = min(whole.edges.shape[1] + parts.edges.shape[1], room)
        question, nodes, edges = kernels.go_on(held, added, spans, goes_on, size <= step, least, longest, width)
    return _in_order(question, question, nodes, edges)


def _open_behind(opens: Array, last: Array, size: Array) -> Array:
    """bool[B]: whether the path goes on after the last topic; see `checked_ends`."""
    return last | (~opens & (size == 1))


def _topics_of(topics: Ragged) -> tuple[Array, Array]:
    return topics.values.long().contiguous().numpy(), topics.offsets.contiguous().numpy()


def _in_order(group: Array, question: Array, nodes: Array, edges: Array) -> PathSet:
    """Ascending by (group, nodes), without columns that are padding throughout."""
    hops = int((edges >= 0).any(0).sum())
    nodes, edges = nodes[:, : hops + 1], edges[:, :hops]
    order = np.lexsort((*nodes.T[::-1], group))
    return PathSet(*(torch.from_numpy(column[order]) for column in (group, question, nodes, edges)))
