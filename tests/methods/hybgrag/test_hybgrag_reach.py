"""The hybrid module against networkx: which nodes the topics of a question reach, what they share, how it is ranked."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kb_in_memory import knowledge_base
from memory_index import run as run_step

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hybgrag import batched
from gpu_rag.methods.hybgrag.batched import TopicNodes, chains_of, reach_nodes
from gpu_rag.methods.hybgrag.state import Retrieved
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.program.knowledge_base.documents import search_documents
from gpu_rag.program.knowledge_base.relations import Relations, directed_at
from gpu_rag.program.knowledge_base.walks import Walk, walk_nodes

EMBED = HashEmbedder()
TYPES = ("film", "person", "year")
Edge = tuple[int, int, int]
Asked = list[TopicNodes]


def make(n: int, n_relations: int, edges: Sequence[Edge], *, documents: int = 0) -> KnowledgeBase:
    nodes = [(f"n{i:02d}", f"name {i}", TYPES[i % 3]) for i in range(n)]
    # every relation has an edge somewhere: rows of relations are then their numbers
    named = [(f"n{a:02d}", f"r{r}", f"n{b:02d}") for a, r, b in edges]
    named += [(f"n{n - 1:02d}", f"r{r}", f"n{n - 1:02d}") for r in range(n_relations)]
    texts = [(f"p{i:02d}", f"n{i % n:02d}", f"text {i} about {i % 5} and {i % 7}") for i in range(documents)]
    return knowledge_base(nodes, named, embed=EMBED.embed, passages=texts)


def multigraph(kb: KnowledgeBase) -> nx.MultiGraph:
    """Undirected: each hop may be walked either way."""
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(kb.n))
    graph.add_edges_from((h, t, {"r": r}) for h, r, t in zip(kb.head.tolist(), kb.relation.tolist(), kb.tail.tolist()))
    return graph


def steps(graph: nx.MultiGraph, nodes: set[int], relation: int) -> set[int]:
    return {b for a in nodes for _, b, found in graph.edges(a, data="r") if found == relation}


def reached_by(graph: nx.MultiGraph, topic: TopicNodes, radius: int) -> set[int]:
    """All ends of walks of 1 to radius edges of the allowed relations."""
    front, found = set(topic.nodes), set()
    for _ in range(radius):
        front = set().union(*(steps(graph, front, r) for r in topic.relations), set())
        found |= front
    return found


def distance(graph: nx.MultiGraph, topic: TopicNodes, node: int, radius: int) -> int | None:
    """0 where all relations once, in some order, lead to the node; else the steps of the shortest walk, if any."""
    named = permutations(topic.relations) if 0 < len(topic.relations) <= radius else ()
    if any(node in ends(graph, topic.nodes, chain) for chain in named):
        return 0
    return next((steps for steps in range(1, radius + 1) if node in reached_by(graph, topic, steps)), None)


def plain(
    kb: KnowledgeBase, topics: Asked, vector: np.ndarray, radius: int, k: int, by_distance: bool
) -> tuple[list[int], bool]:
    graph = multigraph(kb)
    sets = [reached_by(graph, topic, radius) for topic in topics]
    own = {node for topic in topics for node in topic.nodes}
    shared = set.intersection(*sets) - own if sets else set()
    taken = shared or set().union(*sets) - own
    far = dict.fromkeys(taken, 0)
    if by_distance:
        measured = {node: [distance(graph, topic, node, radius) for topic in topics] for node in taken}
        known = {node: [d for d in found if d is not None] for node, found in measured.items()}
        far = {node: max(found) if shared else min(found) for node, found in known.items()}
    scored = sorted((far[node], -float(score(kb, node) @ vector.astype(np.float64)), node) for node in taken)
    return [node for _, _, node in scored[:k]], bool(shared)


def score(kb: KnowledgeBase, node: int) -> np.ndarray:
    assert kb.text_row[node] >= 0
    return kb.vectors("kb_text_vectors")[kb.text_row[node]].numpy().astype(np.float64)


def run(
    kb: KnowledgeBase, asked: list[Asked], texts: Sequence[str], radius: int = 2, k: int = 5, by_distance: bool = True
) -> list[Retrieved]:
    queries = zip(map(tuple, asked), EMBED.embed(list(texts)), [None] * len(asked))
    found: list[Retrieved] = run_step(reach_nodes, kb, list(queries), radius, k, by_distance)
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[KnowledgeBase, list[Asked], int]:
    n, n_relations = draw(st.integers(2, 14)), draw(st.integers(1, 4))
    node, relation = st.integers(0, n - 1), st.integers(0, n_relations - 1)
    edges = draw(st.lists(st.tuples(node, relation, node), max_size=30))
    topic = st.builds(
        lambda a, b: TopicNodes(tuple(a), tuple(b)),
        st.lists(node, min_size=1, max_size=3, unique=True),
        st.lists(relation, max_size=3, unique=True),
    )
    asked = draw(st.lists(st.lists(topic, min_size=1, max_size=3), min_size=1, max_size=5))
    return make(n, n_relations, edges), asked, draw(st.integers(1, 3))


@settings(max_examples=80, deadline=None)
@given(cases(), st.booleans())
def test_it_is_what_networkx_reaches_and_shares(
    case: tuple[KnowledgeBase, list[Asked], int], by_distance: bool
) -> None:
    kb, asked, radius = case
    texts = [f"name {i} and r{i}" for i in range(len(asked))]
    found = run(kb, asked, texts, radius, 4, by_distance)
    for topics, text, one in zip(asked, texts, found):
        rows, met = plain(kb, topics, EMBED.embed([text])[0], radius, 4, by_distance)
        assert (list(one.rows), one.met) == (rows, met)
        assert by_distance or list(one.scores) == sorted(one.scores, reverse=True)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_chains_are_the_first_that_lead_there(case: tuple[KnowledgeBase, list[Asked], int]) -> None:
    kb, asked, radius = case
    graph = multigraph(kb)
    for topics, one in zip(asked, run(kb, asked, ["x"] * len(asked), radius)):
        assert len(one.chains) == len(one.rows)
        for node, chains in zip(one.rows, one.chains):
            for topic, chain in zip(topics, chains, strict=True):
                ways = [c for c in chains_of(topic.relations, radius) if node in ends(graph, topic.nodes, c)]
                assert chain == (ways[0] if ways else ())


def ends(graph: nx.MultiGraph, nodes: Sequence[int], chain: Sequence[int]) -> set[int]:
    front = set(nodes)
    for relation in chain:
        front = steps(graph, front, relation)
    return front


@settings(max_examples=40, deadline=None)
@given(cases())
def test_a_question_alone_is_that_question_in_any_batch(case: tuple[KnowledgeBase, list[Asked], int]) -> None:
    kb, asked, radius = case
    texts = [f"name {i}" for i in range(len(asked))]
    together = run(kb, asked, texts, radius)
    assert together == [run(kb, [topics], [text], radius)[0] for topics, text in zip(asked, texts)]


@settings(max_examples=50, deadline=None)
@given(cases(), st.data())
def test_walks_are_walks_of_the_lowest_nodes(case: tuple[KnowledgeBase, list[Asked], int], data: st.DataObject) -> None:
    kb, asked, radius = case
    graph = multigraph(kb)
    walks = []
    for topic in (topic for topics in asked for topic in topics):
        chain = tuple(data.draw(st.lists(st.sampled_from(topic.relations or (0,)), min_size=1, max_size=radius)))
        walks.append(Walk(topic.nodes, chain, data.draw(st.integers(0, kb.n - 1))))
    for walk, found in zip(walks, run_step(walk_nodes, kb, walks)):
        options = [
            (start, *middle)
            for start in sorted(set(walk.starts))
            for middle in product(range(kb.n), repeat=len(walk.chain))
            if middle[-1] == walk.end
            and all(b in steps(graph, {a}, r) for a, b, r in zip((start, *middle), middle, walk.chain))
        ] if kb.n <= 8 else None  # fmt: skip
        if options is not None:
            assert found == (min(options) if options else ())
        assert bool(found) == (walk.end in ends(graph, walk.starts, walk.chain))


@settings(max_examples=50, deadline=None)
@given(cases(), st.data())
def test_how_a_topic_leads_to_gold_nodes(case: tuple[KnowledgeBase, list[Asked], int], data: st.DataObject) -> None:
    kb, asked, radius = case
    graph = multigraph(kb)
    topics = [topic for topics in asked for topic in topics]
    gold = [data.draw(st.lists(st.integers(0, kb.n - 1), max_size=3)) for _ in topics]
    everything = tuple(range(kb.n_relations))
    found = run_step(batched.leading, kb, zip(topics, gold), radius)
    for topic, nodes, leads in zip(topics, gold, found):
        assert set(leads.nodes) == reached_by(graph, topic, radius) & set(nodes)
        assert leads.ball == bool(reached_by(graph, TopicNodes(topic.nodes, everything), radius) & set(nodes))
        leading = (c for c in chains_of(topic.relations, radius) if ends(graph, topic.nodes, c) & set(nodes))
        useful = {relation for chain in leading for relation in chain}
        assert set(leads.relations) == useful


FILMS = knowledge_base(
    [("a", "Ash", "film"), ("b", "Birch", "film"), ("c", "Cedar", "film"), ("p", "Piet", "person"),
     ("q", "Quinn", "person"), ("y", "1931", "year")],
    [("a", "directed by", "p"), ("b", "directed by", "p"), ("b", "directed by", "q"), ("c", "directed by", "q"),
     ("a", "released", "y"), ("c", "released", "y"), ("a", "starred", "q")],
    embed=EMBED.embed,
)  # fmt: skip
A, B, C, P, Q, Y = range(6)
DIRECTED, RELEASED, STARRED = range(3)


def test_a_version_that_intersects_over_the_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plausible wrong count: nodes by themselves, not by question."""
    asked = [[TopicNodes((P,), (DIRECTED,))], [TopicNodes((Q,), (DIRECTED,))]]
    right = run(FILMS, asked, ["which film"] * 2, 1)
    assert [set(one.rows) for one in right] == [{A, B}, {B, C}]
    wrong = batched._candidates

    def over_all(walks, within):  # type: ignore[no-untyped-def]
        walks = replace(walks)
        walks.__dict__["of_question"] = torch.zeros_like(walks.of_question)
        return wrong(walks, within)

    monkeypatch.setattr(batched, "_candidates", over_all)
    assert [set(one.rows) for one in run(FILMS, asked, ["which film"] * 2, 1)] != [{A, B}, {B, C}]


