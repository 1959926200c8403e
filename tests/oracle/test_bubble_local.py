"""The local graph of bubble expansion against a search and a sort, and its costs against whole fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor

import networkx as nx
import numpy as np
import pytest
import torch
from ragged_lists import ragged

from gpu_rag.errors import BadInput
from gpu_rag.graph.bubble import localise, node_costs
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import checked, ego_balls
from gpu_rag.types import CSR, Ragged

NAMES = ["numba", "torch"]
Local = Callable[..., Ragged]
N = 120


def listed(lists: Ragged) -> list[list[int]]:
    return [part.tolist() for part in lists.values.split(lists.offsets.diff().tolist())]


def graph_and_costs(seed: int) -> tuple[CSR, list[list[int]], torch.Tensor]:
    r = np.random.default_rng(seed)
    ends = torch.from_numpy((N * r.random((2, 150)) ** 1.7).astype(np.int64))
    anchors = [r.integers(0, N, int(k)).tolist() for k in r.integers(0, 5, 40)]
    return csr_from_edges(ends[0], ends[1], N), anchors, torch.from_numpy(r.integers(1, 6, (40, N)))


def expected(csr: CSR, anchors: list[int], cost: list[int], hops: int, limit: int) -> list[int]:
    """Anchors, then the others by (hop, cost, node) as far as they fit."""
    rows = torch.repeat_interleave(torch.arange(csr.n), csr.indptr.diff())
    graph = nx.Graph(zip(rows.tolist(), csr.indices.tolist()))
    graph.add_nodes_from(range(csr.n))
    far = nx.multi_source_dijkstra_path_length(graph, set(anchors), cutoff=hops, weight=None) if anchors else {}
    order = sorted(far, key=lambda v: (far[v], cost[v] if far[v] else 0, v))
    return sorted(order[: max(limit, len(set(anchors)))])


def check(local: Local) -> None:
    for seed in range(6):
        csr, anchors, table = graph_and_costs(seed)
        for hops, limit in ((0, 5), (1, 10), (2, 25), (3, 60), (6, 3), (6, 200)):
            found = local(csr, ragged(anchors), lambda q, v, table=table: table[q, v], hops=hops, limit=limit)
            assert found.values.dtype == torch.int32
            wanted = [expected(csr, a, table[b].tolist(), hops, limit) for b, a in enumerate(anchors)]
            assert listed(found) == wanted, f"graph {seed}, {hops} hops, limit {limit}"


@pytest.mark.parametrize("name", NAMES)
def test_is_the_search_and_the_sort(name: str) -> None:
    check(lambda csr, *a, **k: localise(checked(csr), *a, implementation=name, **k))


def by_node(csr: CSR, anchors: Ragged, costs: object, *, hops: int, limit: int) -> Ragged:
    """As `ego_balls` cuts, by id inside the last hop."""
    return ego_balls(csr, anchors, hops, limit=limit)


def dearest(csr: CSR, anchors: Ragged, costs: Callable[..., torch.Tensor], *, hops: int, limit: int) -> Ragged:
    return localise(csr, anchors, lambda q, v: -costs(q, v), hops=hops, limit=limit)


def same_costs(csr: CSR, anchors: Ragged, costs: Callable[..., torch.Tensor], *, hops: int, limit: int) -> Ragged:
    """Every question cut by the costs of the first one."""
    return localise(csr, anchors, lambda q, v: costs(q * 0, v), hops=hops, limit=limit)


@pytest.mark.parametrize("wrong", [by_node, dearest, same_costs])
def test_checks_catch(wrong: Local) -> None:
    with pytest.raises(AssertionError):
        check(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_alone_as_in_a_batch(name: str) -> None:
    csr, anchors, table = graph_and_costs(3)
    together = localise(csr, ragged(anchors), lambda q, v: table[q, v], limit=30, implementation=name)
    for b, own in enumerate(anchors):
        alone = localise(csr, ragged([own]), lambda q, v, b=b: table[q + b, v], limit=30, implementation=name)
        assert listed(alone) == [listed(together)[b]]


@pytest.mark.parametrize("name", NAMES)
def test_by_hand(name: str) -> None:
    star = csr_from_edges(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3]), 4)
    cost = torch.tensor([1, 5, 4, 4])
    found = localise(star, ragged([[0], [], [3, 1, 3]]), lambda q, v: cost[v], limit=2, implementation=name)
    assert listed(found) == [[0, 2], [], [1, 3]]


def test_costs_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.nn.functional.normalize(torch.randn(5, 96, generator=generator)).half().float()
    vectors = torch.nn.functional.normalize(torch.randn(40, 96, generator=generator)).half()
    vectors[0], vectors[1], vectors[2] = queries[0].half(), -queries[0].half(), 0
    question, node = torch.arange(5).repeat_interleave(40), torch.arange(40).repeat(5)
    found = node_costs(queries, vectors, question, node)
    wanted = []
    for q in queries.tolist():
        for v in vectors.tolist():
            cosine = sum((Fraction(a) * Fraction(b) for a, b in zip(q, v)), Fraction(0))
            wanted.append(1 + floor((1 - max(-1, min(1, cosine))) * 2**14))
    assert found.dtype == torch.int32 and found.tolist() == wanted
    assert found[0] < 40 and found[1] > 32_700 and found[2] == 16_385
    order = torch.randperm(200, generator=generator)
    assert torch.equal(node_costs(queries, vectors, question[order], node[order]), found[order])


def test_bad_input() -> None:
    csr, anchors, table = graph_and_costs(0)
    eye, one = torch.eye(4), torch.ones(1, dtype=torch.int64)
    for match, call in (
        ("hops or limit", lambda: localise(csr, ragged(anchors), lambda q, v: v, hops=-1)),
        ("hops or limit", lambda: localise(csr, ragged(anchors), lambda q, v: v, limit=0)),
        ("no integers of the pairs", lambda: localise(csr, ragged(anchors), lambda q, v: v / 2, limit=1)),
        ("no integers of the pairs", lambda: localise(csr, ragged(anchors), lambda q, v: v[:0], limit=1)),
        ("one of the anchors is no node", lambda: localise(csr, ragged([[N]]), lambda q, v: table[q, v])),
        ("not unit rows", lambda: node_costs(eye * torch.nan, eye, one, one)),
        ("not unit rows", lambda: node_costs(eye, eye * torch.inf, one, one)),
        ("not unit rows", lambda: node_costs(eye, eye * 1.1, one, one)),
        ("do not fit", lambda: node_costs(eye, torch.eye(5), one, one)),
        ("do not fit", lambda: node_costs(eye, eye.double(), one, one)),
    ):
        with pytest.raises(BadInput, match=match):
            call()


def test_costs_are_not_asked_where_all_fit() -> None:
    def unasked(question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the hop fits")

    star = csr_from_edges(torch.zeros(3, dtype=torch.int64), torch.arange(1, 4), 4)
    assert listed(localise(star, ragged([[0]]), unasked, limit=4)) == [[0, 1, 2, 3]]
    with pytest.raises(AssertionError, match="fits"):
        localise(star, ragged([[0]]), unasked, limit=3)
