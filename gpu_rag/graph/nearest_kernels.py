"""The numba kernels of `nearest`: scores in a fixed order of summation, heaps of the best rows, tiles of rough scores.

Vectors are f32, or f16 given as its bits in u16; rough scores are f32, or bf16 given as its bits in i16. A score is a
sum of products of two f32 numbers, each exact in f64, in SUMS partial sums: one LLVM vector that stays in registers,
emitted by an intrinsic. Nothing is reassociated, and a product that is fused with its addition has the same bits, being
exact; so the bits depend on the two vectors alone. Intrinsics and kernels share a file because numba's cache of a
kernel is renewed when the kernel's file changes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

SUMS = 32  # partial sums: number l holds the products l, l + 32, l + 64, ..
CHUNK = 32  # rough scores that are looked at together before any is looked at alone
NOBODY = 2**31 - 1  # the id of a free place of a heap, above every other id

_I64 = ir.IntType(64)
_F16_BIAS = 2.0**112  # f32 exponent bias over that of f16: also right for subnormals
_BIAS = np.float32(_F16_BIAS)
_F16_INF = 0x7C00 << 13


def _each(kind: Any, number: float) -> Any:
    return ir.Constant(kind, [number] * SUMS)


def _widened(builder: Any, loaded: Any) -> Any:
    """A vector of f32, or of f16 as integers, in f64."""
    wide = ir.VectorType(ir.DoubleType(), SUMS)
    if isinstance(loaded.type.element, ir.FloatType):
        return builder.fpext(loaded, wide)
    word, single = ir.VectorType(ir.IntType(32), SUMS), ir.VectorType(ir.FloatType(), SUMS)
    bits = builder.zext(loaded, word)
    shifted = builder.shl(builder.and_(bits, _each(word, 0x7FFF)), _each(word, 13))
    size = builder.bitcast(builder.fmul(builder.bitcast(shifted, single), _each(single, _F16_BIAS)), word)
    beyond = builder.icmp_unsigned(">=", shifted, _each(word, _F16_INF))  # infinity, NaN
    size = builder.select(beyond, builder.or_(shifted, _each(word, 0x7F800000)), size)
    sign = builder.shl(builder.and_(bits, _each(word, 0x8000)), _each(word, 16))
    return builder.fpext(builder.bitcast(builder.or_(size, sign), single), wide)


def _halved(builder: Any, total: Any) -> Any:
    """The sum of all lanes: the upper half is added to the lower half until one is left."""
    width = total.type.count
    while width > 1:
        width //= 2
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(s, s + width))) for s in (0, width)]
        low, high = (builder.shuffle_vector(total, ir.Constant(total.type, ir.Undefined), mask) for mask in masks)
        total = builder.fadd(low, high)
    return builder.extract_element(total, _I64(0))


@intrinsic
def partial_sums(typing: Any, query: Any, rows: Any, i: Any, n: Any) -> Any:
    """The dot product of `query` f64[D] and rows[i] over the first n components, a multiple of SUMS."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = [ir.VectorType(context.get_data_type(signature.args[k].dtype), SUMS) for k in (0, 1)]
        arrays = [cgutils.create_struct_proxy(signature.args[k])(context, builder, args[k]) for k in (0, 1)]
        n_dims = builder.extract_value(arrays[1].shape, 1)
        starts = arrays[0].data, builder.gep(arrays[1].data, [builder.mul(args[2], n_dims)])
        wide = ir.VectorType(ir.DoubleType(), SUMS)
        before, loop, after = builder.block, builder.append_basic_block("sums"), builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed("<", _I64(0), args[3]), loop, after)
        builder.position_at_end(loop)
        k, total = builder.phi(_I64), builder.phi(wide)
        k.add_incoming(_I64(0), before)
        total.add_incoming(_each(wide, 0.0), before)
        asked, row = (
            builder.load(builder.bitcast(builder.gep(start, [k]), kind.as_pointer()), align=1)
            for start, kind in zip(starts, kinds)
        )
        product = builder.fmul(asked, _widened(builder, row), flags=("contract",))
        grown, following = builder.fadd(total, product, flags=("contract",)), builder.add(k, _I64(SUMS))
        k.add_incoming(following, builder.block)
        total.add_incoming(grown, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, args[3]), loop, after)
        builder.position_at_end(after)
        result = builder.phi(wide)
        result.add_incoming(_each(wide, 0.0), before)
        result.add_incoming(grown, loop)
        return _halved(builder, result)

    return types.float64(query, rows, types.int64, types.int64), emit


partial_sums_any: Any = partial_sums  # numba supplies the first parameter, which a type checker cannot know


def number(raw: Any) -> Any:
    """A component of a vector as f32."""
    raise NotImplementedError  # compiled code only: see `_number`


def rough(score: Any) -> Any:
    """A rough score as f32."""
    raise NotImplementedError  # compiled code only: see `_rough`


