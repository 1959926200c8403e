"""The numba kernels of PageRank: a sweep over all rows, the pass that checks and writes the result, and a better order
of rows, with fewer of them to sweep.

Each row of the state holds as many questions as the tuple argument `lanes` has elements; this number is part of its
type. numba would unroll a loop over them into scalars, or store its accumulator once per edge. Here two intrinsics emit
the accumulator of a row as one LLVM vector that stays in registers. No instruction may be reassociated or contracted,
so a column's bits do not depend on its lane or on the other columns or their number. Threads take different tiles.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from gpu_rag_kernels.dots.numba import lower_bound

PANEL = 16  # f32 rows that fill a cache line when the result is written transposed

AHEAD = 16  # edges between the request for a row of the state and its use
CACHED = 1 << 19  # numbers of a state that caches hold: their rows need no request

_I64 = ir.IntType(64)


class _Row:
    """An emitter of code over arrays [rows, lanes] or [lanes], for one intrinsic, whose last argument is the lanes."""

    def __init__(self, context, builder, signature, args):
        self.context, self.builder, self.signature, self.args = context, builder, signature, args
        self.lanes = signature.args[-1].count
        self.f64 = ir.VectorType(ir.DoubleType(), self.lanes)

    def pointer(self, k):
        return cgutils.create_struct_proxy(self.signature.args[k])(self.context, self.builder, self.args[k]).data

    def vector_at(self, k, row):
        """Address of row `row` of argument k, as a vector of its own element type."""
        element = self.context.get_data_type(self.signature.args[k].dtype)
        base = self.builder.bitcast(self.pointer(k), ir.VectorType(element, self.lanes).as_pointer())
        return self.builder.gep(base, [row])

    def load(self, k, row):
        return self.builder.load(self.vector_at(k, row), align=self.signature.args[k].dtype.bitwidth // 8)

    def store(self, value, k, row):
        self.builder.store(value, self.vector_at(k, row), align=self.signature.args[k].dtype.bitwidth // 8)

    def widen(self, value, kind):
        """A vector converted to `kind`, a vector type of the same or a wider float."""
        return value if value.type == kind else self.builder.fpext(value, kind)

    def narrow(self, value, k):
        """A vector rounded to the element type of argument k, which is not wider."""
        kind = ir.VectorType(self.context.get_data_type(self.signature.args[k].dtype), self.lanes)
        return value if value.type == kind else self.builder.fptrunc(value, kind)

    def splat(self, scalar, kind):
        single = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, _I64(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)

    def absolute(self, value):
        width = 64 if value.type.element == ir.DoubleType() else 32
        name = f"llvm.fabs.v{self.lanes}f{width}"
        fabs = cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(value.type, [value.type]), name)
        return self.builder.call(fabs, [value])

    def array(self, k):
        """Argument k as a structure with its number of items."""
        return cgutils.create_struct_proxy(self.signature.args[k])(self.context, self.builder, self.args[k])

    def prefetch(self, state, indices, e):
        """Ask for the row that the edge AHEAD of e reads; beyond the last edge, for the row that e reads."""
        b, byte = self.builder, ir.IntType(8).as_pointer()
        ahead = b.add(e, _I64(AHEAD))
        ahead = b.select(b.icmp_signed("<", ahead, self.array(indices).nitems), ahead, e)
        node = b.sext(b.load(b.gep(self.pointer(indices), [ahead])), _I64)
        row = b.bitcast(self.vector_at(state, node), byte)
        hints = [ir.Constant(ir.IntType(32), hint) for hint in (0, 3, 1)]  # a read, to the nearest cache, of data
        kind = ir.FunctionType(ir.VoidType(), [byte, *(hint.type for hint in hints)])
        prefetch = b.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        for offset in range(0, self.lanes * self.signature.args[state].dtype.bitwidth // 8, 64):
            b.call(prefetch, [b.gep(row, [_I64(offset)]), *hints])

    def gather(self, state, indices, weight, first, last, kind):
        """sum over e in [first, last) of weight[e] * state[indices[e]], in the order of e, as `kind`."""
        b = self.builder
        zero = ir.Constant(kind, [0.0] * self.lanes)
        is_large = b.icmp_signed(">", self.array(state).nitems, _I64(CACHED))
        before, loop, after = b.block, b.append_basic_block("edges"), b.append_basic_block("row")
        b.cbranch(b.icmp_signed("<", first, last), loop, after)
        b.position_at_end(loop)
        e, total = b.phi(_I64), b.phi(kind)
        e.add_incoming(first, before)
        total.add_incoming(zero, before)
        node = b.sext(b.load(b.gep(self.pointer(indices), [e])), _I64)
        with b.if_then(is_large):
            self.prefetch(state, indices, e)
        term = self.widen(self.load(state, node), kind)
        if not isinstance(self.signature.args[weight], types.NoneType):
            w = b.load(b.gep(self.pointer(weight), [e]))
            if kind.element != w.type:
                w = (b.fpext if kind.element == ir.DoubleType() else b.fptrunc)(w, kind.element)
            term = b.fmul(term, self.splat(w, kind))
        grown = b.fadd(total, term)
        following = b.add(e, _I64(1))
        e.add_incoming(following, b.block)
        total.add_incoming(grown, b.block)
        last_block = b.block
        b.cbranch(b.icmp_signed("<", following, last), loop, after)
        b.position_at_end(after)
        result = b.phi(kind)
        result.add_incoming(zero, before)
        result.add_incoming(grown, last_block)
        return result


@intrinsic
def sweep_row(
    typing, x, source, omega, change, indices, weight, row, at, first, last, damping, inverse, scale, lanes,
):  # fmt: skip
    """x[row] += omega * (z - x[row]) and change += scale * |z - x[row]|,
    z = (damping * sum_e weight[e] x[indices[e]] + source[at]) * inverse.
    Computed in the float type of damping, inverse and scale, which is the state's or a wider one."""
    signature = types.void(
        x, source, omega, change, indices, weight, types.int64, types.int64, types.int64, types.int64,
        damping, inverse, scale, lanes,
    )  # fmt: skip

    def emit(context, builder, signature, args):
        r = _Row(context, builder, signature, args)
        row, at, first, last, damping, inverse, scale = args[6:-1]
        kind = ir.VectorType(context.get_data_type(signature.args[10]), r.lanes)
        z = r.gather(0, 4, 5, first, last, kind)
        z = builder.fadd(builder.fmul(z, r.splat(damping, kind)), r.widen(r.load(1, at), kind))
        z = builder.fmul(z, r.splat(inverse, kind))
        old = r.widen(r.load(0, row), kind)
        moved = builder.fsub(z, old)
        change = r.widen(builder.fmul(r.absolute(moved), r.splat(scale, kind)), r.f64)
        step = builder.fmul(r.widen(r.load(2, _I64(0)), kind), moved)
        r.store(r.narrow(builder.fadd(old, step), 0), 0, row)
        r.store(builder.fadd(r.load(3, _I64(0)), change), 3, _I64(0))
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def finish_row(
    typing, x, source, p, gap, mass, indices, weight, row, at, slot, first, last, damping, scale, own, lanes,
):  # fmt: skip
    """In f64: y = damping sum_e weight[e] x[indices[e]] + source[at], gap += |y - scale x[row]|, q = y + own x[row],
    mass += q, and p[slot] = q in f32."""
    signature = types.void(
        x, source, p, gap, mass, indices, weight, types.int64, types.int64, types.int64, types.int64, types.int64,
        types.float64, types.float64, types.float64, lanes,
    )  # fmt: skip

    def emit(context, builder, signature, args):
        r = _Row(context, builder, signature, args)
        row, at, slot, first, last, damping, scale, own = args[7:-1]
        q = r.gather(0, 5, 6, first, last, r.f64)
        q = builder.fadd(builder.fmul(q, r.splat(damping, r.f64)), r.widen(r.load(1, at), r.f64))
        before = r.widen(r.load(0, row), r.f64)
        gap = r.absolute(builder.fsub(q, builder.fmul(before, r.splat(scale, r.f64))))
        q = builder.fadd(q, builder.fmul(before, r.splat(own, r.f64)))
        r.store(builder.fadd(r.load(3, _I64(0)), gap), 3, _I64(0))
        r.store(builder.fadd(r.load(4, _I64(0)), q), 4, _I64(0))
        r.store(builder.fptrunc(q, ir.VectorType(ir.FloatType(), r.lanes)), 2, slot)
        return context.get_dummy_value()

    return signature, emit


