"""The two retrieval modules of HybGRAG: an action in, ranked nodes out."""

from __future__ import annotations

import numpy as np

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hybgrag.batched import TopicNodes, reach_nodes
from gpu_rag.methods.hybgrag.state import TEXT, Action, Params, Retrieved
from gpu_rag.program.knowledge_base.documents import search_documents
from gpu_rag.program.knowledge_base.names import match_names
from gpu_rag.program.knowledge_base.views import relation_row
from gpu_rag.program.knowledge_base.walks import Walk, path_along
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Path


async def retrieve_by(action: Action, vector: np.ndarray, kb: KnowledgeBase, params: Params) -> Retrieved:
    """The nodes of an action: by the cosine of their documents alone, or among those that its topics lead to.

    A topic whose name no node bears, nor one near to it, takes no part in the intersection; `found` tells. Where that
    leaves none, documents are searched.
    """
    if action.module == TEXT:
        return Retrieved(await search_documents(vector, params.n_nodes))
    relations = [relation_rows(topic.relations, kb) for topic in action.topics]
    found = await gather(*(match_names(kb, t.entity, t.type, params.name_threshold) for t in action.topics))
    known = tuple(TopicNodes(nodes, rows) for nodes, rows in zip(found, relations) if nodes)
    if not known:
        return Retrieved(await search_documents(vector, params.n_nodes), tuple(found), met=False)
    reached = await reach_nodes((known, vector), params.radius, params.n_nodes, params.order == "distance")
    return Retrieved(reached, tuple(found), reached.chains, reached.met)


def relation_rows(relations: tuple[str, ...], kb: KnowledgeBase) -> tuple[int, ...]:
    """The rows of relations by name; a name that the knowledge base does not have is left out."""
    rows = (relation_row(kb, name) for name in relations)
    return tuple(dict.fromkeys(row for row in rows if row is not None))


def reasoning_paths(action: Action, result: Retrieved, place: int, kb: KnowledgeBase) -> list[str]:
    """ "entity -> relation -> ... -> candidate" for each found topic that leads to the ranked node at `place`."""
    if not result.chains:
        return []
    named = [topic.entity for topic, nodes in zip(action.topics, result.found) if nodes]
    candidate = kb.node_names[result.ranking.rows[place]]
    return [
        " -> ".join((entity, *(kb.relation_names[r] for r in chain), candidate))
        for entity, chain in zip(named, result.chains[place])
        if chain
    ]


async def edge_paths(result: Retrieved, n: int, kb: KnowledgeBase) -> tuple[Path, ...]:
    """The same for the first n ranked nodes as paths of edges, which can be checked against the knowledge base."""
    starts = [nodes for nodes in result.found if nodes]
    walks = [
        path_along(kb, Walk(nodes, chain, row))
        for row, chains in zip(result.ranking.rows[:n], result.chains)
        for nodes, chain in zip(starts, chains)
        if chain
    ]
    return tuple(path for path in await gather(*walks) if path is not None)
