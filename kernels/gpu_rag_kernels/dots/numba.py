"""The numba kernels for vectors: nearest rows, clusters, joins, and the unions that form clusters and groups.

Vectors are f32, or f16 as bits in u16. A tile of fast scores is f32, or bf16 as bits in i16. An exact score of
`nearest` is a sum of products of two f32 numbers, each exact in f64, in SUMS partial sums: one LLVM vector in
registers, emitted by an intrinsic. Nothing is reassociated, and fusing a product with its addition keeps the bits,
because the product is exact. So the bits depend on the two vectors alone. The scores of clusters and joins are on the
grid of 2^-24 (see `graph.common.dots`), where any order is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

SUMS = 32  # partial sums: sum l has the products l, l + 32, l + 64, ..
NOBODY = 2**31 - 1  # id of a free place in a heap, above every other id
CHUNK = 32  # fast scores that are tested together before any is tested alone
LINK_CHUNK = 64  # the same for a tile of clusters
BLOCK = 4  # queries multiplied with a row at once: their sums fill the registers
TINY = 2.0**-60  # component size below which squares vanish in f32

_GRID = 2.0**24
_I64 = ir.IntType(64)
_F16_BIAS = 2.0**112  # difference of the f32 and f16 exponent biases; also right for subnormals
_F16_INF = 0x7C00 << 13


def _each(kind, number):
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _single(builder, loaded):
    """A number or vector of f32, or of f16 as integers, converted to f32."""
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


def _halved(builder, total):
    """The sum of all lanes: the upper half is added to the lower half until one lane is left."""
    width = total.type.count
    while width > 1:
        width //= 2
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(s, s + width))) for s in (0, width)]
        low, high = (builder.shuffle_vector(total, ir.Constant(total.type, ir.Undefined), mask) for mask in masks)
        total = builder.fadd(low, high)
    return builder.extract_element(total, _I64(0))


def _looped(builder, end, kind, n_totals, grow):
    """Totals of `kind` after grow(k, totals) for k = 0, SUMS, 2 SUMS, .. below `end`; zeros if there is no k."""
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


def _added(builder, total, left, right):
    """total + left right; fused, or with a rounded product."""
    return builder.fadd(total, builder.fmul(left, right, flags=("contract",)), flags=("contract",))


def _reader(context, builder, signature, args, k, row):
    """A function that loads SUMS components from a position of row `row` of argument k, or of a vector (row 0)."""
    array = cgutils.create_struct_proxy(signature.args[k])(context, builder, args[k])
    n_dims = builder.extract_value(array.shape, signature.args[k].ndim - 1)
    start = builder.gep(array.data, [builder.mul(row, n_dims)])
    kind = ir.VectorType(context.get_data_type(signature.args[k].dtype), SUMS)
    return lambda first: builder.load(builder.bitcast(builder.gep(start, [first]), kind.as_pointer()), align=1)


@intrinsic
def partial_sums(typing, query, rows, i, n):
    """The dot product of `query` f64[D] and rows[i] over the first n components, a multiple of SUMS."""

    def emit(context, builder, signature, args):
        wide = ir.VectorType(ir.DoubleType(), SUMS)
        question = _reader(context, builder, signature, args, 0, _I64(0))
        row = _reader(context, builder, signature, args, 1, args[2])

        def grow(k, totals):
            return [_added(builder, totals[0], question(k), builder.fpext(_single(builder, row(k)), wide))]

        return _halved(builder, _looped(builder, args[3], wide, 1, grow)[0])

    return types.float64(query, rows, types.int64, types.int64), emit


@intrinsic
def approx_sums(typing, questions, first, rows, i, n, sums, block):
    """Write f32 sums over the first n components, n a multiple of SUMS: sums f32[Q] = questions[first + q] . rows[i]
    and sums[Q] = |rows[i]|^2. Q is the length of the tuple `block`. The row is read once."""

    def emit(context, builder, signature, args):
        size, narrow = signature.args[-1].count, ir.VectorType(ir.FloatType(), SUMS)
        places = [builder.add(args[1], _I64(q)) for q in range(size)]
        readers = [_reader(context, builder, signature, args, 0, place) for place in places]
        row = _reader(context, builder, signature, args, 2, args[3])

        def grow(k, totals):
            own = _single(builder, row(k))
            return [_added(builder, t, other, own) for t, other in zip(totals, [*(read(k) for read in readers), own])]

        out = cgutils.create_struct_proxy(signature.args[5])(context, builder, args[5]).data
        for q, total in enumerate(_looped(builder, args[4], narrow, size + 1, grow)):
            builder.store(_halved(builder, total), builder.gep(out, [_I64(q)]))
        return context.get_dummy_value()

    return types.void(questions, types.int64, rows, types.int64, types.int64, sums, block), emit


@intrinsic
def number(typing, stored):
    """A component of a vector as f32."""

    def emit(context, builder, signature, args):
        return _single(builder, args[0])

    return types.float32(stored), emit


@intrinsic
def value(typing, score):
    """A score as f32."""

    def emit(context, builder, signature, args):
        if isinstance(score, types.Float):
            return args[0]
        bits = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(bits, ir.IntType(32)(16)), ir.FloatType())

    return types.float32(score), emit


@numba.njit(cache=True, nogil=True)
def score_of(query, rows, i):
    """The dot product of `query` f64[D] and rows[i] in f64: partial sums, then the last D % SUMS products in order."""
    n_dims = rows.shape[1]
    whole = n_dims // SUMS * SUMS
    total = partial_sums(query, rows, i, whole)
    for k in range(whole, n_dims):
        total += query[k] * np.float64(number(rows[i, k]))
    return total


@numba.njit(cache=True, nogil=True)
def sink(scores, ids, size, score, row):
    """Replace the root of a heap by (score, row). The root is the worst: lowest score, then highest id."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            scores[other] < scores[child] or (scores[other] == scores[child] and ids[other] > ids[child])
        ):
            child = other
        if scores[child] > score or (scores[child] == score and ids[child] < row):
            break
        scores[place], ids[place] = scores[child], ids[child]
        place = child
    scores[place], ids[place] = score, row


