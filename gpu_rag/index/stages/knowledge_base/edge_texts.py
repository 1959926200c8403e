"""Each edge of a knowledge base as a text, made when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_NODES
from gpu_rag.index.stages.knowledge_base.around import relation_texts
from gpu_rag.index.stages.knowledge_base.columns import single_spaced


def names_in_words(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """`kb_words.in_words` of each name."""
    spaced = single_spaced(pc.replace_substring(names, "_", " "))
    return pc.if_else(pc.equal(spaced, ""), names, spaced)


class EdgeTexts(Sequence[str]):
    """The texts `kb_words.edge_text` of all edges. Memory: 12 bytes an edge, and the names of the nodes in words."""

    def __init__(self, folder: Path):
        """Those of the knowledge base that the stage `kb` wrote in `folder`."""
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
