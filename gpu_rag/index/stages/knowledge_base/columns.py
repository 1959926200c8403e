"""Records and edges of one source as columns, and the numbering of strings in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LISTS = pa.large_list(pa.large_string())
# Finds white space that " ".join(text.split()) changes: anything but single spaces between words.
_UNEVEN = r"^ | $|  |[\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
_MIN_PENDING = 1 << 20  # columns are not joined before this many new strings have come


class Interner:
    """Distinct strings, numbered in the order of their first appearance.

    Each column is first reduced to its own distinct strings. These new strings are joined to the known ones when there
    are more new than known ones. So the total time is linear, and memory is about three times the distinct strings plus
    4 bytes for each string that was added.
    """

    def __init__(self) -> None:
        self._columns: list[pa.DictionaryArray] = []
        self._n_known = self._n_pending = 0

    def add(self, column: pa.LargeStringArray) -> int:
        """Add a column without nulls. Returns the position of its codes in the list that `finish` returns."""
        self._columns.append(column.dictionary_encode())
        self._n_pending += len(self._columns[-1].dictionary)
        if self._n_pending > max(_MIN_PENDING, self._n_known):
            self._join()
        return len(self._columns) - 1

    def _join(self) -> None:
        """Give all columns one dictionary; known strings keep their numbers."""
        kind = pa.dictionary(pa.int32(), pa.large_string())
        self._columns = pa.chunked_array(self._columns, kind).unify_dictionaries().chunks
        self._n_known, self._n_pending = len(self._columns[0].dictionary) if self._columns else 0, 0

    def finish(self) -> tuple[pa.LargeStringArray, list[np.ndarray]]:
        """(distinct strings, i32 codes of each column). Nothing can be added afterwards."""
        self._join()
        strings = self._columns[0].dictionary if self._columns else pa.array([], pa.large_string())
        return strings, [column.indices.to_numpy() for column in self._columns]


def ascending(strings: pa.LargeStringArray) -> tuple[pa.LargeStringArray, np.ndarray]:
    """Sort distinct strings by code points. Returns (the sorted strings, i32: the new row of each string)."""
    order = pc.sort_indices(strings)
    rank = np.empty(len(strings), np.int32)
    rank[order.to_numpy()] = np.arange(len(strings), dtype=np.int32)
    return strings.take(order), rank


def replaced(strings: pa.LargeStringArray, rows: np.ndarray, values: Sequence[str]) -> pa.LargeStringArray:
    """A copy of `strings` with `values` in the given rows (ascending)."""
    if not len(rows):
        return strings
    mask = np.zeros(len(strings), bool)
    mask[rows] = True
    return pc.replace_with_mask(strings, mask, pa.array(values, pa.large_string()))


def single_spaced(strings: pa.LargeStringArray) -> pa.LargeStringArray:
    """Texts in which single spaces replace all white space, with none at the ends."""
    rows = np.flatnonzero(pc.match_substring_regex(strings, _UNEVEN))
    return replaced(strings, rows, [" ".join(text.split()) for text in strings.take(pa.array(rows)).to_pylist()])


def no_lists(n: int) -> pa.LargeListArray:
    """n empty lists of strings."""
    return pa.LargeListArray.from_arrays(np.zeros(n + 1, np.int64), pa.array([], pa.large_string()))


def lists_of(row: np.ndarray, values: pa.LargeStringArray, n: int, max_items: int | None = None) -> pa.LargeListArray:
    """n lists: the distinct values of each row in their order, at most `max_items`. row: i64, ascending."""
    encoded = values.dictionary_encode()
    key = row.astype(np.int64) * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
    first = np.sort(np.unique(key, return_index=True)[1])
    row = row[first]
    if max_items is not None:
        place = np.arange(len(row)) - np.searchsorted(row, row)
        first, row = first[place < max_items], row[place < max_items]
    offsets = np.searchsorted(row, np.arange(n + 1))
    return pa.LargeListArray.from_arrays(offsets.astype(np.int64), values.take(pa.array(first)))


def first_of(named: pa.LargeListArray) -> pa.LargeStringArray:
    """First entry of each list; no list may be empty."""
    return named.values.take(named.offsets[:-1])


def rest_of(named: pa.LargeListArray) -> pa.LargeListArray:
    """Each list without its first entry; no list may be empty."""
    offsets = named.offsets.to_numpy()
    chosen = np.ones(len(named.values), bool)
    chosen[offsets[:-1]] = False
    return pa.LargeListArray.from_arrays(offsets - np.arange(len(offsets)), named.values.filter(pa.array(chosen)))


@dataclass(frozen=True)
class Edges:
    """Edges of a source in the order of the source, including repeated ones.

    head, tail: i32, rows of the source's records; relation: i32, rows of its relations; line: i64, lines of its file;
    note: the provenance that each row itself states, or None; passages: for each edge the passages that state it, only
    if gpu-rag extracted the edges itself.
    """

    head: np.ndarray
    relation: np.ndarray
    tail: np.ndarray
    line: np.ndarray
    note: pa.LargeStringArray | None = None
    passages: pa.Array | None = None

    @property
    def n(self) -> int:
        """Number of edges."""
        return len(self.head)


@dataclass(frozen=True)
class SourceColumns:
    """One source after reading.

    ids: ids of the records, ascending, unique; names, aliases, types: names, aliases and types of the same records;
    only the first type counts; relations: (id, name); file: the start of each provenance, "" if gpu-rag extracted the
    edges itself.
    """

    name: str
    kind: str
    files: list[str]
    ids: pa.LargeStringArray
    names: pa.LargeStringArray
    aliases: pa.LargeListArray
    types: pa.LargeListArray
    edges: Edges
    relations: list[tuple[str, str]]
    file: str = ""

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self.ids)


@dataclass
class EdgeColumns:
    """Collector of lines, notes and relations of edges, block by block. The caller keeps heads and tails."""

    lines: list[np.ndarray] = field(default_factory=list)
    notes: list[pa.LargeStringArray | int] = field(default_factory=list)  # or only the number of rows, without notes
    relations: Interner = field(default_factory=Interner)

    def add(self, line: np.ndarray, relation: pa.LargeStringArray, note: pa.LargeStringArray) -> None:
        """Add the rows of a block."""
        self.lines.append(line)
        self.notes.append(note if pc.any(pc.not_equal(note, "")).as_py() else len(line))
        self.relations.add(relation)

    def edges(self, head: np.ndarray, tail: np.ndarray, row_of: np.ndarray, codes: list[np.ndarray]) -> Edges:
        """All edges that were added. row_of: for each code of a relation, its row."""
        relation = row_of[joined(codes)] if codes else np.zeros(0, np.int32)
        line = np.concatenate([np.zeros(0, np.int64), *self.lines])
        note = None
        if not all(isinstance(part, int) for part in self.notes):
            parts = [pa.array([""] * part, pa.large_string()) if isinstance(part, int) else part for part in self.notes]
            note = pa.concat_arrays(parts)
        return Edges(head, relation, tail, line, note)

    def spaced(self, head: np.ndarray, tail: np.ndarray) -> tuple[list[tuple[str, str]], Edges]:
        """(relations as (id, name), the edges). Id and name of a relation are the same single-spaced text."""
        strings, codes = self.relations.finish()
        numbers: dict[str, int] = {}
        row = [numbers.setdefault(" ".join(text.split()), len(numbers)) for text in strings.to_pylist()]
        return [(id, id) for id in numbers], self.edges(head, tail, np.array(row, np.int32), codes)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join the parts of a column of row numbers."""
    return np.concatenate([np.zeros(0, np.int32), *parts])


def two_halves(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One column of the first halves of all parts, and one of their second halves."""
    return joined([part[: len(part) // 2] for part in parts]), joined([part[len(part) // 2 :] for part in parts])