@numba.njit(cache=True, nogil=True)
def sort_heaps(scores, ids):
    """Sort the heap of every row, best first; a free place gets id -1."""
    for b in range(scores.shape[0]):
        for size in range(scores.shape[1] - 1, 0, -1):
            score, row = scores[b, size], ids[b, size]
            scores[b, size], ids[b, size] = scores[b, 0], ids[b, 0]
            sink(scores[b], ids[b], size, score, row)
        for place in range(scores.shape[1]):
            if ids[b, place] == NOBODY:
                ids[b, place] = -1


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def approx_scores(questions, first, rows, i, sums, block):
    """`approx_sums` over all components."""
    n_dims, size = rows.shape[1], len(block)
    whole = n_dims // SUMS * SUMS
    approx_sums(questions, first, rows, i, whole, sums, block)
    for k in range(whole, n_dims):
        x = number(rows[i, k])
        for q in range(size):
            sums[q] += questions[first + q, k] * x
        sums[size] += x * x


@numba.njit(cache=True, nogil=True, error_model="numpy")
def take_row(queries, b, rows, i, scores, ids):
    """Score rows[i] for query b and put it into the heap if it belongs there; False if the score is not finite."""
    exact = score_of(queries[b], rows, i)
    if not abs(exact) < np.inf:
        return False
    score = np.float32(exact)
    if score > scores[b, 0]:  # ids rise, so the first of equal scores stays
        sink(scores[b], ids[b], scores.shape[1], score, np.int32(i))
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_rows(questions, rows, first, last, k, unit):
    """The k best of the rows first..last for each query f32[B, D], each row read once: (bad, scores, ids), best first;
    bad: a row that is not finite, or -1.

    A fast f32 score, summed in any order, is within `unit` |q| |row| of the exact one. A row is scored exactly unless
    its fast score is surely too low (and is neither NaN nor an overflow).
    """
    n_questions, n_dims = questions.shape
    scores, ids = np.full((n_questions, k), -np.inf, np.float32), np.full((n_questions, k), NOBODY, np.int32)
    queries, within, floor = questions.astype(np.float64), np.empty(n_questions), TINY * np.sqrt(n_dims)
    for b in range(n_questions):
        within[b] = unit * (np.sqrt((queries[b] * queries[b]).sum()) + floor)
    sums = np.empty(BLOCK + 1, np.float32)
    fours = n_questions // BLOCK * BLOCK
    for i in range(first, last):
        for first_question in range(0, fours, BLOCK):
            approx_scores(questions, first_question, rows, i, sums, (0, 0, 0, 0))
            length = 1.001 * np.sqrt(np.float64(sums[BLOCK])) + floor
            for q in range(BLOCK):
                b = first_question + q
                if -np.inf < sums[q] + within[b] * length < scores[b, 0]:
                    continue
                if not take_row(queries, b, rows, i, scores, ids):
                    return i, scores, ids
        for b in range(fours, n_questions):
            approx_scores(questions, b, rows, i, sums, (0,))
            length = 1.001 * np.sqrt(np.float64(sums[1])) + floor
            if -np.inf < sums[0] + within[b] * length < scores[b, 0]:
                continue
            if not take_row(queries, b, rows, i, scores, ids):
                return i, scores, ids
    sort_heaps(scores, ids)
    return -1, scores, ids


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def find_peaks(row, peaks):
    """Write peaks f32[chunks]: the maximum of every CHUNK fast scores, which are finite."""
    whole = row.shape[0] // CHUNK
    for p in range(whole):
        chunk = row[p * CHUNK : (p + 1) * CHUNK]
        peak = value(chunk[0])
        for c in range(1, CHUNK):
            peak = max(peak, value(chunk[c]))
        peaks[p] = peak
    if whole < peaks.shape[0]:
        peak = value(row[whole * CHUNK])
        for c in range(whole * CHUNK + 1, row.shape[0]):
            peak = max(peak, value(row[c]))
        peaks[whole] = peak


