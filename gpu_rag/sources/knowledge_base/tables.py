"""Tables of nodes: Parquet, and lines of fields with tabs between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.knowledge_base.nodes import (
    NODE_KEYS,
    NodeBlock,
    Single,
    checked,
    joined,
    node_block,
    nodes_of_lines,
    plain_nodes,
)
from gpu_rag.sources.knowledge_graph.lines import LineBlock, cut_out, read_line_blocks
from gpu_rag.sources.lines import Line
from gpu_rag.sources.parquet import Columns, TableBlock, read_table_blocks, rows_at
from gpu_rag.sources.rows import Limits, shown
from gpu_rag.types import Reject

COLUMNS = Columns(
    (*NODE_KEYS, "aliases"), (("id", "name"), ("id", "type"), ("id", "text")), ("id",),
    "id, type, name and perhaps text and aliases", ("aliases",),
)  # fmt: skip
_ROWS = 1 << 16
_BYTES = 4 << 20  # of one block


def read_table_nodes(path: Path, limits: Limits) -> Iterator[NodeBlock]:
    """The nodes of a Parquet file, in blocks."""
    for block in read_table_blocks(path, COLUMNS, _ROWS, _BYTES):
        if block.batches:
            yield _rows(path, block, limits)
        if block.problem is not None:
            yield node_block([block.problem])


def _rows(path: Path, block: TableBlock, limits: Limits) -> NodeBlock:
    columns, before = block.by_name(), block.before
    line = before + 1 + np.arange(block.n_rows)
    texts = {name: _utf8(column) for name, column in columns.items()}
    if any(column is None for column in texts.values()):
        found, others = node_block([]), np.arange(len(line))
    else:
        found, others = plain_nodes(texts, line, limits)
    single = (checked(path, row, limits) for row in rows_at(path, columns, others, before))
    return joined(found, node_block(single))


def _utf8(column: pa.Array) -> pa.Array | None:
    """Bytes as text, None where one is not UTF-8; other types as they are."""
    if not pa.types.is_large_binary(column.type):
        return column
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return None


def read_tsv_nodes(path: Path, limits: Limits) -> Iterator[NodeBlock]:
    """The nodes of a file of id, type, name and perhaps text, or of columns that its first line names, in blocks."""
    keys: tuple[str, ...] = NODE_KEYS
    for block in read_line_blocks(path, limits):
        if isinstance(block, Reject):
            yield node_block([block])
            continue
        head = block.line(0) if len(block.number) and block.number[0] == 1 else None
        named = _named_columns(head) if isinstance(head, Line) else None
        keys = keys if named is None else named
        found, others = _plain_lines(block, keys, limits)
        yield joined(found, nodes_of_lines(block, others[int(named is not None) :], _by_keys(path, keys), limits))


def _by_keys(path: Path, keys: tuple[str, ...]) -> Single:
    return lambda line: _row(path, line, keys)


def _plain_lines(block: LineBlock, keys: tuple[str, ...], limits: Limits) -> tuple[NodeBlock, np.ndarray]:
    """(nodes, other rows); of columns that have one name the last counts, and aliases are no text: read row by row."""
    if len(set(keys)) < len(keys) or "aliases" in keys:
        return node_block([]), np.arange(len(block.start))
    tabs = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 9)
    first, last = np.searchsorted(tabs, block.start), np.searchsorted(tabs, block.end)
    rows = np.flatnonzero(~block.alone & (last - first < len(keys)))
    end, bounds, begin = block.end[rows], list[np.ndarray](), block.start[rows]
    for number in range(len(keys)):
        at = first[rows] + number
        stop = np.where(at < last[rows], np.append(tabs, 0)[np.minimum(at, len(tabs))], end)
        bounds += [begin, stop]
        begin = np.minimum(stop + 1, end)
    columns = cut_out(block.data, np.stack(bounds, 1), tuple(range(0, 2 * len(keys), 2)))
    found, odd = plain_nodes(dict(zip(keys, columns)), block.number[rows], limits)
    plain = np.delete(rows, odd)
    return found, np.setdiff1d(np.arange(len(block.start)), plain, assume_unique=True)


def _named_columns(line: Line) -> tuple[str, ...] | None:
    """The names of the columns, where the line is a first one that names them."""
    named = tuple(field.strip().lower() for field in line.text.split("\t"))
    return named if line.number == 1 and "id" in named and set(named) & {"name", "type", "text"} else None


def _row(path: Path, line: Line, keys: tuple[str, ...]) -> Row | Reject:
    """A line of tab-separated fields by the names of its columns; it may have fewer, not more."""
    fields = line.text.split("\t")
    if len(fields) > len(keys):
        return Reject(shown(path), line.number, f"{len(fields)} fields; expected {', '.join(keys)} between tabs")
    return Row(line.number, dict(zip(keys, fields)))
