"""The best right row of each left row, by shared keywords and cosine, without a matrix of scores.

score(i, j) = (shared / (size_i + size_j - shared) + l_i . r_j) / 2, where shared counts the common keywords of both
rows (0 / 0 is 0). If the rows share no rarer keyword this is the score of `gpu_rag.graph.join.JoinIndex`; otherwise
it is lower. Scores are f32. Right rows are taken in strips. For each left row and strip the result is the largest
score, the lowest row with that score, and the second largest score: if that is clearly lower, the row is certain.

Error of a score, for unit rows: (2.2 (D + 64) 2^-23 + 10^-6) / 2. It covers D + 64 f32 additions that may truncate, as
in tensor cores, then one division and one sum. Two implementations may differ by twice that, and in the index if scores
are so close.

Example: left [1, 0] with keywords {0}, right [1, 0] with {1} and [0.6, 0.8] with {0}, strips of 2: best 0.8, index 1,
second 0.5.
"""

from __future__ import annotations

from gpu_rag.errors import BadInput
from gpu_rag_kernels.dispatch import kernel
from gpu_rag_kernels.join.reference import Side, Strips

__all__ = ["STRIP", "Side", "Strips", "error_of", "join_top1"]

STRIP = 4096  # right rows
MOST_STRIPS = 2**16 - 1  # maximum strips of a call: the limit of a GPU grid's second axis


def error_of(dims: int) -> float:
    """The largest error of a score, for unit rows (to 1 %) of `dims` dimensions."""
    return (2.2 * (dims + 64) * 2.0**-23 + 1e-6) / 2


def join_top1(left: Side, right: Side, *, strip: int = STRIP, implementation: str = "auto") -> Strips:
    """Compute `Strips` for ceil(Nr / strip) strips.

    left, right: `Side`, with the same device, D and C; both with groups or both without (unchecked). Raises BadInput
    for more than MOST_STRIPS strips of the right.
    """
    if right.n > strip * MOST_STRIPS or right.n >= 2**31:
        given, expected = f"{right.n} right rows in strips of {strip}", f"at most {MOST_STRIPS} strips, rows below 2^31"
        raise BadInput("join_top1: too many rows", given=given, expected=expected)
    found: Strips = kernel("join_top1", "join_top1", left.vectors.device, implementation)(left, right, strip)
    return found
