"""Tables of triples: Parquet, and lines of head, relation, tail and, where known, provenance with tabs between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.knowledge_graph.lines import LineBlock, cut_out
from gpu_rag.sources.knowledge_graph.triples import (
    HEADERS,
    MAX_NOTE_CHARS,
    Triple,
    TripleBlock,
    block_of,
    checked,
    joined,
    may_be_blank,
    part_of,
    triples_of_lines,
)
from gpu_rag.sources.lines import Line
from gpu_rag.sources.parquet import Columns, TableBlock, read_table_blocks, rows_at
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, clean_string

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
            yield block_of([block.problem])


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
    single = block_of(checked(path, row) for row in rows_at(path, columns, others, before))
    line = before + 1 + np.arange(n)
    if not len(others):
        return TripleBlock(head, relation, tail, line, note)
    plain = TripleBlock(head, relation, tail, line, note).take(np.flatnonzero(good), [])
    return joined(plain, single)


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


def read_tsv(path: Path, limits: Limits) -> Iterator[TripleBlock]:
    """The triples of a file, in blocks; a first line that names the columns is passed over."""
    return triples_of_lines(path, limits, _plain_lines, triple_of)


def triple_of(line: Line) -> Triple | None:
    """The triple of a line of tab-separated fields; None for one that names the columns. Raises RowError."""
    fields = line.text.split("\t")
    if line.number == 1 and tuple(field.strip().lower() for field in fields[:3]) in HEADERS:
        return None
    if len(fields) not in (3, 4):
        raise RowError(f"{len(fields)} fields; expected head, relation, tail and perhaps provenance between tabs")
    head, relation, tail = (part_of(field, name) for field, name in zip(fields, HEADERS[0]))
    note = clean_string(fields[3], "provenance").strip() if len(fields) == 4 else ""
    return Triple(head, relation, tail, line.number, note[:MAX_NOTE_CHARS])


def _plain_lines(block: LineBlock) -> tuple[TripleBlock, np.ndarray]:
    """Lines of three or four fields, of which none begins as white space does or is too long, and no note is odd."""
    octets = np.frombuffer(block.data, np.uint8)
    tabs = np.flatnonzero(octets == 9)
    first, last = np.searchsorted(tabs, block.start), np.searchsorted(tabs, block.end)
    plain = ~block.alone & (last - first >= 2) & (last - first <= 3)
    rows = np.flatnonzero(plain)
    start, end, first, n_tabs = block.start[rows], block.end[rows], first[rows], (last - first)[rows]
    third = np.where(n_tabs == 3, tabs[np.minimum(first + 2, len(tabs) - 1)] if len(tabs) else end, end)
    cuts = [start, tabs[first], tabs[first + 1], third] if len(rows) else [start, start, start, start]
    begins, ends = [cuts[0], cuts[1] + 1, cuts[2] + 1], cuts[1:]
    good = np.ones(len(rows), bool)
    for begin, stop in zip(begins, ends):
        good &= (stop > begin) & (stop - begin <= MAX_ID_CHARS)
        # the line end stands behind an empty last field, and is a blank
        good &= ~may_be_blank(octets, np.minimum(begin, len(octets) - 1))
    note = np.minimum(third + 1, end)
    noted = note < end
    if noted.any():
        at = np.flatnonzero(noted)
        odd = may_be_blank(octets, note[at]) | (octets[end[at] - 1] <= 0x20) | (octets[end[at] - 1] >= 0x7F)
        good[at[odd | (end[at] - note[at] > MAX_NOTE_CHARS)]] = False
    bounds = np.stack([start, ends[0], begins[1], ends[1], begins[2], third, note, end], 1)[good]
    head, relation, tail, said = cut_out(block.data, bounds, (0, 2, 4, 6))
    found = TripleBlock(head, relation, tail, block.number[rows[good]], said if noted.any() else None)
    return found, np.setdiff1d(np.arange(len(block.start)), rows[good], assume_unique=True)
