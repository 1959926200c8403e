"""Look-ups in the knowledge base of an index: nodes in the form of answers, passages of a node, rows of relations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.program.search import Ranking
from gpu_rag.types import RankedNode

_OWNERS = 8  # limit on the passages of a node that are read


def kb_of(index: Index) -> KnowledgeBase:
    """The knowledge base of an index, loaded once. Raises MissingLayer."""
    return index.loaded("kb", load_kb)


def ranked_node(kb: KnowledgeBase, node: int, source: str, score: float) -> RankedNode:
    """A node as answers contain it."""
    return RankedNode(kb.node_ids[node], kb.node_names[node], kb.type_names[kb.node_type[node]], source, score)


def ranked_nodes(kb: KnowledgeBase, ranking: Ranking) -> tuple[RankedNode, ...]:
    """The nodes of a ranking, each with the sources that have it."""
    names = [source.name for source in kb.sources]
    sources = ("+".join(names[s] for s in np.flatnonzero(kb.node_sources[row])) for row in ranking.rows)
    return tuple(
        ranked_node(kb, row, source, float(score)) for row, source, score in zip(ranking.rows, sources, ranking.scores)
    )


def node_passages(kb: KnowledgeBase, node: int, k: int) -> list[int]:
    """The first k passages of a node: its own documents first, then passages that mention it."""
    passages: list[int] = kb.passages_of(node)[:_OWNERS].tolist()
    return list(dict.fromkeys(passages))[:k]


def relation_row(kb: KnowledgeBase, name: str) -> int | None:
    """The row of a relation by its name; None if it is unknown."""
    row = bisect_left(kb.relation_names, name)
    return row if row < kb.n_relations and kb.relation_names[row] == name else None


def relation_rows(relations: Iterable[str], kb: KnowledgeBase) -> tuple[int, ...]:
    """The rows of relations by name, without duplicates; unknown names are left out."""
    rows = (relation_row(kb, name) for name in relations)
    return tuple(dict.fromkeys(row for row in rows if row is not None))