@numba.njit(cache=True, nogil=True, error_model="numpy")
def begin(rows, pi, of_row, of_lane, diagonal, damping, source, x):
    """Write (1 - damping) pi to source[1:], and add the lesser of of_row and of_lane, times pi / diagonal, to the rows
    of x. rows: i32[S]; pi: f64[S, lanes]; of_row: f64[S]; of_lane: f64[lanes]. A row that x does not have is left out.
    """
    for s in range(len(rows)):
        for c in range(pi.shape[1]):
            source[s + 1, c] = (1 - damping) * pi[s, c]
        if rows[s] < x.shape[0]:
            for c in range(pi.shape[1]):
                x[rows[s], c] += min(of_row[s], of_lane[c]) * pi[s, c] / diagonal[rows[s]]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def pass_on(rows, pi, n_swept, starts, ends, columns, weights, diagonal, damping, place, total):
    """total[place[j]] += damping a_fj / diagonal_f (1 - damping) pi_f for each entry j of each row f >= n_swept."""
    for s in range(len(rows)):
        if rows[s] >= n_swept:
            for g in range(starts[rows[s]], ends[rows[s]]):
                share = damping * weights[g] / diagonal[rows[s]]
                for c in range(pi.shape[1]):
                    total[place[columns[g]], c] += share * ((1 - damping) * pi[s, c])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def sweep_until(
    starts, ends, columns, weight, scale, inverse, at, damping, source, x, omegas, going, steps, last, predicted,
    enough, lanes,
):  # fmt: skip
    """Sweep until no lane is `going`. A lane stops if predicted * last <= enough, or before omegas end.

    A sweep is x = x + omega (z - x), z = (damping A x + source[at]) / scale, in place, rows of x in ascending order.
    Its change is the sum over rows of scale |z - x|, the L1 size of the step before relaxation. Rows are summed in the
    float type of damping, inverse and scale: f64 sums over an f32 state avoid the rounding errors of hubs. Row i of A
    has the entries starts[i]..ends[i]. going: bool[lanes]; steps, last: for each lane, the number of its sweeps and the
    change of the last one.
    """
    max_iter = omegas.shape[0] - 1
    omega, change = np.empty(len(lanes), x.dtype), np.empty(len(lanes))
    while going.any():
        for c in range(len(lanes)):
            omega[c] = omegas[steps[c]] if going[c] else 0.0
        change[:] = 0.0
        for i in range(x.shape[0]):
            sweep_row(
                x, source, omega, change, columns, weight, i, at[i], starts[i], ends[i], damping, inverse[i], scale[i],
                lanes,
            )  # fmt: skip
        for c in range(len(lanes)):
            if going[c]:
                steps[c] += 1
                last[c] = change[c]
                going[c] = predicted[c] * last[c] > enough[c] and steps[c] < max_iter


