"""The numba kernels of neighbourhoods: breadth-first search for 64 questions in a word, and induced subgraphs."""

from __future__ import annotations

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

WORD = 64  # questions of a search
_ONE = np.uint64(1)
_NONE = np.uint64(0)


@intrinsic
def lowest_bit(typing, word):
    """The index of the lowest set bit: i64. The word is not zero."""
    signature = types.int64(word)

    def emit(context, builder, signature, args):
        from llvmlite import ir

        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature, emit


@numba.njit(cache=True, nogil=True)
def admit(reached, n_reached, seen, fresh, size, limit):
    """Count the nodes reached in one hop, in ascending order; remove the bits of questions beyond `limit`.

    Returns the questions with space left, which may continue.
    """
    reached[:n_reached].sort()
    for f in range(n_reached):
        w = reached[f]
        bits, kept = fresh[w], _NONE
        while bits:
            q = lowest_bit(bits)
            bits &= bits - _ONE
            if size[q] < limit:
                size[q] += 1
                kept |= _ONE << np.uint64(q)
        seen[w] &= ~(fresh[w] & ~kept)
        fresh[w] = kept
    space = _NONE
    for q in range(size.shape[0]):
        if size[q] < limit:
            space |= _ONE << np.uint64(q)
    return space


@numba.njit(cache=True, nogil=True)
def note(reached, n_reached, seen, fresh, touched, n_touched):
    """Append the nodes first seen in this hop to `touched`; return its new length."""
    for f in range(n_reached):
        w = reached[f]
        if seen[w] == fresh[w] and fresh[w] != _NONE:
            touched[n_touched] = w
            n_touched += 1
    return n_touched


@numba.njit(cache=True, nogil=True)
def hop(indptr, indices, allowed, front, bits_of, n_front, seen, fresh, reached):
    """List in `reached` the nodes that some question first reaches from `front`; return their number."""
    n_reached = 0
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
                reached[n_reached] = w
                n_reached += 1
            fresh[w] |= new
            seen[w] |= new
    return n_reached


@numba.njit(cache=True, nogil=True)
def search(
    indptr, indices, allowed, seeds, offsets, first, last, radius, limit, seen, fresh, touched, reached, front, bits_of,
):  # fmt: skip
    """Balls of the questions first..last, at most WORD. seen u64[N]: bit q of node v means that v is in ball q; fresh
    u64[N]: reached in this hop. Both are zero before; `touched` i32[N] gets the nodes whose `seen` is not zero
    afterwards.

    allowed: bool[N], or [0] for all; reached, front: i32[N], bits_of: u64[N], scratch. limit < 0: none. Returns the
    number of touched nodes.
    """
    size, space = np.zeros(last - first, np.int64), ~_NONE
    n_touched, n_reached = 0, 0
    for b in range(first, last):
        for s in range(offsets[b], offsets[b + 1]):
            w = seeds[s]
            if fresh[w] == _NONE:
                reached[n_reached] = w
                n_reached += 1
            fresh[w] |= _ONE << np.uint64(b - first)
            seen[w] = fresh[w]
    for step in range(radius + 1):
        if step > 0:
            n_reached = hop(indptr, indices, allowed, front, bits_of, n_reached, seen, fresh, reached)
        if n_reached == 0:
            break
        if limit >= 0:
            space = admit(reached, n_reached, seen, fresh, size, limit)
        n_touched = note(reached, n_reached, seen, fresh, touched, n_touched)
        for f in range(n_reached):
            front[f], bits_of[f] = reached[f], fresh[reached[f]] & space
            fresh[reached[f]] = _NONE
    return n_touched


@numba.njit(cache=True, nogil=True)
def ball_sizes(seen, touched, sizes):
    """Add to sizes i64[WORD] the number of nodes of each ball."""
    for t in range(touched.shape[0]):
        bits = seen[touched[t]]
        while bits:
            sizes[lowest_bit(bits)] += 1
            bits &= bits - _ONE


@numba.njit(cache=True, nogil=True)
def write_balls(seen, touched, place, out):
    """Write each ball's nodes from out[place[q]] on in ascending order, and clear `seen`. It sorts `touched`, or scans
    all nodes if that is faster."""
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
def rows_before(indptr, nodes, offsets, before):
    """Write before i64[B+1]: the number of entries in the rows of the nodes of all earlier lists."""
    before[0] = 0
    for b in range(offsets.shape[0] - 1):
        total = before[b]
        for t in range(offsets[b], offsets[b + 1]):
            total += indptr[nodes[t] + 1] - indptr[nodes[t]]
        before[b + 1] = total


@numba.njit(cache=True, nogil=True)
def forget(indptr, indices, nodes, n_read, local):
    """Set local i32[N] to -1, at least at the columns in the rows of `nodes`, which have n_read entries."""
    if n_read > local.shape[0] // 8:
        local[:] = -1
        return
    for t in range(nodes.shape[0]):
        for e in range(indptr[nodes[t]], indptr[nodes[t] + 1]):
            local[np.uint32(indices[e])] = -1


@numba.njit(cache=True, nogil=True)
def cut_out(indptr, indices, nodes, offsets, first, last, local, ends, columns, entries):
    """Cut out blocks first..last. For every entry of a listed node's row whose column is in the same block, columns
    i32[M] gets the local column and entries i64[M] (None: not wanted) the entry number. ends i64[T+1] is the indptr of
    the blocks, known up to the first. Returns M.

    local: i32[N], -1 before the first block at all columns in the rows of any block. Local numbers grow from block to
    block, so a number below the first of this block belongs to an earlier one. columns has space for all entries of the
    rows.
    """
    n_columns, before = 0, ends[offsets[first]]
    for b in range(first, last):
        start = np.int32(offsets[b])
        for t in range(offsets[b], offsets[b + 1]):
            local[np.uint32(nodes[t])] = t
        for t in range(offsets[b], offsets[b + 1]):
            for e in range(indptr[nodes[t]], indptr[nodes[t] + 1]):
                column = local[np.uint32(indices[e])]  # unsigned, so numba does not test for negative indices
                columns[np.uint64(n_columns)] = column  # kept only if `at` moves on
                if entries is not None:
                    entries[np.uint64(n_columns)] = e
                n_columns += column >= start
            ends[t + 1] = before + n_columns
    return n_columns
