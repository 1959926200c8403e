"""The texts of a knowledge base that are embedded, and the stand-ins of nodes without passages."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_NODES, KB_TEXTS, KB_TYPES
from gpu_rag.index.knowledge_base.words import in_words, standin_text
from gpu_rag.index.stage import Stage, stage
from gpu_rag.index.stages.knowledge_base.around import NODES_AT_ONCE, Surroundings, relation_texts
from gpu_rag.index.stages.knowledge_base.columns import single_spaced
from gpu_rag.index.stages.knowledge_base.stage import kb_stage
from gpu_rag.index.stages.knowledge_base.web import kb_web_stage
from gpu_rag.index.stages.search import vector_stage
from gpu_rag.index.work import Work
from gpu_rag.index.write import TableWriter


def node_names(folder: Path) -> list[str]:
    """The name of each node, in words."""
    return [in_words(name) for name in tables.read_table(folder / "kb_nodes.parquet", KB_NODES)["name"].to_pylist()]


def standin_texts(folder: Path) -> list[str]:
    """The stand-ins that the stage `kb_texts` wrote."""
    texts: list[str] = tables.read_table(folder / "kb_texts.parquet", KB_TEXTS)["text"].to_pylist()
    return texts


def names_in_words(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """`in_words` of each name."""
    spaced = single_spaced(pc.replace_substring(names, "_", " "))
    return pc.if_else(pc.equal(spaced, ""), names, spaced)


class EdgeTexts(Sequence[str]):
    """The texts `edge_text` of all edges. Memory: 12 bytes an edge, and the names of the nodes in words."""

    def __init__(self, folder: Path):
        """folder: of the stage `kb`."""
        names = tables.whole_text(tables.read_table(folder / "kb_nodes.parquet", KB_NODES)["name"])
        parts = [part.cast(pa.large_string()) for part in names.chunks]
        self._names = names_in_words(pa.concat_arrays([pa.array([], pa.large_string()), *parts]))
        self._relations = pa.array(relation_texts(folder), pa.large_string())
        edges = tables.read_table(folder / "kb_edges.parquet", KB_EDGES)
        self._head, self._relation, self._tail = (edges[name].to_numpy() for name in ("head", "relation", "tail"))

    def __len__(self) -> int:
        return len(self._head)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if not isinstance(at, slice):
            return self._of(np.array([range(len(self))[as_index(at)]]))[0]
        return self._of(np.arange(*at.indices(len(self))))

    def _of(self, rows: np.ndarray) -> list[str]:
        columns = ((self._names, self._head), (self._relations, self._relation), (self._names, self._tail))
        parts = [texts.take(pa.array(number[rows])) for texts, number in columns]
        texts: list[str] = pc.binary_join_element_wise(*parts, pa.scalar(" ", pa.large_string())).to_pylist()
        return texts


@stage("kb_texts", needs=("kb",))
def kb_texts_stage(work: Work) -> dict[str, int]:
    """Table `kb_texts`: for each node without any passage "name (type)." and its first edges as sentences.

    Edges in the order of the table of edges. Memory: some 30 bytes an edge.
    """
    folder = work.stage_folders["kb"]
    nodes = tables.read_table(folder / "kb_nodes.parquet", KB_NODES)
    alone = np.flatnonzero(pc.list_value_length(nodes["passages"]).to_numpy() == 0)
    around = Surroundings.read(folder)
    types = tables.read_table(folder / "kb_types.parquet", KB_TYPES)["name"].to_pylist()
    type_of = nodes["type"].to_numpy()
    with TableWriter(work.out / "kb_texts.parquet", KB_TEXTS) as writer:
        for start in range(0, len(alone), NODES_AT_ONCE):
            rows = alone[start : start + NODES_AT_ONCE]
            names = around.names.take(pa.array(rows)).to_pylist()
            beside = around.of(rows)
            named = zip(rows.tolist(), names)
            writer.add([rows, [standin_text(name, types[type_of[row]], *beside(row)) for row, name in named]])
            work.progress.advance(len(rows))
    return {"kb_texts": len(alone)}


def kb_stages() -> list[Stage]:
    """The stages of a knowledge base in building order. A method names those that it reads."""
    return [
        kb_stage,
        vector_stage("kb_name_vectors", ("kb",), node_names),
        vector_stage("kb_edge_vectors", ("kb",), EdgeTexts),
        vector_stage("kb_relation_vectors", ("kb",), relation_texts),
        kb_texts_stage,
        vector_stage("kb_text_vectors", ("kb_texts",), standin_texts),
        kb_web_stage,
    ]
