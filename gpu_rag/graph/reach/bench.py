"""The case `reach`: the nodes at the end of relations.

Chains have two relations, or `--hops`, for each of B questions. Every edge of a generated graph, or of the index, gets
a random relation and one direction; steps are walked in either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from gpu_rag.bench.case import Case, Checked, Config, check_sample
from gpu_rag.bench.inputs import drawn, linked_nodes, lists_in, lists_of, measured_graphs, seeded
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.reach import EITHER, TypedGraph, reachable, typed_graph
from gpu_rag.types import CSR, Ragged

RELATIONS = 20
STARTS = 5
STEPS = (2,)

Question = tuple[list[int], list[int]]  # nodes and chain
Questions = Callable[[int, int], list[Question]]
Walk = Callable[[Sequence[int], Sequence[int]], Any]


@dataclass(frozen=True)
class Labelled:
    """A graph with a relation for every edge. edges: tail, relation, head; generator: for other random choices."""

    name: str
    csr: CSR
    graph: TypedGraph
    edges: tuple[np.ndarray, np.ndarray, np.ndarray]
    generator: torch.Generator

    def nodes(self, count: int) -> torch.Tensor:
        """Random nodes with edges: i64[count, STARTS]."""
        return drawn(linked_nodes(self.csr), (count, STARTS), self.generator)

    def chains(self, *shape: int) -> torch.Tensor:
        """Random relations."""
        return torch.randint(RELATIONS, shape, generator=self.generator)

    def followed(self, hops: int) -> float:
        """The number of edges along a chain from STARTS nodes, if all nodes had the same degree."""
        degree = len(self.edges[0]) * 2 / self.csr.n / RELATIONS  # degree of a node along one relation
        return STARTS * sum(degree**step for step in range(1, hops + 1))

    @cached_property
    def by_matrices(self) -> Walk:
        """The nodes at the end of a chain, ascending: rows of one symmetric SciPy matrix for each relation."""
        tail, kind, head = self.edges
        pairs = [(tail[kind == relation], head[kind == relation]) for relation in range(RELATIONS)]
        both = [(np.concatenate([a, b]), np.concatenate([b, a])) for a, b in pairs]
        shape = self.csr.n, self.csr.n
        matrices = [csr_matrix((np.ones(len(ends[0]), np.int8), ends), shape) for ends in both]

        def walk(nodes: Sequence[int], chain: Sequence[int]) -> np.ndarray:
            reached = np.unique(nodes)
            for relation in chain:
                reached = np.unique(matrices[relation][reached].indices)
            return reached

        return walk


def labelled_graphs(config: Config) -> Iterator[Labelled]:
    """The graphs of the settings; every edge has a random relation and one direction."""
    for name, csr in measured_graphs(config):
        generator, device = seeded(config), torch.device(config.device)
        rows, columns = row_of_entry(csr).cpu(), csr.indices.long().cpu()
        is_upper = rows < columns
        kinds = torch.randint(RELATIONS, (int(is_upper.sum()),), generator=generator)
        tail, head = rows[is_upper], columns[is_upper]
        graph = typed_graph(tail.to(device), kinds.to(device), head.to(device), csr.n, RELATIONS)
        yield Labelled(name, csr, graph, (tail.numpy(), kinds.numpy(), head.numpy()), generator)


def either_way(starts: torch.Tensor, chains: torch.Tensor, device: torch.device) -> tuple[Ragged, Ragged, Ragged]:
    """The arguments of `reachable` for rows of nodes and of relations, with each step in either direction."""
    chain = lists_of(chains, device)
    return lists_of(starts, device), chain, Ragged(torch.full_like(chain.values, EITHER), chain.offsets)


def cases(config: Config) -> Iterator[Case]:
    """One topic for each question, chains with one of 20 relations for each step."""
    for labelled in labelled_graphs(config):
        starts = labelled.nodes(config.pool)
        for hops in config.hops or STEPS:
            yield _case(labelled, starts, labelled.chains(config.pool, hops), config)


def _case(labelled: Labelled, starts: torch.Tensor, chains: torch.Tensor, config: Config) -> Case:
    """Make a case from starts i64[pool, STARTS] and chains i64[pool, hops]."""
    hops = chains.shape[1]

    def inputs(start: int, count: int) -> tuple[Ragged, Ragged, Ragged]:
        span = slice(start, start + count)
        return either_way(starts[span], chains[span], labelled.graph.device)

    def questions(start: int, count: int) -> list[Question]:
        span = slice(start, start + count)
        return list(zip(starts[span].tolist(), chains[span].tolist()))

    followed = labelled.followed(hops)
    return Case(
        op="reach",
        labels={"graph": labelled.name, "n": labelled.csr.n, "m": labelled.csr.m, "hops": hops},
        inputs=inputs,
        run=lambda given: reachable(labelled.graph, *given, threads=config.threads),
        check=lambda result, count: check(result, count, lambda b: by_scipy(labelled, questions(b, 1)[0])),
        bytes_of=lambda batch: round(batch * (8 * followed + 16 * STARTS)),
        memory_of=lambda batch: 9 * labelled.csr.n * config.threads + round(64 * batch * followed),
        peers=lambda: [make(labelled, questions) for make in peer_file("reach").PEERS],
    )


def check(result: Any, count: int, wanted: Callable[[int], list[int]]) -> Checked:
    """Check that a sample of answers equals the ascending lists from `wanted`; a peer's result is a list of lists."""
    answers = lists_in(result)
    if len(answers) != count:
        return Checked(f"{len(answers)} answers for {count} questions")
    return check_sample(count, lambda b: "" if answers[b] == wanted(b) else f"question {b} gets other nodes")


def by_scipy(labelled: Labelled, question: Question) -> list[int]:
    """The nodes that a question leads to, ascending."""
    nodes: list[int] = labelled.by_matrices(*question).tolist()
    return nodes
