"""Triples one by one and in blocks: columns of strings, as they are built from rows, from lines and from tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.knowledge_graph.lines import LineBlock, read_line_blocks
from gpu_rag.sources.lines import Line
from gpu_rag.sources.rows import Limits, RowError, attempted, id_text, optional_string
from gpu_rag.types import Reject

HEADERS = (("head", "relation", "tail"), ("subject", "predicate", "object"), ("src", "relation", "dst"))
MAX_NOTE_CHARS = 300
_ROWS = 1 << 16  # of a block that is read row by row
# What white space of Unicode may begin with; U+3000 is looked at apart.
_SPACES = np.isin(np.arange(256), [*range(0x21), 0xC2, 0xE1, 0xE2])
Plain = Callable[[LineBlock], tuple["TripleBlock", np.ndarray]]  # what is plain, and the rows that are not
Single = Callable[[Line], "Triple | None"]  # raises RowError


@dataclass(frozen=True)
class Triple:
    """head - relation -> tail, by ids as written: a name, an IRI without its brackets, or `_:label` of a blank node.

    A tail that is a value stands in its N-Triples form. note: the provenance that the row itself gives. line: of a text
    file the line, of a table the row; both from 1.
    """

    head: str
    relation: str
    tail: str
    line: int
    note: str = ""


def part_of(value: object, name: str) -> str:
    """A part of a triple as text. Raises RowError unless it is an id with something in it."""
    text = id_text(value, name)
    if text.isspace():
        raise RowError(f"{name} is empty")
    return text


def triple_of_row(row: Row) -> Triple:
    """The triple of an object {head, relation, tail}, or of one with the other names of `HEADERS`. Raises RowError."""
    value: dict[str, Any] = row.value
    names = max(HEADERS, key=lambda names: len(value.keys() & set(names)))  # ties to the first
    head, relation, tail = (part_of(value.get(name), name) for name in names)
    return Triple(head, relation, tail, row.line, optional_string(value, "provenance")[:MAX_NOTE_CHARS])


@dataclass(frozen=True)
class TripleBlock:
    """n triples of one file, by ascending line. head, relation, tail: as in `Triple`, large_string[n]; line: i64[n];
    note: large_string[n], or None where no row has one. rejects: between them, ascending."""

    head: pa.LargeStringArray
    relation: pa.LargeStringArray
    tail: pa.LargeStringArray
    line: np.ndarray
    note: pa.LargeStringArray | None = None
    rejects: list[Reject] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of triples."""
        return len(self.line)

    def take(self, rows: np.ndarray, rejects: list[Reject]) -> TripleBlock:
        """Some of the triples, with other rejects."""
        at = pa.array(rows)
        note = None if self.note is None else self.note.take(at)
        head, relation, tail = (column.take(at) for column in (self.head, self.relation, self.tail))
        return TripleBlock(head, relation, tail, self.line[rows], note, rejects)


def checked(path: Path, row: Row | Reject) -> Triple | Reject:
    """The triple of a row, or why it cannot be used."""
    return row if isinstance(row, Reject) else attempted(path, row.line, triple_of_row, row)


def block_of(rows: Iterable[Triple | Reject]) -> TripleBlock:
    """The block of rows that are at hand, by line."""
    rows = list(rows)
    triples = [row for row in rows if isinstance(row, Triple)]
    rejects = sorted((row for row in rows if isinstance(row, Reject)), key=lambda reject: reject.line)
    head, relation, tail = (
        pa.array([getattr(triple, name) for triple in triples], pa.large_string())
        for name in ("head", "relation", "tail")
    )
    notes = [triple.note for triple in triples]
    note = pa.array(notes, pa.large_string()) if any(notes) else None
    return TripleBlock(head, relation, tail, np.array([triple.line for triple in triples], np.int64), note, rejects)


def blocks_of(rows: Iterable[Triple | Reject]) -> Iterator[TripleBlock]:
    """Rows that are read one by one, as blocks."""
    rows = iter(rows)
    while some := list(islice(rows, _ROWS)):
        yield block_of(some)


def joined(left: TripleBlock, right: TripleBlock) -> TripleBlock:
    """Two blocks of the same stretch of a file as one, by line."""
    if not right.n:
        return TripleBlock(left.head, left.relation, left.tail, left.line, left.note, left.rejects + right.rejects)
    both = _concatenated([left, right])
    return both.take(np.argsort(both.line, kind="stable"), both.rejects)


def together(blocks: Iterable[TripleBlock], least: int) -> Iterator[TripleBlock]:
    """The blocks of a file, joined to blocks of at least that many triples, or 65,536 rejects, but for the last."""
    waiting, n, n_rejects = list[TripleBlock](), 0, 0
    for block in blocks:
        waiting.append(block)
        n, n_rejects = n + block.n, n_rejects + len(block.rejects)
        if n >= least or n_rejects >= _ROWS:
            yield _concatenated(waiting)
            waiting, n, n_rejects = [], 0, 0
    if waiting:
        yield _concatenated(waiting)


def _concatenated(blocks: list[TripleBlock]) -> TripleBlock:
    if len(blocks) == 1:
        return blocks[0]
    head, relation, tail = (
        pa.concat_arrays([getattr(block, name) for block in blocks]) for name in ("head", "relation", "tail")
    )
    has_notes = any(block.note is not None for block in blocks)
    note = pa.concat_arrays([_notes(block) for block in blocks]) if has_notes else None
    line = np.concatenate([block.line for block in blocks])
    return TripleBlock(head, relation, tail, line, note, [reject for block in blocks for reject in block.rejects])


def _notes(block: TripleBlock) -> pa.LargeStringArray:
    return pa.array([""] * block.n, pa.large_string()) if block.note is None else block.note


def may_be_blank(octets: np.ndarray, start: np.ndarray) -> np.ndarray:
    """bool[n]: whether the character that begins at each place of valid UTF-8 may be white space, for Python."""
    first, second = octets[start], octets[np.minimum(start + 1, len(octets) - 1)]
    found: np.ndarray = _SPACES[first] | ((first == 0xE3) & (second == 0x80))
    return found


def triples_of_lines(path: Path, limits: Limits, plain: Plain, single: Single) -> Iterator[TripleBlock]:
    """The triples of a file of lines: plain lines by array operations, all others one by one."""
    for block in read_line_blocks(path, limits):
        if isinstance(block, Reject):
            yield block_of([block])
            continue
        found, others = plain(block)
        rows = (_read(block, row, single) for row in others.tolist())
        yield joined(found, block_of([*block.rejects, *(row for row in rows if row is not None)]))


def _read(block: LineBlock, row: int, single: Single) -> Triple | Reject | None:
    line = block.line(row)
    return line if isinstance(line, Reject) else attempted(block.path, line.number, single, line)
