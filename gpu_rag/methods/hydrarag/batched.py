"""What a program may say to the knowledge graphs of an index about paths: topics, evidence subgraphs, search, pruning.

A search is a loop of the program, so that every scoring is a call of its own and is booked as one:

    graph = await verbs.question_graph(choice, wanted, depth)
    hops = [await verbs.start_paths(graph)]
    for _ in range(depth):
        hops.append(await verbs.score_paths(choice, graph, await verbs.expand_paths(graph, hops[-1]), query, beam))
    ...

A QuestionGraph and Walks are handles: they stay on the device and are only passed on. `best_paths` is where paths come
out, at most k. Batches hold the calls of all live questions, at most TILE at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.methods.hydrarag.base import FactGraph, Facts, fact_graph, facts_of_kb, one_relation
from gpu_rag.methods.hydrarag.scores import PathPool, Pruned, Pruning, pruned
from gpu_rag.methods.hydrarag.search import (
    GraphPath,
    Walks,
    chained,
    expanded,
    graph_paths,
    joined_parts,
    scored,
    started,
    steps_of,
)
from gpu_rag.methods.hydrarag.subgraphs import GraphWanted, QuestionGraph, question_graphs
from gpu_rag.methods.hydrarag.topics import Match, NameSearch, best_passages
from gpu_rag.methods.hydrarag.wording import ShownPath, shown_path
from gpu_rag.program.knowledge_base.loaded import HoldsKb
from gpu_rag.program.legacy import RANK_GRAPH, RANK_TEXT, Call, Executor

TILE = 16  # questions whose graphs are searched at once
T = TypeVar("T")


@dataclass(frozen=True)
class FactChoice:
    """Which facts a search may use. sources: their numbers in `KnowledgeBase.sources`, ascending. one_relation: one of
    parallel relations alone is kept, drawn by `seed`."""

    sources: tuple[int, ...]
    one_relation: bool = False
    seed: int = 0


def facts_of(index: Index, choice: FactChoice) -> FactGraph:
    """The graph of the chosen facts, made once for each choice. Raises UsageError for an unknown source."""
    if choice.one_relation:
        whole = facts_of(index, FactChoice(choice.sources))
        return index.loaded(f"facts {choice}", lambda index: one_relation(whole, _facts(index), choice.seed))
    return index.loaded(f"facts {choice}", lambda index: _fact_graph(index, choice.sources))


def _facts(index: Index) -> Facts:
    return index.loaded("facts", lambda index: facts_of_kb(index.loaded("kb", load_kb)))


def _fact_graph(index: Index, sources: tuple[int, ...]) -> FactGraph:
    kb = index.loaded("kb", load_kb)
    unknown = [source for source in sources if not 0 <= source < len(kb.sources)]
    if unknown:
        raise UsageError("there is no such source", given=unknown, expected=f"0 to {len(kb.sources) - 1}")
    paths = kb.paths(sources)
    return fact_graph(_facts(index), paths.graph, paths.edges)


def path_executors(index: Index, threads: int = 1) -> dict[str, Executor]:
    """The executors of the path verbs; the graphs are loaded when they are first asked."""

    def graph(static: tuple[Any, ...], args: list[GraphWanted]) -> list[Any]:
        choice, depth, cluster = static
        facts = facts_of(index, choice)
        one = [(wanted,) for wanted in args]
        return _alone(lambda some: question_graphs(facts, some, depth, cluster=cluster, threads=threads), one)

    def expand(_: tuple[Any, ...], args: list[tuple[QuestionGraph, Walks]]) -> list[Any]:
        return _alone(lambda graphs, walks: expanded(graphs, walks, threads), args)

    def score(static: tuple[Any, ...], args: list[tuple[QuestionGraph, Walks, np.ndarray]]) -> list[Any]:
        choice, _, beam, weights = static
        facts = facts_of(index, choice)
        return _alone(lambda g, w, q: scored(facts, g, w, q, beam, weights, threads), args)

    def join(_: tuple[Any, ...], args: list[tuple[QuestionGraph, tuple[Walks, ...]]]) -> list[Any]:
        return _alone(joined_parts, args)

    def chain(static: tuple[Any, ...], args: list[tuple[Any, ...]]) -> list[Any]:
        return _alone(lambda g, whole, parts, w: chained(g, whole, parts, w, static[0]), args)

    def best(static: tuple[Any, ...], args: list[tuple[QuestionGraph, Walks]]) -> list[list[GraphPath]]:
        choice, k = static
        graphs, walks = zip(*args)
        return graph_paths(facts_of(index, choice), graphs, walks, k)

    def prune(static: tuple[Any, ...], args: list[PathPool]) -> list[Pruned]:
        return pruned(static[0], args, index.device)

    return {
        "name_nodes": Executor(lambda static, args: [_names(index).named(text) for text in args], "text", RANK_TEXT),
        "match_mentions": Executor(lambda static, args: _matches(index, static, args), "graph", RANK_GRAPH),
        "question_graph": Executor(graph, "graph", RANK_GRAPH, TILE),
        "start_paths": Executor(lambda static, args: started(args), "graph", RANK_GRAPH, TILE),
        "expand_paths": Executor(expand, "graph", RANK_GRAPH, TILE),
        "score_paths": Executor(score, "graph", RANK_GRAPH, TILE),
        "join_paths": Executor(join, "graph", RANK_GRAPH, TILE),
        "chain_paths": Executor(chain, "graph", RANK_GRAPH, TILE),
        "best_paths": Executor(best, "graph", RANK_GRAPH, TILE),
        "passages_of": Executor(lambda static, args: _passages(index, static, args), "graph", RANK_GRAPH),
        "prune_paths": Executor(prune, "graph", RANK_GRAPH),
    }


def _alone(run: Callable[..., list[T]], args: list[Any]) -> list[T | GpuRagError]:
    """run(first items of all calls, second items, ..); where that has too many paths, every call for itself, so that
    only those that are too large fail."""
    try:
        return [*run(*([*column] for column in zip(*args)))]
    except BadInput as error:
        if len(args) == 1:
            return [error]
        return [found for one in args for found in _alone(run, [one])]


def _names(index: Index) -> NameSearch:
    return index.loaded("names of nodes", lambda index: NameSearch(index.loaded("kb", load_kb)))


def _matches(
    index: Index, static: tuple[Any, ...], args: list[tuple[tuple[str, ...], np.ndarray]]
) -> list[list[list[Match]]]:
    sources, threshold, most = static
    mentions = [mention for named, _ in args for mention in named]
    found = _names(index).match(mentions, np.concatenate([vectors for _, vectors in args]), sources, threshold, most)
    ends = np.cumsum([0, *(len(vectors) for _, vectors in args)]).tolist()
    return [found[lo:hi] for lo, hi in zip(ends, ends[1:])]


def _passages(
    index: Index, static: tuple[Any, ...], args: list[tuple[tuple[int, ...], np.ndarray]]
) -> list[list[tuple[int, float]]]:
    kb = index.loaded("kb", load_kb)
    nodes, queries = zip(*args)
    return best_passages(kb, index.vectors("passage_vectors"), nodes, queries, static[0])


def _edges_of_passages(index: Index) -> tuple[np.ndarray, np.ndarray]:
    """(edge rows by passage, where those of each passage begin)."""
    kb = index.loaded("kb", load_kb)
    edge, passage = row_of_value(kb.edge_passages).cpu().numpy(), kb.edge_passages.values.cpu().numpy()
    order = np.argsort(passage, kind="stable")
    return edge[order], np.searchsorted(passage[order], np.arange(index.n_passages + 1))


class PathVerbs(HoldsKb):
    """The path verbs of one question."""

    async def names_in(self, text: str) -> list[str]:
        """Names of nodes that stand in a text, the longest first at each word, in their normal form."""
        return await Call("name_nodes", (), text)

    async def match_mentions(
        self, mentions: Sequence[str], vectors: np.ndarray, sources: Sequence[int], threshold: float, most: int
    ) -> list[list[Match]]:
        """For each mention (unit vectors f32[M, D]) the nodes it may be, at most `most` of each source, best first."""
        if not mentions or not sources:
            return [[] for _ in mentions]
        return await Call("match_mentions", (tuple(sources), threshold, most), (tuple(mentions), vectors))

    async def question_graph(
        self, choice: FactChoice, wanted: GraphWanted, depth: int, *, cluster: bool = True
    ) -> QuestionGraph:
        """The evidence subgraph around the seeds, see `hydra_graph`. Orders whose topics it lacks are left out."""
        return await Call("question_graph", (choice, depth, cluster), wanted)

    async def start_paths(self, graph: QuestionGraph) -> Walks:
        """A path of no hop at each topic of each order."""
        return await Call("start_paths", (), graph)

    async def expand_paths(self, graph: QuestionGraph, walks: Walks) -> Walks:
        """Every path one hop longer."""
        return await Call("expand_paths", (walks.paths.edges.shape[1],), (graph, walks))

    async def score_paths(
        self,
        choice: FactChoice,
        graph: QuestionGraph,
        walks: Walks,
        query: np.ndarray,
        beam: int | None,
        weights: tuple[float, float] = (0.7, 0.3),
    ) -> Walks:
        """The `beam` best paths of each topic, part or order by relevance to a unit vector f32[D]; all if None."""
        return await Call("score_paths", (choice, walks.kind, beam, weights), (graph, walks, query))

    async def join_paths(self, graph: QuestionGraph, hops: Sequence[Walks]) -> Walks:
        """The parts between neighbouring topics out of walks of 0, 1, .. D hops."""
        return await Call("join_paths", (len(hops),), (graph, tuple(hops)))

    async def chain_paths(
        self,
        graph: QuestionGraph,
        whole: Walks | None,
        parts: Walks,
        windows: Sequence[tuple[int, int]],
        step: int,
    ) -> Walks:
        """Part `step` joined to every whole path; windows: (least, longest) hops of each order."""
        return await Call("chain_paths", (step,), (graph, whole, parts, tuple(windows)))

    def chain_steps(self, graph: QuestionGraph) -> int:
        """How many calls of `chain_paths` make whole paths."""
        return steps_of(graph)

    async def best_paths(
        self, choice: FactChoice, graph: QuestionGraph, walks: Walks, k: int | None
    ) -> list[GraphPath]:
        """The k best whole paths of all orders, by (-score, nodes), each once."""
        found: list[GraphPath] = await Call("best_paths", (choice, k), (graph, walks))
        return found

    def show_path(self, choice: FactChoice, graph: QuestionGraph, path: GraphPath) -> ShownPath:
        """A path in words and as real edges."""
        return shown_path(self.kb, facts_of(self.index, choice), graph, path)

    def stated_triples(self, passage: int) -> list[tuple[str, str, str]]:
        """The triples that the own extraction found in a passage: (subject, relation, object)."""
        kb = self.kb
        order, offsets = self.index.loaded("edges of passages", _edges_of_passages)
        return [kb.triple(edge)[:3] for edge in order[offsets[passage] : offsets[passage + 1]].tolist()]

    async def passages_of(self, nodes: Sequence[int], query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The k passages of some nodes of highest cosine to a unit vector: (row, cosine)."""
        return await Call("passages_of", (k,), (tuple(nodes), query))

    async def prune_paths(self, params: Pruning, pool: PathPool) -> Pruned:
        """The best paths of a pool by relevance and verification, see `hydra_prune`."""
        return await Call("prune_paths", (params,), pool)