@numba.njit(cache=True, nogil=True)
def cut_of(worst, slack, relative):
    """The lowest fast score f32 of a row with score `worst`: `slack` less, and `relative` of that for rounding."""
    bound = worst - slack
    return np.float32(bound - abs(bound) * relative)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def worst_of(row, peaks, k, slack, relative):
    """A lower bound that k of these rows reach, from fast scores alone; -inf if there are fewer rows. If there are many
    chunks, their peaks suffice: the k-th largest peak is hardly lower."""
    if row.shape[0] < k:
        return -np.inf
    best, ids, few = np.full(k, -np.inf, np.float32), np.full(k, NOBODY, np.int32), peaks.shape[0] < 2 * k
    for p in range(peaks.shape[0]):
        if not peaks[p] > best[0]:
            continue
        if not few:
            sink(best, ids, k, peaks[p], np.int32(p))
            continue
        for c in range(p * CHUNK, min((p + 1) * CHUNK, row.shape[0])):
            if value(row[c]) > best[0]:
                sink(best, ids, k, value(row[c]), np.int32(c))
    lowest = np.float64(best[0])
    bound = lowest - abs(lowest) * relative - slack
    return bound if bound > -np.inf else -np.inf  # avoids NaN if both are infinite


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_tile(tile, j0, slack, relative, queries, rows, scores, ids):
    """Update the heaps of queries f64[B, D] with one tile of fast scores [b, j - j0].

    A row is surely not among the best if its fast score is below `cut_of` the worst score in the heap; other rows are
    scored exactly. While a heap is not full, the peaks of chunks give the bound that k rows reach.
    """
    k, peaks = scores.shape[1], np.empty(-(-tile.shape[1] // CHUNK), np.float32)
    for b in range(queries.shape[0]):
        row, worst = tile[b], np.float64(scores[b, 0])
        if slack[b] < np.inf:
            find_peaks(row, peaks)
        else:
            peaks[:] = np.inf  # a fast score may be infinite or NaN: every row is scored
        if ids[b, 0] == NOBODY:
            worst = worst_of(row, peaks, k, slack[b], relative)
        cut = cut_of(worst, slack[b], relative)
        for p in range(peaks.shape[0]):
            if peaks[p] < cut:
                continue
            for c in range(p * CHUNK, min((p + 1) * CHUNK, row.shape[0])):
                if value(row[c]) < cut:
                    continue
                score = np.float32(score_of(queries[b], rows, j0 + c))
                if score > scores[b, 0]:
                    sink(scores[b], ids[b], k, score, np.int32(j0 + c))
                    if scores[b, 0] > worst:
                        worst = np.float64(scores[b, 0])
                        cut = cut_of(worst, slack[b], relative)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy", inline="always")
def round_row(row, rounded):
    """Round a row to bf16, as bits in i16; return |row|^2 and |row - rounded|^2 in f32, approximately."""
    squares, away = np.float32(0), np.float32(0)
    for k in range(row.shape[0]):
        x = np.float32(number(row[k]))
        bits = x.view(np.uint32)
        near = np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)  # to even
        rounded[k] = np.int16(near >> 16)
        moved = x - near.view(np.float32)
        squares += x * x
        away += moved * moved
    return squares, away


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def to_bf16(rows, rounded, length, error):
    """Round rows to bf16, as bits in i16; write length, error f64[N]: upper bounds on |row| and |row - rounded|."""
    floor = TINY * np.sqrt(np.float64(rows.shape[1]))
    for i in range(rows.shape[0]):
        squares, away = round_row(rows[i], rounded[i])
        length[i] = 1.001 * np.sqrt(np.float64(squares)) + floor
        error[i] = 1.001 * np.sqrt(np.float64(away)) + floor


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def component(stored):
    """A component of a vector on the grid of 2^-24, times 2^24: f64."""
    return np.rint(np.float64(number(stored)) * _GRID)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, error_model="numpy")
