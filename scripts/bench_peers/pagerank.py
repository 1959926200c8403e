"""Peers of `gpu-rag bench` for the cases of `pagerank`: other libraries at the same work."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import MAX_TILED, Peer, adjacency
from gpu_rag.graph.pagerank.bench import TOL, dense_columns, row_normalised
from gpu_rag.types import CSR, Ragged

from . import NETWORKX_NODES, alone, igraph_of, peer


@dataclass(frozen=True)
class Problem:
    """A graph with a pool of questions, and its forms for other libraries, each converted once."""

    csr: CSR
    seeds: Ragged
    weights: Ragged
    symmetric: bool

    def columns(self, start: int, count: int, dtype: Any) -> np.ndarray:
        """The restart distributions of questions start..start+count as columns."""
        return dense_columns(self.seeds, self.weights, np.arange(start, start + count), self.csr.n, dtype)

    @cached_property
    def matrix(self) -> Any:
        """The adjacency as a scipy CSR matrix."""
        return adjacency(self.csr)

    @cached_property
    def pull(self) -> tuple[Any, np.ndarray]:
        """P^T in f32, and the rows without weight."""
        pull, dangling = row_normalised(self.matrix)
        return pull.astype(np.float32), np.flatnonzero(dangling)

    @cached_property
    def igraph(self) -> tuple[Any, list[float] | None]:
        """The igraph graph, and its edge weights."""
        from scipy.sparse import triu

        entries = triu(self.matrix, format="coo") if self.symmetric else self.matrix.tocoo()
        return igraph_of(entries, not self.symmetric), None if self.csr.weight is None else entries.data.tolist()

    @cached_property
    def networkx(self) -> Any:
        """The networkx graph."""
        import networkx as nx

        return nx.from_scipy_sparse_array(self.matrix, create_using=nx.Graph if self.symmetric else nx.DiGraph)


def prpack(damping: float, directed: bool, graph: Any, reset: list[float], weights: list[float] | None) -> list[float]:
    """PageRank by prpack of igraph, which solves one question at a time."""
    return graph.personalized_pagerank(
        reset=reset, damping=damping, weights=weights, directed=directed, implementation="prpack"
    )


def networkx_pagerank(damping: float, graph: Any, reset: dict[int, float]) -> list[float]:
    """Power iteration of networkx by scipy, one question at a time. Each call converts the graph.

    It compares the L1 length s of a step with n * tol; the error after it is at most d s / (1-d).
    """
    import networkx as nx

    enough = TOL * (1 - damping) / max(damping, 1e-12) / len(graph)
    return list(nx.pagerank(graph, damping, personalization=reset, tol=enough, max_iter=10_000).values())


def power_iteration(damping: float, pull: Any, lost: Any, pi: Any) -> Any:
    """Power iteration in f32 from pi, without a check of the error: dtype[N] or dtype[N, B]."""
    restart, p = pi * np.float32(1 - damping), pi
    for _ in range(n_power_steps(damping, TOL)):
        following = pull @ p
        if len(lost):
            following += p[lost].sum(0) * pi
        following *= np.float32(damping)
        following += restart
        p = following
    return p


def n_power_steps(damping: float, tol: float) -> int:
    """Steps after which power iteration from pi is within tol: the error falls as 2 d^k."""
    return math.ceil(math.log(tol / 2) / math.log(damping)) if damping > 0 else 1


@peer("igraph prpack", needs="igraph", one_thread=True)
def by_igraph(problem: Problem, damping: float) -> Peer:
    graph, weights = problem.igraph

    def resets(start: int, count: int) -> list[list[float]]:
        return [as_list(problem.columns(i, 1, np.float64)[:, 0]) for i in range(start, start + count)]

    return alone(resets, lambda reset: prpack(damping, not problem.symmetric, graph, reset, weights))


def as_list(pi: np.ndarray) -> list[float]:
    """A list whose zeros are one object: a million separate floats take 32 MB."""
    values = [0.0] * len(pi)
    for node in np.flatnonzero(pi):
        values[node] = float(pi[node])
    return values


@peer("networkx", needs="networkx")
def by_networkx(problem: Problem, damping: float) -> Peer:
    if problem.csr.n > NETWORKX_NODES:
        return Peer(note=f"not timed above {NETWORKX_NODES:,} nodes")
    graph = problem.networkx

    def resets(start: int, count: int) -> list[dict[int, float]]:
        tile = problem.columns(start, count, np.float64)
        return [{int(node): float(pi[node]) for node in np.flatnonzero(pi)} for pi in tile.T]

    return alone(resets, lambda reset: networkx_pagerank(damping, graph, reset))


@peer("scipy CSR @ dense")
def by_scipy(problem: Problem, damping: float) -> Peer:
    """The matrix times a dense tile of questions."""
    pull, lost = problem.pull

    def run(pi: np.ndarray) -> np.ndarray:
        return power_iteration(damping, pull, lost, pi).T

    return Peer("", lambda start, count: problem.columns(start, count, np.float32), run, max_questions=MAX_TILED)


@peer("torch CSR @ dense")
def by_torch(problem: Problem, damping: float) -> Peer:
    """torch's CSR times the same tile, which is what PyG's EdgeIndex.matmul calls."""
    pull, lost = problem.pull
    rows, columns, values = map(torch.from_numpy, (pull.indptr, pull.indices, pull.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that its CSR is in beta
        sparse = torch.sparse_csr_tensor(rows, columns, values, pull.shape, check_invariants=False)
    rows_lost = torch.from_numpy(lost)

    def run(pi: torch.Tensor) -> torch.Tensor:
        return power_iteration(damping, sparse, rows_lost, pi).T

    def inputs(start: int, count: int) -> torch.Tensor:
        return torch.from_numpy(problem.columns(start, count, np.float32))

    return Peer("", inputs, run, max_questions=MAX_TILED)


PEERS = (by_igraph, by_networkx, by_scipy, by_torch)