@overload(number)
def _number(raw: Any) -> Any:
    if isinstance(raw, types.Integer):

        def of_f16(raw: Any) -> Any:
            bits = np.uint32(raw)
            shifted = (bits & 0x7FFF) << 13
            size = np.float32(np.uint32(shifted).view(np.float32) * _BIAS).view(np.uint32)
            if shifted >= _F16_INF:
                size = np.uint32(shifted | 0x7F800000)
            return np.uint32(size | ((bits & 0x8000) << 16)).view(np.float32)

        return of_f16

    def of_f32(raw: Any) -> Any:
        return raw

    return of_f32


@overload(rough)
def _rough(score: Any) -> Any:
    if isinstance(score, types.Integer):

        def of_bf16(score: Any) -> Any:
            return np.int32(np.int32(score) << 16).view(np.float32)

        return of_bf16

    def of_f32(score: Any) -> Any:
        return score

    return of_f32


@numba.njit(cache=True, nogil=True)
def score_of(query: Any, rows: Any, i: Any) -> Any:
    """The dot product of `query` f64[D] and rows[i] in f64: partial sums, then the last D % SUMS products in order."""
    n_dims = rows.shape[1]
    whole = n_dims // SUMS * SUMS
    total = partial_sums_any(query, rows, i, whole)
    for k in range(whole, n_dims):
        total += query[k] * np.float64(number(rows[i, k]))
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


@numba.njit(cache=True, nogil=True)
def search_rows(queries: Any, rows: Any, first: Any, last: Any, scores: Any, ids: Any) -> Any:
    """Brings the heaps of all queries f64[B, D] up to date with the rows first..last, each row read once.

    Returns a row that is not finite, or -1.
    """
    for i in range(first, last):
        for b in range(queries.shape[0]):
            exact = score_of(queries[b], rows, i)
            if not abs(exact) < np.inf:
                return i
            score = np.float32(exact)
            if score > scores[b, 0]:  # ids rise: of equal scores the first stays
                sink(scores[b], ids[b], scores.shape[1], score, np.int32(i))
    return -1


@numba.njit(cache=True, nogil=True)
def cut_of(worst: Any, slack: Any, relative: Any) -> Any:
    """The least rough score f32 of a row whose score is `worst`: `slack` less, and for rounding `relative` of that."""
    least = worst - slack
    return np.float32(least - abs(least) * relative)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def worst_of(row: Any, k: Any, slack: Any, relative: Any) -> Any:
    """A bound that k of these rows reach, from rough scores alone; -inf where there are fewer."""
    if row.shape[0] < k:
        return -np.inf
    best, ids = np.full(k, -np.inf, np.float32), np.full(k, NOBODY, np.int32)
    for start in range(0, row.shape[0], CHUNK):
        chunk = row[start : start + CHUNK]
        hit = False
        for c in range(chunk.shape[0]):
            hit |= rough(chunk[c]) > best[0]
        if hit:
            for c in range(chunk.shape[0]):
                if rough(chunk[c]) > best[0]:
                    sink(best, ids, k, rough(chunk[c]), np.int32(start + c))
    least = np.float64(best[0])
    bound = least - abs(least) * relative - slack
    return bound if bound > -np.inf else -np.inf  # not NaN, where both are infinite


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_tile(
    tile: Any, j0: Any, slack: Any, relative: Any, queries: Any, rows: Any, scores: Any, ids: Any
) -> None:  # fmt: skip
    """Brings the heaps of queries f64[B, D] up to date with one tile of rough scores [b, j - j0].

    A row is surely not among the best where its rough score is below `cut_of` the worst of the heap; others are scored.
    """
    for b in range(queries.shape[0]):
        row, worst = tile[b], np.float64(scores[b, 0])
        if ids[b, 0] == NOBODY:
            worst = worst_of(row, scores.shape[1], slack[b], relative)
        cut = cut_of(worst, slack[b], relative)
        for start in range(0, row.shape[0], CHUNK):
            chunk = row[start : start + CHUNK]
            hit = False
            for c in range(chunk.shape[0]):
                hit |= not rough(chunk[c]) < cut
            if not hit:
                continue
            for c in range(chunk.shape[0]):
                if rough(chunk[c]) < cut:
                    continue
                score = np.float32(score_of(queries[b], rows, j0 + start + c))
                if score > scores[b, 0]:
                    sink(scores[b], ids[b], scores.shape[1], score, np.int32(j0 + start + c))
                    if scores[b, 0] > worst:
                        worst = np.float64(scores[b, 0])
                        cut = cut_of(worst, slack[b], relative)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def to_bf16(rows: Any, rounded: Any, length: Any, error: Any) -> None:
    """Rounds rows to bf16, bits in i16; length f32[N] = |row|^2 and error f32[N] = |row - rounded|^2, nearly."""
    for i in range(rows.shape[0]):
        squares, away = np.float32(0), np.float32(0)
        for k in range(rows.shape[1]):
            x = np.float32(number(rows[i, k]))
            bits = x.view(np.uint32)
            near = np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)  # to even
            rounded[i, k] = np.int16(near >> 16)
            moved = x - near.view(np.float32)
            squares += x * x
            away += moved * moved
        length[i], error[i] = squares, away
