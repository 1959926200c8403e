"""Stages over passages that several methods share, in building order."""

from __future__ import annotations

from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.entities import entities_stage
from gpu_rag.index.stages.extraction import extraction_stage
from gpu_rag.index.stages.graph import graph_stage, relation_graph_stage
from gpu_rag.index.stages.mentions import mentions_stage
from gpu_rag.index.stages.names import entity_names_stage, title_names_stage
from gpu_rag.index.stages.passages import passages_stage
from gpu_rag.index.stages.search import (
    bm25_stage,
    entity_texts,
    passage_texts,
    relation_texts,
    same_relations,
    vector_stage,
)
from gpu_rag.index.stages.synonyms import synonyms_stage


def text_stages() -> list[Stage]:
    """A new list of these stages."""
    return [
        passages_stage,
        title_names_stage,
        bm25_stage,
        vector_stage("passage_vectors", ("passages",), passage_texts),
        extraction_stage,
        entities_stage,
        entity_names_stage,
        vector_stage("entity_vectors", ("entities",), entity_texts, "entities"),
        vector_stage("relation_vectors", ("entities",), relation_texts, "relations", True, same_relations),
        mentions_stage,
        relation_graph_stage,
        synonyms_stage,
        graph_stage,
    ]
