"""Personalized PageRank in its direct form: read this before the plan. Tests compare every backend with it."""

import torch

from gpu_rag.graph.csr import degrees, row_of_entry
from gpu_rag.types import CSR, Ragged


def naive_pagerank(csr: CSR, seeds: Ragged, *, damping: float = 0.85, tol: float = 1e-12) -> torch.Tensor:
    """p <- (1-d) pi + d (P^T p + lost(p) pi), one question after another, until |p - PageRank| <= tol: f64[B, N].

    P is the adjacency with each row divided by its sum, pi the seeds of the question (a repeated seed counts each
    time), lost(p) the mass of p on nodes without outgoing weight. The map contracts by d, so after a step of length s
    all later steps together have at most length s d / (1-d). csr, seeds: sound (unchecked).

    Path 0 - 1 - 2 and node 3 alone, d = 0.5, seed 0: [0.5833, 0.3333, 0.0833, 0].
    """
    out = degrees(csr)
    tail, head = row_of_entry(csr), csr.indices.long()
    weight = torch.ones(csr.m, dtype=torch.float64) if csr.weight is None else csr.weight.double()
    share = weight / out[tail]
    result = torch.zeros(seeds.batch, csr.n, dtype=torch.float64)
    for b in range(seeds.batch):
        own = seeds.values[int(seeds.offsets[b]) : int(seeds.offsets[b + 1])].long()
        if not len(own):
            continue
        pi = torch.bincount(own, minlength=csr.n).double() / len(own)
        p, step = pi, 2.0
        while step * damping / (1 - damping) > tol:
            lost = p[out <= 0].sum()
            following = torch.zeros_like(p).index_add_(0, head, share * p[tail])
            following = (1 - damping) * pi + damping * (following + lost * pi)
            p, step = following, float((following - p).abs().sum())
        result[b] = p
    return result
