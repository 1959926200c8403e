"""Other libraries' personalized PageRank. Graphs and restart vectors are converted before the clock starts."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import MOST_ALONE, MOST_TILED, Peer, missing_peer
from gpu_rag.bench.measure import torch_threads
from gpu_rag.graph.pagerank.bench_reference import adjacency, dense_columns, row_normalised
from gpu_rag.graph.pagerank.plan import Array
from gpu_rag.types import CSR, Ragged

NETWORKX_NODES = 100_000  # its graphs are dictionaries: larger ones take minutes to build

Columns = Callable[[int, int, Any], Array]


def pagerank_peers(csr: CSR, seeds: Ragged, weights: Ragged, symmetric: bool) -> Callable[[float, float], list[Peer]]:
    """peers(damping, tol): igraph, networkx, scipy and torch on one graph, converted once."""
    matrix = adjacency(csr)

    def columns(start: int, count: int, dtype: Any) -> Array:
        return dense_columns(seeds, weights, np.arange(start, start + count), csr.n, dtype)

    makers = (
        _igraph(matrix, csr.weight is not None, symmetric, columns),
        _networkx(matrix, symmetric, columns),
        _scipy(matrix, columns),
        _torch(matrix, columns),
    )
    return lambda damping, tol: [make(damping, tol) for make in makers]


Maker = Callable[[float, float], Peer]


def single_openmp_thread() -> bool:
    """Whether OpenMP libraries were told to use one thread."""
    return os.environ.get("OMP_NUM_THREADS") == "1"


def _igraph(matrix: Any, weighted: bool, symmetric: bool, columns: Columns) -> Maker:
    """igraph's prpack, which solves one question at a time."""
    name = "igraph prpack"
    if find_spec("igraph") is None:
        return lambda damping, tol: missing_peer(name, "igraph")
    if not single_openmp_thread():
        # its OpenMP threads wait for one another: on shared cores it was five times slower with two than with one
        given = os.environ.get("OMP_NUM_THREADS", "not set")
        note = f"not timed: OMP_NUM_THREADS is {given}, and more than one thread slows igraph down; set it to 1"
        return lambda damping, tol: Peer(name, note=note)
    import igraph

    edges = _upper(matrix) if symmetric else matrix.tocoo()
    graph = igraph.Graph(matrix.shape[0], edges=np.stack([edges.row, edges.col], 1), directed=not symmetric)
    weight = edges.data.tolist() if weighted else None

    def resets(start: int, count: int) -> list[list[float]]:
        return [_as_list(columns(i, 1, np.float64)[:, 0]) for i in range(start, start + count)]

    def make(damping: float, tol: float) -> Peer:
        def run(resets: list[list[float]]) -> list[list[float]]:
            return [
                graph.personalized_pagerank(
                    reset=reset, damping=damping, weights=weight, directed=not symmetric, implementation="prpack"
                )
                for reset in resets
            ]

        return Peer(name, resets, run, most=MOST_ALONE, alone=True)

    return make


def _as_list(pi: Array) -> list[float]:
    """A list whose zeros are one object: a million floats of their own take 32 MB."""
    values = [0.0] * len(pi)
    for node in np.flatnonzero(pi):
        values[node] = float(pi[node])
    return values


def _upper(matrix: Any) -> Any:
    from scipy.sparse import triu

    return triu(matrix, format="coo")


def _networkx(matrix: Any, symmetric: bool, columns: Columns) -> Maker:
    """networkx.pagerank: power iteration by scipy, one question at a time, the graph converted in every call."""
    n = matrix.shape[0]
    if find_spec("networkx") is None:
        return lambda damping, tol: missing_peer("networkx", "networkx")
    if n > NETWORKX_NODES:
        note = f"not timed above {NETWORKX_NODES:,} nodes"
        return lambda damping, tol: Peer("networkx", note=note)
    import networkx as nx

    graph = nx.from_scipy_sparse_array(matrix, create_using=nx.Graph if symmetric else nx.DiGraph)

    def resets(start: int, count: int) -> list[dict[int, float]]:
        tile = columns(start, count, np.float64)
        return [{int(node): float(pi[node]) for node in np.flatnonzero(pi)} for pi in tile.T]

    def make(damping: float, tol: float) -> Peer:
        enough = _last_step(damping, tol) / n  # it compares the length of a step with n * tol

        def run(resets: list[dict[int, float]]) -> list[list[float]]:
            found = [nx.pagerank(graph, alpha=damping, personalization=r, tol=enough, max_iter=10_000) for r in resets]
            return [list(p.values()) for p in found]

        return Peer("networkx", resets, run, most=MOST_ALONE, alone=True)

    return make


def _scipy(matrix: Any, columns: Columns) -> Maker:
    """scipy's CSR times a dense tile of questions, power iteration in f32 without any look at the error."""
    pull, dangling = row_normalised(matrix)
    pull = pull.astype(np.float32)
    lost = np.flatnonzero(dangling)

    def make(damping: float, tol: float) -> Peer:
        steps = n_power_steps(damping, tol)

        def run(pi: Array) -> Array:
            restart, p = np.float32(1 - damping) * pi, pi
            for _ in range(steps):
                following = pull @ p
                if len(lost):
                    following += p[lost].sum(0) * pi
                following *= np.float32(damping)
                following += restart
                p = following
            return p.T

        return Peer("scipy CSR @ dense", lambda s, count: columns(s, count, np.float32), run, most=MOST_TILED)

    return make


def _torch(matrix: Any, columns: Columns) -> Maker:
    """torch's CSR times the same tile, which is what PyG's EdgeIndex.matmul calls; else as `_scipy`."""
    pull, dangling = row_normalised(matrix)
    rows, columns_of, values = map(torch.from_numpy, (pull.indptr, pull.indices, pull.data.astype(np.float32)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its CSR is in beta
        sparse = torch.sparse_csr_tensor(rows, columns_of, values, pull.shape, check_invariants=False)
    lost = torch.from_numpy(np.flatnonzero(dangling))

    def make(damping: float, tol: float) -> Peer:
        steps = n_power_steps(damping, tol)

        def run(pi: torch.Tensor) -> torch.Tensor:
            restart, p = (1 - damping) * pi, pi
            with torch_threads(1):
                for _ in range(steps):
                    following = sparse @ p
                    if len(lost):
                        following += p[lost].sum(0) * pi
                    p = following.mul_(damping).add_(restart)
            return p.T

        def inputs(start: int, count: int) -> torch.Tensor:
            return torch.from_numpy(columns(start, count, np.float32))

        return Peer("torch CSR @ dense", inputs, run, most=MOST_TILED)

    return make


def n_power_steps(damping: float, tol: float) -> int:
    """Steps after which power iteration from pi is within tol: the error falls as 2 d^k."""
    return math.ceil(math.log(tol / 2) / math.log(damping)) if damping > 0 else 1


def _last_step(damping: float, tol: float) -> float:
    """The L1 length of a step after which the error is at most tol: d s / (1-d) <= tol."""
    return tol * (1 - damping) / max(damping, 1e-12)
