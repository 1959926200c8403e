"""The numba kernels of `nearest` on rows: scores in a fixed order of summation, rough scores, heaps of the best rows.

Vectors are f32, or f16 given as its bits in u16. A score is a sum of products of two f32 numbers, each exact in f64, in
SUMS partial sums: one LLVM vector that stays in registers, emitted by an intrinsic. Nothing is reassociated, and a
product that is fused with its addition has the same bits, being exact; so the bits depend on the two vectors alone.
Intrinsics and kernels share a file because numba's cache of a kernel is renewed when the kernel's file changes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

SUMS = 32  # partial sums: number l holds the products l, l + 32, l + 64, ..
NOBODY = 2**31 - 1  # the id of a free place of a heap, above every other id
BLOCK = 4  # queries that a row is multiplied with at once: their sums fill the registers
TINY = 2.0**-60  # of a component: below, squares vanish in f32

_I64 = ir.IntType(64)
_F16_BIAS = 2.0**112  # f32 exponent bias over that of f16: also right for subnormals
_F16_INF = 0x7C00 << 13


def _each(kind: Any, number: float) -> Any:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _single(builder: Any, loaded: Any) -> Any:
    """A number or a vector of f32, or of f16 as integers, in f32."""
    many = isinstance(loaded.type, ir.VectorType)
    if isinstance(loaded.type.element if many else loaded.type, ir.FloatType):
        return loaded
    word, single = (
        ir.VectorType(kind, loaded.type.count) if many else kind for kind in (ir.IntType(32), ir.FloatType())
    )  # fmt: skip
    bits = builder.zext(loaded, word)
    shifted = builder.shl(builder.and_(bits, _each(word, 0x7FFF)), _each(word, 13))
    size = builder.bitcast(builder.fmul(builder.bitcast(shifted, single), _each(single, _F16_BIAS)), word)
    beyond = builder.icmp_unsigned(">=", shifted, _each(word, _F16_INF))  # infinity, NaN
    size = builder.select(beyond, builder.or_(shifted, _each(word, 0x7F800000)), size)
    sign = builder.shl(builder.and_(bits, _each(word, 0x8000)), _each(word, 16))
    return builder.bitcast(builder.or_(size, sign), single)


def _halved(builder: Any, total: Any) -> Any:
    """The sum of all lanes: the upper half is added to the lower half until one is left."""
    width = total.type.count
    while width > 1:
        width //= 2
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(s, s + width))) for s in (0, width)]
        low, high = (builder.shuffle_vector(total, ir.Constant(total.type, ir.Undefined), mask) for mask in masks)
        total = builder.fadd(low, high)
    return builder.extract_element(total, _I64(0))


def _looped(builder: Any, end: Any, kind: Any, n_totals: int, grow: Any) -> list[Any]:
    """Totals of `kind` after grow(k, totals) for k = 0, SUMS, 2 SUMS, .. below `end`; zeros where there is none."""
    zero, before = _each(kind, 0.0), builder.block
    loop, after = builder.append_basic_block("sums"), builder.append_basic_block("summed")
    builder.cbranch(builder.icmp_signed("<", _I64(0), end), loop, after)
    builder.position_at_end(loop)
    k, totals = builder.phi(_I64), [builder.phi(kind) for _ in range(n_totals)]
    grown = grow(k, totals)
    following = builder.add(k, _I64(SUMS))
    for phi, first, later in zip([k, *totals], [_I64(0), *[zero] * n_totals], [following, *grown]):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), loop, after)
    builder.position_at_end(after)
    results = [builder.phi(kind) for _ in range(n_totals)]
    for phi, later in zip(results, grown):
        phi.add_incoming(zero, before)
        phi.add_incoming(later, loop)
    return results


def _added(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """total + left right; fused, or the product rounded by itself."""
    return builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))


def _reader(context: Any, builder: Any, signature: Any, args: Any, k: int, row: Any) -> Any:
    """What loads SUMS components of row `row` of argument k, a matrix or (row 0) one vector, from a place on."""
    array = cgutils.create_struct_proxy(signature.args[k])(context, builder, args[k])
    n_dims = builder.extract_value(array.shape, signature.args[k].ndim - 1)
    start = builder.gep(array.data, [builder.mul(row, n_dims)])
    kind = ir.VectorType(context.get_data_type(signature.args[k].dtype), SUMS)
    return lambda at: builder.load(builder.bitcast(builder.gep(start, [at]), kind.as_pointer()), align=1)


@intrinsic
def partial_sums(typing: Any, query: Any, rows: Any, i: Any, n: Any) -> Any:
    """The dot product of `query` f64[D] and rows[i] over the first n components, a multiple of SUMS."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.DoubleType(), SUMS)
        asked = _reader(context, builder, signature, args, 0, _I64(0))
        row = _reader(context, builder, signature, args, 1, args[2])

        def grow(k: Any, totals: Any) -> list[Any]:
            return [_added(builder, totals[0], asked(k), builder.fpext(_single(builder, row(k)), wide))]

        return _halved(builder, _looped(builder, args[3], wide, 1, grow)[0])

    return types.float64(query, rows, types.int64, types.int64), emit


