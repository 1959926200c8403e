"""Join two sets of rows with keywords and vectors: for each left row find the best right row, by words and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import INTEGERS, check_form
from gpu_rag.graph.common.dots import check_unit_rows
from gpu_rag.graph.common.threads import check_threads
from gpu_rag.graph.join.torch_path import join_by_torch
from gpu_rag.graph.ragged import check_ragged
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

if TYPE_CHECKING:
    from gpu_rag.graph.join.numba_path import Right

__all__ = ["JoinIndex", "join_index"]


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
        """The best right row for each left row: index i64[Nl] and score f64[Nl].

        score(i, j) = (|K_i & K_j| / |K_i | K_j| + l_i . r_j) / 2, the Jaccard index of the keyword sets (0 for two
        empty sets) and the cosine, as in HopRAG's merging of questions. Exact: the largest f64 score with exact dot
        products (see `dots`), of equal scores the lowest index; a row alone has the same bits as in any batch and any
        implementation. A left row without candidates gets index -1 and score -inf.

        left: f16 or f32[Nl, D], unit rows (to 1 %, or all zero); left_keywords: Ragged of i32/i64, in any order,
        repeats count once; groups: i64[Nl], if and only if the index has groups: rows of one group never match (a
        passage's questions with its own). threads: blocks of left rows at once (numba). Raises BadInput.

        Method: tiles of approximate scores with a proved error, in which the overlap of every pair is exact. A pair is
        computed exactly if its approximate score comes within the error of the row's best so far. Time: Nl Nr D
        multiply-adds; many equal right rows are slow. Additional memory: a few tiles (numba: a million scores for each
        thread, and 65,536 rows in the dtype of the products; torch about 200 MB), O(T) for T keywords.

        Left [1, 0] with words {1, 2}; right [1, 0] with {3}, [0.6, 0.8] with {1}: scores 0.5 and 0.55, so index 1.
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
        else:
            best, index = join_by_torch(left, left_keywords, right, self.keywords, exclude)
        return index, best


def join_index(
    right: torch.Tensor, keywords: Ragged, *, groups: torch.Tensor | None = None, implementation: str = "auto"
) -> JoinIndex:
    """Check and prepare the right side of a join.

    right: f16 or f32[Nr, D]; keywords, groups: keywords and groups of its rows, as in `JoinIndex.best`. implementation:
    numba | torch | auto. numba keeps inverted lists of the keywords (12 bytes each) and, if products use another dtype
    than the vectors, a copy in that dtype (bf16: 2 N D bytes). Raises BadInput, UsageError, MissingBackend.
    """
    _check_side(right, keywords, groups, "right")
    chosen, right, ready = pick_implementation(right.device, implementation, "hybrid_argmax"), right.detach(), None
    if chosen == "numba":
        from gpu_rag.graph.join.numba_path import prepared

        ready = prepared(right, keywords, groups)
    return JoinIndex(right, keywords, groups, chosen, ready)


def _check_side(vectors: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, name: str) -> None:
    check_unit_rows(vectors, f"{name} vectors")
    check_ragged(keywords, f"{name} keywords", device=vectors.device, batch=vectors.shape[0], owners="vectors")
    if groups is not None:
        what = f"{name} groups do not match the vectors"
        check_form(groups, what, INTEGERS, vectors.shape[:1], vectors.device)
