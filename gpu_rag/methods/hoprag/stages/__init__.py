"""The stages of HopRAG's index, in building order: vertices, questions, keywords, vectors, edges, words of edges."""

from __future__ import annotations

from functools import partial

from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.search import vector_stage
from gpu_rag.methods.hoprag.stages.edges import edges_stage
from gpu_rag.methods.hoprag.stages.questions import questions_stage
from gpu_rag.methods.hoprag.stages.vertices import keywords_stage, vertex_vectors_stage, vertices_stage
from gpu_rag.methods.hoprag.stages.words import words_stage
from gpu_rag.methods.hoprag.tables import question_rows, same_texts


def stages() -> list[Stage]:
    """All stages, in building order. A method that reads the hop graph needs `hop_words` and `hop_vertex_vectors`."""
    return [
        vertices_stage,
        questions_stage,
        keywords_stage,
        _questions_stage("in"),
        _questions_stage("out"),
        vertex_vectors_stage,
        edges_stage,
        words_stage,
    ]


def _questions_stage(side: str) -> Stage:
    texts, same = partial(question_rows, side), partial(same_texts, side)
    return vector_stage(f"hop_{side}_vectors", ("hop_questions",), texts, same=same)
