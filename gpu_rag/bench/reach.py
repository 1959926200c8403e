"""The case `reach`: where two steps (or `--hops`) along named relations lead from a few nodes, for B questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import MOST_ALONE, Case, Checked, Config, Peer
from gpu_rag.bench.pagerank import measured_graphs
from gpu_rag.graph.backend import pick_implementation
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.reach import EITHER, reachable
from gpu_rag.graph.typed import TypedGraph, typed_graph
from gpu_rag.types import CSR, Ragged

RELATIONS = 20
STARTS = 5
STEPS = (2,)

Edges = tuple[np.ndarray, np.ndarray, np.ndarray]  # tail, relation, head


def cases(config: Config) -> Iterator[Case]:
    """Every edge of a generated graph (or of the index) gets one of 20 relations at random, and one direction."""
    for name, csr in measured_graphs(config):
        generator = torch.Generator().manual_seed(config.seed)
        rows, columns = row_of_entry(csr).cpu(), csr.indices.long().cpu()
        once = rows < columns
        kinds = torch.randint(RELATIONS, (int(once.sum()),), generator=generator)
        tail, head = rows[once], columns[once]
        device = torch.device(config.device)
        graph = typed_graph(tail.to(device), kinds.to(device), head.to(device), csr.n, RELATIONS)
        linked = csr.indptr.diff().nonzero()[:, 0].cpu()
        starts = linked[torch.randint(len(linked), (config.pool, STARTS), generator=generator)]
        edges = tail.numpy(), kinds.numpy(), head.numpy()
        for hops in config.hops or STEPS:
            chains = torch.randint(RELATIONS, (config.pool, hops), generator=generator)
            yield _case(name, csr, graph, edges, starts, chains, config)


def _case(
    name: str, csr: CSR, graph: TypedGraph, edges: Edges, starts: torch.Tensor, chains: torch.Tensor, config: Config
) -> Case:
    def inputs(start: int, count: int) -> tuple[Ragged, Ragged, Ragged]:
        span = slice(start, start + count)
        from_, chain = _ragged(starts[span], graph.device), _ragged(chains[span], graph.device)
        return from_, chain, Ragged(torch.full_like(chain.values, EITHER), chain.offsets)

    def pairs(start: int, count: int) -> list[tuple[list[int], list[int]]]:
        return list(zip(starts[start : start + count].tolist(), chains[start : start + count].tolist()))

    degree = len(edges[0]) * 2 / csr.n / RELATIONS  # of a node along one relation
    hops = chains.shape[1]
    followed = STARTS * sum(degree**step for step in range(1, hops + 1))
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


def _ragged(rows: torch.Tensor, device: torch.device) -> Ragged:
    """A matrix as lists of equal length."""
    count, width = rows.shape
    return Ragged(rows.flatten().to(device), torch.arange(count + 1, device=device) * width)


def check(result: Any, asked: list[tuple[list[int], list[int]]], edges: Edges) -> Checked:
    """A sample of answers equals a loop over all edges; a peer's result is a list of ascending lists."""
    found = result
    if isinstance(result, Ragged):
        found = [part.tolist() for part in result.values.cpu().split(result.offsets.diff().tolist())]
    if len(found) != len(asked):
        return Checked(False, f"{len(found)} answers for {len(asked)} questions")
    tail, kind, head = edges
    for b in sorted({0, len(asked) // 2, len(asked) - 1}):
        reached = np.unique(asked[b][0])
        for relation in asked[b][1]:
            along = kind == relation
            out, into = head[along & np.isin(tail, reached)], tail[along & np.isin(head, reached)]
            reached = np.union1d(out, into)
        if list(found[b]) != reached.tolist():
            return Checked(False, f"question {b} reaches other nodes")
    return Checked(True)


def _scipy(edges: Edges, n: int, pairs: Any) -> Peer:
    """One sparse matrix a relation, rows picked out of it."""
    from scipy.sparse import csr_matrix

    tail, kind, head = edges
    matrices = []
    for relation in range(RELATIONS):
        a, b = tail[kind == relation], head[kind == relation]
        ones = np.ones(2 * len(a), np.int8)
        matrices.append(csr_matrix((ones, (np.concatenate([a, b]), np.concatenate([b, a]))), shape=(n, n)))

    def run(asked: list[tuple[list[int], list[int]]]) -> list[list[int]]:
        found = []
        for nodes, chain in asked:
            reached = np.unique(nodes)
            for relation in chain:
                reached = np.unique(matrices[relation][reached].indices)
            found.append(reached.tolist())
        return found

    return Peer("scipy CSR a relation", pairs, run, most=MOST_ALONE, alone=True)


def _python(edges: Edges, pairs: Any) -> Peer:
    """A dictionary of (node, relation) to its neighbours."""
    beside: dict[tuple[int, int], list[int]] = {}
    for a, relation, b in zip(*(column.tolist() for column in edges)):
        beside.setdefault((a, relation), []).append(b)
        beside.setdefault((b, relation), []).append(a)

    def run(asked: list[tuple[list[int], list[int]]]) -> list[list[int]]:
        found = []
        for nodes, chain in asked:
            reached = set(nodes)
            for relation in chain:
                reached = {u for v in reached for u in beside.get((v, relation), ())}
            found.append(sorted(reached))
        return found

    return Peer("Python dict", pairs, run, most=MOST_ALONE, alone=True)
