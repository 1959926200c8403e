"""HydraRAG, step II in the knowledge graphs: the evidence subgraph and the search for paths through all topics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpu_rag.methods.hydrarag.batched import FactChoice
from gpu_rag.methods.hydrarag.params import Params
from gpu_rag.methods.hydrarag.search import Walks
from gpu_rag.methods.hydrarag.state import Analysis, Candidate, Mention, Sources
from gpu_rag.methods.hydrarag.subgraphs import GraphWanted, Order, QuestionGraph
from gpu_rag.program.verbs import Verbs

MOST_ORDERS = 9  # of one search, where mentions may be several nodes
_MEDIATOR = re.compile(r"[mg]\.[0-9a-z_]+")  # a Freebase node without a name: no answer


@dataclass(frozen=True)
class Search:
    """One search. depth: D; bounded: whether paths also have more than |T| (D - 1) hops (the initial phase)."""

    depth: int
    bounded: bool

    def window(self, topics: int) -> tuple[int, int]:
        """(least, longest) hops of a path through so many topics."""
        return (topics * (self.depth - 1) if self.bounded else 0), topics * self.depth


@dataclass(frozen=True)
class Explored:
    """What the knowledge graphs gave. graph: None where no topic is in them."""

    candidates: tuple[Candidate, ...] = ()
    graph: QuestionGraph | None = None


async def explore_graphs(
    analysis: Analysis, sources: Sources, search: Search, query: np.ndarray, verbs: Verbs, params: Params
) -> Explored:
    """The W1 best paths of the graphs. Where none goes through all topics: those from each topic alone."""
    lists = [_nodes(mention, sources) for mention in analysis.mentions]
    lists = [nodes for nodes in lists if nodes]
    if not lists:
        return Explored()
    choice = FactChoice(sources.graphs, params.one_relation, params.seed)
    seeds = tuple(dict.fromkeys(node for nodes in lists for node in nodes))
    orders = orders_of(lists, analysis.opens, analysis.closes)
    graph, walks = await _search(choice, seeds, orders, search, query, verbs, params)
    if not walks.size and len(lists) > 1:
        alone = tuple(Order((node,), closes=True) for node in seeds)
        graph, walks = await _search(choice, seeds, alone, search, query, verbs, params)
        verbs.ctx.note("graph/topics_alone", len(alone), ("no path goes through all topics",))
    return Explored(await _candidates(choice, graph, walks, analysis, verbs, params), graph)


def _nodes(mention: Mention, sources: Sources) -> list[int]:
    """The nodes of a mention in the chosen graphs, best first."""
    return [match.node for match in mention.matches if set(match.sources) & set(sources.graphs)]


def orders_of(lists: Sequence[Sequence[int]], opens: bool, closes: bool) -> tuple[Order, ...]:
    """One order a choice of a node for each mention, those of the best places first, at most MOST_ORDERS."""
    places = sorted(product(*(range(len(nodes)) for nodes in lists)), key=lambda at: (sum(at), at))
    chosen = (tuple(nodes[i] for nodes, i in zip(lists, at)) for at in places)
    kept = [topics for topics in chosen if len(set(topics)) == len(topics)]
    return tuple(Order(topics, opens, closes) for topics in kept[:MOST_ORDERS])


async def _search(
    choice: FactChoice,
    seeds: tuple[int, ...],
    orders: tuple[Order, ...],
    search: Search,
    query: np.ndarray,
    verbs: Verbs,
    params: Params,
) -> tuple[QuestionGraph, Walks]:
    """Algorithm 1: expand every topic hop by hop, keeping the W1 best, then put whole paths together."""
    graph = await verbs.question_graph(choice, GraphWanted(seeds, orders), params.d_max)
    _tell(graph, verbs)
    hops = [await verbs.start_paths(graph)]
    if not graph.orders:
        return graph, hops[0]
    for _ in range(search.depth):
        longer = await verbs.expand_paths(graph, hops[-1])
        hops.append(await verbs.score_paths(choice, graph, longer, query, params.w1))
    parts = await verbs.score_paths(choice, graph, await verbs.join_paths(graph, hops), query, params.w1)
    windows = [search.window(len(order.topics)) for order in graph.orders]
    whole: Walks | None = None
    for step in range(verbs.chain_steps(graph)):
        longer = await verbs.chain_paths(graph, whole, parts, windows, step)
        whole = await verbs.score_paths(choice, graph, longer, query, params.w1)
    return graph, hops[0] if whole is None else whole


def _tell(graph: QuestionGraph, verbs: Verbs) -> None:
    steps = (("neighbourhood", graph.taken), ("clustered", graph.clustered), ("reduced", graph.reduced))
    told = (f"{name}: {size.nodes} nodes, {size.edges} edges, {size.triples} triples" for name, size in steps)
    verbs.ctx.note("evidence_subgraph", len(graph.orders), tuple(told))


async def _candidates(
    choice: FactChoice, graph: QuestionGraph, walks: Walks, analysis: Analysis, verbs: Verbs, params: Params
) -> tuple[Candidate, ...]:
    if walks.scores is None:
        return ()
    found = []
    for path in await verbs.best_paths(choice, graph, walks, params.w1):
        shown = verbs.show_path(choice, graph, path)
        place = answer_place(path.nodes, taken_as_topics(analysis, path.topics), analysis.predicted)
        nodes = () if place is None else shown.places[place]
        answers = tuple(node for node in nodes if not _MEDIATOR.fullmatch(verbs.kb.node_names[node]))
        found.append(Candidate(shown, path.nodes, 1.0, answers))
    return tuple(found)


def taken_as_topics(analysis: Analysis, order: Sequence[int]) -> set[int]:
    """Nodes that are topics on a path found for an order: its own, and all of a mention that has none there.

    Another node of a mention of the order (a homonym, a like name) is a thing as any other, and may be the answer.
    """
    chosen = set(order)
    return chosen.union(*(nodes for nodes in analysis.topics if not chosen & set(nodes)))


def answer_place(nodes: Sequence[int], topics: set[int], predicted: Mention | None = None) -> int | None:
    """Where the answer stands on a path: where a predicted one does; else at the path's open end, else in the middle
    between topics; None on a direct edge between topics."""
    if predicted is not None and (found := set(predicted.nodes) & topics & set(nodes)):
        return min(map(nodes.index, found))
    if nodes[-1] not in topics:
        return len(nodes) - 1
    if nodes[0] not in topics:
        return 0
    inner = [i for i, node in enumerate(nodes) if node not in topics]
    return inner[(len(inner) - 1) // 2] if inner else None
