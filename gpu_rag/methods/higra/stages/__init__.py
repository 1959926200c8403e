"""The stages of HiGraAgent's graph, in building order.

extraction, entities -> exact -> exact vectors -> merge -> links (of entities), mentions (links to passages)
merge, links -> vectors, search, graph
"""

from __future__ import annotations

from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.search import vector_stage
from gpu_rag.methods.higra.stages.exact import exact_stage
from gpu_rag.methods.higra.stages.graph import (
    entity_texts,
    exact_texts,
    graph_stage,
    relation_texts,
    same_as_exact,
    same_entities,
    same_exact,
    same_relations,
    search_stage,
)
from gpu_rag.methods.higra.stages.links import links_stage, mentions_stage
from gpu_rag.methods.higra.stages.merge import merge_stage


def stages() -> list[Stage]:
    """All stages, in building order."""
    return [
        exact_stage,
        vector_stage("higra_exact_vectors", ("higra_exact",), exact_texts, "entities", same=same_exact),
        merge_stage,
        links_stage,
        mentions_stage,
        vector_stage(
            "higra_entity_vectors",
            ("higra_merge",),
            entity_texts,
            "entities",
            same=same_entities,
            like=(("higra_exact_vectors", "higra_exact"), same_as_exact),
        ),
        vector_stage(
            "higra_relation_vectors", ("higra_merge", "higra_links"), relation_texts, "relations", same=same_relations
        ),
        search_stage,
        graph_stage,
    ]
