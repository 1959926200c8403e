"""Strings that were given before, found many at a time; about 30 bytes a string beside the strings themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROWS = 1 << 13  # whose bytes are hashed at a time
_FACTOR = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True)
class _Run:
    """Strings with their keys sorted. row: where the string of a key stands; number: of each string, in their order."""

    keys: np.ndarray
    row: np.ndarray
    strings: pa.LargeStringArray
    number: np.ndarray


class Seen:
    """A set of strings, each with a number. Hash keys of 64 bits find candidates, which are then compared.

    Strings are kept in sorted runs, of which two of like size become one: O(n log n) in all.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, strings: pa.LargeStringArray, numbers: np.ndarray) -> None:
        """Takes strings that are not in it, none of them twice."""
        if len(strings):
            self._runs.append(_run(strings, numbers))
        while len(self._runs) > 1 and len(self._runs[-2].keys) <= 2 * len(self._runs[-1].keys):
            right, left = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(left, right))

    def numbers(self, strings: pa.LargeStringArray) -> np.ndarray:
        """i64[n]: the number of each string that is in it, -1 for others."""
        found = np.full(len(strings), -1, np.int64)
        keys = keys_of(strings) if self._runs else np.zeros(0, np.uint64)
        for run in self._runs:
            first, last = (np.searchsorted(run.keys, keys, side) for side in ("left", "right"))
            rows = np.flatnonzero(last > first)
            while len(rows):  # once, but for different strings of one key
                at = run.row[first[rows]]
                equal = pc.equal(strings.take(pa.array(rows)), run.strings.take(pa.array(at))).to_numpy(False)
                found[rows[equal]] = run.number[at[equal]]
                first[rows] += 1
                rows = rows[~equal & (first[rows] < last[rows])]
        return found


def repeats(strings: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, ascending, of strings that an earlier row has; the first row that has each)."""
    code = strings.dictionary_encode().indices.to_numpy(False)
    first = np.unique(code, return_index=True)[1]
    again = np.flatnonzero(first[code] != np.arange(len(code)))
    return again, first[code[again]]


def keys_of(strings: pa.LargeStringArray) -> np.ndarray:
    """u64[n]: a polynomial of the bytes of each string, mixed; equal for equal strings."""
    parts = [_keys(strings.slice(start, _ROWS)) for start in range(0, len(strings), _ROWS)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _keys(strings: pa.LargeStringArray) -> np.ndarray:
    _, offsets, data = strings.buffers()
    bounds = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    length = np.diff(bounds)
    total = np.zeros(len(strings), np.uint64)
    filled = np.flatnonzero(length)
    if len(filled):
        octets = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].astype(np.uint64) + np.uint64(1)
        start = bounds[:-1] - bounds[0]
        weights = np.cumprod(np.full(int(length.max()), _FACTOR, np.uint64))
        place = np.arange(len(octets)) - np.repeat(start, length)
        total[filled] = np.add.reduceat(octets * weights[place], start[filled])
    total = (total ^ (total >> np.uint64(31))) * _MIX
    mixed: np.ndarray = total ^ (total >> np.uint64(29))
    return mixed


def _run(strings: pa.LargeStringArray, numbers: np.ndarray) -> _Run:
    keys = keys_of(strings)
    row = np.argsort(keys, kind="stable")
    return _Run(keys[row], row.astype(np.int32 if len(row) < 1 << 31 else np.int64), strings, numbers)


def _merged(left: _Run, right: _Run) -> _Run:
    keys = np.concatenate([left.keys, right.keys])
    order = np.argsort(keys, kind="stable")
    row = np.concatenate([left.row, right.row.astype(np.int64) + len(left.strings)])[order]
    strings = pa.concat_arrays([left.strings, right.strings])
    number = np.concatenate([left.number, right.number])
    return _Run(keys[order], row.astype(np.int32 if len(row) < 1 << 31 else np.int64), strings, number)
