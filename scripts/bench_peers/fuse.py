"""Peers of `gpu-rag bench` for the cases of `fuse`: other libraries at the same work."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.bench.case import MOST_ALONE, Peer, peer
from gpu_rag.graph.fuse.bench import K, fused
from gpu_rag.types import TopK


@peer("Python dict")
def by_python(rankings: list[torch.Tensor]) -> Peer:
    def inputs(start: int, count: int) -> list[list[list[int]]]:
        return [[ranking[row].tolist() for ranking in rankings] for row in range(start, start + count)]

    def run(given: list[list[list[int]]]) -> TopK:
        shape = len(given), K
        ids, scores = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
        for row, question in enumerate(given):
            best = fused(question)
            ids[row, : len(best)] = [item for item, _ in best]
            scores[row, : len(best)] = [score for _, score in best]
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    return Peer("", inputs, run, most=MOST_ALONE, alone=True)
