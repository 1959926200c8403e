"""From an estimate of PageRank to a state of the iteration of `pagerank_plan`."""

from __future__ import annotations

import torch


def unnormalised(ranks: torch.Tensor, total: torch.Tensor, lost: torch.Tensor, damping: float) -> torch.Tensor:
    """q = (1-d) pi + d P^T q whose direction is that of an estimate of PageRank: f64[N, B].

    ranks: [N, B] >= 0; total: f64[B], their sums, > 0; lost: f64[B], the part of them on nodes without outgoing weight.
    Summed over the nodes, the equation says |q| = 1 - d + d (|q| - |q| lost / total), so
    |q| = (1-d) / (1 - d + d lost / total). Exact where the estimate is.
    """
    share = lost / total
    return ranks.double() * ((1 - damping) / (1 - damping + damping * share) / total)
