"""HopRAG (Liu et al. 2025): retrieve, reason and prune on a passage graph whose edges are pseudo-questions."""

from gpu_rag.methods.method import Method

_VERTICES, _IN, _OUT = "hop_vertices/vertices", "hop_questions/in_questions", "hop_questions/out_questions"
_ENDS = {"source": _VERTICES, "target": _VERTICES, "question": _IN, "out_question": _OUT}
METHODS = (
    Method(
        "hoprag", ("passage_vectors", "bm25", "title_names", "hop_words", "hop_vertex_vectors"),
        settings={"hops": "settings:HopSettings"}, stages="stages:stages", verify="verify:CHECKS",
        narrow={
            "hop_vertices": {"vertices.parquet": {"passage": "passages/passages"}},
            "hop_questions": {f"{side}_questions.parquet": {"vertex": _VERTICES} for side in ("in", "out")},
            "hop_keywords": {  # the numbers of keywords stay
                "keywords.parquet": "", "in.parquet": _IN, "out.parquet": _OUT, "vertex.parquet": _VERTICES,
            },
            "hop_in_vectors": {"vectors.safetensors": _IN},
            "hop_out_vectors": {"vectors.safetensors": _OUT},
            "hop_vertex_vectors": {"vectors.safetensors": _VERTICES},
            "hop_edges": {"edges.parquet": _ENDS},
            "hop_words": {
                "edges.parquet": "hop_edges/edges", "topics.parquet": _VERTICES, "topic_words.parquet": "",
            },
        },
        explain="explain:WORDS", report="report", profiles={"hoprag-paper": "profiles/hoprag-paper.toml"},
        inexact=("neighbours",), auto=50, order=50,
    ),
)  # fmt: skip
