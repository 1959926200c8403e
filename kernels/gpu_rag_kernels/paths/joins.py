"""The numba kernels that put paths together. Sets of paths are tuples (group, question, nodes, edges), as in `PathSet`;
results are unsorted, and padded with -1 to the width that the caller gives."""

from __future__ import annotations

import numba
import numpy as np

_LOW = (1 << 32) - 1


@numba.njit(cache=True, nogil=True)
def space_for(size, width):
    """A set of `size` paths of up to `width` hops, all padding."""
    nodes, edges = np.full((size, width + 1), -1, np.int32), np.full((size, width), -1, np.int32)
    return np.empty(size, np.int64), np.empty(size, np.int64), nodes, edges


@numba.njit(cache=True, nogil=True)
def shared(one, n_one, other, first, last):
    """Whether one[:n_one] and other[first:last] have a node in common; -1 is none."""
    found = False
    for i in range(n_one):
        for j in range(first, last):
            found |= (one[i] == other[j]) & (one[i] >= 0)
    return found


@numba.njit(cache=True, nogil=True)
def direct(indptr, indices, number, topics, offsets, width):
    """The edges between a topic and the next one of its question; number: the edge of every entry."""
    found, at = space_for(topics.shape[0], width), 0
    for b in range(offsets.shape[0] - 1):
        for t in range(offsets[b], offsets[b + 1] - 1):
            first, last, wanted = indptr[topics[t]], indptr[topics[t] + 1], topics[t + 1]
            entry = first + np.searchsorted(indices[first:last], wanted)
            if entry < last and indices[entry] == wanted:
                found[0][at], found[1][at], found[3][at, 0] = t + b + 1, b, number[entry]
                found[2][at, 0], found[2][at, 1] = topics[t], wanted
                at += 1
    return found[0][:at], found[1][:at], found[2][:at], found[3][:at]


@numba.njit(cache=True, nogil=True)
def beyond(hop, offsets, opens, closes, width):
    """The paths of one hop count that lead to the first topic of a question with an open end, walked backwards, and
    those from the last one. opens, closes: bool[B]."""
    group, question, nodes, edges = hop
    n, h = group.shape[0], edges.shape[1]
    found, at = space_for(2 * n, width), 0
    for p in range(n):
        b, t = question[p], group[p]
        if opens[b] and t == offsets[b]:
            found[0][at], found[1][at] = t + b, b
            for i in range(h + 1):
                found[2][at, i] = nodes[p, h - i]
            for i in range(h):
                found[3][at, i] = edges[p, h - 1 - i]
            at += 1
        if closes[b] and t + 1 == offsets[b + 1]:
            found[0][at], found[1][at] = t + b + 1, b
            found[2][at, : h + 1], found[3][at, :h] = nodes[p], edges[p]
            at += 1
    return found[0][:at], found[1][:at], found[2][:at], found[3][:at]


@numba.njit(cache=True, nogil=True)
def by_end(paths):
    """last node << 32 | row of every path, ascending in each group."""
    group, nodes = paths[0], paths[2]
    keys, first = np.empty(group.shape[0], np.int64), 0
    for p in range(group.shape[0]):
        keys[p] = (np.int64(nodes[p, nodes.shape[1] - 1]) << 32) | p
        if p + 1 == group.shape[0] or group[p + 1] != group[p]:
            keys[first : p + 1].sort()
            first = p + 1
    return keys


@numba.njit(cache=True, nogil=True)
def meeting(left, right, offsets, spans):
    """Which paths end in the same node as one of `left`, from the next topic: those of row p are the rows keys & LOW of
    keys[spans[p, 0] : spans[p, 1]]. Returns (keys, how many pairs)."""
    keys, pairs, lo, hi, before = by_end(right), 0, 0, 0, -1
    for p in range(left[0].shape[0]):
        t, b = left[0][p], left[1][p]
        if t != before:
            before, lo = t, hi  # groups ascend on both sides
            while lo < keys.shape[0] and right[0][lo] <= t:
                lo += 1
            hi = lo
            while hi < keys.shape[0] and right[0][hi] == t + 1 and t + 1 < offsets[b + 1]:
                hi += 1
        wanted = np.int64(left[2][p, left[2].shape[1] - 1])
        start = lo + int(np.searchsorted(keys[lo:hi], wanted << 32))
        end = start
        while end < hi and keys[end] >> 32 == wanted:
            end += 1
        spans[p, 0], spans[p, 1] = start, end
        pairs += end - start
    return keys, pairs


