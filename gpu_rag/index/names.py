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
_FEW = 24  # entries that are read faster one by one
T = TypeVar("T")


class TextColumn(Sequence[T]):
    """A column of texts, or of lists of texts, that stays in its table. Entries become Python objects when read."""

    def __init__(self, column: pa.ChunkedArray):
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        value: Any = self.column[index].to_pylist() if isinstance(index, slice) else self.column[int(index)].as_py()
        return value  # type: ignore[no-any-return]

    def take(self, rows: np.ndarray) -> list[T]:
        """The entries of some rows, i64[n], in their order; many of them several times as fast as one by one."""
        is_one = self.column.num_chunks == 1  # Arrow would join several, which are more than 2 GiB
        column: Any = self.column.chunk(0) if is_one else self.column
        if len(rows) < _FEW or not is_one:
            return [column[row].as_py() for row in rows.tolist()]
        return column.take(pa.array(rows)).to_pylist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _ROWS):
            yield from self.column.slice(start, _ROWS).to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class SortedRows(Mapping[str, int]):
    """Rows of a column of ascending, unique texts, by text. A look-up is a binary search. In memory: the first text of
    each _BLOCK rows, from the first look-up on."""

    def __init__(self, column: pa.ChunkedArray):
        self.column = column
        self._texts: TextColumn[str] = TextColumn(column)

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
        start = max(bisect_right(self._firsts, text) - 1, 0) * _BLOCK
        block = self._texts[start : start + _BLOCK]  # costs less than a search among entries of the column
        place = bisect_left(block, text)
        if place < len(block):
            return start + place, block[place]
        row = start + len(block)
        return row, self._texts[row] if row < len(self) else ""


def normalised(names: pa.Array) -> pa.LargeStringArray:
    """`normalise_name` of each name: array operations for plain ASCII names, one by one for others."""
    plain = pc.and_(pc.match_substring_regex(names, _PLAIN), pc.match_substring_regex(names, _ENDS_PLAIN))
    return changed(pc.utf8_lower(names), names, pc.invert(plain), normalise_name)


def changed(texts: pa.Array, names: pa.Array, mask: pa.BooleanArray, change: Callable[[str], str]) -> pa.Array:
    """`texts`, with change(name) where `mask` is True. Returns large strings."""
    others = [change(name) for name in names.filter(mask).to_pylist()]
    return pc.replace_with_mask(texts.cast(pa.large_string()), mask, pa.array(others, pa.large_string()))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """A column of texts of any size as one array."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.concat_arrays([pa.array([], pa.large_string()), *(chunk.cast(pa.large_string()) for chunk in chunks)])


def rows_of(wanted: pa.Array, names: pa.Array) -> np.ndarray:
    """i64: the first row of each wanted text among `names`, -1 if it is not there."""
    rows: np.ndarray = pc.fill_null(pc.index_in(wanted, value_set=names), -1).to_numpy().astype(np.int64)
    return rows
