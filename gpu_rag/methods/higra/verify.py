"""Checks of HiGraAgent's tables against each other, and of its graphs against the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gpu_rag.graph.csr import check_csr, is_symmetric
from gpu_rag.index import tables
from gpu_rag.index.checks import wrong_vectors
from gpu_rag.index.index import Index
from gpu_rag.index.verify import Check
from gpu_rag.methods.higra.merges import EXACT, FORCED, SEMANTIC
from gpu_rag.methods.higra.tables import ints, pairs, read, read_rows
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import CSR


def _entities(index: Index) -> pa.Table:
    return read(index.folder("higra_merge"), "higra_entities")


def _rising(rows: Sequence[Any], what: str) -> Iterator[str]:
    if any(a >= b for a, b in zip(rows, rows[1:])):
        yield f"{what}: rows are not sorted and unique"


def _outside(values: np.ndarray, limit: int, what: str) -> Iterator[str]:
    if bad := int(((values < 0) | (values >= limit)).sum()):
        yield f"{what}: {bad} row numbers that nothing has"


def _lists_outside(table: pa.Table, name: str, limit: int, stage: str) -> Iterator[str]:
    lists = table[name].to_pylist()
    if bad := sum(not rows or rows[0] < 0 or rows[-1] >= limit or rows != sorted(set(rows)) for rows in lists):
        yield f"{stage} {name}: {bad} lists that are empty, not ascending, or hold a row number that nothing has"


def _members(table: pa.Table) -> set[int]:
    return {row for rows in table["members"].to_pylist() for row in rows}


def _relation_table(index: Index, stage: str, name: str, n: int) -> Iterator[str]:
    table = read(index.folder(stage), name)
    subjects, objects = ints(table, "subject"), ints(table, "object")
    yield from _outside(np.concatenate([subjects, objects]), n, f"{stage} relations")
    yield from _rising(list(zip(subjects, table["label"].to_pylist(), objects)), f"{stage} relations")
    bad = 0
    for origin, confidence, passages in zip(*(table[c].to_pylist() for c in ("origin", "confidence", "passages"))):
        extracted = origin == "extraction" and confidence == 1 and passages
        inferred = origin == "inferred" and 0 <= confidence <= 1 and not passages
        inside = all(0 <= row < index.n_passages for row in passages)
        bad += not (inside and (extracted or inferred))
    if bad:
        yield f"{stage} relations: {bad} whose origin, confidence and passages do not fit"


def _exact(index: Index) -> Iterator[str]:
    table = read(index.folder("higra_exact"), "higra_exact_entities")
    yield from _rising(table["id"].to_pylist(), "higra_exact entities")
    yield from _lists_outside(table, "members", index.n_entities, "higra_exact")
    yield from _lists_outside(table, "passages", index.n_passages, "higra_exact")
    if len(_members(table)) != index.n_entities:
        yield "higra_exact: an entity of the entity table is in none"
    yield from _relation_table(index, "higra_exact", "higra_exact_relations", table.num_rows)


def _merged(index: Index) -> Iterator[str]:
    table, folder = _entities(index), index.folder("higra_merge")
    yield from _rising(table["id"].to_pylist(), "higra_merge entities")
    yield from _lists_outside(table, "members", index.n_entities, "higra_merge")
    if _members(table) != _members(read(index.folder("higra_exact"), "higra_exact_entities")):
        yield "higra_merge: members were lost by the merge"
    sources = read(folder, "higra_sources")
    entity, passage = ints(sources, "entity"), ints(sources, "passage")
    yield from _outside(entity, table.num_rows, "higra_merge sources")
    yield from _outside(passage, index.n_passages, "higra_merge sources")
    yield from _rising(list(zip(entity, passage)), "higra_merge sources")
    if not np.array_equal(np.bincount(np.maximum(entity, 0), minlength=table.num_rows), ints(table, "n_passages")):
        yield "higra_merge: n_passages is not the number of sources"
    yield from _relation_table(index, "higra_merge", "higra_extracted_relations", table.num_rows)
    log, ids = read_rows(folder, "higra_merges"), set(table["id"].to_pylist())
    yield from _rising([(row["why"], -row["score"], row["id"]) for row in log], "higra_merge merges")
    if bad := sum(row["why"] not in (EXACT, SEMANTIC, FORCED) or len(set(row["members"])) < 2 for row in log):
        yield f"higra_merge merges: {bad} are no merge of two or more"
    if bad := sum(row["entity"] not in ids for row in log):
        yield f"higra_merge merges: {bad} became an entity that does not exist"


def _relations(index: Index) -> Iterator[str]:
    yield from _relation_table(index, "higra_links", "higra_relations", _entities(index).num_rows)


def _links(index: Index) -> Iterator[str]:
    table = read(index.folder("higra_mentions"), "higra_links")
    entity, passage, start, end = (ints(table, name) for name in ("entity", "passage", "start", "end"))
    yield from _outside(entity, _entities(index).num_rows, "higra_mentions")
    if bad := list(_outside(passage, index.n_passages, "higra_mentions")):
        yield from bad
        return
    yield from _rising(list(zip(passage, start, entity, end)), "higra_mentions")
    lengths = np.asarray([len(text) for text in index.passages["text"].to_pylist()])
    inside = (start >= 0) & (start < end) & (end <= lengths[passage])
    if bad_places := int((~inside & ~((start == -1) & (end == -1))).sum()):
        yield f"higra_mentions: {bad_places} lie outside their passage"
    extracted = table.filter(pc.equal(table["origin"], "extraction"))
    if pairs(extracted) != pairs(read(index.folder("higra_merge"), "higra_sources")):
        yield "higra_mentions: the extracted links are not the sources of the entities"


def _search(index: Index) -> Iterator[str]:
    n_relations = read(index.folder("higra_links"), "higra_relations").num_rows
    for name, n in (("entities", _entities(index).num_rows), ("relations", n_relations)):
        found = Bm25.load(index.folder("higra_search") / name).n
        if found != n:
            yield f"higra_search: {found} {name} for {n}"


VECTORS_OF = {
    "higra_exact_vectors": ("higra_exact", "higra_exact_entities"),
    "higra_entity_vectors": ("higra_merge", "higra_entities"),
    "higra_relation_vectors": ("higra_links", "higra_relations"),
}


def _vectors(index: Index) -> Iterator[str]:
    for stage, (folder, name) in VECTORS_OF.items():
        if stage in index.layers:
            yield from wrong_vectors(index, stage, read(index.folder(folder), name).num_rows)


def _graphs(index: Index) -> Iterator[str]:
    arrays = tables.read_arrays(index.folder("higra_graph") / "graph.safetensors")
    relations = read(index.folder("higra_links"), "higra_relations")
    links = read(index.folder("higra_mentions"), "higra_links")
    n = _entities(index).num_rows
    ends = np.stack([ints(relations, "subject"), ints(relations, "object")])
    linked = np.stack([ints(links, "entity"), ints(links, "passage") + n])
    for name, size, edges in (
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
        if not np.array_equal(stored, _keys(edges, size)):
            yield f"higra_graph: the {name} graph is not that of the relations and links"
    found = json.loads((index.folder("higra_graph") / "statistics.json").read_text("utf-8"))
    n_relations = sum(found["relations"][origin] for origin in ("extracted", "inferred"))
    if (found["entities"]["semantic"], n_relations) != (n, relations.num_rows):
        yield "higra_graph: the statistics are not those of the tables"


def _keys(edges: np.ndarray, n: int) -> np.ndarray:
    low, high = edges.min(0), edges.max(0)
    return np.unique((low * n + high)[low != high])


CHECKS: dict[str, Check] = {
    "higra_exact": _exact,
    "higra_merge": _merged,
    "higra_links": _relations,
    "higra_mentions": _links,
    "higra_search": _search,
    **dict.fromkeys(VECTORS_OF, _vectors),
    "higra_graph": _graphs,
}
