"""JSON Lines of nodes many at a time: the rows that Arrow's reader and our strict one surely read alike."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from gpu_rag.sources.knowledge_graph.lines import LineBlock, count_between
from gpu_rag.text.strict_json import MAX_DEPTH

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LEAST = 256  # rows that are not halved again to find those that break a block
_TEXTS = [("type", pa.string()), ("name", pa.string()), ("text", pa.string()), ("aliases", pa.list_(pa.string()))]
_ID_TYPES = (pa.string(), pa.int64())
_MOST = 2.0**63


class NodeLines:
    """Reads blocks of lines of one file; ids are strings or integers, as they were in the block before."""

    def __init__(self) -> None:
        self._id_types = _ID_TYPES

    def read(self, block: LineBlock) -> tuple[list[tuple[np.ndarray, dict[str, pa.Array]]], np.ndarray]:
        """([(rows of the block, their columns)], rows that must be read one by one).

        A row is left to be read alone where it is not one object from brace to brace, where it is nested, or has half
        of a surrogate pair, and where it stands among few others of which one is broken, has values of other types, or
        numbers of 64 bits or none (of keys that are not read too, since the strict reader refuses the whole row).
        """
        rows = np.flatnonzero(_may_be_read(block))
        found: list[tuple[np.ndarray, dict[str, pa.Array]]] = []
        stack = [rows] if len(rows) else []
        while stack:
            some = stack.pop()
            columns = self._columns(block, some)
            if columns is not None:
                found.append((some, columns))
            elif len(some) > _LEAST:
                stack += [some[len(some) // 2 :], some[: len(some) // 2]]
        read = np.concatenate([np.zeros(0, np.int64), *(some for some, _ in found)])
        return found, np.setdiff1d(np.arange(len(block.start)), read, assume_unique=True)

    def _columns(self, block: LineBlock, rows: np.ndarray) -> dict[str, pa.Array] | None:
        data = _joined(block, rows)
        for id_type in self._id_types:
            table = _parsed(data, pa.schema([("id", id_type), *_TEXTS]))
            if table is not None:
                self._id_types = (id_type, *(other for other in _ID_TYPES if other != id_type))
                return _read_alike(table) if table.num_rows == len(rows) else None
        return None


def _may_be_read(block: LineBlock) -> np.ndarray:
    raw = np.frombuffer(block.data, np.uint8)
    if not len(block.start):
        return np.zeros(0, bool)
    good = ~block.alone & (raw[block.start] == ord("{")) & (raw[block.end - 1] == ord("}"))
    brackets = count_between((raw == ord("{")) | (raw == ord("[")), block.start, block.end)
    good &= brackets <= MAX_DEPTH
    halves = [match.start() for match in _SURROGATE.finditer(block.data)]
    good[np.searchsorted(block.start, halves, side="right") - 1] = False
    return good


def _joined(block: LineBlock, rows: np.ndarray) -> bytes:
    """The lines, one behind the other. Each is from brace to brace, so that no value can reach into the next line."""
    bounds = zip(block.start[rows].tolist(), block.end[rows].tolist())
    return b"\n".join([block.data[start:end] for start, end in bounds])


def _parsed(data: bytes, schema: pa.Schema) -> pa.Table | None:
    whole = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    form = pj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="infer")
    try:
        return pj.read_json(pa.BufferReader(data), whole, form)
    except pa.ArrowException:  # which row it is, and why, is said by the strict reader
        return None


def _read_alike(table: pa.Table) -> dict[str, pa.Array] | None:
    """The columns that are read; None where another has a number that the strict reader refuses."""
    names = ("id", *(name for name, _ in _TEXTS))
    if not all(_is_tame(table[name]) for name in table.schema.names if name not in names):
        return None
    columns = {name: table[name].combine_chunks() for name in names}
    return {name: pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for name, c in columns.items()}


def _is_tame(column: pa.ChunkedArray | pa.Array) -> bool:
    if pa.types.is_floating(column.type):  # of integers too, where one has more than 64 bits
        values = column.drop_null()
        return not len(values) or bool(pc.all(pc.less(pc.abs(values), _MOST)).as_py())
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_list(column.type):
        return all(_is_tame(chunk.flatten()) for chunk in chunks)
    if pa.types.is_struct(column.type):
        return all(_is_tame(part) for chunk in chunks for part in chunk.flatten())
    return True
