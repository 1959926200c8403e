"""PageRank by its definition, solved as a dense system, and the small graphs on which it is compared.

p = (1-d) pi + d (P^T p + (mass on rows without weight) pi), P = row-normalised weights.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from ragged_lists import ragged

from gpu_rag.types import CSR, Ragged

Matrix = Callable[[np.ndarray], np.ndarray]


def csr_of(a: np.ndarray, weighted: bool = True) -> CSR:
    """The entries of a dense matrix that are not zero."""
    rows, columns = np.nonzero(a)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(a)))])
    weight = torch.tensor(a[rows, columns], dtype=torch.float32) if weighted else None
    return CSR(torch.tensor(indptr, dtype=torch.int64), torch.tensor(columns, dtype=torch.int32), weight)


def dense(csr: CSR) -> np.ndarray:
    """f64[N, N], with ones where there are no weights."""
    a = np.zeros((csr.n, csr.n))
    rows = np.repeat(np.arange(csr.n), np.diff(csr.indptr.numpy()))
    a[rows, csr.indices.numpy()] = 1.0 if csr.weight is None else csr.weight.double().numpy()
    return a


def star(leaves: int) -> np.ndarray:
    """Node 0 and its leaves."""
    a = np.zeros((leaves + 1, leaves + 1))
    a[0, 1:] = a[1:, 0] = 1.0
    return a


def slow_pair(size: int = 6, bridge: float = 0.01) -> np.ndarray:
    """Two cliques, node i tied weakly to its twin: with the seeds on one clique the residual bound is nearly tight."""
    clique, ties = np.ones((size, size)) - np.eye(size), bridge * np.eye(size)
    return np.block([[clique, ties], [ties, clique]])


def teleports(
    n: int, seeds: Ragged | None, weights: Ragged | None = None, prior: torch.Tensor | None = None
) -> np.ndarray:
    """pi f64[B, N]: rows sum to 1, or to 0 where no seed is given; weights of a repeated seed add up."""
    if prior is not None:
        pi = prior.numpy().astype(np.float64)
    else:
        assert seeds is not None
        pi = np.zeros((seeds.batch, n))
        rows = np.repeat(np.arange(seeds.batch), np.diff(seeds.offsets.numpy()))
        np.add.at(pi, (rows, seeds.values.numpy()), 1.0 if weights is None else weights.values.double().numpy())
    total = pi.sum(1, keepdims=True)
    return np.asarray(pi / np.where(total > 0, total, 1))


def row_normalised(a: np.ndarray) -> np.ndarray:
    """Each row divided by its sum."""
    out = a.sum(1, keepdims=True)
    return np.asarray(a / np.where(out > 0, out, 1))


def solve_dense(
    a: np.ndarray,
    pi: np.ndarray,
    damping: float,
    transition: Matrix = row_normalised,
    dangling_to: Matrix = lambda restart: restart,
) -> np.ndarray:
    """f64[B, N], one row for each row of `pi`. What is exchanged by the last two is a wrong version."""
    p, empty, eye = transition(a), a.sum(1) == 0, np.eye(len(a))
    lost = (np.outer(dangling_to(restart), empty) for restart in pi)
    found = [np.linalg.solve(eye - damping * (p.T + m), (1 - damping) * restart) for m, restart in zip(lost, pi)]
    return np.array(found).reshape(len(pi), len(a))


def pagerank_of(csr: CSR, rows: Sequence[Sequence[int]], damping: float = 0.85) -> np.ndarray:
    """f64[B, N] of lists of seeds that count once each time they are given."""
    return solve_dense(dense(csr), teleports(csr.n, ragged(rows)), damping)
