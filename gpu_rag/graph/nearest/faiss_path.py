"""Candidates for nearest neighbours by faiss: flat, inverted lists, or a graph of neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.types import TopK

LISTS = 4  # times sqrt(N): the number of inverted lists
PROBES = 32  # of them that a query looks at
LINKS = 32  # of a row in the graph
BREADTH = 128  # of a search in the graph, at least
TRAINED_ON = 64  # rows a list that centroids are trained on, at most
MOST_ON_GPU = 2048  # rows that faiss finds for a query there


class FaissIndex:
    """An index of faiss over the rows of `base`, on the device of `base`. Inner product."""

    def __init__(self, base: torch.Tensor, mode: str, seed: int, threads: int):
        import faiss

        self.faiss: Any = faiss
        self.threads = threads
        self.device, self.n = base.device, int(base.shape[0])
        if self.device.type == "cuda" and mode == "hnsw":
            raise UsageError("hnsw works on the CPU", given=f"rows on {self.device}", expected="exact or ivf there")
        if self.device.type == "cuda" and not hasattr(faiss, "StandardGpuResources"):
            raise MissingBackend("this faiss has no GPU", do="pip uninstall faiss-cpu; pip install 'gpu-rag[gpu]'")
        rows = np.ascontiguousarray(base.float().cpu().numpy())
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1 if mode == "hnsw" else threads)
        try:
            self.index: Any = self._built(rows, mode, seed)
        finally:
            faiss.omp_set_num_threads(before)

    def _built(self, rows: np.ndarray, mode: str, seed: int) -> Any:
        faiss, dims = self.faiss, rows.shape[1]
        index: Any = faiss.IndexFlatIP(dims)
        lists = max(1, min(round(LISTS * math.sqrt(len(rows))), len(rows) // 39))  # 39 rows a list to train on
        if mode == "ivf":
            index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dims), dims, lists, faiss.METRIC_INNER_PRODUCT)
        if mode == "hnsw":
            index = faiss.IndexHNSWFlat(dims, LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.rng = faiss.RandomGenerator(seed + 1)
        if self.device.type == "cuda":
            self.resources = faiss.StandardGpuResources()
            index = faiss.index_cpu_to_gpu(self.resources, self.device.index or 0, index)
        if mode == "ivf":  # after the move to a GPU, which does not take along how centroids are trained
            index.nprobe, index.cp.seed, index.cp.max_points_per_centroid = min(PROBES, lists), seed + 1, TRAINED_ON
        if not index.is_trained and len(rows):
            index.train(rows)
        if len(rows):
            index.add(rows)
        return index

    def propose(self, queries: torch.Tensor, k: int) -> TopK:
        """See `index.Proposer`. Raises UsageError for more rows than faiss finds on a GPU."""
        if k == 0:
            return TopK(queries.new_zeros(len(queries), 0, dtype=torch.int32), queries.new_zeros(len(queries), 0))
        if self.device.type == "cuda" and k > MOST_ON_GPU:
            given, expected = f"{k} for a query, spare ones included", f"at most {MOST_ON_GPU}, or implementation=torch"
            raise UsageError("faiss finds fewer rows on a GPU", given=given, expected=expected)
        if hasattr(self.index, "hnsw"):
            self.index.hnsw.efSearch = max(BREADTH, k)
        before = self.faiss.omp_get_max_threads()
        self.faiss.omp_set_num_threads(self.threads)
        try:
            scores, ids = self.index.search(queries.cpu().numpy(), k)
        finally:
            self.faiss.omp_set_num_threads(before)
        return TopK(torch.from_numpy(ids).int().to(self.device), torch.from_numpy(scores).to(self.device))
