"""Join two sets of rows with keywords and vectors: for each left row find the best right row, by words and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import INTEGERS, check_form
from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.common.threads import check_threads
from gpu_rag.graph.join.torch_path import join_by_torch
from gpu_rag.graph.ragged import check_ragged
from gpu_rag.types import Ragged

if TYPE_CHECKING:
    from gpu_rag.graph.join.numba_path import Right

__all__ = ["JoinIndex", "hybrid_argmax", "join_index"]


def hybrid_argmax(
    left: torch.Tensor,
    left_keywords: Ragged,
    right: torch.Tensor,
    right_keywords: Ragged,
    *,
    exclude: tuple[torch.Tensor, torch.Tensor] | None = None,
    implementation: str = "auto",
    threads: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best right row for each left row: index i64[Nl] and score f32[Nl].

    score(i, j) = (|K_i & K_j| / |K_i | K_j| + l_i . r_j) / 2, the Jaccard index of the keyword sets (0 for two empty
    sets) and the cosine, as in HopRAG's merging of questions. Exact: the largest f64 score with exact dot products (see
    `dots`), of equal scores the lowest index; a row alone has the same bits as in any batch and any implementation.

    left, right: f16 or f32[Nl or Nr, D], unit rows (to 1 %, or all zero). left_keywords, right_keywords: Ragged of
    i32/i64, the keywords of each row in any order, repeats count once. exclude: (i64[Nl], i64[Nr]), groups; rows of the
    same group never match (a passage's questions with its own). A left row without candidates gets index -1 and score
    -inf. implementation: numba | torch | auto. threads: blocks of left rows at once (numba; torch uses its own threads
    inside a block).

    Method: tiles of approximate scores with a proved error, in which the overlap of every pair is exact. numba counts
    it with inverted lists of the right side; torch stores common keywords as columns of 0 and 1, rarer ones as lists of
    the tile. On a GPU with triton the kernel `join_top1` replaces the tiles (see `triton_path`; never run on a GPU
    yet). A pair is computed exactly if its approximate score comes within the error of the row's best so far. Time: Nl
    Nr D multiply-adds. Additional memory: a few tiles (numba: a million scores for each thread, and 65,536 rows in the
    dtype of the products; torch about 200 MB), O(T) for T keywords. Many equal right rows are slow: all of them are
    computed exactly. For repeated joins with one right side use `join_index`.
    Raises BadInput, UsageError, MissingBackend.

    Left [1, 0] with words {1, 2}; right [1, 0] with {3}, [0.6, 0.8] with {1}: scores 0.5 and 0.55, so index 1.
    """
    groups = exclude or (None, None)
    index = _prepared(right, right_keywords, groups[1], implementation, left.shape[0] if left.dim() else 0)
    return index.best(left, left_keywords, groups=groups[0], threads=threads)


@dataclass(frozen=True)
class JoinIndex:
    """The right side of a join, checked and prepared by `join_index`.

    vectors: f16 or f32[N, D]; keywords: Ragged; groups: i64[N] or None; implementation: the chosen one.
    """

    vectors: torch.Tensor
    keywords: Ragged
    groups: torch.Tensor | None
    implementation: str
    ready: Right | None

    def best(
        self, left: torch.Tensor, left_keywords: Ragged, *, groups: torch.Tensor | None = None, threads: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hybrid_argmax` with this right side: index i64[Nl] and score f32[Nl], the same bits.

        Arguments as in `hybrid_argmax`; groups: i64[Nl], of the left side, given if and only if the index has groups.
        The preparation takes time only for the left side. Raises BadInput.
        """
        _check_side(left, left_keywords, groups, "left")
        if (groups is None) != (self.groups is None):
            given = "groups on one side"
            raise BadInput("groups are given for one side alone", given=given, expected="on both sides, or on none")
        right = self.vectors
        if left.shape[1] != right.shape[1] or left.device != right.device:
            given = f"{left.shape[1]} on {left.device} and {right.shape[1]} on {right.device}"
            raise BadInput("left and right differ in dimension or device", given=given, expected="one of each")
        check_threads(threads)
        left = left.detach()
        exclude = None if groups is None or self.groups is None else (groups, self.groups)
        if self.ready is not None:
            from gpu_rag.graph.join.numba_path import join_by_numba

            best, index = join_by_numba(left, left_keywords, groups, self.ready, threads)
        elif pick_implementation(left.device, family="loops") == "triton":
            from gpu_rag.graph.join import triton_path

            sides = (left, left_keywords, right, self.keywords)
            best, index = triton_path.join_by_kernel(*sides, exclude, join_by_torch)
        else:
            best, index = join_by_torch(left, left_keywords, right, self.keywords, exclude)
        return index, best.float()


def join_index(
    right: torch.Tensor, keywords: Ragged, *, groups: torch.Tensor | None = None, implementation: str = "auto"
) -> JoinIndex:
    """Prepare the right side of `hybrid_argmax`, for joins in several calls.

    right, keywords: as in `hybrid_argmax`; groups: i64[Nr], the right half of its `exclude`. implementation: numba |
    torch | auto. Checked once. numba keeps inverted lists of the keywords (12 bytes each) and, if products use another
    dtype than the vectors, a copy in that dtype (bf16: 2 N D bytes). Raises BadInput, UsageError, MissingBackend.

    index = join_index(right, keywords); index.best(left, left_keywords) equals hybrid_argmax of the four.
    """
    return _prepared(right, keywords, groups, implementation, None)


def _prepared(
    right: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, implementation: str, n_left: int | None
) -> JoinIndex:
    """`join_index`; n_left: the number of left rows if it is used once, None if it is kept."""
    _check_side(right, keywords, groups, "right")
    chosen, right, ready = pick_implementation(right.device, implementation, "hybrid_argmax"), right.detach(), None
    if chosen == "numba":
        from gpu_rag.graph.join.numba_path import prepared

        ready = prepared(right, keywords, groups, n_left=n_left)
    return JoinIndex(right, keywords, groups, chosen, ready)


def _check_side(vectors: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, name: str) -> None:
    check_unit_rows(vectors, f"{name} vectors")
    check_ragged(keywords, f"{name} keywords", device=vectors.device, batch=vectors.shape[0], of="vectors")
    if groups is not None:
        what = f"{name} groups do not match the vectors"
        check_form(groups, what, INTEGERS, vectors.shape[:1], vectors.device)
