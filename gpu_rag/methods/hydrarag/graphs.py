"""HydraRAG, step II in the knowledge graphs: the evidence subgraph and the search for paths through all topics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

import numpy as np

from gpu_rag.methods.hydrarag.batched.facts import FactChoice
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
from gpu_rag.methods.hydrarag.batched.subgraphs import GraphWanted, Order, QuestionGraph, question_graph
from gpu_rag.methods.hydrarag.state import Analysis, FoundPath, Mention, Search, Sources

MAX_ORDERS = 9  # per search, since a mention may denote several nodes
_MEDIATOR = re.compile(r"[mg]\.[0-9a-z_]+")  # a Freebase node without a name, which is never an answer


Depth = tuple[int, bool]  # D, the hops around a topic; and whether paths also have a minimum length, see `window`


async def explore_graphs(
    analysis: Analysis, sources: Sources, depth: Depth, query: np.ndarray, search: Search
) -> tuple[tuple[FoundPath, ...], QuestionGraph | None]:
    """The W1 best paths of the graphs, and the evidence subgraph (None if no topic is in the graphs). If no path goes
    through all topics, the paths from each topic alone."""
    among = set(sources.graphs)
    candidates = ([m.node for m in mention.matches if among & set(m.sources)] for mention in analysis.mentions)
    lists = [nodes for nodes in candidates if nodes]
    if not lists:
        return (), None
    choice = FactChoice(sources.graphs, search.params.draw)
    seeds = tuple(dict.fromkeys(node for nodes in lists for node in nodes))
    orders = orders_of(lists, analysis.opens, analysis.closes)
    graph, walks = await _searched(choice, (seeds, orders), depth, query, search)
    if not walks.size and len(lists) > 1:
        alone = tuple(Order((node,), closes=True) for node in seeds)
        graph, walks = await _searched(choice, (seeds, alone), depth, query, search)
        search.run.note("graph/topics_alone", len(alone), ("no path goes through all topics",))
    if walks.scores is None:
        return (), graph
    paths = await best_paths((graph, walks), choice, search.params.w1)
    return tuple(_with_answers(path, analysis, search) for path in paths), graph


def window(hops: int, bounded: bool, topics: int) -> tuple[int, int]:
    """(least, longest) hops of a path through `topics` topics. bounded: paths have more than |T| (D - 1) hops."""
    return (topics * (hops - 1) if bounded else 0), topics * hops


def orders_of(lists: Sequence[Sequence[int]], opens: bool, closes: bool) -> tuple[Order, ...]:
    """One order per choice of a node for each mention, best-ranked nodes first, at most MAX_ORDERS."""
    places = sorted(product(*(range(len(nodes)) for nodes in lists)), key=lambda ranks: (sum(ranks), ranks))
    chosen = (tuple(nodes[i] for nodes, i in zip(lists, ranks)) for ranks in places)
    kept = [topics for topics in chosen if len(set(topics)) == len(topics)]
    return tuple(Order(topics, opens, closes) for topics in kept[:MAX_ORDERS])


async def _searched(
    choice: FactChoice, wanted: GraphWanted, depth: Depth, query: np.ndarray, search: Search
) -> tuple[QuestionGraph, Walks]:
    """Algorithm 1: expand every topic hop by hop, keep the W1 best, then join them into whole paths."""
    w1 = search.params.w1
    graph = await question_graph((wanted, query), choice, search.params.d_max)
    steps = {"neighbourhood": graph.taken, "clustered": graph.clustered, "reduced": graph.reduced}
    lines = (f"{name}: {size.nodes} nodes, {size.edges} edges, {size.triples} triples" for name, size in steps.items())
    cut = (f"left out: {graph.n_cut} nodes, less relevant",) if graph.n_cut else ()
    search.run.note("evidence_subgraph", len(graph.orders), (*lines, *cut))
    hops = [await start_paths(graph)]
    if not graph.orders:
        return graph, hops[0]
    for hop in range(depth[0]):
        longer = await expand_paths((graph, hops[-1]), hop)
        hops.append(await score_paths((graph, longer, query), choice, HOP, w1))
    joined = await join_paths((graph, tuple(hops)), len(hops))
    parts = await score_paths((graph, joined, query), choice, PART, w1)
    windows = tuple(window(*depth, len(order.topics)) for order in graph.orders)
    whole: Walks | None = None
    for step in range(n_chain_steps(graph)):
        longer = await chain_paths((graph, whole, parts, windows), step)
        whole = await score_paths((graph, longer, query), choice, WHOLE, w1)
    return graph, hops[0] if whole is None else whole


def _with_answers(path: FoundPath, analysis: Analysis, search: Search) -> FoundPath:
    place = answer_place(path.nodes, taken_as_topics(analysis, path.topics), analysis.predicted)
    nodes = () if place is None else path.places[place]
    names = search.kb.node_names
    return path._replace(answers=tuple(node for node in nodes if not _MEDIATOR.fullmatch(names[node])))


def taken_as_topics(analysis: Analysis, order: Sequence[int]) -> set[int]:
    """The nodes that count as topics on a path found for an order: its own, and all nodes of a mention that has none in
    it.

    Another node of a mention in the order (a homonym or similar name) is an ordinary node and may be the answer.
    """
    chosen = set(order)
    return chosen.union(*(nodes for nodes in analysis.topics if not chosen & set(nodes)))


def answer_place(nodes: Sequence[int], topics: set[int], predicted: Mention | None = None) -> int | None:
    """The position of the answer on a path. A predicted answer comes first; else the open end of the path; else the
    middle of the nodes between topics; None for a direct edge between topics."""
    if predicted is not None and (predicted_nodes := set(predicted.nodes) & topics & set(nodes)):
        return min(map(nodes.index, predicted_nodes))
    if nodes[-1] not in topics:
        return len(nodes) - 1
    if nodes[0] not in topics:
        return 0
    inner = [i for i, node in enumerate(nodes) if node not in topics]
    return inner[(len(inner) - 1) // 2] if inner else None
