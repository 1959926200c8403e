"""The stages of HopRAG's index, in building order: vertices, questions, keywords, vectors, edges, words of edges."""

from __future__ import annotations

from functools import partial

from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.search import vector_stage
from gpu_rag.methods.hoprag.stages.edges import edges_stage
from gpu_rag.methods.hoprag.stages.questions import questions_stage
from gpu_rag.methods.hoprag.stages.vertices import keywords_stage, vertex_vectors_stage, vertices_stage
from gpu_rag.methods.hoprag.stages.words import words_stage
from gpu_rag.methods.hoprag.tables import question_rows


def stages() -> list[Stage]:
    """All stages, in building order. A method that reads the hop graph needs `hop_words` and `hop_vertex_vectors`."""
    return [
        vertices_stage,
        questions_stage,
        keywords_stage,
        vector_stage("hop_in_vectors", ("hop_questions",), partial(question_rows, "in")),
        vector_stage("hop_out_vectors", ("hop_questions",), partial(question_rows, "out")),
        vertex_vectors_stage,
        edges_stage,
        words_stage,
    ]
