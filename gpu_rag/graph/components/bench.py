"""The case `components`: the connected components of a whole graph in one call; and the comparison of groupings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, adjacency
from gpu_rag.bench.inputs import csr_on, measured_graphs
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.components import connected_components, pick_implementation
from gpu_rag.types import CSR

WHOLE = (1,)  # batch sizes: one call for everything


def cases(config: Config) -> Iterator[Case]:
    """The index graph and the generated graphs."""
    for name, csr in measured_graphs(config):
        yield _case(name, csr, csr_on(csr, torch.device(config.device)))


def _case(name: str, csr: CSR, graph: CSR) -> Case:
    matrix = adjacency(csr)
    return Case(
        op="components",
        implementation=pick_implementation(graph.indptr.device),
        labels={"graph": name, "n": csr.n, "m": csr.m},
        inputs=everything,
        run=lambda _: connected_components(graph),
        check=lambda result, count: check_labels(result, scipy_labels(matrix)),
        bytes_of=lambda batch: 4 * csr.m + 16 * csr.n,
        memory_of=lambda batch: 8 * csr.m + 40 * csr.n,
        peers=lambda: [
            peer_file("components").by_scipy(matrix),
            peer_file("components").by_igraph(matrix),
            peer_file("components").by_networkx(matrix),
        ],
        batches=WHOLE,
    )


def everything(start: int, count: int) -> None:
    """The inputs of an op that already has its whole input: None."""


def check_labels(result: Any, wanted: np.ndarray) -> Checked:
    """Check that the groups are the same, for any labels; -1 is no group."""
    labels = torch.as_tensor(result).cpu().numpy()
    if labels.shape != wanted.shape:
        return Checked(f"the shape is {labels.shape} instead of {wanted.shape}")
    if not np.array_equal(labels < 0, wanted < 0):
        return Checked("other rows are left out")
    pairs = np.unique(np.stack([labels, wanted]), axis=1).shape[1]
    same = pairs == len(np.unique(labels)) == len(np.unique(wanted))
    return Checked() if same else Checked("the groups are other ones")


def scipy_labels(matrix: Any) -> np.ndarray:
    """The labels from SciPy."""
    from scipy.sparse.csgraph import connected_components as weak

    return weak(matrix, directed=True, connection="weak")[1]
