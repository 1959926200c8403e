"""The numba kernels of `frontier`: exact similarities of pairs, and lists of the best edges."""

from __future__ import annotations

import numba
import numpy as np

from gpu_rag_kernels.dots.numba import component


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def exact_dot(query, row):
    """The dot product of query f64[D], on the grid and times 2^24, and a row, f32[D] or the bits of f16; exact, so in
    any order."""
    total = 0.0
    for i in range(row.shape[0]):
        total += query[i] * component(row[i])
    return total * 2.0**-48


@numba.njit(cache=True, nogil=True, error_model="numpy")
def put_on_grid(row, query):
    """Write query f64[D]: row f32[D] on the grid, times 2^24."""
    for i in range(row.shape[0]):
        query[i] = component(row[i])


@numba.njit(cache=True, nogil=True)
def shared_words(left, right):
    """The number of values that two ascending lists share."""
    i, j, n_shared = 0, 0, 0
    while i < left.shape[0] and j < right.shape[0]:
        if left[i] == right[j]:
            n_shared += 1
            i += 1
            j += 1
        elif left[i] < right[j]:
            i += 1
        else:
            j += 1
    return n_shared


@numba.njit(cache=True, nogil=True, error_model="numpy")
def pair_score(query, words, row, others):
    """SIM of a question and an item."""
    shared = shared_words(words, others)
    union = max(words.shape[0] + others.shape[0] - shared, 1)  # two empty sets: 0 / 1
    return (shared / union + exact_dot(query, row)) / 2


@numba.njit(cache=True, nogil=True)
def score_rows(queries, word_offsets, words, first, last, offsets, listed, vectors, thing_offsets, thing_words, out):
    """Write out f64[T]: SIM of the questions first..last and the items in their lists."""
    query = np.empty(queries.shape[1])
    for b in range(first, last):
        own = words[word_offsets[b] : word_offsets[b + 1]]
        put_on_grid(queries[b], query)
        for t in range(offsets[b], offsets[b + 1]):
            x = listed[t]
            others = thing_words[thing_offsets[x] : thing_offsets[x + 1]]
            out[t] = pair_score(query, own, vectors[x], others)


@numba.njit(cache=True, nogil=True)
def best_of_frontier(
    queries, word_offsets, words, first, last, offsets, frontier, indptr, vector_of, vectors, edge_offsets, edge_words,
    ids, scores,
):  # fmt: skip
    """Write the k best edges for the frontiers of questions first..last: ids i32[T, k], scores f32[T, k]."""
    k, query = ids.shape[1], np.empty(queries.shape[1])
    for b in range(first, last):
        own = words[word_offsets[b] : word_offsets[b + 1]]
        put_on_grid(queries[b], query)
        for t in range(offsets[b], offsets[b + 1]):
            v = frontier[t]
            ids[t], scores[t] = -1, -np.inf
            for e in range(indptr[v], indptr[v + 1]):
                others = edge_words[edge_offsets[e] : edge_offsets[e + 1]]
                score = np.float32(pair_score(query, own, vectors[vector_of[e]], others))
                if score <= scores[t, k - 1]:  # edges ascend, so an equal one loses
                    continue
                place = k - 1
                while place > 0 and score > scores[t, place - 1]:
                    scores[t, place], ids[t, place] = scores[t, place - 1], ids[t, place - 1]
                    place -= 1
                scores[t, place], ids[t, place] = score, e
