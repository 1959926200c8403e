"""The case `pagerank`: personalized PageRank of B questions, each with a few weighted seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, Peer
from gpu_rag.bench.graphs import graph_of
from gpu_rag.bench.pagerank_peers import pagerank_peers
from gpu_rag.bench.pagerank_reference import count_passes, dense_columns, solve_bytes, solve_exactly
from gpu_rag.graph.csr import transpose
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, pick_implementation, prepare
from gpu_rag.graph.pagerank_job import Options
from gpu_rag.types import CSR, Ragged

TOL = 1e-6
SUM_ERROR = 1e-5
SEEDS = 5  # of a question
MAX_ITER = 200
BLOCK = 64


def cases(config: Config) -> Iterator[Case]:
    """The graph of the index and the generated ones, each at every damping."""
    device = torch.device(config.device)
    for name, csr in _graphs(config):
        weight = None if csr.weight is None else csr.weight.to(device)
        graph = prepare(CSR(csr.indptr.to(device), csr.indices.to(device), weight))
        seeds, weights = _questions(csr, config.pool, config.seed)
        peers = cache(lambda csr=csr, s=seeds, w=weights, g=graph: pagerank_peers(csr, s, w, g.symmetric))
        for damping in config.dampings:
            yield _case(name, csr, graph, seeds, weights, damping, peers, config)


def _graphs(config: Config) -> Iterator[tuple[str, CSR]]:
    if config.index is not None:
        yield "index", index_graph(config.index)
    for n in config.sizes if config.generated else ():
        for kind in config.graphs:
            yield kind, graph_of(kind, n, config.seed)


def index_graph(folder: object) -> CSR:
    """The adjacency of an index. Raises BadInput, MissingLayer."""
    from gpu_rag.index.index import Index

    graph = Index.open(str(folder)).graph
    return graph.pull if graph.symmetric else transpose(graph.pull)


def _questions(csr: CSR, count: int, seed: int) -> tuple[Ragged, Ragged]:
    """Seeds and weights of `count` questions: any nodes that have edges, weights in (0, 1]."""
    generator = torch.Generator().manual_seed(seed + 1)
    linked = csr.indptr.diff().nonzero()[:, 0].cpu()
    nodes = linked[torch.randint(len(linked), (count * SEEDS,), generator=generator)]
    mass = 1 - torch.rand(count * SEEDS, generator=generator)
    offsets = torch.arange(0, count * SEEDS + 1, SEEDS)
    return Ragged(nodes, offsets), Ragged(mass, offsets)


def part(lists: Ragged, start: int, count: int) -> Ragged:
    """Lists start..start+count."""
    offsets = lists.offsets[start : start + count + 1]
    return Ragged(lists.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _case(
    name: str, csr: CSR, graph: PageRankGraph, seeds: Ragged, weights: Ragged, damping: float,
    peers: Callable[[], Callable[[float, float], list[Peer]]], config: Config,
) -> Case:  # fmt: skip
    implementation = pick_implementation(graph)
    options = Options(damping, TOL, MAX_ITER, "auto", BLOCK, config.threads)

    def inputs(start: int, count: int) -> tuple[Ragged, Ragged]:
        return part(seeds, start, count), part(weights, start, count)

    def run(asked: tuple[Ragged, Ragged]) -> torch.Tensor:
        return personalized_pagerank(
            graph, *asked, damping=damping, tol=TOL, max_iter=MAX_ITER, block=BLOCK, threads=config.threads
        )

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        asked = sorted({q for b in config.batches for q in (0, b // 2, b - 1)})
        pi = dense_columns(seeds, weights, np.array(asked), csr.n, np.float64)
        return np.array(asked), solve_exactly(csr, pi, damping).T

    @cache
    def passes(batch: int) -> tuple[int, dict[int, int]]:
        return count_passes(graph, *inputs(0, batch), implementation, options, batch)

    def bytes_of(batch: int) -> int:
        width, counted = passes(batch)
        return solve_bytes(csr.n, csr.m, csr.weight is not None, batch, width, counted)

    return Case(
        "pagerank",
        implementation,
        {"graph": name, "n": csr.n, "m": csr.m, "damping": damping},
        inputs,
        run,
        lambda result, count: check(result, count, *reference()),
        bytes_of,
        lambda batch: 4 * csr.n * batch + 24 * csr.n * BLOCK * config.threads,
        lambda: peers()(damping, TOL),
    )


def check(result: torch.Tensor | np.ndarray, count: int, asked: np.ndarray, exact: np.ndarray) -> Checked:
    """Rows sum to 1, and those of the questions `asked` are within TOL of `exact` f64[len(asked), N] in L1."""
    rows = torch.as_tensor(result)
    if rows.shape != (count, exact.shape[1]):
        return Checked(False, f"the shape is {tuple(rows.shape)} instead of {(count, exact.shape[1])}")
    worst = float((rows.sum(1) - 1).abs().max())
    here = asked < count
    held = rows[torch.from_numpy(asked[here]).to(rows.device)].cpu().double().numpy()
    error = float(np.abs(held - exact[here]).sum(1).max())
    if not worst <= SUM_ERROR:
        return Checked(False, f"a row misses the sum of 1 by {worst:.2g}", _finite(error))
    if not error <= TOL:
        return Checked(False, f"the L1 error {error:.2g} is above {TOL:g}", _finite(error))
    return Checked(True, "", error)


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None
