"""Exact nearest neighbours in a kept set of rows: by `nearest`, or by faiss where it is preferred."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gpu_rag_kernels.dispatch import chosen, pick_implementation, preferred

from gpu_rag.errors import BadInput, MissingBackend, UsageError
from gpu_rag.graph.common.dots import check_unit_rows, exact_dots, f32_slack
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.nearest.best import MAX_K, by_exact_scores, topk_of
from gpu_rag.graph.nearest.torch_path import MANY, proposed_by_torch
from gpu_rag.lazy import torch
from gpu_rag.types import TopK

MORE = 32  # candidates beyond k in the first try
PADDED = 64  # queries of a faiss call, padded
THREADS = 1  # threads that faiss uses
MAX_K_ON_GPU = 2048  # maximum rows that faiss finds for a query on a GPU


def pick_index(implementation: str = "auto") -> str:
    """torch | faiss. auto: torch (`nearest`), at least as fast as faiss's flat index at every measured size. A missing
    package never changes the choice. Raises UsageError, MissingBackend."""
    return pick_implementation(torch.device("cpu"), preferred("neighbours", implementation), family="neighbours")


class NearestRows:
    """Rows prepared for search: every exact search of a whole table of vectors uses this class.

    It uses `nearest`, or a faiss index, made at the first search, if faiss is preferred for `neighbours`
    (`dispatch.preferring`). base: f16/f32[N, D], for faiss of length 1 (to 1 %) or 0. threads: of `nearest`. Memory:
    faiss keeps an f32 copy.
    """

    def __init__(self, base: torch.Tensor, threads: int = 1):
        self.base, self._threads = base, threads
        self._faiss: FaissIndex | None = None

    def search(self, queries: torch.Tensor, k: int, *, implementation: str = "auto") -> TopK:
        """The k rows with the largest dot product with each unit query f32[B, D], exactly, by (-score, row).

        implementation: implementation of `nearest`. Scores of the two libraries may differ in the last bit of f32.
        Raises BadInput, UsageError, MissingBackend.
        """
        if pick_index() != "faiss":
            return nearest(queries, self.base, k, implementation=implementation, threads=self._threads)
        chosen("nearest_index", "faiss")  # recorded at every search, because a later run reuses the index
        if self._faiss is None:
            check_unit_rows(self.base, "base")
            self._faiss = FaissIndex(self.base)
        return self._faiss.search(queries, k)

    def proposed(self, queries: torch.Tensor, k: int, *, again: bool = False) -> tuple[TopK, torch.Tensor]:
        """`search`, and whether it is proved for each query, bool[B] on the device. No wait if the device is a GPU.
        Unproved queries, with many rows of equal or close scores, must be searched again; `again`: with many more rows,
        which proves nearly all of them."""
        by_torch = pick_index() == "torch" and pick_implementation(queries.device) == "torch"
        if not by_torch or not 0 < k <= len(self.base):
            return self.search(queries, k), torch.ones(len(queries), dtype=torch.bool, device=queries.device)
        chosen("nearest", "torch")
        return proposed_by_torch(queries, self.base, k, more=MANY if again else 0)


class FaissIndex:
    """A flat faiss index over the rows of `base`, on the device of `base`. Inner product. On a GPU it takes and returns
    tensors there (`faiss.contrib.torch_utils`), without a copy on the host.

    faiss proposes candidates with f32 scores. They are scored again exactly (`dots`: the same bits on every device) and
    sorted. A query is done if its k-th exact score is above the score of every row that was not proposed, including
    `slack`; otherwise more candidates are taken.
    """

    def __init__(self, base: torch.Tensor):
        """base: f16/f32[N, D], rows of length 1 (to 1 %) or 0 (unchecked). Raises MissingBackend."""
        import faiss

        self.faiss: Any = faiss
        self.base, self.device = base, base.device
        if self.device.type == "cuda" and not hasattr(faiss, "StandardGpuResources"):
            raise MissingBackend("this faiss has no GPU", do="pip uninstall faiss-cpu; pip install 'gpu-rag[gpu]'")
        rows: Any = base.float().contiguous()
        if self.device.type == "cuda":
            import_module("faiss.contrib.torch_utils")
        else:
            rows = rows.numpy()
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(THREADS)
        try:
            self.index: Any = self._built(rows)
        finally:
            faiss.omp_set_num_threads(before)

    def _built(self, rows: Any) -> Any:
        faiss = self.faiss
        index: Any = faiss.IndexFlatIP(rows.shape[1])
        if self.device.type == "cuda":
            self.resources = faiss.StandardGpuResources()
            index = faiss.index_cpu_to_gpu(self.resources, self.device.index or 0, index)
        if len(rows):
            index.add(rows)
        return index

    def search(self, queries: torch.Tensor, k: int) -> TopK:
        """The k rows with the largest dot product with each query, by (-score, row); score = the exact product on the
        grid of 2^-24, rounded to f32.

        queries: f32[B, D], rows of length 1 or 0, on the device of the base. Returns TopK(i32[B, k], f32[B, k]). A
        query gives the same bits alone or in any batch. Raises BadInput, UsageError.
        """
        check_unit_rows(queries, "queries")
        if queries.dtype != torch.float32 or queries.shape[1] != self.base.shape[1] or not 0 <= k <= MAX_K:
            given = f"{queries.dtype} {tuple(queries.shape)}, k={k}"
            raise BadInput("queries do not fit", given=given, expected=f"f32 [B, {self.base.shape[1]}], 0 <= k < 2^31")
        if queries.device != self.device:
            raise BadInput("queries and base are on different devices", given=queries.device, expected=self.device)
        check_memory(8 * k * queries.shape[0], queries.device, "the result", "ask for fewer rows or queries at a time")
        tiles = [self._tile(queries[i : i + PADDED], k) for i in range(0, queries.shape[0], PADDED)]
        if not tiles:
            return topk_of(queries.new_zeros(0, 0), queries.new_zeros(0, 0), k)
        return TopK(torch.cat([t.ids for t in tiles]), torch.cat([t.scores for t in tiles]))

    def _tile(self, queries: torch.Tensor, k: int) -> TopK:
        n, count = self.base.shape[0], queries.shape[0]
        padded = queries.new_zeros(PADDED, queries.shape[1])
        padded[:count] = queries
        slack = f32_slack(queries.shape[1])
        wide = min(n, k + MORE)
        while True:
            proposed = self.propose(padded, wide)
            ids, approx = proposed.ids[:count].long(), proposed.scores[:count]
            scores, ids = by_exact_scores(ids, lambda b, j: exact_dots(queries, b, self.base, j))
            if wide == n or k == 0:
                return topk_of(scores, ids, k)
            beyond = (approx[:, -1].double() + slack).float()  # upper bound for every row that was not proposed
            if bool((scores[:, k - 1] > beyond).all()):
                return topk_of(scores, ids, k)
            wide = min(n, 4 * wide)

    def propose(self, queries: torch.Tensor, k: int) -> TopK:
        """The k best rows of each query by scores in f32, i32[B, k] padded with -1, best first. Raises UsageError for
        more rows than faiss finds on a GPU."""
        if k == 0:
            return TopK(queries.new_zeros(len(queries), 0, dtype=torch.int32), queries.new_zeros(len(queries), 0))
        if self.device.type == "cuda" and k > MAX_K_ON_GPU:
            given, expected = (
                f"{k} for a query, spare ones included",
                f"at most {MAX_K_ON_GPU}, or implementation=torch",
            )
            raise UsageError("faiss finds fewer rows on a GPU", given=given, expected=expected)
        before = self.faiss.omp_get_max_threads()
        self.faiss.omp_set_num_threads(THREADS)
        try:
            if self.device.type == "cuda":
                scores, ids = self.index.search(queries.contiguous(), k)
            else:
                scores, ids = map(torch.from_numpy, self.index.search(queries.numpy(), k))
        finally:
            self.faiss.omp_set_num_threads(before)
        return TopK(ids.int(), scores)
