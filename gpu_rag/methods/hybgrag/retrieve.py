"""The two retrieval modules of HybGRAG: an action in, ranked nodes out."""

from __future__ import annotations

import numpy as np

from gpu_rag.methods.hybgrag.params import Params
from gpu_rag.methods.hybgrag.state import TEXT, Action, Retrieved
from gpu_rag.program.knowledge_base.reach import TopicNodes
from gpu_rag.program.search import Ranking
from gpu_rag.program.verbs import Verbs
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Path


async def retrieve_by(action: Action, vector: np.ndarray, verbs: Verbs, params: Params) -> Retrieved:
    """The nodes of an action: by the cosine of their documents alone, or among those that its topics lead to.

    A topic whose name no node bears, nor one near to it, takes no part in the intersection; `found` tells. Where that
    leaves none, documents are searched.
    """
    if action.module == TEXT:
        return Retrieved(await verbs.search_documents(vector, params.n_nodes))
    relations = [relation_rows(topic.relations, verbs) for topic in action.topics]
    found = await gather(*(verbs.match_names(t.entity, t.type, params.name_threshold) for t in action.topics))
    known = [TopicNodes(nodes, rows) for nodes, rows in zip(found, relations) if nodes]
    if not known:
        return Retrieved(await verbs.search_documents(vector, params.n_nodes), tuple(found), met=False)
    near_first = params.order == "distance"
    reached = await verbs.reach_nodes(known, vector, radius=params.radius, k=params.n_nodes, by_distance=near_first)
    return Retrieved(Ranking(reached.rows, reached.scores), tuple(found), reached.chains, reached.met)


def relation_rows(relations: tuple[str, ...], verbs: Verbs) -> tuple[int, ...]:
    """The rows of relations by name; a name that the knowledge base does not have is left out."""
    rows = (verbs.relation_row(name) for name in relations)
    return tuple(dict.fromkeys(row for row in rows if row is not None))


def reasoning_paths(action: Action, result: Retrieved, place: int, verbs: Verbs) -> list[str]:
    """ "entity -> relation -> ... -> candidate" for each found topic that leads to the ranked node at `place`."""
    if not result.chains:
        return []
    kb = verbs.kb
    named = [topic.entity for topic, nodes in zip(action.topics, result.found) if nodes]
    candidate = kb.node_names[result.ranking.rows[place]]
    return [
        " -> ".join((entity, *(kb.relation_names[r] for r in chain), candidate))
        for entity, chain in zip(named, result.chains[place])
        if chain
    ]


async def edge_paths(result: Retrieved, n: int, verbs: Verbs) -> tuple[Path, ...]:
    """The same for the first n ranked nodes as paths of edges, which can be checked against the knowledge base."""
    starts = [nodes for nodes in result.found if nodes]
    asked = [
        verbs.kb_path(nodes, chain, row)
        for row, chains in zip(result.ranking.rows[:n], result.chains)
        for nodes, chain in zip(starts, chains)
        if chain
    ]
    return tuple(path for path in await gather(*asked) if path is not None)
