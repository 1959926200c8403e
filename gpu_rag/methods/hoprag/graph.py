"""HopRAG's graph in memory: vertices joined by pseudo-questions, as its retrieval reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.ragged import ragged_of_keys, row_of_value
from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.methods.hoprag.tables import EDGES, KEYWORDS, VERTICES, lists_at, read_lists, read_questions
from gpu_rag.types import Ragged


@dataclass(frozen=True)
class HopGraph:
    """Vertices (passages or sentences) and their out-edges. V vertices, E edges, Q in-questions, W keywords.

    indptr: i64[V+1]; target: i32[E]: the out-edges of vertex v are the rows indptr[v]:indptr[v+1], by ascending
    target, each target once, never v itself. question: i32[E], the in-question that each edge carries, a row of
    question_texts and question_vectors. sim: f32[E], SIM of the two questions that made the edge.
    edge_keywords: E lists of i32, the keywords of both questions, ascending; vertex_keywords: V lists of i32.
    keyword_ids: the number of each keyword, [0, W) in the order of the alphabet.
    question_vectors, vertex_vectors: unit rows [Q, D] and [V, D], f32 on CPU, f16 on a GPU.
    vertex_passage: i32[V], the passage of each vertex, ascending; the identity when vertices are passages.
    All tensors lie on the device of the index.
    """

    indptr: torch.Tensor
    target: torch.Tensor
    question: torch.Tensor
    sim: torch.Tensor
    edge_keywords: Ragged
    vertex_keywords: Ragged
    keyword_ids: dict[str, int]
    question_texts: list[str]
    question_vectors: torch.Tensor
    vertex_vectors: torch.Tensor
    vertex_passage: torch.Tensor

    @property
    def n_vertices(self) -> int:
        """Number of vertices V."""
        return int(self.indptr.shape[0]) - 1

    @property
    def n_edges(self) -> int:
        """Number of edges E."""
        return int(self.target.shape[0])


def load_hop_graph(index: Index) -> HopGraph:
    """The hop graph of an index, for `index.loaded("hops", load_hop_graph)`. Raises MissingLayer, IndexCorrupt."""
    edges = tables.read_table(index.folder("hop_edges") / "edges.parquet", EDGES)
    vertices = tables.read_table(index.folder("hop_vertices") / "vertices.parquet", VERTICES)
    keywords = index.folder("hop_keywords")
    vocabulary = tables.read_table(keywords / "keywords.parquet", KEYWORDS)["keyword"].to_pylist()
    source, target, question, out_question = (
        torch.from_numpy(edges[name].to_numpy().copy()) for name in ("source", "target", "question", "out_question")
    )
    out_lists, in_lists = read_lists(keywords / "out.safetensors"), read_lists(keywords / "in.safetensors")
    edge_keywords = union_of_rows(out_lists, out_question, in_lists, question, len(vocabulary))
    starts = torch.arange(vertices.num_rows + 1, dtype=source.dtype)
    place = index.device
    return HopGraph(
        indptr=torch.searchsorted(source, starts).to(place),
        target=target.to(place),
        question=question.to(place),
        sim=torch.from_numpy(edges["sim"].to_numpy().astype(np.float32)).to(place),
        edge_keywords=Ragged(edge_keywords.values.to(place), edge_keywords.offsets.to(place)),
        vertex_keywords=read_lists(keywords / "vertex.safetensors", place),
        keyword_ids={word: number for number, word in enumerate(vocabulary)},
        question_texts=read_questions(index.folder("hop_questions"), "in")["text"].to_pylist(),
        question_vectors=index.vectors("hop_in_vectors"),
        vertex_vectors=index.vectors("hop_vertex_vectors"),
        vertex_passage=torch.from_numpy(vertices["passage"].to_numpy().copy()).to(place),
    )


def union_of_rows(left: Ragged, left_rows: torch.Tensor, right: Ragged, right_rows: torch.Tensor, n: int) -> Ragged:
    """List e: the values, all below n, of left[left_rows[e]] or right[right_rows[e]], ascending, each once."""
    keys = []
    for lists, rows in ((left, left_rows.long()), (right, right_rows.long())):
        picked = lists_at(lists, rows)
        keys.append(row_of_value(picked) * max(n, 1) + picked.values)
    return ragged_of_keys(torch.unique(torch.cat(keys)), int(left_rows.shape[0]), n)
