"""The case `pagerank`: personalized PageRank of B questions, each with a few weighted seeds.

The result goes into one buffer that all calls reuse, whatever B is, as in a program that asks again and again: fresh
memory of 4 N B bytes costs page faults that are not PageRank's. It is filled with NaN before each call, off the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, Peer
from gpu_rag.bench.graphs import csr_on, graph_of
from gpu_rag.graph.csr import transpose
from gpu_rag.graph.pagerank import PageRankGraph, personalized_pagerank, pick_implementation, prepare
from gpu_rag.graph.pagerank.bench_peers import pagerank_peers
from gpu_rag.graph.pagerank.bench_reference import count_passes, dense_columns, solve_bytes, solve_exactly
from gpu_rag.graph.pagerank.job import STATES, Options
from gpu_rag.types import CSR, Ragged

TOL = 1e-6
SUM_ERROR = 1e-5
SEEDS = 5  # of a question
MAX_ITER = 200
BLOCK = 64

Asked = tuple[Ragged, Ragged, torch.Tensor]


def cases(config: Config) -> Iterator[Case]:
    """The graph of the index and the generated ones, each at every damping; by torch on a GPU with states of f32 and,
    as implementation `torch f16`, with first steps in f16."""
    device = torch.device(config.device)
    for name, csr in measured_graphs(config):
        graph = prepare(csr_on(csr, device))
        seeds, weights = seeded_questions(csr, config.pool, config.seed)
        peers = cache(lambda csr=csr, s=seeds, w=weights, g=graph: pagerank_peers(csr, s, w, g.symmetric))
        buffer = Buffer(graph.n, graph.device)
        for damping in config.dampings:
            for state in STATES if pick_implementation(graph) == "torch" else STATES[:1]:
                yield _case(name, csr, graph, seeds, weights, damping, state, peers, buffer, config)


def measured_graphs(config: Config) -> Iterator[tuple[str, CSR]]:
    """(kind, adjacency) of the index, if one is given, and of the generated graphs."""
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


def seeded_questions(csr: CSR, count: int, seed: int) -> tuple[Ragged, Ragged]:
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


class Buffer:
    """Memory for results f32[B, N], kept from call to call; it grows to the largest B that is asked for."""

    def __init__(self, n: int, device: torch.device):
        self.held = torch.empty(0, n, dtype=torch.float32, device=device)

    def rows(self, count: int) -> torch.Tensor:
        """f32[count, N], filled with NaN."""
        if self.held.shape[0] < count:
            shape, self.held = (count, self.held.shape[1]), self.held[:0].clone()  # freed before the next is taken
            self.held = torch.empty(shape, dtype=torch.float32, device=self.held.device)
        return self.held[:count].fill_(torch.nan)


def _case(
    name: str, csr: CSR, graph: PageRankGraph, seeds: Ragged, weights: Ragged, damping: float, state: str,
    peers: Callable[[], Callable[[float, float], list[Peer]]], buffer: Buffer, config: Config,
) -> Case:  # fmt: skip
    implementation = pick_implementation(graph)
    options = Options(damping, TOL, MAX_ITER, "auto", BLOCK, config.threads, state)

    def asked_for(start: int, count: int) -> tuple[Ragged, Ragged]:
        return part(seeds, start, count), part(weights, start, count)

    def inputs(start: int, count: int) -> Asked:
        return *asked_for(start, count), buffer.rows(count)

    def run(asked: Asked) -> torch.Tensor:
        asked_seeds, asked_weights, out = asked
        return personalized_pagerank(
            graph, asked_seeds, asked_weights, damping=damping, tol=TOL, max_iter=MAX_ITER, block=BLOCK,
            implementation=implementation, threads=config.threads, state=state, out=out,
        )  # fmt: skip

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        asked = sorted({q for b in config.batches for q in (0, b // 2, b - 1)})
        pi = dense_columns(seeds, weights, np.array(asked), csr.n, np.float64)
        return np.array(asked), solve_exactly(csr, pi, damping).T

    @cache
    def passes(batch: int) -> tuple[int, dict[int, int]]:
        return count_passes(graph, *asked_for(0, batch), implementation, options, batch)

    def bytes_of(batch: int) -> int:
        width, counted = passes(batch)
        return solve_bytes(csr.n, csr.m, csr.weight is not None, batch, width, counted)

    return Case(
        "pagerank",
        implementation if state == "f32" else f"{implementation} {state}",
        {"graph": name, "n": csr.n, "m": csr.m, "damping": damping},
        inputs,
        run,
        lambda result, count: check(result, count, *reference()),
        bytes_of,
        lambda batch: 4 * csr.n * batch + 24 * csr.n * BLOCK * config.threads,
        lambda: peers()(damping, TOL) if state == "f32" else [],
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
