"""Joining two sets of described vectors: for each row of the left the best row of the right, by words and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots, filter_for
from gpu_rag.graph.common.threads import check_threads
from gpu_rag.graph.join.keywords import KeywordSide, part_of, split_keywords
from gpu_rag.graph.ragged import check_ragged, expand, row_of_value
from gpu_rag.types import Ragged

if TYPE_CHECKING:
    from gpu_rag.graph.join.numba_path import Right

__all__ = ["JoinIndex", "hybrid_argmax", "join_index", "pick_implementation"]

ROWS, COLUMNS = 1024, 4096  # of a tile


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
    """The best row of the right for each row of the left: index i64[Nl] and score f32[Nl].

    score(i, j) = (|K_i & K_j| / |K_i | K_j| + l_i . r_j) / 2, the Jaccard index of the keyword sets (0 for two empty
    ones) and the cosine, as in HopRAG's merging of questions. Exact: the largest f64 score with exact dot products
    (see `dots`), of equal ones the lowest index; a row alone has the same bits as in any batch, by any implementation.

    left, right: f16 or f32[Nl or Nr, D], unit rows (to 1 %, or all zero). left_keywords, right_keywords: Ragged of
    i32/i64, the keywords of each row in any order, repeats count once. exclude: (i64[Nl], i64[Nr]), groups; rows of
    the same group are never matched (a passage's questions with its own). A left row with no candidate gets index -1
    and score -inf. implementation: numba | torch | auto. threads: blocks of left rows at once (numba; torch uses its
    own threads inside a block).

    Method: tiles of approximate scores with a proved error, in which the overlap of every pair is exact: numba counts
    it through inverted lists of the right; torch takes common keywords as columns of 0 and 1, rarer ones through lists
    of the tile. On a GPU with triton the kernel `join_top1` takes the place of the tiles (see `join_kernel`; never run
    on a GPU yet). A pair is computed exactly when its approximate score comes within the error of the row's best so
    far. Time: Nl Nr D of multiply and add. Memory beside the inputs: a few tiles (numba: a million scores a thread, and
    65,536 rows in the dtype of the products; torch about 200 MB), O(T) for T keywords. Many equal rows on the right are
    slow: all of them are computed exactly. A right side that is joined again and again: `join_index`.
    Raises BadInput, UsageError, MissingBackend.

    Left [1, 0] with words {1, 2}; right [1, 0] with {3}, [0.6, 0.8] with {1}: scores 0.5 and 0.55, so index 1.
    """
    groups = exclude or (None, None)
    for side, name in (((left, left_keywords, groups[0]), "left"), ((right, right_keywords, groups[1]), "right")):
        _check_side(*side, name)
    chosen = pick_implementation(right.device, implementation, "hybrid_argmax")
    held = None
    if chosen == "numba":
        from gpu_rag.graph.join.numba_path import prepared

        held = prepared(right.detach(), right_keywords, groups[1], asked=left.shape[0])
    return JoinIndex(right.detach(), right_keywords, groups[1], chosen, held)._best(
        left, left_keywords, groups[0], threads
    )


@dataclass(frozen=True)
class JoinIndex:
    """The right side of a join, checked and ready; made by `join_index`.

    vectors: f16 or f32[N, D]; keywords: Ragged; groups: i64[N] or None; implementation: what was chosen.
    """

    vectors: torch.Tensor
    keywords: Ragged
    groups: torch.Tensor | None
    implementation: str
    held: Right | None

    def best(
        self, left: torch.Tensor, left_keywords: Ragged, *, groups: torch.Tensor | None = None, threads: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hybrid_argmax` of this side: index i64[Nl] and score f32[Nl], the same bits.

        Arguments as there; groups: i64[Nl], of the left, where the index has groups too. Time beside the products: what
        the left has. Raises BadInput.
        """
        _check_side(left, left_keywords, groups, "left")
        if (groups is None) != (self.groups is None):
            given = "groups on one side"
            raise BadInput("groups are given for one side alone", given=given, expected="on both sides, or on none")
        return self._best(left, left_keywords, groups, threads)

    def _best(
        self, left: torch.Tensor, left_keywords: Ragged, groups: torch.Tensor | None, threads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`best` of a checked left side."""
        right = self.vectors
        if left.shape[1] != right.shape[1] or left.device != right.device:
            given = f"{left.shape[1]} on {left.device} and {right.shape[1]} on {right.device}"
            raise BadInput("left and right differ in dimension or device", given=given, expected="one of each")
        check_threads(threads)
        left = left.detach()
        exclude = None if groups is None or self.groups is None else (groups, self.groups)
        if self.held is not None:
            from gpu_rag.graph.join.numba_path import join_by_numba

            best, index = join_by_numba(left, left_keywords, groups, self.held, threads)
        elif pick_implementation(left.device, family="loops") == "triton":
            from gpu_rag.graph.join import triton_path as join_kernel

            sides = (left, left_keywords, right, self.keywords)
            best, index = join_kernel.join_by_kernel(*sides, exclude, _join_by_torch)
        else:
            best, index = _join_by_torch(left, left_keywords, right, self.keywords, exclude)
        return index, best.float()


def join_index(
    right: torch.Tensor, keywords: Ragged, *, groups: torch.Tensor | None = None, implementation: str = "auto"
) -> JoinIndex:
    """Makes the right side of `hybrid_argmax` ready, for joins that come in several calls.

    right, keywords: as there; groups: i64[Nr], the right half of its `exclude`. implementation: numba | torch | auto.
    Checked once; numba keeps inverted lists of the keywords (12 bytes each) and, where products are not in the dtype of
    the vectors, a copy in theirs (bf16: 2 N D bytes). Raises BadInput, UsageError, MissingBackend.

    index = join_index(right, keywords); index.best(left, left_keywords) is hybrid_argmax of the four.
    """
    _check_side(right, keywords, groups, "right")
    chosen, right = pick_implementation(right.device, implementation, "hybrid_argmax"), right.detach()
    held = None
    if chosen == "numba":
        from gpu_rag.graph.join.numba_path import prepared

        held = prepared(right, keywords, groups)
    return JoinIndex(right, keywords, groups, chosen, held)


def _check_side(vectors: torch.Tensor, keywords: Ragged, groups: torch.Tensor | None, name: str) -> None:
    check_unit_rows(vectors, f"{name} vectors")
    check_ragged(keywords, f"{name} keywords", device=vectors.device)
    if keywords.batch != vectors.shape[0]:
        given = f"{keywords.batch} lists for {vectors.shape[0]} vectors"
        raise BadInput(f"{name} keywords do not match the vectors", given=given, expected="a list a vector")
    if groups is None:
        return
    if groups.dtype not in (torch.int32, torch.int64) or groups.shape != vectors.shape[:1]:
        given = f"{groups.dtype} {tuple(groups.shape)}"
        raise BadInput(f"{name} groups do not match the vectors", given=given, expected=f"i64 [{vectors.shape[0]}]")
    if groups.device != vectors.device:
        raise BadInput(f"{name} groups are on another device", given=groups.device, expected=vectors.device)


def _join_by_torch(
    left: torch.Tensor, left_keywords: Ragged, right: torch.Tensor, right_keywords: Ragged,
    exclude: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Best f64[Nl] and index i64[Nl], on any device."""
    split = split_keywords(left_keywords, right_keywords)
    best = torch.full(left.shape[:1], -torch.inf, dtype=torch.float64, device=left.device)
    index = torch.full(left.shape[:1], -1, dtype=torch.int64, device=left.device)
    fast = filter_for(left[:0], right[:0], dtype=torch.float32)
    slack = fast.slack  # which has room for the f32 sum with a share
    for j0 in range(0, right.shape[0], COLUMNS):
        j1 = min(j0 + COLUMNS, right.shape[0])
        columns = right[j0:j1].float()
        for i0 in range(0, left.shape[0], ROWS):
            i1 = min(i0 + ROWS, left.shape[0])
            shared = _overlaps(_rows(split.left, i0, i1), _rows(split.right, j0, j1), split.n_common, split.n_rare)
            union = split.left.size[i0:i1, None] + split.right.size[None, j0:j1] - shared
            union = union.clamp_(min=1)  # two empty sets: 0 / 1
            scores = fast.product(left[i0:i1].float(), columns) + shared / union
            if exclude is not None:
                scores[exclude[0][i0:i1, None] == exclude[1][None, j0:j1]] = -torch.inf
            reach = torch.maximum(2 * best[i0:i1] - slack, scores.amax(1).double() - 2 * slack)
            row, column = ((scores >= reach[:, None]) & (scores > -torch.inf)).nonzero().T
            dots = exact_dots(left, row + i0, right, column + j0)
            exact = (shared[row, column].double() / union[row, column].double() + dots) / 2
            _keep_best(best[i0:i1], index[i0:i1], row, column + j0, exact)
    return best, index


def _keep_best(
    best: torch.Tensor, index: torch.Tensor, row: torch.Tensor, column: torch.Tensor, score: torch.Tensor
) -> None:
    """Updates best and index in place with candidates whose columns are above all that were seen before."""
    old = best.clone()
    best.scatter_reduce_(0, row, score, "amax")
    wins = (score == best[row]) & (score > old[row])
    index[row[wins]] = torch.iinfo(torch.int64).max
    index.scatter_reduce_(0, row[wins], column[wins], "amin")


def _rows(side: KeywordSide, first: int, last: int) -> KeywordSide:
    """The keywords of some rows."""
    return KeywordSide(side.size[first:last], part_of(side.common, first, last), part_of(side.rare, first, last))


def _overlaps(left: KeywordSide, right: KeywordSide, n_common: int, n_rare: int) -> torch.Tensor:
    """f32[rows, columns]: how many keywords each pair shares; whole numbers, so any order of adding is exact."""
    ones = [torch.zeros(side.size.shape[0], n_common, device=side.size.device) for side in (left, right)]
    for matrix, side in zip(ones, (left, right), strict=True):
        matrix[row_of_value(side.common), side.common.values.long()] = 1.0
    shared = ones[0] @ ones[1].T
    listed, order = torch.sort(right.rare.values.long(), stable=True)
    rows = row_of_value(right.rare)[order]
    wanted, owner = left.rare.values.long(), row_of_value(left.rare)
    first, last = torch.searchsorted(listed, wanted), torch.searchsorted(listed, wanted, right=True)
    for entry, place in expand(first, last):
        pair = owner[entry] * shared.shape[1] + rows[place]
        shared.view(-1).index_add_(0, pair, torch.ones_like(pair, dtype=shared.dtype))
    return shared