def test_a_version_that_takes_the_nearer_of_two_topics_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an intersection the plausible wrong distance puts a node first that one topic is far from."""
    kb = knowledge_base(
        [(id, id, "x") for id in ("s", "t", "u", "v", "w")],
        [("s", "r", "u"), ("u", "r", "v"), ("t", "r", "v"), ("s", "r", "w"), ("t", "r", "w")],
        embed=EMBED.embed,
    )
    s, t, _, v, w = range(5)
    asked = [[TopicNodes((s,), (0,)), TopicNodes((t,), (0,))]]
    for wanted in ("v", "w"):
        (found,) = run(kb, asked, [f"{wanted} (x)"])
        assert found.rows[0] == w and v in found.rows, "w is one step from both, v two from s"
    whole = batched._candidates

    def nearer(walks, within):  # type: ignore[no-untyped-def]
        candidates, met = whole(walks, within)
        return candidates, torch.zeros_like(met)

    monkeypatch.setattr(batched, "_candidates", nearer)
    assert run(kb, asked, ["v (x)"])[0].rows[0] == v


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 30), st.integers(1, 15))
def test_documents_are_searched_exactly(n: int, documents: int, k: int) -> None:
    """Nodes by their best text, also where one node has many and another none."""
    kb = make(n, 1, [], documents=documents)
    texts = ["text 3 about 3 and 3", "name 1", "zzz"]
    queries = EMBED.embed(texts)
    passages = kb.vectors("passage_vectors").numpy() if documents else None
    for query, found in zip(queries, run_step(search_documents, kb, queries, k)):
        scores = []
        for node in range(n):
            own = [p for p in range(documents) if p % n == node]
            if own:
                assert passages is not None
                scores.append(max(float(passages[sorted_passage(kb, p)] @ query) for p in own))
            else:
                scores.append(float(kb.vectors("kb_text_vectors")[kb.text_row[node]].numpy() @ query))
        assert list(found.scores) == pytest.approx(sorted(scores, reverse=True)[:k], abs=1e-6)
        assert [scores[row] for row in found.rows] == pytest.approx(list(found.scores), abs=1e-6)
        assert len(set(found.rows)) == min(k, n)


def sorted_passage(kb: KnowledgeBase, number: int) -> int:
    return kb.passage_ids.index(f"p{number:02d}")


def test_relations_follow_one_another_where_types_meet() -> None:
    schema = Relations(FILMS)
    assert schema.text(RELEASED) == "released: film to year"
    assert schema.within([RELEASED], 1) == [RELEASED]
    assert schema.within([RELEASED], 2) == [DIRECTED, RELEASED, STARRED]
    chain = knowledge_base(
        [("a", "a", "x"), ("b", "b", "y"), ("c", "c", "z"), ("d", "d", "w")],
        [("a", "r0", "b"), ("b", "r1", "c"), ("c", "r2", "d")],
    )
    assert [Relations(chain).within([0], radius) for radius in (1, 2, 3)] == [[0], [0, 1], [0, 1, 2]]


def test_one_of_the_best_relations_can_begin_a_walk() -> None:
    """Even where others that may follow are nearer to the question."""
    kb = knowledge_base(
        [("a", "a", "x"), ("b", "b", "y"), ("c", "c", "z")],
        [("a", "plain", "b"), ("b", "nearest of all", "c"), ("b", "nearest", "c")],
        embed=EMBED.embed,
    )
    search = Relations(kb)
    (vector,) = EMBED.embed(["nearest of all"])
    far, near, both = (kb.relation_names.index(name) for name in ("plain", "nearest", "nearest of all"))
    (wide,) = search.ranked([(0,)], [vector], 2, 3)
    assert wide.rows == (both, near, far) and wide.first == (False, False, True)
    (tight,) = search.ranked([(0,)], [vector], 2, 2)
    assert tight.rows == (both, far) and tight.first == (False, True)
    (at_node,) = search.ranked([(0,)], [vector], 1, 2)
    assert at_node.rows == (far,)
    (everywhere,) = search.ranked([()], [vector], 1, 2)
    assert everywhere.rows == (both, near) and everywhere.first == (False, False)
    directed = directed_at(kb, [(0,), (1, 2), ()], np.zeros(3, bool))
    assert [sorted({way // 2 for way in line}) for line in directed] == [[far], sorted([far, near, both]), []]
