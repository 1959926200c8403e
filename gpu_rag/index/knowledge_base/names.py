"""Names of a knowledge base: the form under which two are one, look-up by it, and columns left in their tables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.text.normalise import normalise_name

# Names whose key is the name in small letters, "_" being a space.
_PLAIN = r"^[A-Za-z0-9](?:[ _]?[!-^`-~])*$"
_ENDS_PLAIN = r"[A-Za-z0-9]$"
_ROWS = 1 << 16
T = TypeVar("T")


def name_key(name: str) -> str:
    """The form under which `KnowledgeBase.named` takes two names for one: `normalise_name`, "_" being a space."""
    return normalise_name(name.replace("_", " "))


def name_keys(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """`name_key` of each name; plain ASCII names by array operations, others one by one."""
    plain = pc.and_(pc.match_substring_regex(names, _PLAIN), pc.match_substring_regex(names, _ENDS_PLAIN))
    keys = pc.utf8_lower(pc.replace_substring(names, "_", " "))
    rows = np.flatnonzero(~np.asarray(plain))
    if not len(rows):
        return keys
    found = [name_key(name) for name in names.take(pa.array(rows)).to_pylist()]
    return pc.replace_with_mask(keys, pc.invert(plain), pa.array(found, pa.large_string()))


class TextColumn(Sequence[T]):
    """A column of texts, or of lists of texts, that stays in its table; entries become Python objects when read."""

    def __init__(self, column: pa.ChunkedArray):
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        found: Any = self._column[at].to_pylist() if isinstance(at, slice) else self._column[int(at)].as_py()
        return found  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _ROWS):
            yield from self._column.slice(start, _ROWS).to_pylist()


class NameTable:
    """The rows of each key of names. Memory: the keys and 16 bytes a name; a look-up is a binary search."""

    def __init__(self, names: Sequence[str], aliases: Sequence[list[str]]):
        texts, rows = [pa.array([], pa.large_string())], [np.zeros(0, np.int64)]
        for start in range(0, len(names), _ROWS):
            some, others = names[start : start + _ROWS], aliases[start : start + _ROWS]
            texts.append(pa.array(some, pa.large_string()))
            rows.append(start + np.arange(len(some)))
            if also := [alias for one in others for alias in one]:
                texts.append(pa.array(also, pa.large_string()))
                rows.append(start + np.repeat(np.arange(len(others)), [len(one) for one in others]))
        keys, row = name_keys(pa.concat_arrays(texts)), np.concatenate(rows)
        order = pc.sort_indices(pa.table({"key": keys, "row": row}), [("key", "ascending"), ("row", "ascending")])
        self._keys: TextColumn[str] = TextColumn(pa.chunked_array([keys.take(order)]))
        self._rows = row[order.to_numpy()]

    def rows(self, key: str) -> list[int]:
        """Rows with a name of this key, ascending, each once; none for the empty key."""
        if not key:
            return []
        first, last = bisect_left(self._keys, key), bisect_right(self._keys, key)
        found: list[int] = np.unique(self._rows[first:last]).tolist()
        return found