@numba.njit(cache=True, nogil=True, error_model="numpy")
def finish(
    starts, ends, columns, weight, scale, own, at, damping, source, x, node, plain, lo, wanted, out, gap, mass, lanes
):
    """y = damping A x + source[at] in f64; gap = |y - scale x|_1 over the rows of x; q = y + own x, and y itself in
    rows beyond those of x; mass = |q|_1; for each lane.

    out f32[B, hi - lo]: q of the nodes from lo on; lane c goes to row wanted[c] if wanted[c] >= 0. Row i is node[i];
    rows plain[0]..plain[1] are consecutive nodes.
    """
    width = out.shape[1]
    gap[:] = 0.0
    mass[:] = 0.0
    panel, unused = np.empty((PANEL, len(lanes)), np.float32), np.empty(len(lanes))
    for first, last in ((0, x.shape[0]), (x.shape[0], len(node))):
        for start in range(first, last, PANEL):
            end = min(last, start + PANEL)
            for i in range(start, end):
                row, gap_of = (i, gap) if i < x.shape[0] else (0, unused)
                finish_row(
                    x, source, panel, gap_of, mass, columns, weight, row, at[i], i - start, starts[i], ends[i],
                    damping, scale[i], own[i], lanes,
                )  # fmt: skip
            is_plain = plain[0] <= start and end <= plain[1] and end - start == PANEL
            to = node[start] - lo
            for c in range(len(lanes)):
                b = wanted[c]
                if b < 0:
                    continue
                if is_plain and to >= 0 and to + PANEL <= width:
                    for k in range(PANEL):  # a constant count: compiled to vector moves
                        out[b, to + k] = panel[k, c]
                else:
                    for i in range(start, end):
                        if lo <= node[i] < lo + width:
                            out[b, node[i] - lo] = panel[i - start, c]


