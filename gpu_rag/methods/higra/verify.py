"""Checks of HiGraAgent's tables against each other, and of its graphs against the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.index.checks import outside, wrong_vectors
from gpu_rag.index.index import Index
from gpu_rag.index.name_table import NAMES
from gpu_rag.index.verify import Check, wrong_arrays, wrong_walk
from gpu_rag.methods.higra.graph import WALK
from gpu_rag.methods.higra.merges import EXACT, FILE, FORCED, QUARANTINED, SEMANTIC, read_edits
from gpu_rag.methods.higra.stages.graph import known_names, names_of
from gpu_rag.methods.higra.tables import ints, pairs, read_of
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.normalise import normalise_name


def _rising(rows: Sequence[Any], what: str) -> Iterator[str]:
    if any(a >= b for a, b in zip(rows, rows[1:])):
        yield f"{what}: rows are not sorted and unique"


def _outside(values: np.ndarray, limit: int, what: str) -> Iterator[str]:
    if bad := outside(values, limit):
        yield f"{what}: {bad} row numbers that nothing has"


def _entities(index: Index, name: str, stage: str, **limits: int) -> Iterator[str]:
    """Check the ids of a table, and its list columns. limits: upper bounds of the row numbers in these lists."""
    table = read_of(index, name)
    yield from _rising(table["id"].to_pylist(), f"{stage} entities")
    for column, limit in limits.items():
        lists = table[column].to_pylist()
        if bad := sum(not rows or rows[0] < 0 or rows[-1] >= limit or rows != sorted(set(rows)) for rows in lists):
            yield f"{stage} {column}: {bad} lists that are empty, not ascending, or hold a row number that nothing has"


def _relations(index: Index, name: str, stage: str, n: int) -> Iterator[str]:
    table = read_of(index, name)
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


def _members(table: pa.Table) -> set[int]:
    return {row for rows in table["members"].to_pylist() for row in rows}


def _exact(index: Index) -> Iterator[str]:
    table = read_of(index, "higra_exact_entities")
    limits = {"members": index.n_entities, "passages": index.n_passages}
    yield from _entities(index, "higra_exact_entities", "higra_exact", **limits)
    # The end of a triple may be an alias of an entity of its passage. Then the entity table has a row for it, but no
    # entity has it as a member.
    known = {normalise_name(alias) for aliases in table["aliases"].to_pylist() for alias in aliases}
    members = _members(table)
    if not all(row in members or id in known for id, row in index.entity_rows.items()):
        yield "higra_exact: an entity of the entity table is in none"
    yield from _relations(index, "higra_exact_relations", "higra_exact", table.num_rows)


def _merged(index: Index) -> Iterator[str]:
    table, sources, log = (read_of(index, f"higra_{name}") for name in ("entities", "sources", "merges"))
    yield from _entities(index, "higra_entities", "higra_merge", members=index.n_entities)
    if _members(table) != _members(read_of(index, "higra_exact_entities")):
        yield "higra_merge: members were lost by the merge"
    entity, passage = ints(sources, "entity"), ints(sources, "passage")
    yield from _outside(entity, table.num_rows, "higra_merge sources")
    yield from _outside(passage, index.n_passages, "higra_merge sources")
    yield from _rising(list(zip(entity, passage)), "higra_merge sources")
    if not np.array_equal(np.bincount(np.maximum(entity, 0), minlength=table.num_rows), ints(table, "n_passages")):
        yield "higra_merge: n_passages is not the number of sources"
    became = ints(read_of(index, "higra_became"), "entity")
    if len(became) != read_of(index, "higra_exact_entities").num_rows or outside(became, table.num_rows):
        yield "higra_merge became: not an entity for each exact entity"
    read_edits(index.path / FILE)  # raises if the file is damaged
    rows, ids = log.to_pylist(), set(table["id"].to_pylist())
    yield from _rising([(row["why"], -row["score"], row["id"]) for row in rows], "higra_merge merges")
    reasons = (EXACT, SEMANTIC, FORCED, QUARANTINED)
    if bad := sum(row["why"] not in reasons or len(set(row["members"])) < 2 for row in rows):
        yield f"higra_merge merges: {bad} are not a merge of two or more"
    if bad := sum(row["entity"] not in ids for row in rows if row["why"] != QUARANTINED):
        yield f"higra_merge merges: {bad} became an entity that does not exist"


def _all_relations(index: Index) -> Iterator[str]:
    yield from _relations(index, "higra_relations", "higra_links", read_of(index, "higra_entities").num_rows)


def _links(index: Index) -> Iterator[str]:
    table = read_of(index, "higra_links")
    entity, passage, start, end = (ints(table, name) for name in ("entity", "passage", "start", "end"))
    yield from _outside(entity, read_of(index, "higra_entities").num_rows, "higra_mentions")
    if bad := list(_outside(passage, index.n_passages, "higra_mentions")):
        yield from bad
        return
    yield from _rising(list(zip(passage, start, entity, end)), "higra_mentions")
    lengths = np.asarray([len(text) for text in index.passages["text"].to_pylist()])
    inside = (start >= 0) & (start < end) & (end <= lengths[passage])
    if bad_places := int((~inside & ~((start == -1) & (end == -1))).sum()):
        yield f"higra_mentions: {bad_places} lie outside their passage"
    if not np.array_equal(pairs(table, "extraction"), pairs(read_of(index, "higra_sources"))):
        yield "higra_mentions: the extracted links are not the sources of the entities"


def _search(index: Index) -> Iterator[str]:
    for name in ("entities", "relations"):
        n_indexed, n = Bm25.load(index.folder("higra_search") / name).n, read_of(index, f"higra_{name}").num_rows
        if n_indexed != n:
            yield f"higra_search: {n_indexed} {name} for {n}"


VECTORS_OF = {
    "higra_exact_vectors": "higra_exact_entities",
    "higra_entity_vectors": "higra_entities",
    "higra_relation_vectors": "higra_relations",
}


def _vectors(index: Index) -> Iterator[str]:
    for stage, name in VECTORS_OF.items():
        if stage in index.stages:
            yield from wrong_vectors(index, stage, read_of(index, name).num_rows)


def _graphs(index: Index) -> Iterator[str]:
    entities, relations, links = (read_of(index, f"higra_{name}") for name in ("entities", "relations", "links"))
    n = entities.num_rows
    ends = [
        (ints(relations, "subject"), ints(relations, "object")),
        (ints(links, "entity"), ints(links, "passage") + n),
    ]
    names = known_names(entities)
    yield from wrong_walk(index, "higra_graph", WALK, ends, n, *names)
    yield from wrong_arrays(index, "higra_graph", NAMES, names_of(entities, *names).arrays)
    statistics = json.loads((index.folder("higra_graph") / "statistics.json").read_text("utf-8"))
    n_relations = sum(statistics["relations"][origin] for origin in ("extracted", "inferred"))
    if (statistics["entities"]["semantic"], n_relations) != (entities.num_rows, relations.num_rows):
        yield "higra_graph: the statistics are not those of the tables"


CHECKS: dict[str, Check] = {
    "higra_exact": _exact,
    "higra_merge": _merged,
    "higra_links": _all_relations,
    "higra_mentions": _links,
    "higra_search": _search,
    **dict.fromkeys(VECTORS_OF, _vectors),
    "higra_graph": _graphs,
}