@numba.njit(cache=True, nogil=True)
def join(left, right, keys, spans, pairs, width):
    """The pairs of `meeting` that share no node but the one where they meet, as paths from topic to next topic."""
    group, question, nodes, edges = left
    h, k = edges.shape[1], right[3].shape[1]
    found, at = space_for(pairs, width), 0
    for p in range(group.shape[0]):
        for s in range(spans[p, 0], spans[p, 1]):
            r = keys[s] & _LOW
            if shared(nodes[p], h, right[2][r], 0, k):
                continue
            found[0][at], found[1][at] = group[p] + question[p] + 1, question[p]
            found[2][at, : h + 1], found[3][at, :h] = nodes[p], edges[p]
            for i in range(k):
                found[2][at, h + 1 + i] = right[2][r, k - 1 - i]
                found[3][at, h + i] = right[3][r, k - 1 - i]
            at += 1
    return found[0][:at], found[1][:at], found[2][:at], found[3][:at]


@numba.njit(cache=True, nogil=True)
def length_of(edges, p):
    """Hops of path p."""
    length = 0
    while length < edges.shape[1] and edges[p, length] >= 0:
        length += 1
    return length


@numba.njit(cache=True, nogil=True)
def put(found, at, b, nodes, edges, length):
    """Writes a path of question b as row `at`; returns the set, larger if it was full."""
    if at == found[0].shape[0]:
        more = space_for(2 * at + 16, found[3].shape[1])
        for i in range(at):
            more[1][i], more[2][i], more[3][i] = found[1][i], found[2][i], found[3][i]
        found = more
    found[1][at] = b
    found[2][at, : length + 1], found[3][at, :length] = nodes[: length + 1], edges[:length]
    return found


@numba.njit(cache=True, nogil=True)
def begin(parts, topics, offsets, opens, least, longest, width):
    """Part 0 of every question, or its first topic where that end is closed."""
    found, at = space_for(parts[0].shape[0] + offsets.shape[0], width), 0
    for p in range(parts[0].shape[0]):
        b, length = parts[1][p], length_of(parts[3], p)
        enough = length > least[b] or offsets[b + 1] > offsets[b]
        if parts[0][p] == offsets[b] + b and length <= longest[b] and enough:
            found, at = put(found, at, b, parts[2][p], parts[3][p], length), at + 1
    none = np.empty(0, np.int32)
    for b in range(offsets.shape[0] - 1):
        if offsets[b + 1] > offsets[b] and not opens[b] and longest[b] >= 0:
            found, at = put(found, at, b, np.full(1, np.int32(topics[offsets[b]])), none, 0), at + 1
    return found[1][:at], found[2][:at], found[3][:at]


@numba.njit(cache=True, nogil=True)
def spans_of_parts(parts, offsets, step):
    """i64[B, 2]: where the parts `step` of each question begin and end."""
    spans = np.zeros((offsets.shape[0] - 1, 2), np.int64)
    for p in range(parts[0].shape[0]):
        b = parts[1][p]
        if parts[0][p] == offsets[b] + b + step:
            if spans[b, 1] == 0:
                spans[b, 0] = p
            spans[b, 1] = p + 1
    return spans


@numba.njit(cache=True, nogil=True)
def tried(whole, spans, goes_on):
    """The most pairs of a path and a part, over the paths of one length."""
    pairs = np.zeros(whole[3].shape[1] + 1, np.int64)
    for p in range(whole[0].shape[0]):
        b = whole[1][p]
        if goes_on[b]:
            pairs[length_of(whole[3], p)] += spans[b, 1] - spans[b, 0]
    return pairs.max()


@numba.njit(cache=True, nogil=True)
def go_on(whole, parts, spans, goes_on, ended, least, longest, width):
    """Every path with every part of its question that shares no node with it but the topic between, and the paths of
    questions that do not go on. ended: bool[B], this is the last step of the question, or it is over."""
    found, at = space_for(whole[0].shape[0], width), 0
    nodes, edges = np.empty(width + 1, np.int32), np.empty(width, np.int32)
    for p in range(whole[0].shape[0]):
        b, have = whole[1][p], length_of(whole[3], p)
        if not goes_on[b]:
            if have <= longest[b] and (have > least[b] or not ended[b]):
                found, at = put(found, at, b, whole[2][p], whole[3][p], have), at + 1
            continue
        for r in range(spans[b, 0], spans[b, 1]):
            more = length_of(parts[3], r)
            length = have + more
            if length > longest[b] or (length <= least[b] and ended[b]):
                continue
            if shared(whole[2][p], have, parts[2][r], 1, more + 1):
                continue
            nodes[: have + 1], edges[:have] = whole[2][p, : have + 1], whole[3][p, :have]
            nodes[have + 1 : length + 1], edges[have:length] = parts[2][r, 1 : more + 1], parts[3][r, :more]
            found, at = put(found, at, b, nodes, edges, length), at + 1
    return found[1][:at], found[2][:at], found[3][:at]
