"""The two retrieval modules of HybGRAG. Each turns an action into ranked nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.scores import node_text
from gpu_rag.methods.hybgrag.batched import TopicNodes, reach_nodes
from gpu_rag.methods.hybgrag.near import Entities, near_nodes
from gpu_rag.methods.hybgrag.state import TEXT, Action, Params, Retrieved
from gpu_rag.program.knowledge_base.documents import search_documents
from gpu_rag.program.knowledge_base.names import match_names
from gpu_rag.program.knowledge_base.query import ANYTHING, OTHERS, Part, Plan, Topic, part_of, solve, type_rows
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.knowledge_base.walks import Walk, path_along, statements
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Path

RANK = 60  # constant of reciprocal rank fusion
DEPTH, DOCUMENTS = 50, 300  # nodes per fused ranking; documents searched to find enough of the right types
NODE_WORDS = 200  # words of a document shown to a model


async def retrieve_by(action: Action, vector: np.ndarray, kb: KnowledgeBase, params: Params) -> Retrieved:
    """The nodes of an action: by the cosine of their documents alone, or among those that its topics lead to.

    A topic is left out of the intersection if no node has its name or a near one; `starts` records this. If no topic is
    left, documents are searched. An action with operations is executed exactly, and its answers are ranked alone.
    """
    named: tuple[tuple[int, ...], ...] = ()
    if action.module != TEXT:
        names = (_nodes_of(topic, kb, params.name_threshold) for topic in action.topics)
        named = tuple(await gather(*names))
    parts = [part_of(kb, topic, nodes) for topic, nodes in zip(action.topics, named) if nodes]
    if parts:
        known, solved = tuple(TopicNodes(p.nodes, p.relations, p.ways) for p in parts if _leads(p)), None
        if params.chains and not action.query.plain:
            without = await gather(*(match_names(kb, name, None, 1.0) for name in action.operations.without))
            left_out = tuple(node for nodes in without for node in nodes)
            solved = await solve(Plan(tuple(parts), action.operations, left_out, type_rows(kb, action.types)))
        within = None if solved is None else solved.nodes
        reached = await reach_nodes((known, vector, within), params.radius, params.n_nodes, params.order == "distance")
        if solved is None:
            return replace(reached, starts=named)
        return replace(reached, starts=named, barred=solved.barred, n_answers=len(solved.nodes), met=bool(solved.nodes))
    documents = await search_documents(vector, params.n_nodes)
    return Retrieved(documents.rows, documents.scores, named, met=action.module == TEXT)


async def fused(result: Retrieved, named: Entities, params: Params, kb: KnowledgeBase) -> Retrieved:
    """The result if the question does not clearly state its relations. Three rankings are fused by the sum of 1 / (60 +
    rank): nodes of the hybrid module, nodes near all named entities, and all documents. Only nodes of the types that
    the question asks for count (if it names some), and no barred ones."""
    named = replace(named, types=tuple({*named.types, *kb.untyped}) if named.types else ())
    near, documents = await gather(near_nodes(named, DEPTH), search_documents(named.vector, DOCUMENTS))
    barred, weight, cosine = set(named.barred), dict[int, float](), dict[int, float]()
    for ranking in (result, near, documents):
        pairs = [pair for pair in _of_types(ranking, named.types, kb) if pair[0] not in barred]
        for rank, (row, score) in enumerate(pairs[:DEPTH], 1):
            weight[row] = weight.get(row, 0.0) + 1 / (RANK + rank)
            cosine[row] = score
    best = sorted(weight, key=lambda row: -weight[row])[: params.n_nodes]  # stable: the hybrid module's nodes first
    return _ranked(result, best, cosine)


def behind(result: Retrieved, others: Retrieved, params: Params) -> Retrieved:
    """A result followed by the nodes of another one."""
    cosine = dict([*zip(others.rows, others.scores), *zip(result.rows, result.scores)])
    return _ranked(result, list(dict.fromkeys((*result.rows, *others.rows)))[: params.n_nodes], cosine)


def _of_types(ranking: Ranking, types: Collection[int], kb: KnowledgeBase) -> list[tuple[int, float]]:
    pairs = zip(ranking.rows, ranking.scores)
    return [(row, score) for row, score in pairs if not types or int(kb.node_type[row]) in types]


def _ranked(result: Retrieved, rows: Sequence[int], cosine: Mapping[int, float]) -> Retrieved:
    """The result with other nodes. Known chains are kept; `sure` is False."""
    chains, none = dict(zip(result.rows, result.chains)), ((),) * sum(map(bool, result.starts))
    known_chains, scores = tuple(chains.get(row, none) for row in rows), tuple(cosine[row] for row in rows)
    return replace(result, rows=tuple(rows), scores=scores, chains=known_chains, sure=False)


async def _nodes_of(topic: Topic, kb: KnowledgeBase, threshold: float) -> tuple[int, ...]:
    """The nodes of a topic. threshold: minimum similarity of names, see `match_names`."""
    if topic.entity in (ANYTHING, OTHERS):
        return part_of(kb, topic).nodes
    nodes = await match_names(kb, topic.entity, topic.type or None, threshold)
    return nodes or await match_names(kb, topic.entity, None, threshold)


def _leads(topic: Topic | Part) -> bool:
    """Whether relations lead from a topic to the answers."""
    return bool(topic.relations) and not topic.negated


@dataclass(frozen=True)
class ShownNode:
    """A ranked node for a prompt: the beginning of its document, and "entity -> relation -> ... -> node" for each found
    topic that leads to it, with "<- relation <-" for an edge that is walked back."""

    name: str
    type: str
    text: str
    paths: list[str]

    def reference(self, number: int, paths: bool, most_words: int = NODE_WORDS) -> str:
        """The node as the validator sees it: name and type, document, and paths if wanted."""
        text = " ".join(self.text.split()[:most_words])
        return "\n".join((f"[{number}] {self.name} ({self.type})", text, *(f"path: {p}" for p in self.paths if paths)))


async def first_nodes(run: Run, action: Action, result: Retrieved, k: int) -> list[ShownNode]:
    """The first k nodes of a result."""
    kb, shown = kb_of(run.index), []
    paths = await gather(*(_paths_to(action, result, place, kb) for place in range(min(k, len(result.rows)))))
    for row, node_paths in zip(result.rows, paths):
        text = " ".join(node_text(kb, run.index, row).split()[:NODE_WORDS])
        type = kb.type_names[kb.node_type[row]]
        shown.append(
            ShownNode(kb.node_names[row], type, text, [f"{path.text}{statements(path.edges)}" for path in node_paths])
        )
    return shown


async def edge_paths(action: Action, result: Retrieved, n: int, kb: KnowledgeBase) -> tuple[Path, ...]:
    """The paths to the first n nodes as edges that can be checked against the knowledge base."""
    paths = await gather(*(_paths_to(action, result, place, kb) for place in range(min(n, len(result.rows)))))
    return tuple(path for group in paths for path in group)


async def _paths_to(action: Action, result: Retrieved, place: int, kb: KnowledgeBase) -> list[Path]:
    """A path from each topic that leads to the node at a place."""
    pairs = zip(result.starts, action.topics)
    starts = [(nodes, topic.directions) for nodes, topic in pairs if nodes and _leads(topic)]
    row, chains = result.rows[place], result.chains[place] if result.chains else ()
    walks = (path_along(kb, Walk(nodes, chain, row, ways)) for (nodes, ways), chain in zip(starts, chains) if chain)
    return [path for path in await gather(*walks) if path is not None]
