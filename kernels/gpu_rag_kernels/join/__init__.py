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

from gpu_rag.errors import BadInput
from gpu_rag_kernels.dispatch import kernel
from gpu_rag_kernels.join.reference import Side, Strips

__all__ = ["STRIP", "Side", "Strips", "error_of", "join_top1"]

STRIP = 4096  # right rows
MOST_STRIPS = 2**16 - 1  # of a call: the second axis of a GPU's grid ends there


def error_of(dims: int) -> float:
    """By how much a score may be off its exact value, for unit rows (to 1 %) of so many dimensions."""
    return (2.2 * (dims + 64) * 2.0**-23 + 1e-6) / 2


def join_top1(left: Side, right: Side, *, strip: int = STRIP, implementation: str = "auto") -> Strips:
    """`Strips` of ceil(Nr / strip) strips.

    left, right: `Side`, of one device, one D and one C; groups on both or on none (unchecked). Raises BadInput for more
    than MOST_STRIPS strips of the right.
    """
    if right.n > strip * MOST_STRIPS or right.n >= 2**31:
        given, expected = f"{right.n} right rows in strips of {strip}", f"at most {MOST_STRIPS} strips, rows below 2^31"
        raise BadInput("join_top1: too many rows", given=given, expected=expected)
    found: Strips = kernel("join_top1", "join_top1", left.vectors.device, implementation)(left, right, strip)
    return found
