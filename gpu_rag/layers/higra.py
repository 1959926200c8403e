"""The layers of HiGraAgent's graph, in the order in which they are built.

extraction, entities -> exact -> exact vectors -> merge -> links (of entities), mentions (links to passages)
merge, links -> vectors, search, graph
"""

from __future__ import annotations

from gpu_rag.index.build import Layer
from gpu_rag.layers.higra_exact import ExactMerge
from gpu_rag.layers.higra_graph import (
    HigraGraphs,
    HigraSearch,
    exact_texts,
    higra_entity_texts,
    higra_relation_texts,
)
from gpu_rag.layers.higra_links import EntityLinks
from gpu_rag.layers.higra_mentions import PassageLinks
from gpu_rag.layers.higra_merge import SemanticMerge
from gpu_rag.layers.search import Vectors


def higra_layers() -> list[Layer]:
    """All of them."""
    return [
        ExactMerge(),
        Vectors("higra_exact_vectors", ("higra_exact",), exact_texts),
        SemanticMerge(),
        EntityLinks(),
        PassageLinks(),
        Vectors("higra_entity_vectors", ("higra_merge",), higra_entity_texts),
        Vectors("higra_relation_vectors", ("higra_merge", "higra_links"), higra_relation_texts),
        HigraSearch(),
        HigraGraphs(),
    ]
