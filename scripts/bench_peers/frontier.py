"""Peers of `gpu-rag bench` for the cases of `frontier`: other libraries at the same work."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.bench.case import MOST_ALONE, Peer, peer, single_openmp_thread
from gpu_rag.graph.frontier.bench import Exact, Graph
from gpu_rag.types import TopK


@peer("numpy + scipy")
def by_numpy(graph: Graph, exact: Exact) -> Peer:
    def run(questions: range) -> TopK:
        ids, scores = zip(*(exact(graph, question, np.float32) for question in questions))
        return TopK(torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.concatenate(scores)))

    threads = 1 if single_openmp_thread() else None
    return Peer("", lambda start, count: range(start, start + count), run, most=MOST_ALONE, alone=True, threads=threads)
