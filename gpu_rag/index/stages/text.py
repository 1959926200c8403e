"""The stages over passages that several methods share, in building order."""

from __future__ import annotations

from gpu_rag.index.build import Layer
from gpu_rag.index.stages.entities import Entities
from gpu_rag.index.stages.extraction import ExtractionLayer
from gpu_rag.index.stages.graph import Graph, Synonyms
from gpu_rag.index.stages.mentions import MentionLayer
from gpu_rag.index.stages.passages import Passages
from gpu_rag.index.stages.search import Bm25Layer, Vectors, entity_texts, passage_texts, relation_texts


def text_stages() -> list[Layer]:
    """A new list of them."""
    return [
        Passages(),
        Bm25Layer(),
        Vectors("passage_vectors", ("passages",), passage_texts),
        ExtractionLayer(),
        Entities(),
        Vectors("entity_vectors", ("entities",), entity_texts),
        Vectors("relation_vectors", ("entities",), relation_texts),
        MentionLayer(),
        Synonyms(),
        Graph(),
    ]