@intrinsic
def rough_sums(typing: Any, asked: Any, first: Any, rows: Any, i: Any, n: Any, found: Any, block: Any) -> Any:
    """In f32, over the first n components, a multiple of SUMS: found f32[Q] = asked[first + q] . rows[i] and found[Q] =
    |rows[i]|^2, for as many q as the tuple `block` has elements: the row is read once."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size, narrow = signature.args[-1].count, ir.VectorType(ir.FloatType(), SUMS)
        places = [builder.add(args[1], _I64(q)) for q in range(size)]
        asked = [_reader(context, builder, signature, args, 0, place) for place in places]
        row = _reader(context, builder, signature, args, 2, args[3])

        def grow(k: Any, totals: Any) -> list[Any]:
            own = _single(builder, row(k))
            return [_added(builder, t, other, own) for t, other in zip(totals, [*(read(k) for read in asked), own])]

        found = cgutils.create_struct_proxy(signature.args[5])(context, builder, args[5]).data
        for q, total in enumerate(_looped(builder, args[4], narrow, size + 1, grow)):
            builder.store(_halved(builder, total), builder.gep(found, [_I64(q)]))
        return context.get_dummy_value()

    return types.void(asked, types.int64, rows, types.int64, types.int64, found, block), emit


@intrinsic
def number(typing: Any, raw: Any) -> Any:
    """A component of a vector as f32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _single(builder, args[0])

    return types.float32(raw), emit


# numba supplies the first parameter, which a type checker cannot know
partial_sums_any: Any = partial_sums
rough_sums_any: Any = rough_sums
number_any: Any = number


@numba.njit(cache=True, nogil=True)
def score_of(query: Any, rows: Any, i: Any) -> Any:
    """The dot product of `query` f64[D] and rows[i] in f64: partial sums, then the last D % SUMS products in order."""
    n_dims = rows.shape[1]
    whole = n_dims // SUMS * SUMS
    total = partial_sums_any(query, rows, i, whole)
    for k in range(whole, n_dims):
        total += query[k] * np.float64(number_any(rows[i, k]))
    return total


@numba.njit(cache=True, nogil=True)
def sink(scores: Any, ids: Any, size: Any, score: Any, row: Any) -> None:
    """Puts (score, row) in place of the root of a heap, whose root is the worst: lowest score, then highest id."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            scores[other] < scores[child] or (scores[other] == scores[child] and ids[other] > ids[child])
        ):
            child = other
        if scores[child] > score or (scores[child] == score and ids[child] < row):
            break
        scores[at], ids[at] = scores[child], ids[child]
        at = child
    scores[at], ids[at] = score, row


@numba.njit(cache=True, nogil=True)
def in_order(scores: Any, ids: Any) -> None:
    """Turns the heap of every row into its best first; a free place gets id -1."""
    for b in range(scores.shape[0]):
        for size in range(scores.shape[1] - 1, 0, -1):
            score, row = scores[b, size], ids[b, size]
            scores[b, size], ids[b, size] = scores[b, 0], ids[b, 0]
            sink(scores[b], ids[b], size, score, row)
        for place in range(scores.shape[1]):
            if ids[b, place] == NOBODY:
                ids[b, place] = -1


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def rough_scores(asked: Any, first: Any, rows: Any, i: Any, found: Any, block: Any) -> None:
    """`rough_sums` over all components."""
    n_dims, size = rows.shape[1], len(block)
    whole = n_dims // SUMS * SUMS
    rough_sums_any(asked, first, rows, i, whole, found, block)
    for k in range(whole, n_dims):
        x = number_any(rows[i, k])
        for q in range(size):
            found[q] += asked[first + q, k] * x
        found[size] += x * x


@numba.njit(cache=True, nogil=True, error_model="numpy")
def take_row(queries: Any, b: Any, rows: Any, i: Any, scores: Any, ids: Any) -> Any:
    """Scores rows[i] for query b and puts it into the heap, where it belongs there; False where it is not finite."""
    exact = score_of(queries[b], rows, i)
    if not abs(exact) < np.inf:
        return False
    score = np.float32(exact)
    if score > scores[b, 0]:  # ids rise: of equal scores the first stays
        sink(scores[b], ids[b], scores.shape[1], score, np.int32(i))
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_rows(asked: Any, rows: Any, first: Any, last: Any, k: Any, unit: Any) -> Any:
    """The k best of the rows first..last for each query f32[B, D], each row read once: (bad, scores, ids), best first;
    bad: a row that is not finite, or -1.

    A rough score in f32, summed in any order, is within `unit` |q| |row| of the exact one. A row is scored unless its
    rough score is surely too low: neither NaN nor an overflow.
    """
    n_asked, n_dims = asked.shape
    scores, ids = np.full((n_asked, k), -np.inf, np.float32), np.full((n_asked, k), NOBODY, np.int32)
    queries, within, floor = asked.astype(np.float64), np.empty(n_asked), TINY * np.sqrt(n_dims)
    for b in range(n_asked):
        within[b] = unit * (np.sqrt((queries[b] * queries[b]).sum()) + floor)
    found = np.empty(BLOCK + 1, np.float32)
    fours = n_asked // BLOCK * BLOCK
    for i in range(first, last):
        for first_asked in range(0, fours, BLOCK):
            rough_scores(asked, first_asked, rows, i, found, (0, 0, 0, 0))
            length = 1.001 * np.sqrt(np.float64(found[BLOCK])) + floor
            for q in range(BLOCK):
                b = first_asked + q
                if -np.inf < found[q] + within[b] * length < scores[b, 0]:
                    continue
                if not take_row(queries, b, rows, i, scores, ids):
                    return i, scores, ids
        for b in range(fours, n_asked):
            rough_scores(asked, b, rows, i, found, (0,))
            length = 1.001 * np.sqrt(np.float64(found[1])) + floor
            if -np.inf < found[0] + within[b] * length < scores[b, 0]:
                continue
            if not take_row(queries, b, rows, i, scores, ids):
                return i, scores, ids
    in_order(scores, ids)
    return -1, scores, ids
