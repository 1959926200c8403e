"""The case `pagerank`: personalized PageRank of B questions, each with a few weighted seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from gpu_rag.bench.case import Case, Checked, Config, adjacency
from gpu_rag.bench.inputs import csr_on, drawn, linked_nodes, lists_of, measured_graphs, part
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.pagerank import STATES, Job, Options, personalized_pagerank, pick_implementation, prepare
from gpu_rag.graph.pagerank.inputs import PageRankGraph, teleport_of
from gpu_rag.graph.pagerank.plan import Array
from gpu_rag.types import CSR, Ragged

TOL = 1e-6
SUM_ERROR = 1e-5
SEEDS = 5  # per question
MAX_ITER = 200
BLOCK = 64

Given = tuple[Ragged, Ragged]


def cases(config: Config) -> Iterator[Case]:
    """The generated graphs, at every damping. With torch on a GPU: f32 states and, as
    implementation `torch f16`, first steps in f16."""
    for name, csr in measured_graphs(config):
        graph = prepare(csr_on(csr, torch.device(config.device)))
        pool = csr, *seeded_questions(csr, config.pool, config.seed)
        problem = peer_file("pagerank").Problem(*pool, graph.symmetric) if config.peers else None
        for damping in config.dampings:
            for state in STATES if pick_implementation(graph) == "torch" else STATES[:1]:
                yield _case(name, graph, pool, problem, damping, state, config)


def seeded_questions(csr: CSR, count: int, seed: int) -> tuple[Ragged, Ragged]:
    """Seeds and weights of `count` questions: random nodes with edges, weights in (0, 1]."""
    generator, cpu = torch.Generator().manual_seed(seed + 1), torch.device("cpu")
    nodes = drawn(linked_nodes(csr), (count, SEEDS), generator)
    return lists_of(nodes, cpu), lists_of(1 - torch.rand(count, SEEDS, generator=generator), cpu)


def _case(
    name: str, graph: PageRankGraph, pool: tuple[CSR, Ragged, Ragged], problem: Any, damping: float, state: str,
    config: Config,
) -> Case:  # fmt: skip
    csr, seeds, weights = pool
    implementation = pick_implementation(graph)
    options = Options(damping, TOL, MAX_ITER, BLOCK, config.threads, state)

    def run(given: Given) -> torch.Tensor:
        return personalized_pagerank(
            graph, *given, damping=damping, tol=TOL, max_iter=MAX_ITER, block=BLOCK, implementation=implementation,
            threads=config.threads, state=state,
        )  # fmt: skip

    @cache
    def reference() -> tuple[np.ndarray, np.ndarray]:
        questions = np.array(sorted({q for b in config.batches for q in (0, b // 2, b - 1)}))
        return questions, solve_exactly(csr, dense_columns(seeds, weights, questions, csr.n, np.float64), damping).T

    def bytes_of(batch: int) -> int:
        teleport = teleport_of(graph, part(seeds, 0, batch), part(weights, 0, batch), None)
        job = Job(graph, teleport, implementation, options)
        return solve_bytes(csr.n, csr.m, csr.weight is not None, batch, job.width, passes_of(job))

    return Case(
        op="pagerank",
        implementation=implementation if state == "f32" else f"{implementation} {state}",
        labels={"graph": name, "n": csr.n, "m": csr.m, "damping": damping},
        inputs=lambda start, count: (part(seeds, start, count), part(weights, start, count)),
        run=run,
        check=lambda result, count: check(result, count, *reference()),
        bytes_of=bytes_of,
        memory_of=lambda batch: 4 * csr.n * batch + 24 * csr.n * BLOCK * config.threads,
        peers=lambda: [make(problem, damping) for make in peer_file("pagerank").PEERS] if state == "f32" else [],
    )


def check(result: torch.Tensor | np.ndarray, count: int, questions: np.ndarray, exact: np.ndarray) -> Checked:
    """Check that rows sum to 1, and that rows `questions` are within TOL of `exact` f64[len(questions), N] in L1."""
    rows = torch.as_tensor(result)
    if rows.shape != (count, exact.shape[1]):
        return Checked(f"the shape is {tuple(rows.shape)} instead of {(count, exact.shape[1])}")
    worst = float((rows.sum(1) - 1).abs().max())
    is_checked = questions < count
    own = rows[torch.from_numpy(questions[is_checked]).to(rows.device)].cpu().double().numpy()
    error = float(np.abs(own - exact[is_checked]).sum(1).max())
    finite = error if np.isfinite(error) else None
    if not worst <= SUM_ERROR:
        return Checked(f"a row misses the sum of 1 by {worst:.2g}", finite)
    return Checked("" if error <= TOL else f"the L1 error {error:.2g} is above {TOL:g}", finite)


# --- peers -----------------------------------------------------------------------------------------


EXACT = 1e-9  # L1 error of the reference


def row_normalised(matrix: Any) -> tuple[Any, Array]:
    """(P^T, dangling): rows divided by their sums, then transposed; bool[N], rows without weight."""
    degree = np.asarray(matrix.sum(1)).ravel()
    dangling = degree <= 0
    scaled = csr_matrix((matrix.data / np.repeat(degree, np.diff(matrix.indptr)), matrix.indices, matrix.indptr))
    scaled.resize(matrix.shape)
    return scaled.T.tocsr(), dangling


def dense_columns(seeds: Ragged, weights: Ragged, questions: Array, n: int, dtype: Any) -> Array:
    """The restart distributions as columns that sum to 1: dtype[N, len(questions)]."""
    pi = np.zeros((n, len(questions)))
    offsets = seeds.offsets.numpy()
    for column, question in enumerate(questions):
        span = slice(offsets[question], offsets[question + 1])
        np.add.at(pi[:, column], seeds.values.numpy()[span], weights.values.double().numpy()[span])
    return (pi / pi.sum(0)).astype(dtype)


def solve_exactly(csr: CSR, pi: Array, damping: float) -> Array:
    """p = (1-d) pi + d (P^T p + lost(p) pi) by power iteration from pi: f64[N, Q].

    A step of L1 length s leaves an error of at most d s / (1-d); the iteration stops when that is below EXACT.
    """
    pull, dangling = row_normalised(adjacency(csr))
    p = pi.copy()
    while True:
        following = (1 - damping) * pi + damping * (pull @ p + p[dangling].sum(0) * pi)
        step = float(np.abs(following - p).sum(0).max())
        p = following
        if damping * step <= EXACT * (1 - damping):
            return p


def passes_of(job: Job) -> dict[int, int]:
    """Passes over the graph by bytes of a state number: the steps that exact arithmetic takes from an error of 2 to the
    tolerance, at the rate of the solver, and the final check in f64."""
    steps = math.ceil(math.log(2 / job.plan.tol) / -math.log(job.plan.rate)) if job.plan.rate > 0 else 1
    passes = Counter({2: job.f16_steps, job.dtypes[0].itemsize: max(steps - job.f16_steps, 1)})
    passes[8] += 1
    return dict(passes)


def solve_bytes(n: int, m: int, weighted: bool, batch: int, width: int, passes: Mapping[int, int]) -> int:
    """Bytes that solving `batch` questions must move, if every pass moves each byte once.

    A pass over a tile of b questions with numbers of s bytes reads the column indices (4 m), the row pointers (8 (n +
    1)) and the weights, if any (4 m), and reads and writes the state (2 n b s). There is one tile for every `width`
    questions. Bytes that a pass reads again after a cache miss do not count.
    """
    n_tiles = -(-batch // width)
    graph = 4 * m + 8 * (n + 1) + (4 * m if weighted else 0)
    return sum(count * (n_tiles * graph + 2 * n * batch * size) for size, count in passes.items())
