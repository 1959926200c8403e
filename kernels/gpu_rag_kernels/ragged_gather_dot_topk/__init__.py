"""The k best of each question's own list of rows, by dot product with its query: ragged, without the gathered matrix.

score(b, i) = queries[b] . vectors[lists[b][i]], summed in f32; the best k of list b by (-score, place in the list), so
by (-score, row) where lists ascend. Each row's sum has one order, whatever its list or batch.

Example, queries [[1, 0]], vectors [[2, 0], [0, 5], [3, 1]], list [0, 1, 2], k = 2: rows [2, 0], scores [3, 2].
"""

from __future__ import annotations

import torch

from gpu_rag.errors import BadInput
from gpu_rag.types import Ragged, TopK
from gpu_rag_kernels.choice import kernel, known, pick_kernel


def implementations(device: str = "cpu") -> tuple[str, ...]:
    """The implementations that can take tensors on `device` here."""
    return known(device)


def pick(queries: torch.Tensor, implementation: str = "auto") -> str:
    """Which implementation runs: see `choice.pick_kernel`. Raises UsageError, MissingBackend."""
    return pick_kernel("ragged_gather_dot_topk", queries.device, implementation)


def ragged_gather_dot_topk(
    queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, *, implementation: str = "auto"
) -> TopK:
    """TopK(i32[B, k], f32[B, k]), padded with (-1, -inf) where a list is shorter.

    queries: f16/f32[B, D]; vectors: f16/f32[N, D]; lists: Ragged of B lists of i32/i64 rows in [0, N); finite values.
    Raises BadInput for shapes, dtypes, rows out of range or a score that is not finite; UsageError, MissingBackend.
    """
    _check(queries, vectors, lists, k)
    found = kernel("ragged_gather_dot_topk", "ragged_gather_dot_topk", queries.device, implementation)(
        queries, vectors, lists, k
    )
    if not bool(torch.isfinite(found.scores[found.ids >= 0]).all()):
        raise BadInput("a score is not finite", given="infinity or NaN", expected="finite vectors")
    return found


def _check(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int) -> None:
    halves = (torch.float16, torch.float32)
    if queries.dim() != 2 or vectors.dim() != 2 or queries.dtype not in halves or vectors.dtype not in halves:
        given = f"{queries.dtype} {tuple(queries.shape)}, {vectors.dtype} {tuple(vectors.shape)}"
        raise BadInput("ragged_gather_dot_topk: no matrices", given=given, expected="f16 or f32 [B, D] and [N, D]")
    if queries.shape[1] != vectors.shape[1] or lists.batch != queries.shape[0] or k < 0:
        given = f"D {queries.shape[1]} and {vectors.shape[1]}, {lists.batch} lists for {queries.shape[0]}, k={k}"
        raise BadInput(
            "ragged_gather_dot_topk: shapes do not fit", given=given, expected="one D, a list a query, k >= 0"
        )
    rows = lists.values
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < vectors.shape[0]:
        given = f"{int(rows.min())}..{int(rows.max())}"
        raise BadInput("a candidate is no row", given=given, expected=f"0..{vectors.shape[0] - 1}")
