"""Bubble expansion against a sequential heap written from its definition, and against exact group Steiner trees.

The oracle pops (distance, node, group) from a heap, cuts leaves that are no anchor off every tree it sees, and knows
nothing of fixpoints, packed numbers or events that may be passed over.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from ragged_lists import listed, ragged
from refusals import caught, refusals

from gpu_rag.graph.bubble import ALONE, INSIDE, MEETING, Bubbles, bubble_expansion, localise, node_costs
from gpu_rag.graph.bubble.events import fixpoint
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import checked, ego_balls, induced_subgraphs
from gpu_rag.types import CSR, Blocks, Ragged

NAMES = ["numba", "torch"]
Candidate = tuple[tuple[int, ...], int, int, int]  # nodes, groups, distance, kind
Grow = Callable[..., list[Candidate]]


@dataclass(frozen=True)
class Instance:
    """One question: an undirected graph, what entering a node costs, (node, group) anchors."""

    n: int
    edges: tuple[tuple[int, int], ...]
    costs: tuple[int, ...]
    anchors: tuple[tuple[int, int], ...]
    limit: int = 10
    cover_first: bool = False

    def neighbours(self, v: int) -> list[int]:
        return sorted({b if a == v else a for a, b in self.edges if v in (a, b) and a != b})

    def groups_of(self, v: int) -> int:
        return sum(1 << g for g in {g for a, g in self.anchors if a == v})


def heap_oracle(
    case: Instance, *, highest: bool = False, cut: bool = True, late: bool = False, by_node: bool = False,
    pay_to_leave: bool = False, pairs: bool = True, distinct: bool = True,
) -> list[Candidate]:  # fmt: skip
    """The definition, word by word; the options are ways to get it wrong."""
    dist: dict[tuple[int, int], int] = dict.fromkeys(case.anchors, 0)
    pred: dict[tuple[int, int], int | None] = dict.fromkeys(dist)
    heap = sorted({(0, v, g) for v, g in case.anchors})
    popped: list[tuple[int, int, int]] = []
    done: set[tuple[int, int]] = set()
    while heap:
        d, v, g = heapq.heappop(heap)
        if (v, g) in done:
            continue
        done.add((v, g))
        popped.append((d, v, g))
        for u in case.neighbours(v):
            cost = d + (case.costs[v] if pay_to_leave else case.costs[u])
            if (u, g) not in dist or cost < dist[u, g]:
                dist[u, g], pred[u, g] = cost, v
                heapq.heappush(heap, (cost, u, g))
            elif highest and cost == dist[u, g] and cost and pred[u, g] is not None and v > pred[u, g]:
                pred[u, g] = v
    if by_node:
        popped.sort(key=lambda e: (e[1], e[0], e[2]))
    place = {(v, g): i for i, (_, v, g) in enumerate(popped)}
    found: list[Candidate] = []
    seen_pairs: set[tuple[int, int, int]] = set()
    for i, (d, v, g) in enumerate(popped):
        here = [k for k in range(16) if (v, k) in place and (late or place[v, k] <= i)]
        if len(here) > 1:
            found.append(_candidate(case, [_path(pred, v, k) for k in here], d, MEETING, cut))
        root = _path(pred, v, g)[-1]
        for u in sorted((u for u in case.neighbours(v) if place.get((u, g), i) < i), key=lambda u: (dist[u, g], u)):
            other = _path(pred, u, g)[-1]
            pair = (g, min(root, other), max(root, other))
            if other != root and (pair not in seen_pairs or not pairs):
                seen_pairs.add(pair)
                paths = [_path(pred, v, g), _path(pred, u, g), [u, v]]
                found.append(_candidate(case, paths, d, INSIDE, cut))
    if not found:
        return [((v,), case.groups_of(v), 0, ALONE) for v in sorted({v for v, _ in case.anchors})]
    if case.cover_first:
        n_groups = len({g for _, g in case.anchors})
        found.sort(key=lambda c: n_groups - c[1].bit_count())
    trees: dict[tuple[int, ...] | int, Candidate] = {}
    for i, candidate in enumerate(found):
        trees.setdefault(candidate[0] if distinct else i, candidate)
    return list(trees.values())[: case.limit]


def _path(pred: dict[tuple[int, int], int | None], v: int, g: int) -> list[int]:
    path = [v]
    while (before := pred[path[-1], g]) is not None:
        path.append(before)
    return path


def _candidate(case: Instance, paths: list[list[int]], d: int, kind: int, cut: bool) -> Candidate:
    tree = nx.Graph()
    for path in paths:
        nx.add_path(tree, path)
    while cut:
        leaves = [v for v in tree if tree.degree(v) <= 1 and not case.groups_of(v)]
        if not leaves:
            break
        tree.remove_nodes_from(leaves)
    nodes = tuple(sorted(tree))
    covered = 0
    for v in nodes:
        covered |= case.groups_of(v)
    return nodes, covered, d, kind


def blocks_of(cases: list[Instance], shift: int = 0) -> tuple[Blocks, torch.Tensor, Ragged, Ragged]:
    """All instances side by side in one whole graph, each a block of it."""
    starts = np.cumsum([shift] + [case.n for case in cases])
    ends = [(a + s, b + s) for case, s in zip(cases, starts.tolist()) for a, b in case.edges]
    pairs = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2)
    whole = csr_from_edges(pairs[:, 0], pairs[:, 1], int(starts[-1]))
    blocks = induced_subgraphs(whole, ragged([list(range(s, t)) for s, t in itertools.pairwise(starts.tolist())]))
    costs = torch.tensor([c for case in cases for c in case.costs], dtype=torch.int64)
    anchors = ragged([[v + s for v, _ in case.anchors] for case, s in zip(cases, starts.tolist())])
    return blocks, costs, anchors, ragged([[g for _, g in case.anchors] for case in cases])


def trees_of(found: Bubbles, first: list[int]) -> list[list[Candidate]]:
    at, ends = found.nodes.offsets.tolist(), found.offsets.tolist()
    out = []
    for b, start in enumerate(first):
        rows = range(ends[b], ends[b + 1])
        nodes = [tuple(v - start for v in found.nodes.values[at[c] : at[c + 1]].tolist()) for c in rows]
        out.append([(v, int(found.groups[c]), int(found.distance[c]), int(found.kind[c])) for v, c in zip(nodes, rows)])
    return out


def grow(cases: list[Instance], name: str, **options: Any) -> list[list[Candidate]]:
    """The op on all instances at once; they share limit and cover_first."""
    blocks, costs, anchors, groups = blocks_of(cases, shift=3)
    found = bubble_expansion(
        blocks, costs, anchors, groups, limit=cases[0].limit, cover_first=cases[0].cover_first, implementation=name,
        **options,
    )  # fmt: skip
    assert found.nodes.values.dtype == torch.int32 and found.groups.dtype == torch.int32
    return trees_of(found, (blocks.offsets[:-1] + 3).tolist())


def instance(seed: int, *, most: int = 24) -> Instance:
    """Sparse and dense graphs, in pieces or whole, costs with many ties or few, 1 to 16 groups, shared anchors."""
    r = np.random.default_rng(seed)
    n = int(r.integers(1, most))
    edges = tuple((int(a), int(b)) for a, b in r.integers(0, n, (int(r.integers(0, 3 * n + 1)), 2)))
    costs = tuple(int(c) for c in r.integers(1, int(r.choice([2, 4, 100, 32770])), n))
    m = int(r.choice([1, 2, 2, 3, 4, 16]))
    anchors = tuple((int(r.integers(n)), int(r.integers(m))) for _ in range(int(r.integers(0, 9 if m < 16 else 48))))
    return Instance(n, edges, costs, anchors)


def check(grow: Grow, seeds: range, **changes: Any) -> None:
    for seed in seeds:
        case = replace(instance(seed), **changes)
        assert grow(case) == heap_oracle(case), f"instance {seed}"


@pytest.mark.parametrize(
    ("start", "changes"),
    [(0, {}), (400, {"limit": 1}), (800, {"limit": 500}), (900, {"limit": 3, "cover_first": True})],
)
def test_is_the_sequential_heap(start: int, changes: dict[str, Any]) -> None:
    """400 random instances a combination, as many as show each wrong version below, half of them in a batch."""
    size = 50 if changes.get("limit") == 500 else 200  # torch has to keep all trees there
    for first in (start, start + size):
        cases = [replace(instance(seed), **changes) for seed in range(first, first + size)]
        expected = [heap_oracle(case) for case in cases]
        for name in NAMES:
            for seed, one, found in zip(range(first, first + size), expected, grow(cases, name)):
                assert found == one, f"instance {seed} by {name}"


@pytest.mark.parametrize("name", NAMES)
def test_alone_as_in_a_batch(name: str) -> None:
    cases = [instance(seed) for seed in range(300, 340)]
    together = grow(cases, name, threads=3)
    assert together == [grow([case], name)[0] for case in cases]


def wrong(**options: Any) -> Grow:
    return lambda case: heap_oracle(case, **options)


WRONG: dict[str, Grow] = {
    "ties to the highest predecessor": wrong(highest=True),
    "leaves stay": wrong(cut=False),
    "all groups that ever arrive": wrong(late=True),
    "events by node": wrong(by_node=True),
    "the node that is left is paid for": wrong(pay_to_leave=True),
    "every touch of a pair": wrong(pairs=False),
    "equal trees count again": wrong(distinct=False),
}


test_checks_catch = caught(WRONG, check, range(400))


PATH = Instance(5, ((0, 1), (1, 2), (2, 3), (3, 4)), (1, 1, 1, 1, 1), ())


@pytest.mark.parametrize("name", NAMES)
def test_costs_below_one_are_one(name: str) -> None:
    anchored = replace(PATH, anchors=((0, 0), (4, 1)))
    assert grow([replace(anchored, costs=(0, 0, -5, 0, 0))], name) == grow([anchored], name)


def steiner(case: Instance, groups: list[int]) -> int | None:
    """The least cost of a connected node set with a member of every group, all nodes paid but its cheapest anchor: by
    trying. A path within it from an anchor of a group to any node pays for all it enters, so not for that anchor."""
    graph = nx.Graph()
    graph.add_nodes_from(range(case.n))
    graph.add_edges_from(case.edges)
    best = None
    for size in range(1, case.n + 1):
        for nodes in itertools.combinations(range(case.n), size):
            covered = {g for v, g in case.anchors if v in nodes}
            if not set(groups) <= covered or not nx.is_connected(graph.subgraph(nodes)):
                continue
            free = min(case.costs[v] for v in nodes if case.groups_of(v))
            cost = sum(case.costs[v] for v in nodes) - free
            best = cost if best is None else min(best, cost)
    return best


def test_within_m_of_an_exact_group_steiner_tree() -> None:
    """min over v of the sum of distances <= m * (cost of the best tree). Every instance that has two to four groups."""
    ratios = []
    for seed in range(150):
        case = instance(seed, most=9)
        groups = sorted({g for _, g in case.anchors})
        if not 2 <= len(groups) <= 4:
            continue
        exact = steiner(case, groups)
        blocks, costs, anchors, kinds = blocks_of([case])
        state = fixpoint(blocks, costs, anchors, kinds)[groups]
        reached = (state != torch.iinfo(torch.int64).max).all(0)
        assert bool(reached.any()) == (exact is not None)
        if exact is not None:
            least = int((state >> 32).sum(0)[reached].min())
            assert least <= len(groups) * exact
            ratios.append(least / exact if exact else 1.0)
    assert len(ratios) >= 30 and max(ratios) <= 4


BLOCKS, COSTS, ANCHORS, GROUPS = blocks_of([replace(PATH, anchors=((0, 0), (4, 1))), PATH])
EYE, ONE = torch.eye(4), torch.ones(1, dtype=torch.int64)
FAR = Ragged(torch.tensor([0, 9]), ANCHORS.offsets)
test_bad_input = refusals(
    [
        ("not in its block", lambda: bubble_expansion(BLOCKS, COSTS, FAR, GROUPS)),
        ("is no group", lambda: bubble_expansion(BLOCKS, COSTS, ANCHORS, ragged([[0, 16], []]))),
        ("not integers of the nodes", lambda: bubble_expansion(BLOCKS, COSTS[:-1], ANCHORS, GROUPS)),
        ("cost too much", lambda: bubble_expansion(BLOCKS, COSTS * 2**30, ANCHORS, GROUPS)),
        ("not integers of the pairs", lambda: localise(BLOCKS.csr, FAR, lambda q, v: v[:0], limit=1)),
        ("not unit rows", lambda: node_costs(EYE, EYE * torch.inf, ONE, ONE)),
    ]
)


Local = Callable[..., Ragged]
N = 120


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


def check_local(local: Local) -> None:
    for seed in range(6):
        csr, anchors, table = graph_and_costs(seed)
        for hops, limit in ((0, 5), (1, 10), (2, 25), (3, 60), (6, 3), (6, 200)):
            found = local(csr, ragged(anchors), lambda q, v, table=table: table[q, v], hops=hops, limit=limit)
            assert found.values.dtype == torch.int32
            wanted = [expected(csr, a, table[b].tolist(), hops, limit) for b, a in enumerate(anchors)]
            assert listed(found) == wanted, f"graph {seed}, {hops} hops, limit {limit}"


@pytest.mark.parametrize("name", NAMES)
def test_is_the_search_and_the_sort(name: str) -> None:
    check_local(lambda csr, *a, **k: localise(checked(csr), *a, implementation=name, **k))


def by_node(csr: CSR, anchors: Ragged, costs: object, *, hops: int, limit: int) -> Ragged:
    """Cut as `ego_balls` does, by id inside the last hop."""
    return ego_balls(csr, anchors, hops, limit=limit)


def dearest(csr: CSR, anchors: Ragged, costs: Callable[..., torch.Tensor], *, hops: int, limit: int) -> Ragged:
    return localise(csr, anchors, lambda q, v: -costs(q, v), hops=hops, limit=limit)


def same_costs(csr: CSR, anchors: Ragged, costs: Callable[..., torch.Tensor], *, hops: int, limit: int) -> Ragged:
    """Every question cut by the costs of the first one."""
    return localise(csr, anchors, lambda q, v: costs(q * 0, v), hops=hops, limit=limit)


test_local_checks_catch = caught([by_node, dearest, same_costs], check_local)


@pytest.mark.parametrize("name", NAMES)
def test_a_local_graph_alone_as_in_a_batch(name: str) -> None:
    csr, anchors, table = graph_and_costs(3)
    together = localise(csr, ragged(anchors), lambda q, v: table[q, v], limit=30, implementation=name)
    for b, own in enumerate(anchors):
        alone = localise(csr, ragged([own]), lambda q, v, b=b: table[q + b, v], limit=30, implementation=name)
        assert listed(alone) == [listed(together)[b]]


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


def test_costs_are_not_asked_where_all_fit() -> None:
    def unasked(question: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the hop fits")

    star = csr_from_edges(torch.zeros(3, dtype=torch.int64), torch.arange(1, 4), 4)
    assert listed(localise(star, ragged([[0]]), unasked, limit=4)) == [[0, 1, 2, 3]]
    with pytest.raises(AssertionError, match="fits"):
        localise(star, ragged([[0]]), unasked, limit=3)
