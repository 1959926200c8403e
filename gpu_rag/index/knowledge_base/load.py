"""Loaders of knowledge bases and web snapshots from an index folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KbSource, KnowledgeBase
from gpu_rag.index.knowledge_base.tables import (
    KB_ROWS,
    KB_TABLES,
    KB_TEXTS,
    WEB_PAGES,
)
from gpu_rag.index.names import TextColumn
from gpu_rag.lazy import torch
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import Ragged


def load_kb(index: Index) -> KnowledgeBase:
    """Knowledge base of an index, for `index.loaded("kb", load_kb)`. Raises MissingLayer, IndexCorrupt.

    Needs the stage `kb`; texts are empty without `kb_texts`, and vectors are read on first use. No Python object is
    made per edge: memory is about 60 bytes an edge, mostly provenance, and 200 bytes a node besides its names.
    """
    loaded = {name: index.table("kb", f"kb_{name}.parquet", KB_TABLES[name]) for name in KB_TABLES if name != "links"}
    _check_rows(loaded, index.n_passages)
    nodes, edges, records = loaded["nodes"], loaded["edges"], loaded["records"]
    node_sources = np.zeros((nodes.num_rows, loaded["sources"].num_rows), bool)
    node_sources[_ints(records, "node"), _ints(records, "source")] = True
    texts, text_row = _texts(index, nodes.num_rows)
    kinds = zip(_list(loaded["sources"], "name"), _list(loaded["sources"], "kind"))
    return KnowledgeBase(
        sources=tuple(KbSource(name, kind) for name, kind in kinds),
        node_ids=_list(nodes, "id"), node_names=_list(nodes, "name"), node_aliases=TextColumn(nodes["aliases"]),
        node_type=_ints(nodes, "type"), type_names=_list(loaded["types"], "name"), node_sources=node_sources,
        head=_ints(edges, "head"), relation=_ints(edges, "relation"), tail=_ints(edges, "tail"),
        source=_ints(edges, "source"), relation_names=_list(loaded["relations"], "name"),
        relation_texts=_list(loaded["relations"], "text"), provenance=TextColumn(edges["provenance"]),
        edge_passages=lists(edges["passages"], "cpu"), node_passages=lists(nodes["passages"], index.device),
        n_own=_ints(nodes, "n_own"), passage_ids=index.passage_ids, passage_source=_ints(loaded["passages"], "source"),
        texts=texts, text_row=text_row, vectors=index.vectors, device=index.device,
    )  # fmt: skip


def _check_rows(loaded: Mapping[str, pa.Table], n_passages: int) -> None:
    """Raise IndexCorrupt for a row number out of range, because compiled code would read outside its arrays."""
    for table, column, target in KB_ROWS:
        limit = n_passages if target == "passages" else loaded[target].num_rows
        values = loaded[table][column]
        given = values.combine_chunks().flatten() if pa.types.is_list(values.type) else values
        lowest, highest = pc.min_max(given).as_py().values()
        if len(given) and (given.null_count or lowest < 0 or highest >= limit):
            what = f"kb_{table}.parquet: {column} from {lowest} to {highest} of {limit} {target}"
            raise IndexCorrupt("a table of the index names rows that do not exist", given=what, do="run gpu-rag verify")
    if loaded["passages"].num_rows != n_passages:
        given = f"{loaded['passages'].num_rows} rows in kb_passages.parquet"
        raise IndexCorrupt("the knowledge base belongs to other passages", given=given, expected=n_passages)


def _texts(index: Index, n: int) -> tuple[list[str], np.ndarray]:
    row = np.full(n, -1, np.int32)
    if "kb_texts" not in index.stages:
        return [], row
    table = index.table("kb_texts", "kb_texts.parquet", KB_TEXTS)
    row[_ints(table, "node")] = np.arange(table.num_rows)
    return _list(table, "text"), row


def _list(table: pa.Table, column: str) -> list[Any]:
    values: list[Any] = table[column].to_pylist()
    return values


def _ints(table: pa.Table, column: str) -> np.ndarray:
    return np.ascontiguousarray(table[column].to_numpy().astype(np.int32))


def lists(column: pa.ChunkedArray, device: str) -> Ragged:
    """A column of lists of integers as Ragged i32."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # a table without rows
        return Ragged(torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.to_numpy()[offsets[0] : offsets[-1]].astype(np.int32)
    return Ragged(torch.from_numpy(values).to(device), torch.from_numpy(offsets - offsets[0]).to(device))


def load_web(index: Index) -> tuple[pa.Table, Bm25]:
    """Web snapshots of an index, for `index.loaded("kb_web", load_web)`. Raises MissingLayer, IndexCorrupt.

    Returns all pages (WEB_PAGES, by id), and BM25 over the title and text of each, in that order.
    """
    return index.table("kb_web", "web_pages.parquet", WEB_PAGES), index.words("kb_web")
