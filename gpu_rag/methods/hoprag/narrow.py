"""The stages of HopRAG's index for a part of it, see `index.narrow`. An edge needs both its source and its target."""

from __future__ import annotations

from gpu_rag.index.narrow import Narrow, Part, vectors_of
from gpu_rag.methods.hoprag.stages.vertices import keywords_stage
from gpu_rag.methods.hoprag.tables import EDGES, QUESTIONS, VERTICES


def _vertices(part: Part) -> None:
    part.narrow_table("hop_vertices", "vertices.parquet", VERTICES, "vertices", passage="passages")


def _questions(part: Part) -> None:
    for side in ("in", "out"):
        part.narrow_table(
            "hop_questions", f"{side}_questions.parquet", QUESTIONS, f"{side}_questions", vertex="vertices"
        )


def _edges(part: Part) -> None:
    ends = {"source": "vertices", "target": "vertices", "question": "in_questions", "out_question": "out_questions"}
    part.narrow_table("hop_edges", "edges.parquet", EDGES, **ends)


NARROW: dict[str, Narrow] = {
    "hop_vertices": _vertices,
    "hop_questions": _questions,
    "hop_keywords": lambda part: part.run(keywords_stage),
    "hop_in_vectors": vectors_of("hop_in_vectors", "in_questions"),
    "hop_out_vectors": vectors_of("hop_out_vectors", "out_questions"),
    "hop_vertex_vectors": vectors_of("hop_vertex_vectors", "vertices"),
    "hop_edges": _edges,
}
