"""Checks of the tables of a knowledge base: each against the others, and against the passages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.checks import outside, wrong_vectors
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KINDS
from gpu_rag.index.knowledge_base.tables import KB_ROWS, KB_TABLES, KB_TEXTS, WEB_PAGES
from gpu_rag.text.bm25 import Bm25

KB_PARTS = ("kb_texts", "kb_name_vectors", "kb_edge_vectors", "kb_relation_vectors", "kb_text_vectors")
_LINK_ROWS = (("links", "left", "records"), ("links", "right", "records"))


def check_kb(index: Index) -> Iterator[str]:
    """Faults in the stages of the knowledge base, one per line."""
    if "kb" in index.stages:
        loaded = {name: index.table("kb", f"kb_{name}.parquet", schema) for name, schema in KB_TABLES.items()}
        yield from _names(loaded)
        strange = list(_strange_rows(loaded, index.n_passages))
        yield from strange
        yield from _passages_of(loaded["nodes"], "kb nodes")
        yield from _edges(loaded["edges"])
        if not strange:
            yield from _records(loaded)
        n_own = loaded["nodes"]["n_own"].to_numpy()
        if bad := int(((n_own < 0) | (n_own > _sizes(loaded["nodes"]))).sum()):
            yield f"kb nodes: {bad} have more passages of their own than passages"
        if loaded["passages"].num_rows != index.n_passages:
            yield f"kb passages: {loaded['passages'].num_rows} rows for {index.n_passages} passages"
        yield from _texts_and_vectors(index, loaded)
    if "kb_web" in index.stages:
        pages = tables.read_table(index.folder("kb_web") / "web_pages.parquet", WEB_PAGES)
        yield from _ascending(pages["id"], "kb_web pages")
        if (n := Bm25.load(index.folder("kb_web")).n) != pages.num_rows:
            yield f"kb_web: a search over {n} pages for {pages.num_rows}"


def _ascending(column: pa.ChunkedArray, what: str) -> Iterator[str]:
    if not pc.all(pc.less(column[:-1], column[1:])).as_py() and len(column) > 1:
        yield f"{what}: not sorted and unique"


def _names(loaded: dict[str, pa.Table]) -> Iterator[str]:
    for table, column in (("types", "name"), ("relations", "name"), ("nodes", "id")):
        yield from _ascending(loaded[table][column], f"kb {table}")
    for table, column in (("relations", "id"), ("sources", "name")):
        if pc.count_distinct(loaded[table][column]).as_py() < loaded[table].num_rows:
            yield f"kb {table}: one {column} stands twice"
    for table, column, known in (("sources", "kind", KINDS), ("links", "rule", ("id", "name"))):
        if strange := sorted(set(pc.unique(loaded[table][column]).to_pylist()) - set(known)):
            yield f"kb {table}: no {column} is called {strange[0]}"


def _strange_rows(loaded: dict[str, pa.Table], n_passages: int) -> Iterator[str]:
    for table, column, target in (*KB_ROWS, *_LINK_ROWS):
        values = loaded[table][column].combine_chunks()
        values = values.flatten() if pa.types.is_list(values.type) else values
        if bad := outside(values.to_numpy(), n_passages if target == "passages" else loaded[target].num_rows):
            yield f"kb {table}: {bad} with a row number as {column} that none of the {target} has"


def _sizes(table: pa.Table) -> np.ndarray:
    """i64: number of passages that each row lists."""
    sizes: np.ndarray = pc.list_value_length(table["passages"]).to_numpy().astype(np.int64)
    return sizes


def _passages_of(table: pa.Table, what: str) -> Iterator[str]:
    sizes, values = _sizes(table), table["passages"].combine_chunks().flatten().to_numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((values, owner))
    owner, values = owner[order], values[order]
    if bad := len(np.unique(owner[1:][(np.diff(owner) == 0) & (np.diff(values) == 0)])):
        yield f"{what}: {bad} name a passage twice"


def _edges(edges: pa.Table) -> Iterator[str]:
    if bad := int((~_rising([edges[column].to_numpy() for column in ("head", "relation", "tail", "source")])).sum()):
        yield f"kb edges: {bad} are not behind the one before them"
    yield from _passages_of(edges, "kb edges")
    if bad := int((pc.equal(edges["provenance"], "").to_numpy() & (_sizes(edges) == 0)).sum()):
        yield f"kb edges: {bad} say neither a file nor a passage"


def _rising(columns: list[np.ndarray]) -> np.ndarray:
    """bool[n - 1]: whether each row is greater than the one before it, in lexicographic order of the columns."""
    rising, equal = (np.full(max(len(columns[0]) - 1, 0), is_equal) for is_equal in (False, True))
    for values in columns:
        rising |= equal & (values[:-1] < values[1:])
        equal &= values[:-1] == values[1:]
    return rising


def _records(loaded: dict[str, pa.Table]) -> Iterator[str]:
    """Check that every node has records, at most one per source, and that links join exactly its records."""
    records, links, n = loaded["records"], loaded["links"], loaded["nodes"].num_rows
    node, source = records["node"].to_numpy().astype(np.int64), records["source"].to_numpy()
    rising = pc.less(records["id"][:-1], records["id"][1:]).to_numpy()
    if not np.all((source[:-1] < source[1:]) | ((source[:-1] == source[1:]) & rising)):
        yield "kb records: not sorted and unique"
    if lost := n - len(np.unique(node)):
        yield f"kb nodes: {lost} have no record"
    if bad := len(node) - len(np.unique(node * max(loaded["sources"].num_rows, 1) + source)):
        yield f"kb records: {bad} have the source and the node of another record"
    left, right = (links[name].to_numpy() for name in ("left", "right"))
    if bad := int((node[left] != node[right]).sum()):
        yield f"kb links: {bad} join records of different nodes"
    if len(node) - len(left) != n:  # the links of a node form a tree
        yield f"kb links: {len(left)} for {len(node)} records of {n} nodes"


def _texts_and_vectors(index: Index, loaded: dict[str, pa.Table]) -> Iterator[str]:
    sizes = {f"kb_{kind}_vectors": loaded[f"{kind}s"].num_rows for kind in ("edge", "relation")}
    sizes["kb_name_vectors"] = loaded["nodes"].num_rows
    if "kb_texts" in index.stages:
        table = tables.read_table(index.folder("kb_texts") / "kb_texts.parquet", KB_TEXTS)
        if not np.array_equal(table["node"].to_numpy(), np.flatnonzero(_sizes(loaded["nodes"]) == 0)):
            yield "kb_texts: not one text for each node without passages, in order"
        sizes["kb_text_vectors"] = index.manifest.stages["kb_texts"].counts["kb_texts"]
    if "kb_edge_vectors" in index.stages and not len(index.vectors("kb_edge_vectors")):
        sizes["kb_edge_vectors"] = 0  # composed during search
    for stage, n in sizes.items():
        if stage in index.stages:
            yield from wrong_vectors(index, stage, n)
