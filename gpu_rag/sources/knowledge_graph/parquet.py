"""Parquet tables of triples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.knowledge_graph.triples import (
    HEADERS,
    MAX_NOTE_CHARS,
    Triple,
    TripleBlock,
    block_of,
    joined,
    may_be_blank,
    triple_of_row,
)
from gpu_rag.sources.parquet import Columns, TableBlock, decoded, read_table_blocks
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, shown
from gpu_rag.types import Reject

_ROWS = 1 << 16
_BYTES = 16 << 20  # of one block, where its rows are long
COLUMNS = Columns(
    ("head", "relation", "tail", "subject", "predicate", "object", "src", "dst", "provenance"),
    HEADERS,
    ("head", "tail", "subject", "object", "src", "dst"),
    "head, relation and tail, or subject, predicate and object",
)


def read_table(path: Path, limits: Limits) -> Iterator[TripleBlock]:
    """The triples of a Parquet file, in blocks."""
    for block in read_table_blocks(path, COLUMNS, _ROWS, _BYTES):
        if block.batches:
            yield _block(path, block)
        if block.problem is not None:
            yield block_of([], [block.problem])


def _block(path: Path, block: TableBlock) -> TripleBlock:
    columns, n, before = block.by_name(), block.n_rows, block.before
    ends = max(HEADERS, key=lambda names: len(columns.keys() & set(names)))  # ties to the first
    (head, is_head), (relation, is_relation), (tail, is_tail) = (_plain(columns.get(name), n) for name in ends)
    good = is_head & is_relation & is_tail
    note = None
    if "provenance" in columns:
        note, is_plain = _plain_note(columns["provenance"], n)
        good &= is_plain
    others = np.flatnonzero(~good)
    triples, rejects = _one_by_one(path, columns, others, before)
    line = before + 1 + np.arange(n)
    if not len(others):
        return TripleBlock(head, relation, tail, line, note, rejects)
    plain = TripleBlock(head, relation, tail, line, note).take(np.flatnonzero(good), [])
    return joined(plain, block_of(triples, rejects))


def _plain(column: pa.Array | None, n: int) -> tuple[pa.LargeStringArray, np.ndarray]:
    """(the column as text, rows that hold an id that needs no closer look)."""
    nothing = pa.array([""] * n, pa.large_string()), np.zeros(n, bool)
    if column is None or pa.types.is_null(column.type):
        return nothing
    if pa.types.is_integer(column.type):
        return column.cast(pa.large_string()).fill_null(""), np.asarray(column.is_valid())
    text = _text(column)
    if text is None:
        return nothing
    length = np.asarray(pc.binary_length(text))
    good = np.asarray(column.is_valid()) & (length > 0) & (length <= MAX_ID_CHARS) & ~_odd(text)
    octets, start = _octets(text)
    if len(octets):
        good &= ~may_be_blank(octets, np.minimum(start, len(octets) - 1))
    return text, good


def _plain_note(column: pa.Array, n: int) -> tuple[pa.LargeStringArray | None, np.ndarray]:
    if pa.types.is_null(column.type):
        return None, np.ones(n, bool)
    text = _text(column)
    if text is None:
        return pa.array([""] * n, pa.large_string()), np.zeros(n, bool)
    return text, (np.asarray(pc.binary_length(text)) <= MAX_NOTE_CHARS) & ~_odd(text)


def _text(column: pa.Array) -> pa.LargeStringArray | None:
    """Bytes as text, "" for null; None where one is not UTF-8."""
    try:
        return column.cast(pa.large_binary()).fill_null(b"").cast(pa.large_string())
    except pa.ArrowInvalid:
        return None


def _odd(text: pa.LargeStringArray) -> np.ndarray:
    """bool[n]: rows with NUL, or with a byte order mark in front."""
    marked = pc.starts_with(text, "\ufeff")
    return np.asarray(pc.or_(marked, pc.match_substring(text, "\x00")))


def _octets(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, where each text begins in them)."""
    _, offsets, data = text.buffers()
    start = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text)]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), start


def _one_by_one(
    path: Path, columns: dict[str, pa.Array], rows: np.ndarray, before: int
) -> tuple[list[Triple], list[Reject]]:
    triples: list[Triple] = []
    rejects: list[Reject] = []
    at = pa.array(rows)
    values: list[list[Any]] = [column.take(at).to_pylist() for column in columns.values()]
    for row, *given in zip(rows.tolist(), *values):
        found = decoded(path, before + row + 1, dict(zip(columns, given)))
        if isinstance(found, Reject):
            rejects.append(found)
            continue
        try:
            triples.append(triple_of_row(found))
        except RowError as error:
            rejects.append(Reject(shown(path), found.line, str(error)))
    return triples, rejects
