"""Checks of HiGraAgent's tables against each other, and of its graphs against the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.csr import check_csr, is_symmetric
from gpu_rag.index import tables
from gpu_rag.index.checks import wrong_vectors
from gpu_rag.index.index import Index
from gpu_rag.index.verify import Check
from gpu_rag.methods.higra.merge_edits import EXACT, FORCED, SEMANTIC
from gpu_rag.methods.higra.tables import (
    EXACT_ENTITIES,
    HIGRA_ENTITIES,
    HIGRA_LINKS,
    HIGRA_MERGES,
    HIGRA_RELATIONS,
    HIGRA_SOURCES,
)
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import CSR


def _read(index: Index, stage: str, file: str, schema: pa.Schema) -> pa.Table:
    return tables.read_table(index.folder(stage) / f"{file}.parquet", schema)


def _ints(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = table[name].to_numpy().astype(np.int64)
    return values


def _rising(rows: Sequence[Any], what: str) -> Iterator[str]:
    if any(a >= b for a, b in zip(rows, rows[1:])):
        yield f"{what}: rows are not sorted and unique"


def _outside(values: np.ndarray, limit: int, what: str) -> Iterator[str]:
    if bad := int(((values < 0) | (values >= limit)).sum()):
        yield f"{what}: {bad} row numbers that nothing has"


def _lists_outside(column: pa.ChunkedArray, limit: int, what: str) -> Iterator[str]:
    if bad := sum(not rows or rows[0] < 0 or rows[-1] >= limit or rows != sorted(set(rows)) for rows in _lists(column)):
        yield f"{what}: {bad} lists that are empty, not ascending, or hold a row number that nothing has"


def _lists(column: pa.ChunkedArray) -> list[list[int]]:
    found: list[list[int]] = column.to_pylist()
    return found


_RELATION_FILES = {
    "higra_exact": "higra_exact_relations",
    "higra_merge": "higra_extracted_relations",
    "higra_links": "higra_relations",
}


def _relation_table(index: Index, stage: str, n: int) -> Iterator[str]:
    table = _read(index, stage, _RELATION_FILES[stage], HIGRA_RELATIONS)
    subjects, objects = _ints(table, "subject"), _ints(table, "object")
    yield from _outside(np.concatenate([subjects, objects]), n, f"{stage} relations")
    yield from _rising(list(zip(subjects, table["label"].to_pylist(), objects)), f"{stage} relations")
    rows = zip(table["origin"].to_pylist(), table["confidence"].to_pylist(), _lists(table["passages"]))
    bad = 0
    for origin, confidence, passages in rows:
        extracted = origin == "extraction" and confidence == 1 and passages
        inferred = origin == "inferred" and 0 <= confidence <= 1 and not passages
        inside = all(0 <= row < index.n_passages for row in passages)
        bad += not (inside and (extracted or inferred))
    if bad:
        yield f"{stage} relations: {bad} whose origin, confidence and passages do not fit"


def _exact(index: Index) -> Iterator[str]:
    table = _read(index, "higra_exact", "higra_exact_entities", EXACT_ENTITIES)
    yield from _rising(table["id"].to_pylist(), "higra_exact entities")
    yield from _lists_outside(table["members"], index.n_entities, "higra_exact members")
    yield from _lists_outside(table["passages"], index.n_passages, "higra_exact passages")
    if len({row for rows in _lists(table["members"]) for row in rows}) != index.n_entities:
        yield "higra_exact: an entity of the entity table is in none"
    yield from _relation_table(index, "higra_exact", table.num_rows)


def _merged(index: Index) -> Iterator[str]:
    exact = _read(index, "higra_exact", "higra_exact_entities", EXACT_ENTITIES)
    table = _read(index, "higra_merge", "higra_entities", HIGRA_ENTITIES)
    yield from _rising(table["id"].to_pylist(), "higra_merge entities")
    yield from _lists_outside(table["members"], index.n_entities, "higra_merge members")
    if {row for rows in _lists(table["members"]) for row in rows} != {
        r for rows in _lists(exact["members"]) for r in rows
    }:
        yield "higra_merge: members were lost by the merge"
    sources = _read(index, "higra_merge", "higra_sources", HIGRA_SOURCES)
    entity, passage = _ints(sources, "entity"), _ints(sources, "passage")
    yield from _outside(entity, table.num_rows, "higra_merge sources")
    yield from _outside(passage, index.n_passages, "higra_merge sources")
    yield from _rising(list(zip(entity, passage)), "higra_merge sources")
    if not np.array_equal(np.bincount(np.maximum(entity, 0), minlength=table.num_rows), _ints(table, "n_passages")):
        yield "higra_merge: n_passages is not the number of sources"
    yield from _relation_table(index, "higra_merge", table.num_rows)
    yield from _merge_log(index, set(table["id"].to_pylist()))


def _merge_log(index: Index, ids: set[str]) -> Iterator[str]:
    log = _read(index, "higra_merge", "higra_merges", HIGRA_MERGES)
    yield from _rising(
        [(row["why"], -row["score"], row["id"]) for row in log.select(["why", "score", "id"]).to_pylist()],
        "higra_merge merges",
    )
    rows = log.to_pylist()
    if bad := sum(r["why"] not in (EXACT, SEMANTIC, FORCED) or len(set(r["members"])) < 2 for r in rows):
        yield f"higra_merge merges: {bad} are no merge of two or more"
    if bad := sum(row["entity"] not in ids for row in rows):
        yield f"higra_merge merges: {bad} became an entity that does not exist"


def _n(index: Index) -> int:
    return int(_read(index, "higra_merge", "higra_entities", HIGRA_ENTITIES).num_rows)


def _relations(index: Index) -> Iterator[str]:
    yield from _relation_table(index, "higra_links", _n(index))


def _links(index: Index) -> Iterator[str]:
    table = _read(index, "higra_mentions", "higra_links", HIGRA_LINKS)
    entity, passage, start, end = (_ints(table, name) for name in ("entity", "passage", "start", "end"))
    yield from _outside(entity, _n(index), "higra_mentions")
    if bad := list(_outside(passage, index.n_passages, "higra_mentions")):
        yield from bad
        return
    yield from _rising(list(zip(passage, start, entity, end)), "higra_mentions")
    lengths = np.asarray([len(text) for text in index.passages["text"].to_pylist()])
    inside = (start >= 0) & (start < end) & (end <= lengths[passage])
    if bad_places := int((~inside & ~((start == -1) & (end == -1))).sum()):
        yield f"higra_mentions: {bad_places} lie outside their passage"
    sources = _read(index, "higra_merge", "higra_sources", HIGRA_SOURCES)
    extracted = np.asarray([origin == "extraction" for origin in table["origin"].to_pylist()], bool)
    linked = set(zip(entity[extracted].tolist(), passage[extracted].tolist()))
    if linked != set(zip(sources["entity"].to_pylist(), sources["passage"].to_pylist())):
        yield "higra_mentions: the extracted links are not the sources of the entities"


def _search(index: Index) -> Iterator[str]:
    n_relations = _read(index, "higra_links", "higra_relations", HIGRA_RELATIONS).num_rows
    for name, n in (("entities", _n(index)), ("relations", n_relations)):
        found = Bm25.load(index.folder("higra_search") / name).n
        if found != n:
            yield f"higra_search: {found} {name} for {n}"


_ROWS_OF = {
    "higra_exact_vectors": ("higra_exact", "higra_exact_entities", EXACT_ENTITIES),
    "higra_entity_vectors": ("higra_merge", "higra_entities", HIGRA_ENTITIES),
    "higra_relation_vectors": ("higra_links", "higra_relations", HIGRA_RELATIONS),
}


def _vectors(index: Index) -> Iterator[str]:
    for stage, rows in _ROWS_OF.items():
        if stage in index.layers:
            yield from wrong_vectors(index, stage, _read(index, *rows).num_rows)


def _graphs(index: Index) -> Iterator[str]:
    arrays = tables.read_arrays(index.folder("higra_graph") / "graph.safetensors")
    relations = _read(index, "higra_links", "higra_relations", HIGRA_RELATIONS)
    links = _read(index, "higra_mentions", "higra_links", HIGRA_LINKS)
    n = _n(index)
    ends = np.stack([_ints(relations, "subject"), _ints(relations, "object")])
    linked = np.stack([_ints(links, "entity"), _ints(links, "passage") + n])
    for name, size, pairs in (
        ("entity", n, ends),
        ("full", n + index.n_passages, np.concatenate([ends, linked], 1)),
    ):
        csr = CSR(*(torch.from_numpy(arrays[f"{name}_{part}"]) for part in ("indptr", "indices")))
        check_csr(csr)
        if csr.n != size:
            yield f"higra_graph: {csr.n} nodes of the {name} graph for {size}"
            continue
        if not is_symmetric(csr):
            yield f"higra_graph: an edge of the {name} graph lacks its other direction"
        rows = np.repeat(np.arange(csr.n), np.diff(arrays[f"{name}_indptr"]))
        stored = _keys(np.stack([rows, arrays[f"{name}_indices"].astype(np.int64)]), size)
        if not np.array_equal(stored, _keys(pairs, size)):
            yield f"higra_graph: the {name} graph is not that of the relations and links"
    found = json.loads((index.folder("higra_graph") / "statistics.json").read_text("utf-8"))
    if found["entities"]["semantic"] != n or sum(found["relations"][k] for k in ("extracted", "inferred")) != len(
        ends[0]
    ):
        yield "higra_graph: the statistics are not those of the tables"


def _keys(pairs: np.ndarray, n: int) -> np.ndarray:
    low, high = pairs.min(0), pairs.max(0)
    return np.unique((low * n + high)[low != high])


CHECKS: dict[str, Check] = {
    "higra_exact": _exact,
    "higra_merge": _merged,
    "higra_links": _relations,
    "higra_mentions": _links,
    "higra_search": _search,
    **dict.fromkeys(_ROWS_OF, _vectors),
    "higra_graph": _graphs,
}
