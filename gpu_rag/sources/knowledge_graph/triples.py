"""Triples from tables, and from tab-separated lines of head, relation, tail and, if known, provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.knowledge_graph.blocks import (
    TEXT,
    Block,
    RowKind,
    are_plain,
    batch_of,
    plain_fields,
    read_lines_in_blocks,
    text_of,
)
from gpu_rag.sources.lines import Line
from gpu_rag.sources.parquet import Columns
from gpu_rag.sources.rows import Limits, RowError, clean_string, id_text, optional_string

HEADERS = (("head", "relation", "tail"), ("subject", "predicate", "object"), ("src", "relation", "dst"))
MAX_NOTE_CHARS = 300
_KEYS = (*HEADERS[0], "provenance")


@dataclass(frozen=True)
class Triple:
    """One edge head - relation -> tail, by ids as written: a name, an IRI without brackets, or `_:label` of a blank
    node.

    A tail that is a value is in its N-Triples form. note: the provenance in the row itself. line: line of a text file,
    or row of a table; both from 1.
    """

    head: str
    relation: str
    tail: str
    line: int
    note: str = ""


def part_of(value: object, name: str) -> str:
    """Part of a triple as text. Raises RowError unless it is an id that is not blank."""
    text = id_text(value, name)
    if text.isspace():
        raise RowError(f"{name} is empty")
    return text


def triple_of_row(row: Row, limits: Limits) -> Triple:
    """Triple of an object {head, relation, tail}, or with the other names of `HEADERS`. Raises RowError."""
    names = max(HEADERS, key=lambda names: len(row.value.keys() & set(names)))  # ties to the first
    head, relation, tail = (part_of(row.value.get(name), name) for name in names)
    return Triple(head, relation, tail, row.line, optional_string(row.value, "provenance")[:MAX_NOTE_CHARS])


def _plain(columns: Mapping[str, pa.Array], line: np.ndarray, limits: Limits) -> tuple[Block, np.ndarray]:
    names = max(HEADERS, key=lambda names: len(columns.keys() & set(names)))  # ties to the first
    *parts, note = (text_of(columns.get(name), len(line)) for name in (*names, "provenance"))
    good = are_plain(note, MAX_NOTE_CHARS)
    for part in parts:
        good &= are_plain(part) & np.asarray(pc.not_equal(part, ""))
    block, others = Block(batch_of(TRIPLES.schema, *parts, note, line)), np.flatnonzero(~good)
    return (block.take(np.flatnonzero(good)) if len(others) else block), others


TRIPLES = RowKind(
    pa.schema([(name, TEXT) for name in ("head", "relation", "tail", "note")] + [("line", pa.int64())]),
    Columns(
        ("head", "relation", "tail", "subject", "predicate", "object", "src", "dst", "provenance"),
        HEADERS,
        ("head", "tail", "subject", "object", "src", "dst"),
        "head, relation and tail, or subject, predicate and object",
    ),
    _plain,
    triple_of_row,
)


def read_tsv(path: Path, limits: Limits) -> Iterator[Block]:
    """Triples of a file, in blocks; a first line that names the columns is skipped."""
    plain = partial(plain_fields, TRIPLES, keys=_KEYS, min_fields=3, limits=limits)
    return read_lines_in_blocks(TRIPLES.schema, path, limits, plain, triple_of)


def triple_of(line: Line) -> Triple | None:
    """Triple of a line of tab-separated fields; None for a line of column names. Raises RowError."""
    fields = line.text.split("\t")
    if line.number == 1 and tuple(field.strip().lower() for field in fields[:3]) in HEADERS:
        return None
    if len(fields) not in (3, 4):
        raise RowError(f"{len(fields)} fields; expected head, relation, tail and perhaps provenance between tabs")
    head, relation, tail = (part_of(field, name) for field, name in zip(fields, HEADERS[0]))
    note = clean_string(fields[3], "provenance").strip() if len(fields) == 4 else ""
    return Triple(head, relation, tail, line.number, note[:MAX_NOTE_CHARS])
