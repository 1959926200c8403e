"""The best right row of each left row, by shared keywords and cosine, without the matrix of scores.

score(i, j) = (shared / (size_i + size_j - shared) + l_i . r_j) / 2, where shared counts the common keywords that both
rows have (0 / 0 is 0): where the rows share no rarer keyword it is the score of `gpu_rag.graph.join.hybrid_argmax`, and
less where they do. Scores are f32. Right rows are taken in strips; for each left row and strip the result is the
largest score, the lowest row that has it, and the next score: if that is clearly less, the row is certain.

Error of a score: (2.2 (D + 64) 2^-23 + 10^-6) / 2 is taken for unit rows: D + 64 additions in f32 that may truncate, as
tensor cores do, then one division and one sum. Two implementations may differ by twice that, and in the index where
scores are so close.

Example: left [1, 0] with keywords {0}, right [1, 0] with {1} and [0.6, 0.8] with {0}, strips of 2: best 0.8, index 1,
second 0.5.
"""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag_kernels.choice import kernel, known, pick_kernel
from gpu_rag_kernels.join_top1.sides import Side, Strips

__all__ = ["STRIP", "Side", "Strips", "error_of", "implementations", "join_top1", "pick"]

STRIP = 4096  # right rows
MOST_STRIPS = 2**16 - 1  # of a call: the second axis of a GPU's grid ends there


def implementations(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    return known(device)


def pick(vectors: torch.Tensor, implementation: str = "auto") -> str:
    """Which implementation runs for `vectors`: see `choice.pick_kernel`. Raises UsageError, MissingBackend."""
    return pick_kernel("join_top1", vectors.device, implementation)


def error_of(dims: int) -> float:
    """By how much a score may be off its exact value, for unit rows (to 1 %) of so many dimensions."""
    return (2.2 * (dims + 64) * 2.0**-23 + 1e-6) / 2


def join_top1(left: Side, right: Side, *, strip: int = STRIP, implementation: str = "auto") -> Strips:
    """`Strips` of ceil(Nr / strip) strips.

    left, right: `Side`, of one device, one D and one C; groups on both or on none; at most MOST_STRIPS strips of the
    right. Raises BadInput for shapes or dtypes that do not fit, UsageError, MissingBackend.
    """
    for side, name in ((left, "left"), (right, "right")):
        _check(side, name)
    same = [s.vectors.shape[1:] + s.head.shape[1:] for s in (left, right)]
    if same[0] != same[1] or (left.group is None) != (right.group is None) or strip < 1:
        given = f"D and C {tuple(same[0])} and {tuple(same[1])}, strip {strip}"
        raise BadInput("join_top1: sides do not fit", given=given, expected="one D, one C, groups on both, strip >= 1")
    if right.n > strip * MOST_STRIPS or right.n >= 2**31:
        given, expected = f"{right.n} right rows in strips of {strip}", f"at most {MOST_STRIPS} strips, rows below 2^31"
        raise BadInput("join_top1: too many rows", given=given, expected=expected)
    return kernel("join_top1", "join_top1", left.vectors.device, implementation)(left, right, strip)


def _check(side: Side, name: str) -> None:
    vectors, head, size, group = side.vectors, side.head, side.size, side.group
    if vectors.dtype not in (torch.float16, torch.float32) or head.dtype != torch.float16 or size.dtype != torch.int32:
        given = f"{vectors.dtype}, {head.dtype}, {size.dtype}"
        raise BadInput(f"join_top1: wrong dtypes on the {name}", given=given, expected="f16 or f32, f16, i32")
    if vectors.dim() != 2 or head.dim() != 2 or head.shape[0] != side.n or size.shape != (side.n,):
        given = f"{tuple(vectors.shape)}, {tuple(head.shape)}, {tuple(size.shape)}"
        raise BadInput(f"join_top1: shapes do not fit on the {name}", given=given, expected="[N, D], [N, C], [N]")
    if group is not None and (group.dtype != torch.int64 or group.shape != (side.n,)):
        given = f"{group.dtype} {tuple(group.shape)}"
        raise BadInput(f"join_top1: groups do not fit on the {name}", given=given, expected=f"i64 [{side.n}]")
