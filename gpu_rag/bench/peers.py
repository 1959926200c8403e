"""Peers: whether a library is there and may be timed, one question at a time, and graphs in the libraries' forms."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec

import numpy as np

from gpu_rag.bench.case import MOST_ALONE, Peer
from gpu_rag.types import CSR

DISTRIBUTIONS = {"faiss": "faiss-cpu", "sklearn": "scikit-learn", "torch_geometric": "torch-geometric"}
NETWORKX_NODES = 100_000  # its graphs are dictionaries: larger ones take minutes to build

Given = ParamSpec("Given")


def peer(
    name: str, needs: str = "", one_thread: bool = False
) -> Callable[[Callable[Given, Peer]], Callable[Given, Peer]]:
    """Names the peer that a function makes. The function is not called where the module `needs` is not installed, or,
    with `one_thread`, where OpenMP has more: its threads wait for one another, on shared cores igraph was five times
    slower with two than with one."""

    def named(make: Callable[Given, Peer]) -> Callable[Given, Peer]:
        @wraps(make)
        def made(*given: Given.args, **options: Given.kwargs) -> Peer:
            if needs and find_spec(needs) is None:
                distribution = DISTRIBUTIONS.get(needs, needs)
                note = f"{name} is not installed: pip install {distribution}, or 'gpu-rag[bench]'"
                return Peer(name, note=note, missing=True)
            if one_thread and not single_openmp_thread():
                threads = os.environ.get("OMP_NUM_THREADS", "not set")
                note = (
                    f"not timed: OMP_NUM_THREADS is {threads}, and more than one thread slows igraph down; set it to 1"
                )
                return Peer(name, note=note)
            return replace(make(*given, **options), name=name)

        return made

    return named


def alone(inputs: Callable[[int, int], Any], one: Callable[[Any], Any], note: str = "") -> Peer:
    """A peer that takes one question at a time: `one` is called for each of the inputs."""
    return Peer("", inputs, lambda given: [one(question) for question in given], note, most=MOST_ALONE, alone=True)


def too_large(limit: int, what: str = "nodes") -> Peer:
    """A peer that is not timed above so many nodes or rows."""
    return Peer(note=f"not timed above {limit:,} {what}")


def single_openmp_thread() -> bool:
    """Whether OpenMP libraries were started with one thread."""
    return os.environ.get("OMP_NUM_THREADS") == "1"


def adjacency(csr: CSR) -> Any:
    """The matrix as scipy's CSR in f64."""
    from scipy.sparse import csr_matrix

    weight = np.ones(csr.m) if csr.weight is None else csr.weight.cpu().double().numpy()
    return csr_matrix((weight, csr.indices.cpu().numpy(), csr.indptr.cpu().numpy()), shape=(csr.n, csr.n))


def igraph_of(matrix: Any, directed: bool = True) -> Any:
    """igraph's graph of the entries of a sparse matrix, without their values."""
    import igraph

    entries = matrix.tocoo()
    return igraph.Graph(matrix.shape[0], edges=np.stack([entries.row, entries.col], 1), directed=directed)
