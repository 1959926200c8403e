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
    """SIM of a question and an item, rounded to f32."""
    shared = shared_words(words, others)
    union = max(words.shape[0] + others.shape[0] - shared, 1)  # two empty sets: 0 / 1
    return np.float32((shared / union + exact_dot(query, row)) / 2)


@numba.njit(cache=True, nogil=True)
def score_rows(queries, word_offsets, words, first, last, offsets, listed, vectors, thing_offsets, thing_words, out):
    """Write out f32[T]: SIM of the questions first..last and the items in their lists."""
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
                score = pair_score(query, own, vectors[vector_of[e]], others)
                if score <= scores[t, k - 1]:  # edges ascend, so an equal one loses
                    continue
                place = k - 1
                while place > 0 and score > scores[t, place - 1]:
                    scores[t, place], ids[t, place] = scores[t, place - 1], ids[t, place - 1]
                    place -= 1
                scores[t, place], ids[t, place] = score, e


@numba.njit(cache=True, nogil=True)
def count_places(list_offsets, list_places, words, p0, p1, column_of, u0, overlap, met):
    """Write overlap i32[p1 - p0]: how many `words` the edge at each place p0 <= p < p1 has; and met bool: whether a
    used vector, from u0 on, has such an edge."""
    overlap[:] = 0
    met[:] = False
    for w in words:
        if w >= list_offsets.shape[0] - 1:
            continue
        places = list_places[list_offsets[w] : list_offsets[w + 1]]
        for i in range(np.searchsorted(places, p0), places.shape[0]):
            if places[i] >= p1:
                break
            overlap[places[i] - p0] += 1
            met[column_of[places[i]] - u0] = True


@numba.njit(cache=True, nogil=True)
def keep_edge(ids, scores, targets, edge, score, target):
    """Insert an edge into a list of the best edges of distinct targets by (-score, edge), if it belongs there."""
    k = ids.shape[0]
    place = k - 1
    for i in range(k):
        if targets[i] == target:
            place = i
            break
    if score < scores[place] or (score == scores[place] and (ids[place] >= 0 and edge > ids[place])):
        return
    while place > 0 and (score > scores[place - 1] or (score == scores[place - 1] and edge < ids[place - 1])):
        ids[place], scores[place], targets[place] = ids[place - 1], scores[place - 1], targets[place - 1]
        place -= 1
    ids[place], scores[place], targets[place] = edge, score, target


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_tile(
    dots, queries, word_offsets, words, first, u0, starts, column_of, order, used, target, vectors, edge_offsets,
    list_offsets, list_places, slack, ids, scores, targets,
):  # fmt: skip
    """Update the lists of questions from `first` on with the edges of the used vectors from u0 on.

    dots: f32, approximate, [questions, vectors]. With o shared of u united words, an edge can reach the last place of
    the list, with score s, only if o / u + dot + slack >= 2 s.
    """
    p0, p1 = starts[u0], starts[u0 + dots.shape[1]]
    overlap, met, last = np.zeros(p1 - p0, np.int32), np.zeros(dots.shape[1], np.bool_), ids.shape[1] - 1
    for q in range(dots.shape[0]):
        b = first + q
        own = words[word_offsets[b] : word_offsets[b + 1]]
        count_places(list_offsets, list_places, own, p0, p1, column_of, u0, overlap, met)
        reach = 2 * np.float64(scores[b, last]) - slack
        for c in range(dots.shape[1]):
            dot = np.float64(dots[q, c])
            if dot < reach and not met[c]:
                continue
            for p in range(starts[u0 + c], starts[u0 + c + 1]):
                e, shared = order[p], overlap[p - p0]
                share = 0.0
                if shared > 0:
                    size = edge_offsets[e + 1] - edge_offsets[e]
                    share = shared / (own.shape[0] + size - shared)
                if share + dot < reach:
                    continue
                exact = np.float32((share + exact_dot(queries[b], vectors[used[u0 + c]])) / 2)
                keep_edge(ids[b], scores[b], targets[b], e, exact, target[e])
                reach = 2 * np.float64(scores[b, last]) - slack
