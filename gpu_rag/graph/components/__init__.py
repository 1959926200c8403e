"""Connected components: groups of nodes that can reach each other if directions are ignored."""

from __future__ import annotations

from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.ego import CheckedGraph, checked
from gpu_rag.graph.memory import check_memory
from gpu_rag.lazy import torch
from gpu_rag.types import CSR


def connected_components(csr: CSR | CheckedGraph, *, implementation: str = "auto") -> torch.Tensor:
    """Label of each node: i64[N], the smallest node of its component. Directions and weights are ignored.

    csr: the adjacency, or `checked(csr)`. implementation: torch (minimum labels and pointer jumping) | auto: torch |
    cugraph, only by name until it is measured on a GPU. Both give the same integers. O(N + E) memory. Raises BadInput,
    UsageError, MissingBackend.
    Four nodes with the edges 0 - 2 and 1 - 3 are labelled [0, 1, 0, 1].
    """
    graph = checked(csr).csr
    check_memory(12 * graph.n, graph.indptr.device, f"labels of {graph.n:,} nodes", "free memory")
    if graph.n == 0:
        return torch.zeros(0, dtype=torch.int64, device=graph.indptr.device)
    return BY[pick_implementation(graph.indptr.device, implementation, "connected_components", "components")](graph)


def _by_torch(csr: CSR) -> torch.Tensor:
    nodes = torch.arange(csr.n, device=csr.indptr.device)
    return merge_labels(nodes, row_of_entry(csr), csr.indices.long())


def _by_cugraph(csr: CSR) -> torch.Tensor:
    from gpu_rag.graph.components.cugraph import components_by_cugraph

    return components_by_cugraph(csr)


BY = {"torch": _by_torch, "cugraph": _by_cugraph}


JUMPS = 3  # between two checks by the host, each of which waits for the device


def merge_labels(label: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Labels after joining the groups of a[p] and b[p] for every p: i64[N], again the smallest member of each group.

    label: i64[N], each row's smallest group member (label[label] = label); a, b: i64[P] rows. Each round hooks a root
    below the smallest root next to it and shortens chains, until no pair differs. Integers, so the order of work does
    not matter.
    """
    while True:
        a, b = label[a], label[b]  # roots, in this and all later rounds
        differ = (a != b).nonzero()[:, 0]
        if not differ.shape[0]:
            return label
        a, b = a[differ], b[differ]
        label = label.clone()
        label.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        label = flattened(label)


def flattened(label: torch.Tensor) -> torch.Tensor:
    """The root of every row, i64[N]: `label` is applied until nothing changes. label[row] <= row."""
    while True:
        for _ in range(JUMPS):
            label = label[label]
        next_label = label[label]
        if torch.equal(next_label, label):
            return label
        label = next_label
