"""The stages of HopRAG's index under a filter, see `index.narrow`. An edge needs both its source and its target; the
numbers of keywords stay."""

from __future__ import annotations

import torch

from gpu_rag.graph.ragged import some_lists
from gpu_rag.index.narrow import Files, Narrow, View, vectors_of
from gpu_rag.methods.hoprag.tables import EDGES, KEYWORDS, QUESTIONS, VERTICES, lists_of

_VERTICES = "hop_vertices/vertices"
_QUESTIONS = {side: f"hop_questions/{side}_questions" for side in ("in", "out")}


def _questions(view: View) -> Files:
    of_in, of_out = (view.masked(table, QUESTIONS, vertex=_VERTICES) for table in _QUESTIONS.values())
    return of_in | of_out


def _keywords(view: View) -> Files:
    files: Files = {"keywords.parquet": view.base.table("hop_keywords", "keywords.parquet", KEYWORDS)}
    for side, table in (*_QUESTIONS.items(), ("vertex", _VERTICES)):
        lists = lists_of(view.base.arrays("hop_keywords", f"{side}.safetensors"))
        kept = some_lists(lists, torch.from_numpy(view.kept(table)))
        files[f"{side}.safetensors"] = {"values": kept.values.numpy(), "offsets": kept.offsets.numpy()}
    return files


def _edges(view: View) -> Files:
    ends = {"source": _VERTICES, "target": _VERTICES, "question": _QUESTIONS["in"], "out_question": _QUESTIONS["out"]}
    return view.masked("hop_edges/edges", EDGES, **ends)


NARROW: dict[str, Narrow] = {
    "hop_vertices": lambda view: view.masked(_VERTICES, VERTICES, passage="passages/passages"),
    "hop_questions": _questions,
    "hop_keywords": _keywords,
    "hop_in_vectors": vectors_of("hop_in_vectors", _QUESTIONS["in"]),
    "hop_out_vectors": vectors_of("hop_out_vectors", _QUESTIONS["out"]),
    "hop_vertex_vectors": vectors_of("hop_vertex_vectors", _VERTICES),
    "hop_edges": _edges,
}