def exact_dot(left, right):
    """The dot product of two vectors on the grid; exact, so any order of summation is right."""
    total = 0.0
    for k in range(left.shape[0]):
        total += component(left[k]) * component(right[k])
    return total * 2.0**-48


@numba.njit(cache=True, nogil=True)
def pair_dots(left, i, right, j, dots):
    """Write dots f64[P]: the `exact_dot` of rows i[p] of left and j[p] of right."""
    for p in range(i.shape[0]):
        dots[p] = exact_dot(left[i[p]], right[j[p]])


@numba.njit(cache=True, nogil=True)
def root_of(parent, i):
    """The root of i, the smallest member of its tree; it halves the path."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@numba.njit(cache=True, nogil=True)
def unite(parent, i, j):
    """Join the trees of i and j under the smaller root."""
    a, b = root_of(parent, i), root_of(parent, j)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


@numba.njit(cache=True, nogil=True)
def settle(parent, count, enough, waiting, n_waiting):
    """Unite waiting pairs of two core rows; return the number of pairs that still wait, moved to the front."""
    kept = 0
    for p in range(n_waiting):
        i, j = waiting[p, 0], waiting[p, 1]
        if count[i] >= enough and count[j] >= enough:
            unite(parent, i, j)
        else:
            waiting[kept, 0], waiting[kept, 1] = i, j
            kept += 1
    return kept


@numba.njit(cache=True, nogil=True, error_model="numpy")
def link_tile(scores, i0, j0, low, high, vectors, threshold, parent, count, enough, waiting, n_waiting):
    """Link every pair i < j of one tile scores[i - i0, j - j0] whose exact dot product is >= threshold.

    A score < low is surely below it, a score > high surely not; others are computed exactly. A link counts for both
    rows. Two rows with `enough` links each are united; any other pair waits (one of its rows has few links, so few
    pairs can wait). Returns the number of waiting pairs.
    """
    for i in range(i0, i0 + scores.shape[0]):
        row = scores[i - i0]
        for start in range(max(0, i + 1 - j0), row.shape[0], LINK_CHUNK):
            chunk = row[start : start + LINK_CHUNK]
            hit = False
            for c in range(chunk.shape[0]):
                hit |= value(chunk[c]) >= low
            if not hit:
                continue
            for c in range(chunk.shape[0]):
                score = value(chunk[c])
                j = j0 + start + c
                if score < low or (score <= high and exact_dot(vectors[i], vectors[j]) < threshold):
                    continue
                count[i] += 1
                count[j] += 1
                if count[i] >= enough and count[j] >= enough:
                    unite(parent, i, j)
                else:
                    if n_waiting == waiting.shape[0]:
                        n_waiting = settle(parent, count, enough, waiting, n_waiting)
                    waiting[n_waiting, 0], waiting[n_waiting, 1] = i, j
                    n_waiting += 1
    return n_waiting


@numba.njit(cache=True, nogil=True)
def flatten(parent):
    """Make every entry point to its root."""
    for i in range(parent.shape[0]):
        parent[i] = root_of(parent, i)


class JoinLeft(NamedTuple):
    """The left side. stored: vectors; group: i64[N], or [0]; size: i32[N], distinct keywords of each row; offsets
    i64[N+1], words i32: the numbers of its keywords that the right side has too."""

    stored: Any
    group: Any
    size: Any
    offsets: Any
    words: Any


class JoinRight(NamedTuple):
    """The right side. stored, group, size: as in `JoinLeft`; list_offsets i64[W+1], list_rows i32[T]: the rows that
    have each keyword, ascending."""

    stored: Any
    group: Any
    size: Any
    list_offsets: Any
    list_rows: Any


@numba.njit(cache=True, nogil=True)
def look_up(offsets, values, known, size, found_offsets, numbers):
    """Look up each list without repeats. size i32[N]: its distinct values; numbers i32[T]: the positions of its values
    in `known` (ascending), if they are there; list i begins at found_offsets[i], i64[N+1]."""
    n_found = 0
    for i in range(offsets.shape[0] - 1):
        own = np.sort(values[offsets[i] : offsets[i + 1]])
        size[i] = 0
        for p in range(own.shape[0]):
            if p > 0 and own[p] == own[p - 1]:
                continue
            size[i] += 1
            position = np.searchsorted(known, own[p])
            if position < known.shape[0] and known[position] == own[p]:
                numbers[n_found] = position
                n_found += 1
        found_offsets[i + 1] = n_found


@numba.njit(cache=True, nogil=True)
def lower_bound(values, first, last, wanted):
    """The first p in [first, last) with values[p] >= wanted, or last."""
    while first < last:
        middle = (first + last) // 2
        if values[middle] < wanted:
            first = middle + 1
        else:
            last = middle
    return first


@numba.njit(cache=True, nogil=True)
def count_overlaps(left, right, i, j0, overlap):
    """Write overlap i32[columns]: the keywords that left row i shares with each right row from j0 on."""
    overlap[:] = 0
    for p in range(left.offsets[i], left.offsets[i + 1]):
        end = right.list_offsets[left.words[p] + 1]
        position = lower_bound(right.list_rows, right.list_offsets[left.words[p]], end, j0)
        while position < end and right.list_rows[position] < j0 + overlap.shape[0]:
            overlap[right.list_rows[position] - j0] += 1
            position += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def join_tile(scores, i0, j0, left, right, slack, best, index):
    """Update best f64[Nl] and index i64[Nl] of the left rows from i0 on with the right rows from j0 on.

    With o shared of u united keywords, the score of a pair is (o / u + dot) / 2. It can reach `best` only if o / u +
    score + slack >= 2 best, tested as (2 best - slack - score) u <= o; such pairs are computed exactly. Columns come in
    ascending order, so the first of equal scores stays.
    """
    n_columns = scores.shape[1]
    overlap, sizes = np.zeros(n_columns, np.int32), right.size[j0 : j0 + n_columns]
    for i in range(i0, i0 + scores.shape[0]):
        count_overlaps(left, right, i, j0, overlap)
        row, size = scores[i - i0], max(left.size[i], np.int32(1))  # two empty sets: 0 / 1
        for start in range(0, n_columns, CHUNK):
            chunk, shared = row[start : start + CHUNK], overlap[start : start + CHUNK]
            other = sizes[start : start + CHUNK]
            cut, hit = np.float32(2 * best[i] - slack), False
            for c in range(chunk.shape[0]):
                hit |= (cut - value(chunk[c])) * np.float32(size + other[c] - shared[c]) <= np.float32(shared[c])
            if not hit:
                continue
            for c in range(chunk.shape[0]):
                union, j = size + other[c] - shared[c], j0 + start + c
                if (np.float32(2 * best[i] - slack) - value(chunk[c])) * np.float32(union) > np.float32(shared[c]):
                    continue
                if left.group.shape[0] > 0 and left.group[i] == right.group[j]:
                    continue
                score = (shared[c] / union + exact_dot(left.stored[i], right.stored[j])) / 2
                if score > best[i]:
                    best[i], index[i] = score, j
