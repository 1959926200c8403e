"""BubbleRAG's steps against brute force on random graphs: costs, local graphs, trees and what they cost, look-ups."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.graph.bubble import ALONE, INSIDE, bubble_expansion, node_costs
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.ego import checked, induced_subgraphs
from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.ragged import ragged_of_keys
from gpu_rag.methods.bubblerag import batched as steps
from gpu_rag.methods.bubblerag.batched import Params, Tree, TreePassage
from gpu_rag.methods.bubblerag.graph import BubbleGraph, Cosines
from gpu_rag.program.search import Ranking
from gpu_rag.types import Ragged, TopK

D, P = 8, 9


@dataclass(frozen=True)
class Growth(Params):
    """The parameters of an expansion, its constants as fields."""

    cover_first: bool = False
    hops: int = 6
    max_local: int = 20_000


def held_by(graph: BubbleGraph, threads: int = 1, vectors: torch.Tensor | None = None) -> Any:
    """An index that holds no more than a graph."""

    def loaded(part: str, load: Any) -> Any:
        return graph if part == "bubble" else load(index)

    index = SimpleNamespace(loaded=loaded, threads=threads, device="cpu", vectors=lambda layer: vectors)
    return index


def grow(graph: BubbleGraph, params: Growth, asked: Any, threads: int = 1) -> list[tuple[Tree, ...]]:
    return steps.bubble_trees.run(held_by(graph, threads), asked, (params,))


def near_relations(graph: BubbleGraph, asked: Any, *key: int) -> list[list[Ranking]]:
    queries = [(vectors, tuple(nodes)) for vectors, nodes in asked]
    return steps.bubble_anchors_near.run(held_by(graph, key[-1]), queries, key[:-1])


def neighbours(graph: BubbleGraph, asked: Any, k: int) -> list[Ranking]:
    return steps.bubble_neighbours.run(held_by(graph), asked, (k,))


def passages(graph: BubbleGraph, vectors: torch.Tensor, order: str, asked: Any, k: int) -> list[list[TreePassage]]:
    index = held_by(graph, vectors=vectors)
    return steps.bubble_passages.run(index, asked, (order, k))


Asked = list[tuple[np.ndarray, tuple[tuple[int, ...], ...]]]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class Made:
    """A random graph, the same as networkx sees it, and questions."""

    def __init__(self, seed: int, n: int = 12, r: int = 16, batch: int = 4, coarse: bool = False):
        rng = np.random.default_rng(seed)
        self.n, self.r = n, r
        shape = (n + r, D)
        rows = rng.integers(-1, 2, shape) + 0.0 if coarse else rng.standard_normal(shape)  # coarse: many equal cosines
        rows[:, 0] += np.where(np.abs(rows).sum(1) == 0, 1, 0)
        self.vectors = unit(rows).astype(np.float16).astype(np.float32)
        self.ends = rng.integers(0, n, (r, 2))
        of = np.unique(rng.integers(0, (n + r) * P, 3 * (n + r)))
        self.held: dict[int, list[int]] = {v: [int(k % P) for k in of if k // P == v] for v in range(n + r)}
        keys = torch.from_numpy(of)
        src = torch.arange(r).repeat(2) + n
        csr = csr_from_edges(src, torch.from_numpy(self.ends.T.reshape(-1).copy()), n + r)
        entity, relation = torch.from_numpy(self.vectors[:n]), torch.from_numpy(self.vectors[n:])
        held = ragged_of_keys(keys, n + r, P)
        self.graph = BubbleGraph(checked(csr), held, entity, relation)
        self.passages = torch.from_numpy(unit(rng.standard_normal((P, D))).astype(np.float16).astype(np.float32))
        self.nx = nx.Graph()
        self.nx.add_nodes_from(range(n + r))
        self.nx.add_edges_from((n + i, int(v)) for i, pair in enumerate(self.ends) for v in pair)
        self.queries = unit(rng.standard_normal((batch, D))).astype(np.float32)
        self.asked: Asked = []
        for q in self.queries:
            m = int(rng.integers(1, 5))
            lists = [rng.choice(n + r, int(rng.integers(1, 4)), replace=False) for _ in range(m)]
            self.asked.append((q, tuple(tuple(int(v) for v in one) for one in lists)))

    def cosine(self, q: np.ndarray, v: int) -> float:
        """On the grid of 2^-24, in integers: no rounding at all."""
        a = [round(float(x) * 2**24) for x in q]
        b = [round(float(x) * 2**24) for x in self.vectors[v]]
        return sum(x * y for x, y in zip(a, b)) / 2**48

    def cost(self, q: np.ndarray, v: int) -> int:
        return 1 + math.floor((1 - min(1.0, max(-1.0, self.cosine(q, v)))) * 2**14)

    def ranked(self, q: np.ndarray, nodes: Any, k: int) -> list[int]:
        return sorted(nodes, key=lambda v: (self.cost(q, v), v))[:k]

    def within(self, nodes: Any, radius: int) -> set[int]:
        return {u for v in nodes for u in nx.single_source_shortest_path_length(self.nx, v, cutoff=radius)}


@pytest.mark.parametrize("seed", range(5))
def test_the_table_and_single_pairs_are_the_same_numbers(seed: int) -> None:
    made = Made(seed, n=30, r=40)
    queries = torch.from_numpy(made.queries)
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(70))
    few, all_ = Cosines(made.graph, queries), Cosines(made.graph, queries)
    alone = torch.cat([few.costs(part[:, 0], part[:, 1]) for part in pairs.split(13)])
    assert few._table is None
    together = all_.costs(pairs[:, 0], pairs[:, 1])
    assert all_._table is not None and torch.equal(alone, together)
    both = torch.cat([made.graph.entity_vectors, made.graph.relation_vectors])
    assert torch.equal(together, node_costs(queries, both, pairs[:, 0], pairs[:, 1]))
    exact = [made.cosine(made.queries[b], v) for b, v in pairs.tolist()]
    assert all_.cosines(pairs[:, 0], pairs[:, 1]).tolist() == exact
    assert together.tolist() == [made.cost(made.queries[b], v) for b, v in pairs.tolist()]


def test_a_table_that_would_be_too_large_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(3)
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(28))
    whole = Cosines(made.graph, torch.from_numpy(made.queries)).costs(pairs[:, 0], pairs[:, 1])
    monkeypatch.setattr("gpu_rag.methods.bubblerag.graph.MOST", 4 * 28 - 1)
    bounded = Cosines(made.graph, torch.from_numpy(made.queries))
    assert torch.equal(bounded.costs(pairs[:, 0], pairs[:, 1]), whole) and bounded._table is None


def test_a_question_that_is_no_unit_vector_is_refused() -> None:
    with pytest.raises(BadInput, match="unit"):
        Cosines(Made(0).graph, torch.ones(1, D))


def by_hand(made: Made, params: Growth, q: np.ndarray, groups: tuple[tuple[int, ...], ...]) -> list[Tree]:
    """One question: the local graph by breadth-first search, costs by integers, the op, and means by fractions."""
    anchors = [v for group in groups for v in group]
    held = sorted(set(anchors))
    for hop in range(1, params.hops + 1):
        front = made.within(anchors, hop) - made.within(anchors, hop - 1)
        held += made.ranked(q, front, max(0, params.max_local - len(held)))
    held.sort()
    whole = made.graph.graph
    blocks = induced_subgraphs(whole, Ragged(torch.tensor(held), torch.tensor([0, len(held)])))
    offsets = torch.tensor([0, len(anchors)])
    kinds = torch.tensor([g for g, group in enumerate(groups) for _ in group])
    found = bubble_expansion(
        blocks, torch.tensor([made.cost(q, v) for v in held]), Ragged(torch.tensor(anchors), offsets),
        Ragged(kinds, offsets), limit=params.budget, cover_first=params.cover_first, implementation="torch",
    )  # fmt: skip
    trees, at = [], found.nodes.offsets.tolist()
    for i, (a, b) in enumerate(zip(at, at[1:])):
        nodes = found.nodes.values[a:b].tolist()
        counted = [v for v in nodes if v < made.n] or nodes
        cost = math.fsum(1 - made.cosine(q, v) for v in counted) / len(counted)
        trees.append(Tree(tuple(nodes), int(found.groups[i]), cost, int(found.distance[i]), int(found.kind[i])))
    return trees


def check_trees(found: Any, expected: list[Tree]) -> None:
    assert [(t.nodes, t.groups, t.distance, t.kind) for t in found] == [
        (t.nodes, t.groups, t.distance, t.kind) for t in expected
    ]
    assert [t.cost for t in found] == pytest.approx([t.cost for t in expected], rel=1e-14)


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize(
    "params", [Growth(), Growth(hops=2, max_local=9), Growth(budget=3, cover_first=True), Growth(hops=0)]
)
def test_trees_are_those_of_the_steps_one_by_one(params: Growth, coarse: bool) -> None:
    kinds = set()
    for seed in range(5):
        made = Made(seed, coarse=coarse)
        for (q, groups), found in zip(made.asked, grow(made.graph, params, made.asked)):
            expected = by_hand(made, params, q, groups)
            check_trees(found, expected)
            kinds |= {t.kind for t in expected}
            if any(len(t.nodes) > 1 and t.cost for t in expected):  # what is no mean over entities is caught
                wrong = [Tree(t.nodes, t.groups, t.cost * len(t.nodes), t.distance, t.kind) for t in expected]
                with pytest.raises(AssertionError):
                    check_trees(found, wrong)
    assert {INSIDE, ALONE} <= kinds or params.hops == 0


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6) | st.just(70))
def test_a_question_alone_has_the_trees_of_any_batch(seed: int, batch: int) -> None:
    made = Made(seed, batch=batch, coarse=seed % 2 == 0)
    together = grow(made.graph, Growth(), made.asked)
    some = sorted({0, batch // 2, batch - 1})
    assert [grow(made.graph, Growth(), [made.asked[i]])[0] for i in some] == [together[i] for i in some]
    assert grow(made.graph, Growth(), made.asked[::-1], threads=2)[::-1] == together


def test_vectors_of_half_precision_give_the_same_trees() -> None:
    """An index on a GPU holds such vectors."""
    made = Made(5, batch=20)
    graph = made.graph
    half = replace(graph, entity_vectors=graph.entity_vectors.half(), relation_vectors=graph.relation_vectors.half())
    assert grow(half, Growth(), made.asked) == grow(graph, Growth(), made.asked)
    asked = [(q, tuple(range(made.n)), ()) for q in made.queries]
    assert neighbours(half, asked, 9) == neighbours(graph, asked, 9)


def test_without_anchors_there_are_no_trees_and_too_many_groups_are_refused() -> None:
    made = Made(1)
    assert grow(made.graph, Growth(), [(made.queries[0], ()), (made.queries[1], ((), (3,)))])[0] == ()
    assert grow(made.graph, Growth(), []) == []
    with pytest.raises(BadInput, match="one of the groups is no group"):
        grow(made.graph, Growth(), [(made.queries[0], ((1,),) * 17)])


def both_tables(made: Made, k: int) -> TopK:
    graph, queries = made.graph, torch.from_numpy(made.queries)
    found = (nearest(queries, vectors, k) for vectors in (graph.entity_vectors, graph.relation_vectors))
    return steps._merged(*found, graph.n_entities)


@pytest.mark.parametrize("seed", range(6))
def test_merged_nodes_are_those_of_both_tables(seed: int) -> None:
    made = Made(seed)
    top = both_tables(made, 3)
    for q, ids, scores in zip(made.queries, top.ids.tolist(), top.scores.tolist()):
        products = made.vectors @ q
        best = [v for part in (range(made.n), range(made.n, made.n + made.r))
                for v in sorted(part, key=lambda v: (-products[v], v))[:3]]  # fmt: skip
        assert ids == sorted(best, key=lambda v: (-products[v], v))
        assert scores == pytest.approx([products[v] for v in ids], abs=1e-6)
    many = both_tables(made, 40)
    assert (many.ids >= 0).sum(1).tolist() == [made.n + made.r] * 4  # padding comes last
    assert torch.equal(many.ids.sort(1).values[0, -28:], torch.arange(28, dtype=torch.int32))


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_near_relations_are_the_best_of_the_ball(seed: int, coarse: bool) -> None:
    made = Made(seed, coarse=coarse)
    asked = [(made.queries[:2], (0, 13)), (made.queries[:0], (1,)), (made.queries[2:], (5,))]
    found = near_relations(made.graph, asked, 3, 100, 4, 1)
    assert [len(one) for one in found] == [2, 0, 2]
    for (vectors, nodes), rows in zip(asked, found):
        ball = [v for v in made.within(nodes, 3) if v >= made.n]
        for q, ranking in zip(vectors, rows):
            assert list(ranking.rows) == made.ranked(q, ball, 4)
            assert list(ranking.scores) == [made.cosine(q, v) for v in ranking.rows]
    assert near_relations(made.graph, [asked[2]], 3, 100, 4, 1)[0] == found[2]
    assert near_relations(made.graph, asked, 0, 100, 4, 1)[2][0].rows == ()  # an entity alone has no relation


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_neighbours_are_the_relations_that_end_there_and_are_not_held(seed: int, coarse: bool) -> None:
    made = Made(seed, coarse=coarse)
    q = made.queries
    asked = [(q[0], (0, 1, 2), (made.n,)), (q[1], (), ()), (q[2], tuple(range(made.n)), tuple(range(14, 20)))]
    found = neighbours(made.graph, asked, 5)
    for (vector, frontier, held), ranking in zip(asked, found):
        ends = {made.n + i for i, pair in enumerate(made.ends) if set(pair.tolist()) & set(frontier)} - set(held)
        assert list(ranking.rows) == made.ranked(vector, ends, 5)
    assert [neighbours(made.graph, [one], 5)[0] for one in asked] == found


@pytest.mark.parametrize("order", ["walk", "trees"])
@pytest.mark.parametrize("seed", range(8))
def test_passages_come_by_tree_then_by_their_nodes_then_by_cosine(seed: int, order: str) -> None:
    made = Made(seed)
    rng = np.random.default_rng(seed)
    asked = []
    for q in made.queries:
        nodes = rng.choice(made.n + made.r, 8, replace=False).tolist()
        asked.append((q, {v: i // 3 for i, v in enumerate(nodes)}))
    asked.append((made.queries[0], {}))
    found = passages(made.graph, made.passages, order, asked, 6)
    for (q, tree_of), rows in zip(asked, found):
        all_: list[TreePassage] = []
        for p in range(P):
            nodes = [v for v in tree_of if p in made.held[v]]
            if nodes:
                weight = sum(2**40 // len(made.held[v]) for v in nodes) / 2**40
                cosine = float(made.passages[p].double() @ torch.from_numpy(q).double())
                all_.append(TreePassage(p, min(tree_of[v] for v in nodes), len(nodes), weight, cosine))
        all_.sort(key=lambda t: (t.tree, -(t.weight if order == "walk" else t.n_nodes), -t.cosine, t.row))
        assert [(t.row, t.tree, t.n_nodes) for t in rows] == [(t.row, t.tree, t.n_nodes) for t in all_[:6]]
        assert [t.weight for t in rows] == [t.weight for t in all_[:6]]
        assert [t.cosine for t in rows] == pytest.approx([t.cosine for t in all_[:6]], abs=1e-6)
    assert found[-1] == []
    assert [passages(made.graph, made.passages, order, [one], 6)[0] for one in asked] == found
