"""Columns of names that stay in their tables: look-up by binary search, and normal forms by array operations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.text.normalise import normalise_name

# Names whose normal form is their lower case.
_PLAIN = r"^[A-Za-z0-9](?: ?[!-~])*$"
_ENDS_PLAIN = r"(?:[A-Za-z0-9]|\([^()\[\]{}]*\))$"
_ROWS = 1 << 16
_BLOCK = 16
_KEPT = 1 << 14
T = TypeVar("T")


class TextColumn(Sequence[T]):
    """A column, mostly of texts, that stays in its table. Entries become Python objects when read."""

    def __init__(self, column: pa.ChunkedArray):
        self.column, self._n = column, len(column)
        self._entries = column.chunk(0) if column.num_chunks == 1 else column  # faster to read one by one

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self.column[index].to_pylist()  # type: ignore[no-any-return]
        if self._parts is None or index < 0:
            return self._entries[int(index)].as_py()  # type: ignore[no-any-return]
        starts, texts = self._parts
        text: Any = str(texts[starts[index] : starts[index + 1]], "utf-8")
        return text  # type: ignore[no-any-return]

    def take(self, rows: np.ndarray) -> list[T]:
        """The entries of some rows, i64[n], in their order."""
        if self._parts is None and self.column.num_chunks == 1:  # Arrow would join several
            return self._entries.take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]
        return [self[row] for row in rows.tolist()]

    @cached_property
    def _parts(self) -> tuple[memoryview, memoryview] | None:
        """(starts, bytes) of the texts of one chunk, from which an entry is read faster than through Arrow; None for
        other columns."""
        is_large = self.column.type == pa.large_string()
        if self.column.num_chunks != 1 or self.column.null_count or not (is_large or self.column.type == pa.string()):
            return None
        chunk = self.column.chunk(0)
        _, starts, texts = chunk.buffers()
        numbers = memoryview(starts or bytes(8)).cast("b")
        numbers = numbers.cast("q") if is_large else numbers.cast("i")
        return numbers[chunk.offset : chunk.offset + len(chunk) + 1], memoryview(texts or b"")

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _ROWS):
            yield from self.column.slice(start, _ROWS).to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class SortedRows(Mapping[str, int]):
    """Rows of a column of ascending, unique texts, by text. A look-up is a binary search. In memory: the first text of
    each _BLOCK rows, from the first look-up on, and at most _KEPT answers, since questions share words."""

    def __init__(self, column: pa.ChunkedArray):
        self.column = column
        self._texts: TextColumn[str] = TextColumn(column)
        self._kept: dict[str, tuple[int, str]] = {}

    @cached_property
    def _firsts(self) -> list[str]:
        return [self._texts[row] for row in range(0, len(self), _BLOCK)]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __getitem__(self, text: str) -> int:
        row, first = self.first_from(text)
        if row == len(self) or first != text:
            raise KeyError(text)
        return row

    def first_from(self, text: str) -> tuple[int, str]:
        """(row, text) of the first row whose text is not before `text`; (number of rows, "") if there is none."""
        if (kept := self._kept.get(text)) is not None:
            return kept
        start = max(bisect_right(self._firsts, text) - 1, 0) * _BLOCK
        row = bisect_left(self._texts, text, start, min(start + _BLOCK, len(self)))
        if len(self._kept) >= _KEPT:  # threads may add entries at once
            self._kept.clear()
        kept = self._kept[text] = row, self._texts[row] if row < len(self) else ""
        return kept


def normalised(names: pa.Array) -> pa.LargeStringArray:
    """`normalise_name` of each name: array operations for plain ASCII names, one by one for others."""
    plain = pc.and_(pc.match_substring_regex(names, _PLAIN), pc.match_substring_regex(names, _ENDS_PLAIN))
    return changed(pc.utf8_lower(names), names, pc.invert(plain), normalise_name)


def changed(texts: pa.Array, names: pa.Array, mask: pa.BooleanArray, change: Callable[[str], str]) -> pa.Array:
    """`texts`, with change(name) where `mask` is True. Returns large strings."""
    others = [change(name) for name in names.filter(mask).to_pylist()]
    return pc.replace_with_mask(texts.cast(pa.large_string()), mask, pa.array(others, pa.large_string()))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """A column of texts, or of lists of these, of any size as one array."""
    chunks, kind = column.chunks if isinstance(column, pa.ChunkedArray) else [column], _large(column.type)
    return pa.concat_arrays([pa.array([], kind), *(chunk.cast(kind) for chunk in chunks)])


def _large(kind: pa.DataType) -> pa.DataType:
    return pa.large_list(_large(kind.value_type)) if pa.types.is_list(kind) else pa.large_string()


def rows_of(wanted: pa.Array, names: pa.Array) -> np.ndarray:
    """i64: the first row of each wanted text among `names`, -1 if it is not there."""
    rows: np.ndarray = pc.fill_null(pc.index_in(wanted, value_set=names), -1).to_numpy().astype(np.int64)
    return rows


class HashedRows:
    """`rows_of` for many batches of wanted texts: `rows_of` hashes all names for each batch, and this once."""

    def __init__(self, names: pa.LargeStringArray):
        hashes = hashes_of(names)
        self._names, self._order = names, np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def of(self, wanted: pa.LargeStringArray) -> np.ndarray:
        """i64: the first row of each wanted text, -1 if it is not there."""
        if not len(self._names):
            return np.full(len(wanted), -1)
        hashes = hashes_of(wanted)
        places = np.searchsorted(self._hashes, hashes).clip(max=len(self._names) - 1)
        rows = self._order[places]
        is_same = pc.equal(wanted, self._names.take(pa.array(rows))).to_numpy(zero_copy_only=False)
        unlike = np.flatnonzero((self._hashes[places] == hashes) & ~is_same)  # another name has the hash
        rows[~is_same] = -1
        if len(unlike):
            rows[unlike] = rows_of(wanted.take(pa.array(unlike)), self._names)
        return rows


def hashes_of(texts: pa.Array) -> np.ndarray:
    """i64: a hash of each text within this process. Python's hash has a secret key, so that nobody can prepare two
    texts with one hash."""
    parts = (texts.slice(start, _ROWS).to_pylist() for start in range(0, len(texts), _ROWS))
    return np.fromiter((hash(text) for part in parts for text in part), np.int64, len(texts))


def inverse(rows: np.ndarray, n: int, dtype: type[np.signedinteger[Any]] = np.int64) -> np.ndarray:
    """dtype[n]: the place of each number below n in `rows`, -1 for one that is not there. rows: -1 is no number."""
    places = np.full(n, -1, dtype)
    places[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    return places
