"""The path steps of HydraRAG against networkx and brute force on random multigraphs with several sources."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_in_memory import knowledge_base, text_of_edge
from memory_index import MemoryIndex, run
from path_rules import all_paths, holds, nodes_kept

from gpu_rag.graph.ego import induced_subgraphs
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.batched import subgraphs as steps
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, FactGraph, fact_graph, facts_of
from gpu_rag.methods.hydrarag.batched.search import (
    HOP,
    PART,
    WHOLE,
    Walks,
    best_paths,
    chain_paths,
    expand_paths,
    join_paths,
    n_chain_steps,
    score_paths,
    start_paths,
)
from gpu_rag.methods.hydrarag.batched.subgraphs import GraphWanted, Order, QuestionGraph, equal_nodes, question_graph
from gpu_rag.methods.hydrarag.state import FoundPath
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.types import Blocks, Ragged

Edge = tuple[int, str, int, str]
SOURCES = ("left", "right")


def base(n: int, edges: Sequence[Edge]) -> KnowledgeBase:
    nodes = [(f"n{v:03d}", f"node {v}", "entity") for v in range(n)]
    rows = [(f"n{s:03d}", r, f"n{o:03d}", source) for s, r, o, source in edges]
    return knowledge_base(nodes, rows, embed=HashEmbedder().embed, sources=SOURCES)


BOTH = FactChoice((0, 1))
SOUGHT = np.zeros(HashEmbedder().dim, np.float32)


def index_of(n: int, edges: Sequence[Edge]) -> MemoryIndex:
    return MemoryIndex(base(n, edges))


def subgraphs(
    index: MemoryIndex, wanted: Sequence[GraphWanted], depth: int, cluster: bool = True, choice: FactChoice = BOTH
) -> list[QuestionGraph]:
    with pytest.MonkeyPatch.context() as patch:
        if not cluster:
            patch.setattr(steps, "equal_nodes", lambda *given: (given[1].global_ids.int(), *equal_nodes(*given)[1:]))
        found: list[QuestionGraph] = run(question_graph, index, [(one, SOUGHT) for one in wanted], choice, depth)
    return found


def expanded(index: MemoryIndex, graphs: list[QuestionGraph], walks: list[Walks]) -> list[Walks]:
    found: list[Walks] = run(expand_paths, index, zip(graphs, walks), walks[0].paths.edges.shape[1])
    return found


def scored(
    index: MemoryIndex,
    graphs: list[QuestionGraph],
    walks: list[Walks],
    queries: Sequence[np.ndarray],
    beam: int | None,
    choice: FactChoice = BOTH,
) -> list[Walks]:
    found: list[Walks] = run(score_paths, index, zip(graphs, walks, queries), choice, walks[0].kind, beam)
    return found


def best(
    index: MemoryIndex, graphs: list[QuestionGraph], walks: list[Walks], choice: FactChoice = BOTH
) -> list[list[FoundPath]]:
    found: list[list[FoundPath]] = run(best_paths, index, zip(graphs, walks), choice, None)
    return found


def random_edges(rng: random.Random, n: int, m: int, relations: int = 3) -> list[Edge]:
    rows = {(rng.randrange(n), f"r{rng.randrange(relations)}", rng.randrange(n), rng.choice(SOURCES)) for _ in range(m)}
    return sorted(rows)


def search(
    index: MemoryIndex,
    graphs: list[QuestionGraph],
    depth: int,
    window: tuple[int, int],
    beam: int | None = None,
    queries: Sequence[np.ndarray] | None = None,
    choice: FactChoice = BOTH,
) -> list[set[tuple[int, ...]]]:
    """The loop of a program, for several questions at once; the node lists of all whole paths of each question."""

    vectors = queries or [np.zeros(HashEmbedder().dim, np.float32)] * len(graphs)

    def kept(walks: list[Walks], kind: str) -> list[Walks]:
        assert {one.kind for one in walks} == {kind}
        return scored(index, graphs, walks, vectors, beam, choice)

    hops = [run(start_paths, index, graphs)]
    for _ in range(depth):
        hops.append(kept(expanded(index, graphs, hops[-1]), HOP))
    parts = kept(run(join_paths, index, zip(graphs, zip(*hops)), len(hops)), PART)
    whole: list[Any] = [None] * len(graphs)
    windows = [(window,) * len(graph.orders) for graph in graphs]
    for step in range(max(map(n_chain_steps, graphs))):
        whole = kept(run(chain_paths, index, zip(graphs, whole, parts, windows), step), WHOLE)
    if whole[0] is None:
        return []
    return [{path.nodes for path in paths} for paths in best(index, graphs, whole, choice)]


def simple_paths(graph: nx.Graph, order: Order, depth: int, window: tuple[int, int]) -> set[tuple[int, ...]]:
    rule = (order.topics, order.opens, order.closes, window, depth)
    return {tuple(path) for path in all_paths(graph, window[1]) if holds(path, *rule)}


def undirected(edges: Sequence[Edge], n: int, sources: Sequence[str] = SOURCES) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((s, o) for s, _, o, source in edges if source in sources and s != o)
    return graph


def clusters(edges: Sequence[Edge], inside: Sequence[int], alone: Sequence[int]) -> dict[int, int]:
    """Node -> the smallest node of its cluster, from the definition."""
    own = set(inside)
    says: dict[int, set[Any]] = {v: set() for v in inside}
    for s, r, o, source in edges:
        if s in own and o in own and s != o:
            says[s].add(("out", r, o, source))
            says[o].add(("in", r, s, source))
    groups: dict[Any, int] = {}
    found = {}
    for v in sorted(own):
        multiset = tuple(sorted((d, r, u, c) for d, r, u, c in says[v]))
        key = ("topic", v) if v in alone else tuple(sorted((d, r, u) for d, r, u, _ in multiset))
        found[v] = groups.setdefault(key, v)
    return found


ORDERS = [
    Order((0,)),
    Order((0, 1)),
    Order((1, 0), closes=True),
    Order((0, 1), opens=True),
    Order((2, 0, 1)),
    Order((0,), opens=True),
]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [1, 2])
def test_unbounded_search_finds_what_networkx_finds(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    n = 11
    edges = random_edges(rng, n, 20)
    index = index_of(n, edges)
    plain = undirected(edges, n)
    for order in ORDERS:
        k = len(order.topics)
        for window in ((k * (depth - 1), k * depth), (0, k * depth)):
            wanted = [(order.topics, (order,))]
            (graph,) = subgraphs(index, wanted, depth, cluster=False)
            (found,) = search(index, [graph], depth, window)
            expected = simple_paths(plain, order, depth, window)
            assert found == expected, (order, window)


@pytest.mark.parametrize("seed", range(6))
def test_clustered_search_is_search_on_the_graph_of_representatives(seed: int) -> None:
    rng = random.Random(100 + seed)
    n, depth = 14, 2
    edges = [*random_edges(rng, 8, 10, 1), *((v, "leaf", rng.randrange(4), "left") for v in range(8, n))]
    index = index_of(n, edges)
    plain = undirected(edges, n)
    for order in (Order((0, 1)), Order((0,))):
        (graph,) = subgraphs(index, [(order.topics, (order,))], depth)
        ball = set().union(*(nx.single_source_shortest_path_length(plain, t, depth) for t in order.topics))
        assert graph.ball.tolist() == sorted(ball) and graph.taken.nodes == len(ball)
        of = clusters(edges, sorted(ball), order.topics)
        assert graph.representative.tolist() == [of[v] for v in sorted(ball)]
        assert graph.clustered.nodes == len(set(of.values()))
        small = plain.subgraph(set(of.values()))
        assert graph.clustered.edges == small.number_of_edges()
        window = (0, len(order.topics) * depth)
        (found,) = search(index, [graph], depth, window)
        assert found == simple_paths(small, order, depth, window)
        for path in found:  # every choice of members is a path of the whole graph
            for nodes in itertools.islice(itertools.product(*(graph.members(v) for v in path)), 50):
                assert all(plain.has_edge(a, b) for a, b in zip(nodes, nodes[1:]))


@pytest.mark.parametrize("seed", range(4))
def test_reduction_keeps_the_nodes_of_the_rule(seed: int) -> None:
    rng = random.Random(200 + seed)
    n, depth = 16, 2
    edges = random_edges(rng, n, 22)
    index = index_of(n, edges)
    plain = undirected(edges, n)
    away = dict(nx.all_pairs_shortest_path_length(plain))
    far = 99
    for order in (Order((0, 1)), Order((0, 1), closes=True), Order((0, 1, 2), opens=True)):
        (graph,) = subgraphs(index, [(order.topics, (order,))], depth, cluster=False)
        inside = plain.subgraph(graph.ball.tolist())
        expected = nodes_kept(inside, order.topics, order.opens, order.closes, depth)
        assert graph.nodes.tolist() == expected
        assert graph.reduced.nodes == len(expected)
        assert set(graph.ball.tolist()) == {v for v in plain if any(away[t].get(v, far) <= depth for t in order.topics)}


def test_questions_at_different_hops_can_be_scored_together() -> None:
    index = index_of(8, random_edges(random.Random(1), 8, 16))
    graphs = subgraphs(index, [((v,), (Order((v,)),)) for v in (0, 1, 2)], 3)
    none = [np.zeros(HashEmbedder().dim, np.float32)] * 3
    ways = [run(start_paths, index, [graph]) for graph in graphs]
    for b in range(3):
        for _ in range(b + 1):
            ways[b] = expanded(index, [graphs[b]], ways[b])
    mixed = scored(index, graphs, [way[0] for way in ways], none, 4)
    for b, walks in enumerate(mixed):
        (alone,) = scored(index, [graphs[b]], ways[b], none[:1], 4)
        assert torch.equal(walks.paths.nodes, alone.paths.nodes) and walks.paths.edges.shape[1] == b + 1
        longer = [expanded(index, [graphs[b]], [one])[0].paths.nodes for one in (walks, alone)]
        assert torch.equal(*longer)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_removing_a_source_leaves_the_paths_of_the_other(seed: int) -> None:
    rng = random.Random(seed)
    n, depth = 10, 2
    edges = random_edges(rng, n, 18)
    index, order = index_of(n, edges), Order((0, 1))
    found = []
    for choice in (BOTH, FactChoice((0,))):
        (graph,) = subgraphs(index, [((0, 1), (order,))], depth, False, choice)
        found.append(search(index, [graph], depth, (0, 4), choice=choice)[0])
    plain = undirected(edges, n, ["left"])
    assert found[1] == {p for p in found[0] if all(plain.has_edge(a, b) for a, b in zip(p, p[1:]))}


def test_the_beam_keeps_the_best_by_the_formula() -> None:
    kb = base(5, [(0, "likes", 1, "left"), (0, "hates", 2, "left"), (1, "likes", 3, "left"), (2, "hates", 4, "left")])
    index = MemoryIndex(kb)
    (query,) = HashEmbedder().embed(["node 0 likes node 1"])
    (graph,) = subgraphs(index, [((0,), (Order((0,)),))], 2, cluster=False)
    assert search(index, [graph], 2, (0, 2), beam=1, queries=[query])[0] == {(0, 1)}
    (walks,) = scored(index, [graph], expanded(index, [graph], run(start_paths, index, [graph])), [query], None)
    vectors = kb.vectors("kb_edge_vectors").double()
    rows = [text_of_edge(kb, e) for e in range(kb.n_edges)]
    expected = [
        0.7 * float(vectors[rows.index(text)] @ torch.from_numpy(query).double()) + 0.3 / 2
        for text in ("node 0 likes node 1", "node 0 hates node 2")
    ]
    assert walks.scores is not None and np.allclose(walks.scores.tolist(), expected, atol=1e-3)


def test_a_path_says_for_which_order_it_was_found() -> None:
    index = index_of(4, [(0, "a", 1, "left"), (1, "b", 2, "left"), (2, "c", 3, "left")])
    orders = (Order((0,)), Order((3,)), Order((0, 2)))
    (graph,) = subgraphs(index, [((0, 2, 3), orders)], 2, cluster=False)
    hops = [run(start_paths, index, [graph])]
    for _ in range(2):
        hops.append(expanded(index, [graph], hops[-1]))
    (parts,) = run(join_paths, index, [(graph, tuple(walks for (walks,) in hops))], len(hops))
    whole = None
    for step in range(n_chain_steps(graph)):
        (whole,) = run(chain_paths, index, [(graph, whole, parts, ((0, 2),) * 3)], step)
    walks = scored(index, [graph], [whole], [np.zeros(HashEmbedder().dim, np.float32)], None)
    found = {path.nodes: path.topics for path in best(index, [graph], walks)[0]}
    assert found[(0, 1)] == (0,) and found[(3, 2)] == found[(3, 2, 1)] == (3,)
    assert found[(0, 1, 2)] in ((0,), (0, 2)) and set(found.values()) <= {order.topics for order in orders}


def test_parallel_relations_are_one_edge_and_hydra_e_keeps_one_of_them() -> None:
    edges = [(0, "a", 1, "left"), (1, "b", 0, "left"), (0, "c", 1, "right"), (1, "d", 2, "left")]
    index: Any = index_of(3, edges)
    assert facts_of(index, BOTH).triples.offsets.diff().tolist() == [3, 1]
    drawn = {tuple(facts_of(index, FactChoice((0, 1), seed)).triples.values.tolist()) for seed in range(40)}
    assert len(drawn) == 3 and all(len(rows) == 2 for rows in drawn)
    again: list[Any] = [index_of(3, edges) for _ in range(2)]
    rows = [facts_of(one, FactChoice((0, 1), 7)).triples.values for one in again]
    assert torch.equal(*rows)
    (graph,) = subgraphs(index, [((0,), (Order((0,)),))], 2)
    assert (graph.taken.edges, graph.taken.triples, graph.taken.nodes) == (2, 4, 3)


def by_neighbours_alone(graph: FactGraph, blocks: Blocks, alone: Ragged) -> Any:
    """A wrong clustering: relations and directions are forgotten."""
    csr = graph.graph.csr
    blind = replace(graph, signatures=torch.stack([csr.indices.long() * 7919, csr.indices.long() * 104729], 1))
    return equal_nodes(blind, blocks, alone)


@pytest.mark.parametrize("cluster", [equal_nodes, by_neighbours_alone])
def test_nodes_with_other_relations_or_directions_stay_apart(cluster: Callable[..., Any]) -> None:
    edges = [(0, "a", 1, "left"), (0, "a", 2, "left"), (0, "b", 3, "left"), (4, "a", 0, "left"), (0, "a", 5, "left")]
    facts = fact_graph(base(6, edges), (0, 1))
    blocks = induced_subgraphs(facts.numbered, Ragged(torch.arange(6), torch.tensor([0, 6])))
    alone = Ragged(torch.tensor([0, 5]), torch.tensor([0, 2]))
    representative, n_edges, n_triples = cluster(facts, blocks, alone)
    right = representative.tolist() == [0, 1, 1, 3, 4, 5]
    assert right == (cluster is equal_nodes)
    assert (n_edges.tolist(), n_triples.tolist()) == ([5], [5])
