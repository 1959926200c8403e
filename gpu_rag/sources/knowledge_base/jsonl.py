"""JSON Lines of nodes and of edges. Nodes are read by Arrow where it and our strict reader surely read alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from gpu_rag.sources.json_rows import read_rows, row_of
from gpu_rag.sources.knowledge_base.nodes import NodeBlock, joined, node_block, nodes_of_lines, plain_nodes
from gpu_rag.sources.knowledge_graph.lines import LineBlock, count_between, read_line_blocks
from gpu_rag.sources.knowledge_graph.triples import TripleBlock, blocks_of, checked
from gpu_rag.sources.rows import Limits
from gpu_rag.text.strict_json import MAX_DEPTH
from gpu_rag.types import Reject

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LEAST = 256  # rows that are not halved again to find those that break a block
_TEXTS = [("type", pa.string()), ("name", pa.string()), ("text", pa.string()), ("aliases", pa.list_(pa.string()))]
_ID_TYPES = (pa.string(), pa.int64())
_MOST = 2.0**63


def read_json_nodes(path: Path, limits: Limits) -> Iterator[NodeBlock]:
    """The nodes of a file of JSON Lines, in blocks; ids are strings or integers."""
    reader = NodeLines()
    for block in read_line_blocks(path, limits):
        if isinstance(block, Reject):
            yield node_block([block])
            continue
        read, others = reader.read(block)
        found = node_block([])
        for rows, columns in read:
            plain, odd = plain_nodes(columns, block.number[rows], limits)
            found, others = joined(found, plain), np.concatenate([others, rows[odd]])
        yield joined(found, nodes_of_lines(block, np.sort(others), lambda line: row_of(path, line), limits))


def read_json_edges(path: Path, limits: Limits) -> Iterator[TripleBlock]:
    """The edges {src, relation, dst} of a file of JSON Lines, in blocks that are read row by row."""
    return blocks_of(checked(path, row) for row in read_rows(path, limits))


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
        data = _lines_of(block, rows)
        for id_type in self._id_types:
            table = _parsed(data, pa.schema([("id", id_type), *_TEXTS]))
            if table is not None:
                self._id_types = (id_type, *(other for other in _ID_TYPES if other != id_type))
                return _read_alike(table) if table.num_rows == len(rows) else None
        return None


def _may_be_read(block: LineBlock) -> np.ndarray:
    octets = np.frombuffer(block.data, np.uint8)
    if not len(block.start):
        return np.zeros(0, bool)
    good = ~block.alone & (octets[block.start] == ord("{")) & (octets[block.end - 1] == ord("}"))
    brackets = count_between((octets == ord("{")) | (octets == ord("[")), block.start, block.end)
    good &= brackets <= MAX_DEPTH
    halves = [match.start() for match in _SURROGATE.finditer(block.data)]
    good[np.searchsorted(block.start, halves, side="right") - 1] = False
    return good


def _lines_of(block: LineBlock, rows: np.ndarray) -> bytes:
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
