"""The numba kernels of path search: possible steps, the sums behind scores, and common nodes.

Sets of paths are tuples (group, question, nodes, edges), as in `PathSet`.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_GRID = 2.0**22
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
