"""The layers of HopRAG's index, in building order: vertices, questions, keywords, vectors, edges."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpu_rag.index.build import Layer
from gpu_rag.index.stages.search import Vectors
from gpu_rag.methods.hoprag.stages.edges import HopEdges
from gpu_rag.methods.hoprag.stages.keywords import HopKeywords
from gpu_rag.methods.hoprag.stages.questions import HopQuestions
from gpu_rag.methods.hoprag.stages.vertices import HopVertexVectors, HopVertices
from gpu_rag.methods.hoprag.tables import read_questions


def question_texts(side: str, folder: Path) -> list[str]:
    """The in- or the out-questions."""
    texts: list[str] = read_questions(folder, side)["text"].to_pylist()
    return texts


def stages() -> list[Layer]:
    """A method that reads the hop graph needs the layers `hop_edges` and `hop_vertex_vectors`."""
    return [
        HopVertices(),
        HopQuestions(),
        HopKeywords(),
        Vectors("hop_in_vectors", ("hop_questions",), partial(question_texts, "in")),
        Vectors("hop_out_vectors", ("hop_questions",), partial(question_texts, "out")),
        HopVertexVectors(),
        HopEdges(),
    ]
