"""Look-ups in BubbleRAG's graph that need no batch: what its nodes are, in words and numbers."""

from __future__ import annotations

import math

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.graph import bubble_graph
from gpu_rag.text.mentions import mentioned_names


def named_entities(index: Index, text: str) -> list[str]:
    """The written names of the entities that a text names."""
    return [index.entity_names[row] for row in mentioned_names(text, index.entity_rows)]


def is_relation(index: Index, node: int) -> bool:
    """Whether a node is a relation."""
    return node >= index.n_entities


def node_text(index: Index, node: int) -> str:
    """An entity's written name, or "subject - label - object"."""
    if is_relation(index, node):
        return " - ".join(index.relation_text(node - index.n_entities))
    return index.entity_names[node]


def ends(index: Index, node: int) -> tuple[int, int]:
    """Subject and object of a node that is a relation, as nodes."""
    subjects, objects = index.relation_ends
    row = node - index.n_entities
    return int(subjects[row]), int(objects[row])


def rarity(index: Index, node: int) -> float:
    """log(1 + passages / passages of the node): the fewer there are, the more a node says."""
    sizes = index.loaded("bubble_sizes", _n_passages)
    return math.log1p(index.n_passages / max(int(sizes[node]), 1))


def _n_passages(index: Index) -> np.ndarray:
    """i64[N + R]: how many passages each node has."""
    return np.asarray(bubble_graph(index).passages.offsets.diff().cpu().numpy())
