"""Peers of `gpu-rag bench` for the cases of `nearest`: other libraries at the same work."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.bench.case import MAX_TILED, Peer
from gpu_rag.types import TopK

from . import peer, single_openmp_thread


@peer("faiss flat", needs="faiss")
def by_faiss(base: np.ndarray, queries: np.ndarray, k: int, threads: int) -> Peer:
    import faiss

    index = faiss.IndexFlatIP(base.shape[1])
    index.add(base)

    def run(given: np.ndarray) -> TopK:
        faiss.omp_set_num_threads(threads)
        try:
            scores, ids = index.search(given, k)
        finally:
            faiss.omp_set_num_threads(1)  # other peers may share its OpenMP
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    return Peer("", lambda start, count: queries[start : start + count], run, threads=threads)


@peer("numpy argpartition")
def by_numpy(base: np.ndarray, queries: np.ndarray, k: int) -> Peer:
    def run(given: np.ndarray) -> TopK:
        scores = given @ base.T
        ids = np.argpartition(scores, len(base) - k, axis=1)[:, len(base) - k :]
        kept = np.take_along_axis(scores, ids, 1)
        order = np.argsort(-kept, axis=1, kind="stable")
        best = np.take_along_axis(ids, order, 1), np.take_along_axis(kept, order, 1)
        return TopK(torch.from_numpy(best[0]), torch.from_numpy(best[1]))

    threads = 1 if single_openmp_thread() else None
    return Peer("", lambda start, count: queries[start : start + count], run, max_questions=MAX_TILED, threads=threads)
