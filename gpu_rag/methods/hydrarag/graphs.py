"""HydraRAG, step II in the knowledge graphs: the evidence subgraph and the search for paths through all topics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

MOST_ORDERS = 9  # of one search, where mentions may be several nodes
_MEDIATOR = re.compile(r"[mg]\.[0-9a-z_]+")  # a Freebase node without a name: no answer


@dataclass(frozen=True)
class Depth:
    """D, the hops around a topic. bounded: whether paths also have more than |T| (D - 1) hops (the initial phase)."""

    hops: int
    bounded: bool

    def window(self, topics: int) -> tuple[int, int]:
        """(least, longest) hops of a path through so many topics."""
        return (topics * (self.hops - 1) if self.bounded else 0), topics * self.hops


async def explore_graphs(
    analysis: Analysis, sources: Sources, depth: Depth, query: np.ndarray, search: Search
) -> tuple[tuple[FoundPath, ...], QuestionGraph | None]:
    """The W1 best paths of the graphs and the evidence subgraph, None where no topic is in them. Where no path goes
    through all topics: those from each topic alone."""
    lists = [_nodes(mention, sources) for mention in analysis.mentions]
    lists = [nodes for nodes in lists if nodes]
    if not lists:
        return (), None
    choice = FactChoice(sources.graphs, search.params.draw)
    seeds = tuple(dict.fromkeys(node for nodes in lists for node in nodes))
    orders = orders_of(lists, analysis.opens, analysis.closes)
    graph, walks = await _searched(choice, GraphWanted(seeds, orders), depth, query, search)
    if not walks.paths.size and len(lists) > 1:
        alone = tuple(Order((node,), closes=True) for node in seeds)
        graph, walks = await _searched(choice, GraphWanted(seeds, alone), depth, query, search)
        search.run.note("graph/topics_alone", len(alone), ("no path goes through all topics",))
    if walks.scores is None:
        return (), graph
    paths = await best_paths((graph, walks), choice, search.params.w1)
    return tuple(_with_answers(path, analysis, search) for path in paths), graph


def _nodes(mention: Mention, sources: Sources) -> list[int]:
    """The nodes of a mention in the chosen graphs, best first."""
    return [match.node for match in mention.matches if set(match.sources) & set(sources.graphs)]


def orders_of(lists: Sequence[Sequence[int]], opens: bool, closes: bool) -> tuple[Order, ...]:
    """One order a choice of a node for each mention, those of the best places first, at most MOST_ORDERS."""
    places = sorted(product(*(range(len(nodes)) for nodes in lists)), key=lambda at: (sum(at), at))
    chosen = (tuple(nodes[i] for nodes, i in zip(lists, at)) for at in places)
    kept = [topics for topics in chosen if len(set(topics)) == len(topics)]
    return tuple(Order(topics, opens, closes) for topics in kept[:MOST_ORDERS])


async def _searched(
    choice: FactChoice, wanted: GraphWanted, depth: Depth, query: np.ndarray, search: Search
) -> tuple[QuestionGraph, Walks]:
    """Algorithm 1: expand every topic hop by hop, keeping the W1 best, then put whole paths together."""
    w1 = search.params.w1
    graph = await question_graph(wanted, choice, search.params.d_max)
    _note_sizes(graph, search)
    hops = [await start_paths(graph)]
    if not graph.orders:
        return graph, hops[0]
    for hop in range(depth.hops):
        longer = await expand_paths((graph, hops[-1]), hop)
        hops.append(await score_paths((graph, longer, query), choice, HOP, w1))
    joined = await join_paths((graph, tuple(hops)), len(hops))
    parts = await score_paths((graph, joined, query), choice, PART, w1)
    windows = tuple(depth.window(len(order.topics)) for order in graph.orders)
    whole: Walks | None = None
    for step in range(n_chain_steps(graph)):
        longer = await chain_paths((graph, whole, parts, windows), step)
        whole = await score_paths((graph, longer, query), choice, WHOLE, w1)
    return graph, hops[0] if whole is None else whole


def _note_sizes(graph: QuestionGraph, search: Search) -> None:
    steps = (("neighbourhood", graph.taken), ("clustered", graph.clustered), ("reduced", graph.reduced))
    lines = (f"{name}: {size.nodes} nodes, {size.edges} edges, {size.triples} triples" for name, size in steps)
    search.run.note("evidence_subgraph", len(graph.orders), tuple(lines))


def _with_answers(path: FoundPath, analysis: Analysis, search: Search) -> FoundPath:
    place = answer_place(path.nodes, taken_as_topics(analysis, path.topics), analysis.predicted)
    nodes = () if place is None else path.places[place]
    names = search.kb.node_names
    return replace(path, answers=tuple(node for node in nodes if not _MEDIATOR.fullmatch(names[node])))


def taken_as_topics(analysis: Analysis, order: Sequence[int]) -> set[int]:
    """Nodes that are topics on a path found for an order: its own, and all of a mention that has none there.

    Another node of a mention of the order (a homonym, a like name) is a thing as any other, and may be the answer.
    """
    chosen = set(order)
    return chosen.union(*(nodes for nodes in analysis.topics if not chosen & set(nodes)))


def answer_place(nodes: Sequence[int], topics: set[int], predicted: Mention | None = None) -> int | None:
    """The place of the answer on a path: that of a predicted one; else at the path's open end, else in the middle
    between topics; None on a direct edge between topics."""
    if predicted is not None and (found := set(predicted.nodes) & topics & set(nodes)):
        return min(map(nodes.index, found))
    if nodes[-1] not in topics:
        return len(nodes) - 1
    if nodes[0] not in topics:
        return 0
    inner = [i for i, node in enumerate(nodes) if node not in topics]
    return inner[(len(inner) - 1) // 2] if inner else None
