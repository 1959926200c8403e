"""Schemas of the tables of HiGraAgent's graph: entities after alignment, their relations, links and merges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.graph.nearest.pairs import distinct
from gpu_rag.index import tables
from gpu_rag.index.index import Index

Row = dict[str, Any]
Triple = tuple[int, str, int]  # (subject, label, object), rows of a table of entities
_ENTITY = [
    ("id", pa.string()),  # the normalised name, with its types if several entities have that name
    ("name", pa.string()),  # the commonest spelling
    ("aliases", pa.list_(pa.string())),  # all other spellings, commonest first
    ("types", pa.list_(pa.string())),
    ("descriptions", pa.list_(pa.string())),
    ("members", pa.list_(pa.int32())),  # rows of ENTITIES with its names, ascending
]
EXACT_ENTITIES = pa.schema([*_ENTITY, ("passages", pa.list_(pa.int32()))])  # after the exact merge; sorted by id
HIGRA_ENTITIES = pa.schema([*_ENTITY, ("n_passages", pa.int32())])  # after the semantic merge; sorted by id
HIGRA_RELATIONS = pa.schema(  # sorted by (subject, label, object)
    [
        ("subject", pa.int32()),  # rows of HIGRA_ENTITIES
        ("label", pa.string()),
        ("object", pa.int32()),
        ("passages", pa.list_(pa.int32())),  # where it was extracted, ascending; empty for inferred relations
        ("origin", pa.string()),  # extraction | inferred
        ("confidence", pa.float32()),  # 1 for extracted relations
    ]
)
HIGRA_BECAME = pa.schema([("entity", pa.int32())])  # for each exact entity, its row of HIGRA_ENTITIES
HIGRA_LINKS = tables.MENTIONS  # rows of HIGRA_ENTITIES and passages; sorted by (passage, start, entity, end)
HIGRA_MERGES = pa.schema(  # merges and their reasons; sorted by (why, -score, id)
    [
        ("id", pa.string()),  # for `gpu-rag merges --reject`; the same for the same names in every build
        ("why", pa.string()),  # exact | semantic | forced | quarantined
        ("rule", pa.string()),
        ("score", pa.float32()),  # the cosine of the two names; 1 for exact and forced merges
        ("members", pa.list_(pa.string())),  # exact: normalised names; else ids of EXACT_ENTITIES
        ("entity", pa.string()),  # id of the resulting entity in HIGRA_ENTITIES; "" for quarantined merges
    ]
)
HIGRA_SOURCES = pa.schema([("entity", pa.int32()), ("passage", pa.int32())])  # where entities were extracted; sorted
TABLES = {  # name: the stage that writes it, and its schema
    "higra_exact_entities": ("higra_exact", EXACT_ENTITIES),
    "higra_exact_relations": ("higra_exact", HIGRA_RELATIONS),
    "higra_exact_merges": ("higra_exact", HIGRA_MERGES),
    "higra_entities": ("higra_merge", HIGRA_ENTITIES),
    "higra_became": ("higra_merge", HIGRA_BECAME),
    "higra_sources": ("higra_merge", HIGRA_SOURCES),
    "higra_merges": ("higra_merge", HIGRA_MERGES),
    "higra_relations": ("higra_links", HIGRA_RELATIONS),
    "higra_links": ("higra_mentions", HIGRA_LINKS),
}


def read(folder: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table `name` in the folder of its stage, or some of its columns. Raises IndexCorrupt."""
    return tables.read_table(folder / f"{name}.parquet", TABLES[name][1], columns)


def read_of(index: Index, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table `name` of an index, with at least these columns. Raises MissingLayer, IndexCorrupt."""
    stage, schema = TABLES[name]
    return index.table(stage, f"{name}.parquet", schema, columns)


def take_rows(index: Index, name: str, rows: Iterable[int], *columns: str) -> list[Row]:
    """Some columns of rows of the table `name` of an index, in the given order. Raises MissingLayer, IndexCorrupt."""
    stage, schema = TABLES[name]
    return index.take(stage, f"{name}.parquet", schema, rows, columns)


def write(folder: Path, name: str, rows: Iterable[Row]) -> int:
    """Write the table `name`. Returns its number of rows."""
    return tables.write_rows(folder / f"{name}.parquet", TABLES[name][1], rows)


def ints(table: pa.Table, column: str) -> np.ndarray:
    """A column of integers, i64[rows]."""
    values: np.ndarray = table[column].to_numpy().astype(np.int64)
    return values


def pair_keys(entity: np.ndarray, passage: np.ndarray) -> np.ndarray:
    """i64: entity * 2^32 + passage of each distinct pair, ascending."""
    return distinct(entity.astype(np.int64) << 32 | passage.astype(np.int64))


def pairs(table: pa.Table, origin: str = "") -> np.ndarray:
    """`pair_keys` of HIGRA_LINKS or HIGRA_SOURCES. origin: keep only links of this origin."""
    table = table.filter(pc.equal(table["origin"], origin)) if origin else table
    return pair_keys(ints(table, "entity"), ints(table, "passage"))


def relation_rows(triples: Iterable[tuple[Triple, Iterable[int]]], row_of: Sequence[int]) -> list[Row]:
    """Rows of HIGRA_RELATIONS, sorted, from extracted triples with their passages. row_of: the entity of each end."""
    passages_of: dict[Triple, set[int]] = defaultdict(set)
    for (subject, label, object_), passages in triples:
        passages_of[row_of[subject], label, row_of[object_]].update(passages)
    return [relation_row(key, sorted(passages_of[key])) for key in sorted(passages_of)]


def relation_row(key: Triple, passages: Sequence[int] = (), confidence: float = 1.0) -> Row:
    """A row of HIGRA_RELATIONS. Without passages the relation is inferred."""
    subject, label, object_ = key
    return {
        "subject": subject,
        "label": label,
        "object": object_,
        "passages": list(passages),
        "origin": "extraction" if passages else "inferred",
        "confidence": confidence,
    }
