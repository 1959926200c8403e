"""Blocks of triples: columns of strings, as they are built from rows, from bytes and from tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from gpu_rag.sources.knowledge_graph import Triple
from gpu_rag.types import Reject

_ROWS = 1 << 16  # of a block that is read row by row
# What white space of Unicode may begin with; U+3000 is looked at apart.
_SPACES = np.isin(np.arange(256), [*range(0x21), 0xC2, 0xE1, 0xE2])


@dataclass(frozen=True)
class TripleBlock:
    """n triples of one file, by ascending line. head, relation, tail: as in `kg.Triple`, large_string[n]; line: i64[n];
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


def block_of(triples: Sequence[Triple], rejects: list[Reject]) -> TripleBlock:
    """The block of triples that are at hand."""
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
    while held := list(islice(rows, _ROWS)):
        yield block_of(
            [row for row in held if isinstance(row, Triple)], [row for row in held if isinstance(row, Reject)]
        )


def joined(left: TripleBlock, right: TripleBlock) -> TripleBlock:
    """Two blocks of the same stretch of a file as one, by line."""
    if not right.n:
        return TripleBlock(left.head, left.relation, left.tail, left.line, left.note, left.rejects + right.rejects)
    both = _concatenated([left, right])
    return both.take(np.argsort(both.line, kind="stable"), both.rejects)


def together(blocks: Iterable[TripleBlock], least: int) -> Iterator[TripleBlock]:
    """The blocks of a file, joined to blocks of at least that many triples, or 65,536 rejects, but for the last."""
    held, n, n_rejects = list[TripleBlock](), 0, 0
    for block in blocks:
        held.append(block)
        n, n_rejects = n + block.n, n_rejects + len(block.rejects)
        if n >= least or n_rejects >= _ROWS:
            yield _concatenated(held)
            held, n, n_rejects = [], 0, 0
    if held:
        yield _concatenated(held)


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


def may_be_blank(raw: np.ndarray, start: np.ndarray) -> np.ndarray:
    """bool[n]: whether the character that begins at each place of valid UTF-8 may be white space, for Python."""
    first, second = raw[start], raw[np.minimum(start + 1, len(raw) - 1)]
    found: np.ndarray = _SPACES[first] | ((first == 0xE3) & (second == 0x80))
    return found
