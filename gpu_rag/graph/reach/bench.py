"""The cases `reach` and `intersect`: the nodes at the end of relations, and the common nodes of two topics.

Chains have two relations, or `--hops`, for each of B questions. Every edge of a generated graph, or of the index, gets
a random relation and one direction; steps are walked in either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from gpu_rag.bench.case import Case, Checked, Config, check_sample
from gpu_rag.bench.inputs import drawn, linked_nodes, lists_in, lists_of, measured_graphs, seeded
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.reach import EITHER, TypedGraph, intersect, reachable, typed_graph
from gpu_rag.types import CSR, Ragged

RELATIONS = 20
FEW_RELATIONS = 4  # for `intersect`: few, so that sets are large enough to meet
STARTS = 5
STEPS = (2,)

Question = tuple[tuple[list[int], list[int]], ...]  # nodes and chain of each topic
Questions = Callable[[int, int], list[Question]]
Walk = Callable[[Sequence[int], Sequence[int]], Any]


@dataclass(frozen=True)
class Labelled:
    """A graph with a relation for every edge. edges: tail, relation, head; generator: for other random choices."""

    name: str
    csr: CSR
    n_relations: int
    graph: TypedGraph
    edges: tuple[np.ndarray, np.ndarray, np.ndarray]
    generator: torch.Generator

    def nodes(self, count: int) -> torch.Tensor:
        """Random nodes with edges: i64[count, STARTS]."""
        return drawn(linked_nodes(self.csr), (count, STARTS), self.generator)

    def chains(self, *shape: int) -> torch.Tensor:
        """Random relations."""
        return torch.randint(self.n_relations, shape, generator=self.generator)

    def followed(self, hops: int) -> float:
        """The number of edges along a chain from STARTS nodes, if all nodes had the same degree."""
        degree = len(self.edges[0]) * 2 / self.csr.n / self.n_relations  # degree of a node along one relation
        return STARTS * sum(degree**step for step in range(1, hops + 1))

    @cached_property
    def by_matrices(self) -> Walk:
        """The nodes at the end of a chain, ascending: rows of one symmetric SciPy matrix for each relation."""
        tail, kind, head = self.edges
        pairs = [(tail[kind == relation], head[kind == relation]) for relation in range(self.n_relations)]
        both = [(np.concatenate([a, b]), np.concatenate([b, a])) for a, b in pairs]
        shape = self.csr.n, self.csr.n
        matrices = [csr_matrix((np.ones(len(ends[0]), np.int8), ends), shape) for ends in both]

        def walk(nodes: Sequence[int], chain: Sequence[int]) -> np.ndarray:
            reached = np.unique(nodes)
            for relation in chain:
                reached = np.unique(matrices[relation][reached].indices)
            return reached

        return walk

    def by_dict(self) -> Walk:
        """The set of nodes at the end of a chain, by a dictionary from (node, relation) to neighbours."""
        beside: dict[tuple[int, int], list[int]] = {}
        for a, relation, b in zip(*(column.tolist() for column in self.edges)):
            beside.setdefault((a, relation), []).append(b)
            beside.setdefault((b, relation), []).append(a)

        def walk(nodes: Sequence[int], chain: Sequence[int]) -> set[int]:
            reached = set(nodes)
            for relation in chain:
                reached = {u for v in reached for u in beside.get((v, relation), ())}
            return reached

        return walk


def labelled_graphs(config: Config, n_relations: int) -> Iterator[Labelled]:
    """The graphs of the settings; every edge has a random relation out of `n_relations`, and one direction."""
    for name, csr in measured_graphs(config):
        generator, device = seeded(config), torch.device(config.device)
        rows, columns = row_of_entry(csr).cpu(), csr.indices.long().cpu()
        once = rows < columns
        kinds = torch.randint(n_relations, (int(once.sum()),), generator=generator)
        tail, head = rows[once], columns[once]
        graph = typed_graph(tail.to(device), kinds.to(device), head.to(device), csr.n, n_relations)
        yield Labelled(name, csr, n_relations, graph, (tail.numpy(), kinds.numpy(), head.numpy()), generator)


def either_way(starts: torch.Tensor, chains: torch.Tensor, device: torch.device) -> tuple[Ragged, Ragged, Ragged]:
    """The arguments of `reachable` for rows of nodes and of relations, with each step in either direction."""
    chain = lists_of(chains, device)
    return lists_of(starts, device), chain, Ragged(torch.full_like(chain.values, EITHER), chain.offsets)


def reach_cases(config: Config) -> Iterator[Case]:
    """One topic for each question, chains with one of 20 relations for each step."""
    for one in labelled_graphs(config, RELATIONS):
        starts = one.nodes(config.pool)[None]
        for hops in config.hops or STEPS:
            yield _case("reach", one, starts, one.chains(1, config.pool, hops), config)


def intersect_cases(config: Config) -> Iterator[Case]:
    """Two topics, with one of 4 relations for each step. The second topic is chosen so that the two meet, if
    possible."""
    for one in labelled_graphs(config, FEW_RELATIONS):
        for hops in config.hops or STEPS:
            chains = one.chains(2, config.pool, hops)
            first, second = one.nodes(config.pool), one.nodes(config.pool)
            meeting = _any_of(_walked(one.graph, first, chains[0]), first[:, 0], one.generator)
            back = _walked(one.graph, meeting[:, None], chains[1].flip(1))
            second[:, 0] = _any_of(back, second[:, 0], one.generator)
            yield _case("intersect", one, torch.stack([first, second]), chains, config)


def _walked(graph: TypedGraph, starts: torch.Tensor, chains: torch.Tensor) -> Ragged:
    return reachable(graph, *either_way(starts, chains, graph.device))


def _any_of(lists: Ragged, otherwise: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A random value of each list; for an empty list the other value."""
    sizes, first = lists.offsets.diff().cpu(), lists.offsets[:-1].cpu()
    place = (torch.rand(sizes.shape, generator=generator, dtype=torch.float64) * sizes).long()
    values = torch.cat([lists.values.long().cpu(), otherwise[:1]])  # at least one value
    return torch.where(sizes > 0, values[(first + place).clamp(max=len(values) - 1)], otherwise)


