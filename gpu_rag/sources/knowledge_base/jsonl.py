"""JSON Lines of nodes and of edges. Arrow reads nodes if it surely agrees with our strict reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from gpu_rag.sources.json_rows import read_rows, row_of
from gpu_rag.sources.knowledge_base.nodes import NODES, node_of
from gpu_rag.sources.knowledge_graph.blocks import Block, block_of, blocks_of, joined, read_lines_in_blocks, singly
from gpu_rag.sources.knowledge_graph.triples import TRIPLES
from gpu_rag.sources.lines import LineBlock, count_between
from gpu_rag.sources.rows import Limits
from gpu_rag.text.strict_json import MAX_DEPTH

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MIN_ROWS = 256  # rows: smaller groups are not halved again to find the rows that break a block
_TEXTS = [("type", pa.string()), ("name", pa.string()), ("text", pa.string()), ("aliases", pa.list_(pa.string()))]
_NAMES = ("id", *(name for name, _ in _TEXTS))
_MAX_INTEGER = 2.0**63


def read_json_edges(path: Path, limits: Limits) -> Iterator[Block]:
    """Edges {src, relation, dst} of a file of JSON Lines, in blocks that are read row by row."""
    return blocks_of(TRIPLES.schema, (singly(TRIPLES, path, row, limits) for row in read_rows(path, limits)))


def read_json_nodes(path: Path, limits: Limits) -> Iterator[Block]:
    """Nodes of a file of JSON Lines, in blocks; ids are strings or integers.

    A row is read alone if it is not one object from brace to brace, is nested, or has half of a surrogate pair. So is a
    row of a small group in which one row is broken, or has values of other types, or numbers of 64 bits or none (also
    under ignored keys, because the strict reader refuses the whole row).
    """
    id_types = [pa.string(), pa.int64()]  # the type of the previous block first

    def plain(block: LineBlock) -> tuple[Block, np.ndarray]:
        blocks, read = [block_of(NODES.schema, ())], [np.zeros(0, np.int64)]
        stack = [np.flatnonzero(_may_be_read(block))]
        while stack:
            rows = stack.pop()
            columns = _columns(block, rows, id_types) if len(rows) else None
            if columns is not None:
                part, odd = NODES.plain(columns, block.number[rows], limits)
                blocks.append(part)
                read.append(np.delete(rows, odd))
            elif len(rows) > _MIN_ROWS:
                stack += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
        return joined(blocks), np.setdiff1d(np.arange(len(block.start)), np.concatenate(read), assume_unique=True)

    return read_lines_in_blocks(NODES.schema, path, limits, plain, lambda line: node_of(row_of(line), limits))


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


def _columns(block: LineBlock, rows: np.ndarray, id_types: list[pa.DataType]) -> dict[str, pa.Array] | None:
    """Columns of lines, each from brace to brace, so that no value can reach into the next line.

    None if a line is broken, or has something that the strict reader refuses; that reader then finds the row and the
    reason.
    """
    bounds = zip(block.start[rows].tolist(), block.end[rows].tolist())
    data = b"\n".join([block.data[start:end] for start, end in bounds])
    whole = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    for id_type in tuple(id_types):
        schema = pa.schema([("id", id_type), *_TEXTS])
        form = pj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="infer")
        try:
            table = pj.read_json(pa.BufferReader(data), whole, form)
        except pa.ArrowException:
            continue
        id_types.sort(key=id_type.__ne__)
        others = (table[name] for name in table.schema.names if name not in _NAMES)
        if table.num_rows != len(rows) or not all(map(_is_tame, others)):
            return None
        return {name: pa.concat_arrays(table[name].chunks) for name in _NAMES}
    return None


def _is_tame(column: pa.ChunkedArray | pa.Array) -> bool:
    if pa.types.is_floating(column.type):  # also integers, if one has more than 64 bits
        values = column.drop_null()
        return not len(values) or bool(pc.all(pc.less(pc.abs(values), _MAX_INTEGER)).as_py())
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_list(column.type):
        return all(_is_tame(chunk.flatten()) for chunk in chunks)
    if pa.types.is_struct(column.type):
        return all(_is_tame(part) for chunk in chunks for part in chunk.flatten())
    return True
