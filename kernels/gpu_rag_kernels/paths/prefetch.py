"""Asking the processor for rows of a large matrix before they are read."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

LINE = 16  # f32 of a cache line
LINES = 64  # asked for ahead: far enough for memory to answer, few enough to stay in the cache


@intrinsic
def ask_for_line(typing: Any, matrix: Any, row: Any, column: Any) -> Any:
    """The instruction for one element of a matrix in C order: it reads nothing, and says nothing where it cannot."""
    signature = types.none(matrix, row, column)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from llvmlite import ir

        held = context.make_array(signature.args[0])(context, builder, args[0])
        at = cgutils.get_item_pointer(context, builder, signature.args[0], held, args[1:], wraparound=False)
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], shape)
        builder.call(ask, [builder.bitcast(at, byte), i32(0), i32(3), i32(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return signature, emit


ask: Any = ask_for_line  # numba supplies the first parameter, which a type checker cannot know


@numba.njit(cache=True, nogil=True)
def ahead(dims: Any) -> Any:
    """How many rows of f32[dims] to ask for before the one that is read."""
    return max(1, LINES * LINE // max(dims, 1))


@numba.njit(cache=True, nogil=True, inline="always")
def ask_for(matrix: Any, row: Any) -> None:
    """Row `row` >= 0 of matrix f32[M, D] will be read soon: the memory answers while other rows are worked on."""
    for column in range(0, matrix.shape[1], LINE):
        ask(matrix, np.intp(row), np.intp(column))