def _case(op: str, one: Labelled, starts: torch.Tensor, chains: torch.Tensor, config: Config) -> Case:
    """Make a case from starts i64[topics, pool, STARTS] and chains i64[topics, pool, hops]."""
    topics, _, hops = chains.shape

    def inputs(start: int, count: int) -> tuple[Ragged, Ragged, Ragged]:
        span = slice(start, start + count)
        return either_way(starts[:, span].flatten(0, 1), chains[:, span].flatten(0, 1), one.graph.device)

    def run(given: tuple[Ragged, Ragged, Ragged]) -> Ragged:
        lists = reachable(one.graph, *given, threads=config.threads)
        if topics == 1:
            return lists
        half = lists.batch // 2
        middle = lists.offsets[half]
        first = Ragged(lists.values[:middle], lists.offsets[: half + 1])
        return intersect(first, Ragged(lists.values[middle:], lists.offsets[half:] - middle))

    def questions(start: int, count: int) -> list[Question]:
        span = slice(start, start + count)
        return list(zip(*(zip(nodes[span].tolist(), chain[span].tolist()) for nodes, chain in zip(starts, chains))))

    followed = one.followed(hops)
    return Case(
        op=op,
        labels={"graph": one.name, "n": one.csr.n, "m": one.csr.m, "hops": hops},
        inputs=inputs,
        run=run,
        check=lambda result, count: check(result, count, lambda b: by_scipy(one, questions(b, 1)[0])),
        bytes_of=lambda batch: round(topics * batch * (8 * followed + 16 * STARTS)),
        memory_of=lambda batch: 9 * one.csr.n * config.threads + round(64 * topics**2 * batch * followed),
        peers=lambda: peer_file("reach").peers(op, one, questions),
    )


def check(result: Any, count: int, wanted: Callable[[int], list[int]]) -> Checked:
    """Check that a sample of answers equals the ascending lists from `wanted`; a peer's result is a list of lists."""
    found = lists_in(result)
    if len(found) != count:
        return Checked(f"{len(found)} answers for {count} questions")
    return check_sample(count, lambda b: "" if found[b] == wanted(b) else f"question {b} gets other nodes")


def by_scipy(one: Labelled, question: Question) -> list[int]:
    """The nodes that all topics of a question lead to, ascending."""
    first, *others = (one.by_matrices(*topic) for topic in question)
    return reduce(partial(np.intersect1d, assume_unique=True), others, first).tolist()
