"""The case `reach`: where two steps (or `--hops`) along named relations lead from a few nodes, for B questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import MOST_ALONE, Case, Checked, Config, Peer
from gpu_rag.graph.common.typed import TypedGraph, typed_graph
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.pagerank.bench import measured_graphs
from gpu_rag.graph.reach import EITHER, reachable
from gpu_rag.types import CSR, Ragged

RELATIONS = 20
STARTS = 5
STEPS = (2,)

Edges = tuple[np.ndarray, np.ndarray, np.ndarray]  # tail, relation, head
Question = tuple[list[int], list[int]]  # nodes, chain
Neighbours = dict[tuple[int, int], list[int]]


def cases(config: Config) -> Iterator[Case]:
    """Every edge of a generated graph (or of the index) gets one of 20 relations at random, and one direction."""
    for one in labelled_graphs(config, RELATIONS):
        starts = one.nodes(config.pool, STARTS)
        for hops in config.hops or STEPS:
            chains = torch.randint(RELATIONS, (config.pool, hops), generator=one.generator)
            yield _case(one.name, one.csr, one.graph, one.edges, starts, chains, config)


@dataclass(frozen=True)
class Labelled:
    """A graph whose every edge has a relation. generator: for what else is random; linked: nodes with an edge."""

    name: str
    csr: CSR
    graph: TypedGraph
    edges: Edges
    linked: torch.Tensor
    generator: torch.Generator

    def nodes(self, count: int, width: int) -> torch.Tensor:
        """i64[count, width]: linked nodes at random."""
        return self.linked[torch.randint(len(self.linked), (count, width), generator=self.generator)]


def labelled_graphs(config: Config, n_relations: int) -> Iterator[Labelled]:
    """The graphs of the settings, every edge with one of `n_relations` at random, and in one direction."""
    for name, csr in measured_graphs(config):
        generator = torch.Generator().manual_seed(config.seed)
        rows, columns = row_of_entry(csr).cpu(), csr.indices.long().cpu()
        once = rows < columns
        kinds = torch.randint(n_relations, (int(once.sum()),), generator=generator)
        tail, head = rows[once], columns[once]
        device = torch.device(config.device)
        graph = typed_graph(tail.to(device), kinds.to(device), head.to(device), csr.n, n_relations)
        linked = csr.indptr.diff().nonzero()[:, 0].cpu()
        yield Labelled(name, csr, graph, (tail.numpy(), kinds.numpy(), head.numpy()), linked, generator)


def _case(
    name: str, csr: CSR, graph: TypedGraph, edges: Edges, starts: torch.Tensor, chains: torch.Tensor, config: Config
) -> Case:
    def inputs(start: int, count: int) -> tuple[Ragged, Ragged, Ragged]:
        span = slice(start, start + count)
        return either_way(starts[span], chains[span], graph.device)

    def pairs(start: int, count: int) -> list[Question]:
        return list(zip(starts[start : start + count].tolist(), chains[start : start + count].tolist()))

    hops = chains.shape[1]
    followed = edges_followed(edges, csr.n, RELATIONS, STARTS, hops)
    return Case(
        "reach",
        pick_implementation(graph.device),
        {"graph": name, "n": csr.n, "m": csr.m, "hops": hops},
        inputs,
        lambda asked: reachable(graph, *asked, threads=config.threads),
        lambda result, count: check(result, pairs(0, count), edges),
        lambda batch: round(batch * (8 * followed + 16 * STARTS)),
        lambda batch: 9 * csr.n * config.threads + round(64 * batch * followed),
        lambda: [_scipy(edges, csr.n, pairs), _python(edges, pairs)],
    )


def edges_followed(edges: Edges, n: int, n_relations: int, n_starts: int, hops: int) -> float:
    """Edges along a chain from so many nodes, were all nodes of one degree."""
    degree = len(edges[0]) * 2 / n / n_relations  # of a node along one relation
    return n_starts * sum(degree**step for step in range(1, hops + 1))


def either_way(starts: torch.Tensor, chains: torch.Tensor, device: torch.device) -> tuple[Ragged, Ragged, Ragged]:
    """The arguments of `reachable` for rows of nodes and of relations, each step walked either way."""
    chain = _ragged(chains, device)
    return _ragged(starts, device), chain, Ragged(torch.full_like(chain.values, EITHER), chain.offsets)


def _ragged(rows: torch.Tensor, device: torch.device) -> Ragged:
    """A matrix as lists of equal length."""
    count, width = rows.shape
    return Ragged(rows.flatten().to(device), torch.arange(count + 1, device=device) * width)


def check(result: Any, asked: list[Question], edges: Edges) -> Checked:
    """A sample of answers equals a loop over all edges; a peer's result is a list of ascending lists."""
    return check_lists(result, len(asked), lambda b: reached_by_loop(edges, *asked[b]), "reaches")


