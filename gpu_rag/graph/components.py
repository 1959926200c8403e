"""Connected components: which nodes can reach which, ignoring directions."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch

from gpu_rag.graph.csr import row_of_entry
from gpu_rag.types import CSR


def connected_components(csr: CSR) -> torch.Tensor:
    """Label of each node: i64[N], the smallest node of its component. Directions are ignored; weights do not matter.

    On the CPU by union-find in numba, or by scipy where numba is not installed; elsewhere by minimum labels and pointer
    jumping. All give the same integers. O(N + E) memory.
    Four nodes with the edges 0 - 2 and 1 - 3 are labelled [0, 1, 0, 1].
    """
    if csr.n == 0:
        return torch.zeros(0, dtype=torch.int64, device=csr.indptr.device)
    return BY[pick_implementation(csr.indptr.device)](csr)


def pick_implementation(device: torch.device) -> str:
    """Which implementation runs: numba | scipy | torch."""
    if device.type != "cpu":
        return "torch"
    return "numba" if find_spec("numba") is not None else "scipy"


def _by_unions(csr: CSR) -> torch.Tensor:
    """Every entry joins the trees of its two ends under the smaller root: a third of scipy's time, which transposes."""
    from gpu_rag.graph.dots_kernels import flatten, link_pairs

    label = torch.arange(csr.n)
    link_pairs(label.numpy(), row_of_entry(csr).numpy(), csr.indices.numpy())
    flatten(label.numpy())
    return label


def _by_scipy(csr: CSR) -> torch.Tensor:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components as weak_components

    pattern = (np.ones(csr.m, np.int8), csr.indices.numpy(), csr.indptr.numpy())
    count, label = weak_components(csr_matrix(pattern, shape=(csr.n, csr.n)), directed=True, connection="weak")
    first = np.empty(count, np.int64)
    first[label[::-1]] = np.arange(csr.n)[::-1]  # of equal places the last is kept: the smallest node
    return torch.from_numpy(first[label])


def smallest_labels(csr: CSR) -> torch.Tensor:
    """`connected_components` in torch alone, for any device: every label falls to the least around it, then to its
    label's label, until nothing changes. Integers, so schedules cannot matter. O(log N) rounds in practice."""
    label = torch.arange(csr.n, device=csr.indptr.device)
    rows, columns = row_of_entry(csr), csr.indices.long()
    while True:
        least = torch.minimum(label[rows], label[columns])
        hooked = label.clone()
        for ends in (rows, columns):  # hook the root of each end as well, so that trees merge
            hooked.scatter_reduce_(0, ends, least, "amin")
            hooked.scatter_reduce_(0, label[ends], least, "amin")
        jumped = hooked[hooked]
        while not torch.equal(jumped, hooked):
            hooked, jumped = jumped, jumped[jumped]
        if torch.equal(jumped, label):
            return label
        label = jumped


BY = {"numba": _by_unions, "scipy": _by_scipy, "torch": smallest_labels}
