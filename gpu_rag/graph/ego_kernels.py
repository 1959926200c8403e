"""The numba kernels of neighbourhoods: breadth-first search of 64 questions a word, and cutting out subgraphs."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

WORD = 64  # questions of a search
_ONE = np.uint64(1)
_NONE = np.uint64(0)


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """The number of the lowest bit that is set: i64. The word is not zero."""
    signature = types.int64(word)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from llvmlite import ir

        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature, emit


lowest_bit: Any = trailing_zeros  # numba supplies the first parameter, which a type checker cannot know


@numba.njit(cache=True, nogil=True)
def admit(found: Any, n_found: Any, seen: Any, fresh: Any, size: Any, limit: Any) -> Any:
    """Counts the nodes found in one hop, in ascending order; bits of questions beyond `limit` are taken back.

    Returns the questions that may go on: those with room.
    """
    found[:n_found].sort()
    for f in range(n_found):
        w = found[f]
        bits, kept = fresh[w], _NONE
        while bits:
            q = lowest_bit(bits)
            bits &= bits - _ONE
            if size[q] < limit:
                size[q] += 1
                kept |= _ONE << np.uint64(q)
        seen[w] &= ~(fresh[w] & ~kept)
        fresh[w] = kept
    room = _NONE
    for q in range(size.shape[0]):
        if size[q] < limit:
            room |= _ONE << np.uint64(q)
    return room


@numba.njit(cache=True, nogil=True)
def note(found: Any, n_found: Any, seen: Any, fresh: Any, touched: Any, n_touched: Any) -> Any:
    """Appends to `touched` the nodes that were first seen in this hop; returns its new length."""
    for f in range(n_found):
        w = found[f]
        if seen[w] == fresh[w] and fresh[w] != _NONE:
            touched[n_touched] = w
            n_touched += 1
    return n_touched


@numba.njit(cache=True, nogil=True)
def hop(
    indptr: Any, indices: Any, allowed: Any, front: Any, bits_of: Any, n_front: Any, seen: Any, fresh: Any, found: Any
) -> Any:
    """Lists in `found` the nodes that some question first reaches from `front`; returns how many."""
    n_found = 0
    for f in range(n_front):
        bits = bits_of[f]
        if bits == _NONE:
            continue
        for e in range(indptr[front[f]], indptr[front[f] + 1]):
            w = indices[e]
            new = bits & ~seen[w]
            if new == _NONE or (allowed.shape[0] > 0 and not allowed[w]):
                continue
            if fresh[w] == _NONE:
                found[n_found] = w
                n_found += 1
            fresh[w] |= new
            seen[w] |= new
    return n_found


@numba.njit(cache=True, nogil=True)
def search(
    indptr: Any, indices: Any, allowed: Any, seeds: Any, offsets: Any, first: Any, last: Any, radius: Any, limit: Any,
    seen: Any, fresh: Any, touched: Any, found: Any, front: Any, bits_of: Any,
) -> Any:  # fmt: skip
    """Balls of the questions first..last, at most WORD. seen u64[N]: bit q of node v = v is in ball q; fresh u64[N]:
    found in this hop. Both are zero before; `touched` i32[N] gets the nodes whose `seen` is not zero afterwards.

    allowed: bool[N], or [0] for all; found, front: i32[N], bits_of: u64[N], scratch. limit < 0: none. Returns the
    number of touched nodes.
    """
    size, room = np.zeros(last - first, np.int64), ~_NONE
    n_touched, n_found = 0, 0
    for b in range(first, last):
        for s in range(offsets[b], offsets[b + 1]):
            w = seeds[s]
            if fresh[w] == _NONE:
                found[n_found] = w
                n_found += 1
            fresh[w] |= _ONE << np.uint64(b - first)
            seen[w] = fresh[w]
    for step in range(radius + 1):
        if step > 0:
            n_found = hop(indptr, indices, allowed, front, bits_of, n_found, seen, fresh, found)
        if limit >= 0:
            room = admit(found, n_found, seen, fresh, size, limit)
        n_touched = note(found, n_found, seen, fresh, touched, n_touched)
        for f in range(n_found):
            front[f], bits_of[f] = found[f], fresh[found[f]] & room
            fresh[found[f]] = _NONE
    return n_touched


@numba.njit(cache=True, nogil=True)
def ball_sizes(seen: Any, touched: Any, sizes: Any) -> None:
    """sizes i64[WORD] = the number of nodes of each ball."""
    for t in range(touched.shape[0]):
        bits = seen[touched[t]]
        while bits:
            sizes[lowest_bit(bits)] += 1
            bits &= bits - _ONE


@numba.njit(cache=True, nogil=True)
def write_balls(seen: Any, touched: Any, place: Any, out: Any) -> None:
    """Writes each ball's nodes from out[place[q]] on in ascending order, and clears `seen`. Sorts `touched`, or goes
    through all nodes where that is shorter."""
    n = seen.shape[0]
    every = touched.shape[0] > n // 16
    if not every:
        touched.sort()
    for t in range(n if every else touched.shape[0]):
        w = t if every else touched[t]
        bits = seen[w]
        if bits == _NONE:
            continue
        seen[w] = _NONE
        while bits:
            q = lowest_bit(bits)
            bits &= bits - _ONE
            out[place[q]] = w
            place[q] += 1


@numba.njit(cache=True, nogil=True)
def cut_out(
    indptr: Any, indices: Any, nodes: Any, offsets: Any, first: Any, last: Any, local: Any, counts: Any, columns: Any,
    entries: Any,
) -> Any:  # fmt: skip
    """Blocks first..last: columns i32[M] and entries i64[M] get the local column and the entry number of every entry
    of a listed node's row whose column lies in the same block; counts i64[T], how many of each row. Returns M.

    local: i32[N], all -1 before the first block. Local numbers grow from block to block, so one below the first of
    this block belongs to an earlier one. columns has room for all entries of the rows; entries may be [0]: not wanted.
    """
    at = 0
    for b in range(first, last):
        start = offsets[b]
        for t in range(start, offsets[b + 1]):
            local[nodes[t]] = t
        for t in range(start, offsets[b + 1]):
            before = at
            for e in range(indptr[nodes[t]], indptr[nodes[t] + 1]):
                column = local[indices[e]]
                columns[at] = column  # kept only if `at` moves on
                if entries.shape[0] > 0:
                    entries[at] = e
                at += column >= start
            counts[t] = at - before
    return at