def check_lists(result: Any, count: int, wanted: Callable[[int], np.ndarray], what: str) -> Checked:
    """Whether the lists of a sample of questions are the ascending ones that `wanted` gives."""
    found = result
    if isinstance(result, Ragged):
        found = [part.tolist() for part in result.values.cpu().split(result.offsets.diff().tolist())]
    if len(found) != count:
        return Checked(False, f"{len(found)} answers for {count} questions")
    for b in sorted({0, count // 2, count - 1}):
        if list(found[b]) != wanted(b).tolist():
            return Checked(False, f"question {b} {what} other nodes")
    return Checked(True)


def reached_by_loop(edges: Edges, nodes: Sequence[int], chain: Sequence[int]) -> np.ndarray:
    """The nodes at the end of a chain, ascending, by a pass over all edges a step."""
    tail, kind, head = edges
    reached = np.unique(nodes)
    for relation in chain:
        along = kind == relation
        out, into = head[along & np.isin(tail, reached)], tail[along & np.isin(head, reached)]
        reached = np.union1d(out, into)
    return reached


def matrices_of(edges: Edges, n: int, n_relations: int) -> list[Any]:
    """One symmetric SciPy matrix a relation."""
    from scipy.sparse import csr_matrix

    tail, kind, head = edges
    matrices = []
    for relation in range(n_relations):
        a, b = tail[kind == relation], head[kind == relation]
        ones = np.ones(2 * len(a), np.int8)
        matrices.append(csr_matrix((ones, (np.concatenate([a, b]), np.concatenate([b, a]))), shape=(n, n)))
    return matrices


def rows_of_matrices(matrices: Sequence[Any], nodes: Sequence[int], chain: Sequence[int]) -> np.ndarray:
    """The nodes at the end of a chain, ascending: rows picked out of the matrix of each step."""
    reached = np.unique(nodes)
    for relation in chain:
        reached = np.unique(matrices[relation][reached].indices)
    return reached


def neighbour_lists(edges: Edges) -> Neighbours:
    """The neighbours of each (node, relation), either way."""
    beside: Neighbours = {}
    for a, relation, b in zip(*(column.tolist() for column in edges)):
        beside.setdefault((a, relation), []).append(b)
        beside.setdefault((b, relation), []).append(a)
    return beside


def walked_in_python(beside: Neighbours, nodes: Sequence[int], chain: Sequence[int]) -> set[int]:
    """The nodes at the end of a chain, by look-ups."""
    reached = set(nodes)
    for relation in chain:
        reached = {u for v in reached for u in beside.get((v, relation), ())}
    return reached


def _scipy(edges: Edges, n: int, pairs: Any) -> Peer:
    """One sparse matrix a relation, rows picked out of it."""
    matrices = matrices_of(edges, n, RELATIONS)

    def run(asked: list[Question]) -> list[list[int]]:
        return [rows_of_matrices(matrices, *question).tolist() for question in asked]

    return Peer("scipy CSR a relation", pairs, run, most=MOST_ALONE, alone=True)


def _python(edges: Edges, pairs: Any) -> Peer:
    """A dictionary of (node, relation) to its neighbours."""
    beside = neighbour_lists(edges)

    def run(asked: list[Question]) -> list[list[int]]:
        return [sorted(walked_in_python(beside, *question)) for question in asked]

    return Peer("Python dict", pairs, run, most=MOST_ALONE, alone=True)
