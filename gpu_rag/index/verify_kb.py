"""Checks of the tables of a knowledge base: each against the others, and against the passages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.index.kb import KINDS
from gpu_rag.index.kb_tables import (
    KB_EDGES,
    KB_LINKS,
    KB_NODES,
    KB_PASSAGES,
    KB_RECORDS,
    KB_RELATIONS,
    KB_SOURCES,
    KB_TEXTS,
    KB_TYPES,
    WEB_PAGES,
)
from gpu_rag.text.bm25 import Bm25

_SCHEMAS = {
    "sources": KB_SOURCES, "types": KB_TYPES, "relations": KB_RELATIONS, "nodes": KB_NODES, "records": KB_RECORDS,
    "links": KB_LINKS, "edges": KB_EDGES, "passages": KB_PASSAGES,
}  # fmt: skip


def check_kb(index: Index) -> Iterator[str]:
    """What is broken in the layers of the knowledge base, one line each."""
    if "kb" in index.layers:
        held = {
            name: tables.read_table(index.folder("kb") / f"kb_{name}.parquet", schema)
            for name, schema in _SCHEMAS.items()
        }
        yield from _names(held)
        yield from _nodes(held, index.n_passages)
        yield from _edges(held, index.n_passages)
        yield from _records(held)
        if held["passages"].num_rows != index.n_passages:
            yield f"kb passages: {held['passages'].num_rows} rows for {index.n_passages} passages"
        yield from _texts(index, held["nodes"])
        yield from _vectors(index, held)
    if "kb_web" in index.layers:
        yield from _web(index)


def _ascending(values: list[str], what: str) -> Iterator[str]:
    if any(a >= b for a, b in zip(values, values[1:])):
        yield f"{what}: not sorted and unique"


def _names(held: dict[str, pa.Table]) -> Iterator[str]:
    for table, column in (("types", "name"), ("relations", "name"), ("nodes", "id")):
        yield from _ascending(held[table][column].to_pylist(), f"kb {table}")
    for table, column in (("relations", "id"), ("sources", "name")):
        values = held[table][column].to_pylist()
        if len(set(values)) < len(values):
            yield f"kb {table}: one {column} stands twice"
    if strange := sorted(set(held["sources"]["kind"].to_pylist()) - set(KINDS)):
        yield f"kb sources: no kind is called {strange[0]}"


def _outside(table: pa.Table, column: str, limit: int) -> int:
    """How many values of a column are no row below `limit`."""
    values = table[column].to_numpy()
    return int(((values < 0) | (values >= limit)).sum())


def _lists(table: pa.Table, limit: int) -> Iterator[str]:
    """What is wrong with the column of lists of passages."""
    lists = table["passages"].to_pylist()
    if bad := sum(any(not 0 <= row < limit for row in rows) for rows in lists):
        yield f"{bad} name a passage that does not exist"
    if bad := sum(len(set(rows)) < len(rows) for rows in lists):
        yield f"{bad} name a passage twice"


def _nodes(held: dict[str, pa.Table], n_passages: int) -> Iterator[str]:
    nodes = held["nodes"]
    if bad := _outside(nodes, "type", held["types"].num_rows):
        yield f"kb nodes: {bad} have a type that does not exist"
    yield from (f"kb nodes: {what}" for what in _lists(nodes, n_passages))
    own = zip(nodes["n_own"].to_pylist(), nodes["passages"].to_pylist())
    if bad := sum(not 0 <= n <= len(rows) for n, rows in own):
        yield f"kb nodes: {bad} have more passages of their own than passages"


def _edges(held: dict[str, pa.Table], n_passages: int) -> Iterator[str]:
    edges = held["edges"]
    ends = (("head", "nodes"), ("tail", "nodes"), ("relation", "relations"), ("source", "sources"))
    for column, table in ends:
        if bad := _outside(edges, column, held[table].num_rows):
            yield f"kb edges: {bad} with a row number as {column} that none of the {table} has"
    keys = np.stack([edges[column].to_numpy() for column in ("head", "relation", "tail", "source")], 1).astype(np.int64)
    step = np.diff(keys, axis=0)
    first = step[np.arange(len(step)), (step != 0).argmax(1)] if len(step) else np.zeros(0)
    if bad := int((first <= 0).sum()):
        yield f"kb edges: {bad} are not behind the one before them"
    yield from (f"kb edges: {what}" for what in _lists(edges, n_passages))
    rows = zip(edges["provenance"].to_pylist(), edges["passages"].to_pylist())
    if bad := sum(not (where or passages) for where, passages in rows):
        yield f"kb edges: {bad} say neither a file nor a passage"


def _records(held: dict[str, pa.Table]) -> Iterator[str]:
    """Every node has records, never two of one source, and its records are those that the links join."""
    records, links, n = held["records"], held["links"], held["nodes"].num_rows
    wrong = _outside(records, "node", n) + _outside(records, "source", held["sources"].num_rows)
    wrong += _outside(links, "left", records.num_rows) + _outside(links, "right", records.num_rows)
    if wrong:
        yield f"kb records: {wrong} row numbers of records or links that no table has"
        return
    pairs = list(zip(records["source"].to_pylist(), records["id"].to_pylist()))
    if any(a >= b for a, b in zip(pairs, pairs[1:])):
        yield "kb records: not sorted and unique"
    node, source = records["node"].to_numpy().astype(np.int64), records["source"].to_numpy()
    if lost := n - len(np.unique(node)):
        yield f"kb nodes: {lost} have no record"
    if bad := len(node) - len(np.unique(node * max(held["sources"].num_rows, 1) + source)):
        yield f"kb records: {bad} are of one source and one node as another record is"
    left, right = (links[name].to_numpy() for name in ("left", "right"))
    if bad := int((node[left] != node[right]).sum()):
        yield f"kb links: {bad} join records of different nodes"
    if len(node) - len(left) != n:  # links form a tree a node
        yield f"kb links: {len(left)} for {len(node)} records of {n} nodes"


def _texts(index: Index, nodes: pa.Table) -> Iterator[str]:
    if "kb_texts" not in index.layers:
        return
    table = tables.read_table(index.folder("kb_texts") / "kb_texts.parquet", KB_TEXTS)
    alone = [row for row, passages in enumerate(nodes["passages"].to_pylist()) if not passages]
    if table["node"].to_pylist() != alone:
        yield "kb_texts: not one text for each node without passages, in order"


def _vectors(index: Index, held: dict[str, pa.Table]) -> Iterator[str]:
    sizes = {
        "kb_name_vectors": held["nodes"].num_rows,
        "kb_edge_vectors": held["edges"].num_rows,
        "kb_relation_vectors": held["relations"].num_rows,
    }
    if "kb_texts" in index.layers:
        sizes["kb_text_vectors"] = index.manifest.stages["kb_texts"].counts["kb_texts"]
    for layer, n in sizes.items():
        if layer not in index.layers:
            continue
        vectors = tables.read_arrays(index.folder(layer) / "vectors.safetensors")["vectors"].astype(np.float32)
        if len(vectors) != n:
            yield f"{layer}: {len(vectors)} rows for {n}"
        if len(vectors) and not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=5e-3):
            yield f"{layer}: not all vectors have length 1"


def _web(index: Index) -> Iterator[str]:
    folder = index.folder("kb_web")
    pages = tables.read_table(folder / "web_pages.parquet", WEB_PAGES)
    yield from _ascending(pages["id"].to_pylist(), "kb_web pages")
    if (n := Bm25.load(folder).n) != pages.num_rows:
        yield f"kb_web: a search over {n} pages for {pages.num_rows}"
