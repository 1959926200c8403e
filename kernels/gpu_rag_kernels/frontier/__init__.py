"""Exact dot products of unit rows, read in place: of given pairs, and the k best of ragged lists.

dot(i, j) = 2^-48 times the sum of rint(2^24 queries[i]) rint(2^24 vectors[j]). Components are on the grid of 2^-24 (see
`graph.common.dots`), so this is a sum of whole numbers and has the same bits in every implementation, order, batch and
on every device. score(b, p) = bias[p] + the dot product of list b's query and its p-th row, added in f64 and rounded
once to f32. The k best of list b are ordered by (-score, position in the list).

Example, queries [[1, 0]], vectors [[.6, .8], [0, 1], [1, 0]], list [0, 1, 2], k = 2: places [2, 0], scores [1, .6].
"""

from __future__ import annotations

from gpu_rag.errors import BadInput
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged, TopK
from gpu_rag_kernels.dispatch import kernel


def gather_dots(
    queries: torch.Tensor, i: torch.Tensor, vectors: torch.Tensor, j: torch.Tensor, *, implementation: str = "auto"
) -> torch.Tensor:
    """The exact dot product of queries[i[p]] and vectors[j[p]]: f64[P].

    queries: f16/f32[Q, D]; vectors: f16/f32[N, D], both with unit rows (to 1 %) or zero rows; i, j: i32/i64[P] on their
    device. The caller ensures that rows exist and are unit rows: a check would wait for the device. A component beyond
    1.01 gives NaN in triton, the product of the stored numbers in the reference. Raises BadInput for wrong shapes and
    dtypes, UsageError, MissingBackend.
    """
    integers, floats = (torch.int32, torch.int64), (torch.float16, torch.float32)
    if queries.dim() != 2 or vectors.dim() != 2 or queries.dtype not in floats or vectors.dtype not in floats:
        given = f"{queries.dtype} {tuple(queries.shape)}, {vectors.dtype} {tuple(vectors.shape)}"
        raise BadInput("gather_dots: no matrices", given=given, expected="f16 or f32 [Q, D] and [N, D]")
    if queries.shape[1] != vectors.shape[1] or queries.device != vectors.device:
        given = f"D {queries.shape[1]} on {queries.device} and {vectors.shape[1]} on {vectors.device}"
        raise BadInput("gather_dots: shapes do not fit", given=given, expected="one D, one device")
    if i.dtype not in integers or j.dtype not in integers or i.shape != j.shape or i.dim() != 1:
        given = f"{i.dtype} {tuple(i.shape)}, {j.dtype} {tuple(j.shape)}"
        raise BadInput("gather_dots: no pairs", given=given, expected="i32 or i64 [P], both")
    run = kernel("ragged_gather_dot_topk", "gather_dots", queries.device, implementation)
    dots: torch.Tensor = run(queries, i, vectors, j)
    return dots


def ragged_gather_dot_topk(
    queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, *,
    owner: torch.Tensor | None = None, bias: torch.Tensor | None = None, implementation: str = "auto",
) -> TopK:  # fmt: skip
    """The k best of each list: TopK(i32[B, k], f32[B, k]) whose ids are positions in the list, padded with (-1, -inf).

    queries, vectors: as in `gather_dots`; lists: Ragged of B lists of i32/i64 rows of `vectors`, in any order, repeats
    allowed; owner: i32/i64[B], the query of each list (None: query b for list b); bias: f64[T], added to each dot
    product (None: nothing); k >= 0 (all unchecked). Of equal scores the lower position comes first.
    """
    owner = torch.arange(lists.batch, device=queries.device) if owner is None else owner
    run = kernel("ragged_gather_dot_topk", "ragged_gather_dot_topk", queries.device, implementation)
    top: TopK = run(queries, owner, vectors, lists, k, bias)
    return top
