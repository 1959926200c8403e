"""The numba kernels of path search: possible steps, the sums behind scores, and the joining of paths.

Sets of paths are tuples (group, question, nodes, edges), as in `PathSet`. Joined sets are unsorted, and padded with -1
to the width that the caller gives.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_GRID = 2.0**22
_LOW = (1 << 32) - 1
LINE = 16  # f32 of a cache line
LINES = 64  # prefetched ahead: enough to hide memory latency, few enough to stay in the cache


@numba.njit(cache=True, nogil=True)
def extend(indptr, indices, number, paths, topics, offsets, first, last, longer):
    """Write every possible step of the paths first..last as a longer path, by (path, entry); return their number.

    paths: (group, question, nodes i32[P, h + 1], edges i32[P, h]); longer: the same with one more hop, with space for
    all entries plus one; number: the edge of every entry; topics, offsets: the topics of each question.
    """
    group, question, nodes, edges = paths
    place, hops = 0, edges.shape[1]
    for p in range(first, last):
        b = question[p]
        for e in range(indptr[nodes[p, hops]], indptr[nodes[p, hops] + 1]):
            node, free = indices[e], True
            for h in range(hops + 1):
                free &= nodes[p, h] != node
            for t in range(offsets[b], offsets[b + 1]):
                free &= topics[t] != node
            longer[0][place], longer[1][place] = group[p], b  # kept only if `place` moves on
            for h in range(hops):
                longer[2][place, h], longer[3][place, h] = nodes[p, h], edges[p, h]
            longer[2][place, hops], longer[2][place, hops + 1], longer[3][place, hops] = nodes[p, hops], node, number[e]
            place += free
    return place


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def add_row(total, row):
    """total f64[D] += row f32[D] in steps of the grid."""
    for d in range(total.shape[0]):
        total[d] += np.rint(np.float64(row[d]) * _GRID)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def products(total, row, query):
    """With s = total + row in steps of the grid: (query times s, s times s). Exact, so in any order of summation."""
    dot, square = 0.0, 0.0
    for d in range(total.shape[0]):
        value = total[d] + np.rint(np.float64(row[d]) * _GRID)
        dot += query[d] * value
        square += value * value
    return dot, square


@intrinsic
def ask_for_line(typing, matrix, row, column):
    """Emit a prefetch of one element of a matrix in C order. It loads nothing, and never fails."""
    signature = types.none(matrix, row, column)

    def emit(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        item = cgutils.get_item_pointer(context, builder, signature.args[0], array, args[1:], wraparound=False)
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], shape)
        builder.call(ask, [builder.bitcast(item, byte), i32(0), i32(3), i32(1)])  # read, all cache levels, data
        return context.get_dummy_value()

    return signature, emit


@numba.njit(cache=True, nogil=True)
def ahead(dims):
    """The number of rows of f32[dims] by which to prefetch."""
    return max(1, LINES * LINE // max(dims, 1))


@numba.njit(cache=True, nogil=True, inline="always")
def ask_for(matrix, row):
    """Prefetch row `row` >= 0 of matrix f32[M, D], which will be read soon."""
    for column in range(0, matrix.shape[1], LINE):
        ask_for_line(matrix, np.intp(row), np.intp(column))


@numba.njit(cache=True, nogil=True)
def vector_sums(vectors, edges, queries, question, dot, square):
    """For each row of edges i64[P, W] (padded with -1), with s the sum of their vectors f32[M, D]: write dot f64[P] =
    query f64[B, D] of its question times s, and square f64[P] = s times s; 0 for a row without edges.

    Neighbouring rows mostly share all edges but the last; their sum is kept. The vector of the last edge can be
    anywhere in memory, and loading it would dominate the time. So it is prefetched some rows ahead.
    """
    total, kept = np.zeros(vectors.shape[1], np.float64), np.full(edges.shape[1], -1, np.int64)
    wait, width = ahead(vectors.shape[1]), edges.shape[1]
    for p in range(edges.shape[0]):
        soon = p + wait
        if soon < edges.shape[0] and width > 0 and edges[soon, width - 1] >= 0:
            ask_for(vectors, edges[soon, width - 1])
        size = 0
        while size < edges.shape[1] and edges[p, size] >= 0:
            size += 1
        dot[p], square[p] = 0.0, 0.0
        if size == 0:
            continue
        same = True
        for h in range(edges.shape[1]):
            wanted = edges[p, h] if h < size - 1 else -1
            same &= kept[h] == wanted
            kept[h] = wanted
        if not same:
            total[:] = 0.0
            for h in range(size - 1):
                add_row(total, vectors[edges[p, h]])
        dot[p], square[p] = products(total, vectors[edges[p, size - 1]], queries[question[p]])


@numba.njit(cache=True, nogil=True)
def relevance(nodes, edges, question, topics, offsets, dot, square, query_square, longest, weights, scores):
    """scores f64[P] = weights[0] cosine + weights[1] Jaccard of the nodes with the topics of the question.

    dot, square: from `vector_sums`; query_square: f64[B]. Returns whether every sum of k vectors is at most k
    `longest`.
    """
    sound = True
    for p in range(edges.shape[0]):
        b, length, size, shared = question[p], 0, 0, 0
        for h in range(edges.shape[1]):
            length += edges[p, h] >= 0
        for h in range(nodes.shape[1]):
            node = nodes[p, h]
            if node < 0:
                continue
            size += 1
            for t in range(offsets[b], offsets[b + 1]):
                if topics[t] == node:
                    shared += 1
                    break
        bound = longest * length
        sound &= square[p] <= bound * bound
        norm = np.sqrt(square[p] * query_square[b])
        cosine = dot[p] / norm if norm > 0 else 0.0
        union = max(offsets[b + 1] - offsets[b] + size - shared, 1)
        scores[p] = weights[0] * cosine + weights[1] * (np.float64(shared) / np.float64(union))
    return sound


@numba.njit(cache=True, nogil=True)
def least_of_best(scores, heap):
    """The k-th largest score, k = the length of `heap` f64[k] <= the number of scores; the root is its least."""
    k = heap.shape[0]
    for i in range(scores.shape[0]):
        value, node = scores[i], 0
        if i < k:
            node = i
            while node > 0 and heap[(node - 1) >> 1] > value:
                heap[node] = heap[(node - 1) >> 1]
                node = (node - 1) >> 1
        elif value <= heap[0]:
            continue
        else:
            while 2 * node + 1 < k:
                child = 2 * node + 1
                if child + 1 < k and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= value:
                    break
                heap[node] = heap[child]
                node = child
        heap[node] = value
    return heap[0]


@numba.njit(cache=True, nogil=True)
def best_rows(group, scores, beam, rows):
    """Write into rows i64[P], ascending, the `beam` best of each group by (-score, row); return their number. group:
    ascending; scores: f64, no NaN."""
    kept, first, n = 0, 0, group.shape[0]
    heap = np.empty(min(beam, n), np.float64)
    while first < n:
        last = first + 1
        while last < n and group[last] == group[first]:
            last += 1
        if last - first <= beam:
            for p in range(first, last):
                rows[kept] = p
                kept += 1
        else:
            threshold, space = least_of_best(scores[first:last], heap), beam
            for p in range(first, last):
                space -= scores[p] > threshold
            for p in range(first, last):
                if scores[p] > threshold or (scores[p] == threshold and space > 0):
                    space -= scores[p] == threshold
                    rows[kept] = p
                    kept += 1
        first = last
    return kept


@numba.njit(cache=True, nogil=True)
def space_for(size, width):
    """A set of `size` paths of up to `width` hops, all padding."""
    nodes, edges = np.full((size, width + 1), -1, np.int32), np.full((size, width), -1, np.int32)
    return np.empty(size, np.int64), np.empty(size, np.int64), nodes, edges


@numba.njit(cache=True, nogil=True)
def shared(nodes, n_nodes, other, first, last):
    """Whether nodes[:n_nodes] and other[first:last] have a common node; -1 does not count."""
    meets = False
    for i in range(n_nodes):
        for j in range(first, last):
            meets |= (nodes[i] == other[j]) & (nodes[i] >= 0)
    return meets


@numba.njit(cache=True, nogil=True)
def direct(indptr, indices, number, topics, offsets, width):
    """The edges between a topic and the next topic of its question; number: the edge of every entry."""
    paths, size = space_for(topics.shape[0], width), 0
    for b in range(offsets.shape[0] - 1):
        for t in range(offsets[b], offsets[b + 1] - 1):
            first, last, wanted = indptr[topics[t]], indptr[topics[t] + 1], topics[t + 1]
            entry = first + np.searchsorted(indices[first:last], wanted)
            if entry < last and indices[entry] == wanted:
                paths[0][size], paths[1][size], paths[3][size, 0] = t + b + 1, b, number[entry]
                paths[2][size, 0], paths[2][size, 1] = topics[t], wanted
                size += 1
    return paths[0][:size], paths[1][:size], paths[2][:size], paths[3][:size]


@numba.njit(cache=True, nogil=True)
def beyond(hop, offsets, opens, closes, width):
    """Open ends, from the paths of one hop count: paths to a question's first topic, reversed, and paths from its last
    one. opens, closes: bool[B]."""
    group, question, nodes, edges = hop
    n, h = group.shape[0], edges.shape[1]
    parts, size = space_for(2 * n, width), 0
    for p in range(n):
        b, t = question[p], group[p]
        if opens[b] and t == offsets[b]:
            parts[0][size], parts[1][size] = t + b, b
            for i in range(h + 1):
                parts[2][size, i] = nodes[p, h - i]
            for i in range(h):
                parts[3][size, i] = edges[p, h - 1 - i]
            size += 1
        if closes[b] and t + 1 == offsets[b + 1]:
            parts[0][size], parts[1][size] = t + b + 1, b
            parts[2][size, : h + 1], parts[3][size, :h] = nodes[p], edges[p]
            size += 1
    return parts[0][:size], parts[1][:size], parts[2][:size], parts[3][:size]


@numba.njit(cache=True, nogil=True)
def by_end(paths):
    """last node << 32 | row of every path, sorted within each group."""
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
    """Find the paths of the next topic that end in the same node as each path of `left`. For row p these are the rows
    keys & LOW of keys[spans[p, 0] : spans[p, 1]]. Returns (keys, the number of pairs)."""
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
    """The pairs of `meeting` that share only the node where they meet, as paths from a topic to the next topic."""
    group, question, nodes, edges = left
    h, k = edges.shape[1], right[3].shape[1]
    joined, size = space_for(pairs, width), 0
    for p in range(group.shape[0]):
        for s in range(spans[p, 0], spans[p, 1]):
            r = keys[s] & _LOW
            if shared(nodes[p], h, right[2][r], 0, k):
                continue
            joined[0][size], joined[1][size] = group[p] + question[p] + 1, question[p]
            joined[2][size, : h + 1], joined[3][size, :h] = nodes[p], edges[p]
            for i in range(k):
                joined[2][size, h + 1 + i] = right[2][r, k - 1 - i]
                joined[3][size, h + i] = right[3][r, k - 1 - i]
            size += 1
    return joined[0][:size], joined[1][:size], joined[2][:size], joined[3][:size]


@numba.njit(cache=True, nogil=True)
def length_of(edges, p):
    """The number of hops of path p."""
    length = 0
    while length < edges.shape[1] and edges[p, length] >= 0:
        length += 1
    return length


@numba.njit(cache=True, nogil=True)
def put(paths, row, b, nodes, edges, length):
    """Write a path of question b at `row`; return the set, a larger copy if it was full."""
    if row == paths[0].shape[0]:
        more = space_for(2 * row + 16, paths[3].shape[1])
        for i in range(row):
            more[1][i], more[2][i], more[3][i] = paths[1][i], paths[2][i], paths[3][i]
        paths = more
    paths[1][row] = b
    paths[2][row, : length + 1], paths[3][row, :length] = nodes[: length + 1], edges[:length]
    return paths


@numba.njit(cache=True, nogil=True)
def begin(parts, topics, offsets, opens, least, longest, width):
    """Part 0 of every question, or its first topic if that end is closed."""
    paths, size = space_for(parts[0].shape[0] + offsets.shape[0], width), 0
    for p in range(parts[0].shape[0]):
        b, length = parts[1][p], length_of(parts[3], p)
        enough = length > least[b] or offsets[b + 1] > offsets[b]
        if parts[0][p] == offsets[b] + b and length <= longest[b] and enough:
            paths, size = put(paths, size, b, parts[2][p], parts[3][p], length), size + 1
    none = np.empty(0, np.int32)
    for b in range(offsets.shape[0] - 1):
        if offsets[b + 1] > offsets[b] and not opens[b] and longest[b] >= 0:
            paths, size = put(paths, size, b, np.full(1, np.int32(topics[offsets[b]])), none, 0), size + 1
    return paths[1][:size], paths[2][:size], paths[3][:size]


@numba.njit(cache=True, nogil=True)
def spans_of_parts(parts, offsets, step):
    """i64[B, 2]: the range of the parts `step` of each question."""
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
    """The number of pairs of a path and a part, for the path length with the most pairs."""
    pairs = np.zeros(whole[3].shape[1] + 1, np.int64)
    for p in range(whole[0].shape[0]):
        b = whole[1][p]
        if goes_on[b]:
            pairs[length_of(whole[3], p)] += spans[b, 1] - spans[b, 0]
    return pairs.max()


@numba.njit(cache=True, nogil=True)
def go_on(whole, parts, spans, goes_on, ended, least, longest, width):
    """Join every path with every part of its question that shares only the topic between them; keep the paths of
    questions that do not go on. ended: bool[B], this is the last step of the question, or it is over."""
    paths, size = space_for(whole[0].shape[0], width), 0
    nodes, edges = np.empty(width + 1, np.int32), np.empty(width, np.int32)
    for p in range(whole[0].shape[0]):
        b, have = whole[1][p], length_of(whole[3], p)
        if not goes_on[b]:
            if have <= longest[b] and (have > least[b] or not ended[b]):
                paths, size = put(paths, size, b, whole[2][p], whole[3][p], have), size + 1
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
            paths, size = put(paths, size, b, nodes, edges, length), size + 1
    return paths[1][:size], paths[2][:size], paths[3][:size]


@numba.njit(cache=True, nogil=True)
def intersect_lists(a, a_offsets, b, b_offsets, out, ends):
    """Write the common values of each pair of ascending lists, one list after another, into `out`, and their offsets
    into ends i64[B+1]."""
    n_out = 0
    ends[0] = 0
    for r in range(ends.shape[0] - 1):
        i, j = a_offsets[r], b_offsets[r]
        while i < a_offsets[r + 1] and j < b_offsets[r + 1]:
            if a[i] < b[j]:
                i += 1
            elif b[j] < a[i]:
                j += 1
            else:
                out[n_out] = a[i]
                n_out += 1
                i += 1
                j += 1
        ends[r + 1] = n_out
