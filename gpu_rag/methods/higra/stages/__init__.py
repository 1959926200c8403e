"""The layers of HiGraAgent's graph, in the order in which they are built.

extraction, entities -> exact -> exact vectors -> merge -> links (of entities), mentions (links to passages)
merge, links -> vectors, search, graph
"""

from __future__ import annotations

from gpu_rag.index.build import Layer
from gpu_rag.index.stages.search import Vectors
from gpu_rag.methods.higra.stages.exact import ExactMerge
from gpu_rag.methods.higra.stages.graph import (
    HigraGraphs,
    HigraSearch,
    exact_texts,
    higra_entity_texts,
    higra_relation_texts,
)
from gpu_rag.methods.higra.stages.links import EntityLinks
from gpu_rag.methods.higra.stages.mentions import PassageLinks
from gpu_rag.methods.higra.stages.merge import SemanticMerge


def stages() -> list[Layer]:
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