@numba.njit(cache=True, nogil=True)
def order_by_document(indptr, indices, first):
    """i32[first]: the nodes before `first`, by (their first neighbour from `first` on, node); those without one last.

    Columns ascend in each row.
    """
    n = indptr.shape[0] - 1
    document, starts = np.empty(first, np.int32), np.zeros(n - first + 2, np.int64)
    for i in range(first):
        e = indptr[i]
        while e < indptr[i + 1] and indices[e] < first:
            e += 1
        document[i] = indices[e] - first if e < indptr[i + 1] else n - first
        starts[document[i] + 1] += 1
    for d in range(n - first + 1):
        starts[d + 1] += starts[d]
    order = np.empty(first, np.int32)
    for i in range(first):
        order[starts[document[i]]] = i
        starts[document[i]] += 1
    return order


@numba.njit(cache=True, nogil=True)
def solvable(indptr, indices, first, most):
    """bool[n]: nodes before `first` with 1 to `most` neighbours, none of which is itself or is chosen, in ascending
    order."""
    chosen = np.zeros(indptr.shape[0] - 1, np.bool_)
    for i in range(first):
        free = 0 < indptr[i + 1] - indptr[i] <= most
        e = indptr[i]
        while free and e < indptr[i + 1]:
            free = indices[e] != i and not chosen[indices[e]]
            e += 1
        chosen[i] = free
    return chosen


@numba.njit(cache=True, nogil=True, error_model="numpy")
def reduce(
    indptr, indices, weight, degree, damping, node, row, n_swept, first, last, longest, at, starts, ends, columns,
    weights, own,
):  # fmt: skip
    """Write rows first..last of the equations after the rows from `n_swept` on are solved for their unknowns.

    Each row i, node[i], is degree x_i = damping sum_j a_ij x_j + source_i. An unknown x_f with f >= n_swept, put into
    row i, adds damping a_if a_fj / degree_f to the weight of each j, and for j = i damping times that to own[i], by
    which the degree falls. Rows from n_swept on are copied, and must be written before the others. Row i gets entries
    starts[i]..ends[i], from `at` on; first those of i in their order, then others. weight: an array or None; degree,
    weights: f64, degree by row. row: the inverse of node. longest: the maximum number of entries of a row, whose
    columns ascend.
    """
    kept, solved, factor = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest)
    for i in range(first, last):
        n_kept, n_solved = 0, 0
        for e in range(indptr[node[i]], indptr[node[i] + 1]):
            j, w = row[indices[e]], 1.0 if weight is None else weight[e]
            if j < n_swept:
                columns[at + n_kept], weights[at + n_kept], kept[n_kept] = j, w, indices[e]
                n_kept += 1
            else:
                solved[n_solved], factor[n_solved] = j, damping * w / degree[j]
                n_solved += 1
        end = at + n_kept
        for s in range(n_solved):
            for g in range(starts[solved[s]], ends[solved[s]]):
                j, value = columns[g], factor[s] * weights[g]
                if j == i:
                    own[i] += damping * value
                    continue
                place = lower_bound(kept, np.int64(0), n_kept, node[j])
                to = at + place
                if place == n_kept or kept[place] != node[j]:
                    to = at + n_kept
                    while to < end and columns[to] != j:
                        to += 1
                    if to == end:
                        columns[to], weights[to] = j, 0.0
                        end += 1
                weights[to] += value
        starts[i], ends[i] = at, end
        at = end
