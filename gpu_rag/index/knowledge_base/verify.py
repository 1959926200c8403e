"""Checks of the tables of a knowledge base: each against the others, and against the passages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KINDS
from gpu_rag.index.knowledge_base.tables import (
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
from gpu_rag.index.verify_vectors import wrong_vectors
from gpu_rag.text.bm25 import Bm25

_SCHEMAS = {
    "sources": KB_SOURCES, "types": KB_TYPES, "relations": KB_RELATIONS, "nodes": KB_NODES, "records": KB_RECORDS,
    "links": KB_LINKS, "edges": KB_EDGES, "passages": KB_PASSAGES,
}  # fmt: skip


KB_PARTS = ("kb_texts", "kb_name_vectors", "kb_edge_vectors", "kb_relation_vectors", "kb_text_vectors")


def check_kb(index: Index) -> Iterator[str]:
    """The faults in the stages of the knowledge base, one line each."""
    if "kb" in index.layers:
        loaded = {
            name: tables.read_table(index.folder("kb") / f"kb_{name}.parquet", schema)
            for name, schema in _SCHEMAS.items()
        }
        yield from _names(loaded)
        yield from _nodes(loaded, index.n_passages)
        yield from _edges(loaded, index.n_passages)
        yield from _records(loaded)
        if loaded["passages"].num_rows != index.n_passages:
            yield f"kb passages: {loaded['passages'].num_rows} rows for {index.n_passages} passages"
        if bad := _outside(loaded["passages"], "source", loaded["sources"].num_rows):
            yield f"kb passages: {bad} have a source that does not exist"
        yield from _texts(index, loaded["nodes"])
        yield from _vectors(index, loaded)
    if "kb_web" in index.layers:
        yield from _web(index)


def _ascending(column: pa.ChunkedArray, what: str) -> Iterator[str]:
    if not pc.all(pc.less(column[:-1], column[1:])).as_py() and len(column) > 1:
        yield f"{what}: not sorted and unique"


def _names(loaded: dict[str, pa.Table]) -> Iterator[str]:
    for table, column in (("types", "name"), ("relations", "name"), ("nodes", "id")):
        yield from _ascending(loaded[table][column], f"kb {table}")
    for table, column in (("relations", "id"), ("sources", "name")):
        values = loaded[table][column].to_pylist()
        if len(set(values)) < len(values):
            yield f"kb {table}: one {column} stands twice"
    for table, column, known in (("sources", "kind", KINDS), ("links", "rule", ("id", "name"))):
        if strange := sorted(set(pc.unique(loaded[table][column]).to_pylist()) - set(known)):
            yield f"kb {table}: no {column} is called {strange[0]}"


def _outside(table: pa.Table, column: str, limit: int) -> int:
    """The number of values of a column that are no row below `limit`."""
    values = table[column].to_numpy()
    return int(((values < 0) | (values >= limit)).sum())


def _lists(table: pa.Table, limit: int) -> Iterator[str]:
    """The faults of the column of lists of passages."""
    sizes, values = _sizes(table), table["passages"].combine_chunks().flatten().to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if bad := len(np.unique(owner[(values < 0) | (values >= limit)])):
        yield f"{bad} name a passage that does not exist"
    order = np.lexsort((values, owner))
    owner, values = owner[order], values[order]
    if bad := len(np.unique(owner[1:][(np.diff(owner) == 0) & (np.diff(values) == 0)])):
        yield f"{bad} name a passage twice"


def _sizes(table: pa.Table) -> np.ndarray:
    """i64: how many passages each row lists."""
    sizes: np.ndarray = pc.list_value_length(table["passages"]).to_numpy().astype(np.int64)
    return sizes


def _nodes(loaded: dict[str, pa.Table], n_passages: int) -> Iterator[str]:
    nodes = loaded["nodes"]
    if bad := _outside(nodes, "type", loaded["types"].num_rows):
        yield f"kb nodes: {bad} have a type that does not exist"
    yield from (f"kb nodes: {what}" for what in _lists(nodes, n_passages))
    n_own = nodes["n_own"].to_numpy()
    if bad := int(((n_own < 0) | (n_own > _sizes(nodes))).sum()):
        yield f"kb nodes: {bad} have more passages of their own than passages"


def _edges(loaded: dict[str, pa.Table], n_passages: int) -> Iterator[str]:
    edges = loaded["edges"]
    ends = (("head", "nodes"), ("tail", "nodes"), ("relation", "relations"), ("source", "sources"))
    for column, table in ends:
        if bad := _outside(edges, column, loaded[table].num_rows):
            yield f"kb edges: {bad} with a row number as {column} that none of the {table} has"
    if bad := int((~_rising([edges[column].to_numpy() for column in ("head", "relation", "tail", "source")])).sum()):
        yield f"kb edges: {bad} are not behind the one before them"
    yield from (f"kb edges: {what}" for what in _lists(edges, n_passages))
    if bad := int((pc.equal(edges["provenance"], "").to_numpy() & (_sizes(edges) == 0)).sum()):
        yield f"kb edges: {bad} say neither a file nor a passage"


def _rising(columns: list[np.ndarray]) -> np.ndarray:
    """bool[n - 1]: whether each row is behind the one before it, by the columns in turn."""
    rising, equal = (np.full(max(len(columns[0]) - 1, 0), is_equal) for is_equal in (False, True))
    for values in columns:
        rising |= equal & (values[:-1] < values[1:])
        equal &= values[:-1] == values[1:]
    return rising


def _records(loaded: dict[str, pa.Table]) -> Iterator[str]:
    """Every node has records, never two of one source, and its records are those that the links join."""
    records, links, n = loaded["records"], loaded["links"], loaded["nodes"].num_rows
    wrong = _outside(records, "node", n) + _outside(records, "source", loaded["sources"].num_rows)
    wrong += _outside(links, "left", records.num_rows) + _outside(links, "right", records.num_rows)
    if wrong:
        yield f"kb records: {wrong} row numbers of records or links that no table has"
        return
    node, source = records["node"].to_numpy().astype(np.int64), records["source"].to_numpy()
    rising = pc.less(records["id"][:-1], records["id"][1:]).to_numpy()
    if not np.all((source[:-1] < source[1:]) | ((source[:-1] == source[1:]) & rising)):
        yield "kb records: not sorted and unique"
    if lost := n - len(np.unique(node)):
        yield f"kb nodes: {lost} have no record"
    if bad := len(node) - len(np.unique(node * max(loaded["sources"].num_rows, 1) + source)):
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
    if not np.array_equal(table["node"].to_numpy(), np.flatnonzero(_sizes(nodes) == 0)):
        yield "kb_texts: not one text for each node without passages, in order"


def _vectors(index: Index, loaded: dict[str, pa.Table]) -> Iterator[str]:
    sizes = {
        "kb_name_vectors": loaded["nodes"].num_rows,
        "kb_edge_vectors": loaded["edges"].num_rows,
        "kb_relation_vectors": loaded["relations"].num_rows,
    }
    if "kb_texts" in index.layers:
        sizes["kb_text_vectors"] = index.manifest.stages["kb_texts"].counts["kb_texts"]
    for stage, n in sizes.items():
        if stage in index.layers:
            yield from wrong_vectors(index, stage, n)


def _web(index: Index) -> Iterator[str]:
    folder = index.folder("kb_web")
    pages = tables.read_table(folder / "web_pages.parquet", WEB_PAGES)
    yield from _ascending(pages["id"], "kb_web pages")
    if (n := Bm25.load(folder).n) != pages.num_rows:
        yield f"kb_web: a search over {n} pages for {pages.num_rows}"
