"""The nodes of knowledge bases, many at a time: the same nodes and rejects as `skb.read_nodes` gives one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.sources.json_rows import LINES_SUFFIXES, Row, has_suffix, row_of
from gpu_rag.sources.knowledge_base import NODE_COLUMNS, NODE_KEYS, named_columns, node_of, skb_files, tsv_row
from gpu_rag.sources.knowledge_base.jsonl import NodeLines
from gpu_rag.sources.knowledge_base.nodes import NodeBlock, joined, node_block, node_blocks, plain_nodes
from gpu_rag.sources.knowledge_base.stark import read_stark_nodes
from gpu_rag.sources.knowledge_base.types import SkbNode
from gpu_rag.sources.knowledge_graph import TSV_SUFFIXES
from gpu_rag.sources.knowledge_graph.lines import LineBlock, cut_out, read_line_blocks
from gpu_rag.sources.lines import Line
from gpu_rag.sources.parquet import TableBlock, decoded, read_table_blocks
from gpu_rag.sources.rows import MAX_DOCUMENT_CHARS, MAX_LINE_BYTES, Limits, RowError, shown
from gpu_rag.sources.seen import Seen, repeats
from gpu_rag.types import Reject

_ROWS = 1 << 16
_BYTES = 4 << 20  # of one block of a table
Single = Callable[[Line], Row | Reject]


def read_node_blocks(
    folder: Path, *, max_document_chars: int = MAX_DOCUMENT_CHARS, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[NodeBlock]:
    """What `skb.read_nodes` gives, as blocks of columns: equal nodes, lines and rejects, in the same order.

    Rows in the usual form are read by array operations, all others one by one by the code of `read_nodes`, and so is
    STaRK's layout. Raises BadInput as `read_nodes`. Memory: some 100 MB for blocks of 4 MiB of text, and about 45 bytes
    an id, to find those that are given twice.
    """
    files, limits = skb_files(folder), Limits(max_document_chars, max_line_bytes)
    if files.stark:
        blocks = node_blocks(read_stark_nodes(folder, limits))
    elif has_suffix(files.nodes, LINES_SUFFIXES):
        blocks = _json_lines(files.nodes, limits)
    elif has_suffix(files.nodes, TSV_SUFFIXES):
        blocks = _tsv(files.nodes, limits)
    else:
        blocks = _table(files.nodes, limits)
    return _unique(files.nodes, blocks)


def _unique(path: Path, blocks: Iterator[NodeBlock]) -> Iterator[NodeBlock]:
    """Of nodes with one id the first."""
    seen = Seen()
    for block in blocks:
        before = seen.numbers(block.ids)  # lines of the first
        again, first = repeats(block.ids)
        before[again] = np.where(before[again] < 0, block.line[first], before[again])
        new, twice = np.flatnonzero(before < 0), np.flatnonzero(before >= 0)
        seen.add(block.ids.take(pa.array(new)), block.line[new])
        if not len(twice):
            yield block
            continue
        rows = zip(block.ids.take(pa.array(twice)).to_pylist(), block.line[twice].tolist(), before[twice].tolist())
        rejects = [Reject(shown(path), line, f"duplicate of {id!r} in line {of}", id) for id, line, of in rows]
        yield block.take(new, sorted(block.rejects + rejects, key=lambda reject: reject.line))


# --- lines -------------------------------------------------------------------------------------------


def _json_lines(path: Path, limits: Limits) -> Iterator[NodeBlock]:
    reader = NodeLines()
    for block in read_line_blocks(path, limits):
        if isinstance(block, Reject):
            yield node_block([], [block])
            continue
        read, others = reader.read(block)
        found = node_block([], [])
        for rows, columns in read:
            plain, odd = plain_nodes(columns, block.number[rows], limits)
            found, others = joined(found, plain), np.concatenate([others, rows[odd]])
        yield joined(found, _one_by_one(block, np.sort(others), lambda line: row_of(path, line), limits))


def _tsv(path: Path, limits: Limits) -> Iterator[NodeBlock]:
    keys: tuple[str, ...] = NODE_KEYS
    for block in read_line_blocks(path, limits):
        if isinstance(block, Reject):
            yield node_block([], [block])
            continue
        head = block.line(0) if len(block.number) and block.number[0] == 1 else None
        named = named_columns(head) if isinstance(head, Line) else None
        keys = keys if named is None else named
        found, others = _plain_lines(block, keys, limits)
        yield joined(found, _one_by_one(block, others[int(named is not None) :], _by_keys(path, keys), limits))


def _by_keys(path: Path, keys: tuple[str, ...]) -> Single:
    return lambda line: tsv_row(path, line, keys)


def _plain_lines(block: LineBlock, keys: tuple[str, ...], limits: Limits) -> tuple[NodeBlock, np.ndarray]:
    """(nodes, other rows); of columns that have one name the last counts, and aliases are no text: read row by row."""
    if len(set(keys)) < len(keys) or "aliases" in keys:
        return node_block([], []), np.arange(len(block.start))
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


def _one_by_one(block: LineBlock, rows: np.ndarray, single: Single, limits: Limits) -> NodeBlock:
    """Some lines of a block, and its rejects."""
    found = (_node(block.path, single, block.line(row), limits) for row in rows.tolist())
    return _sorted_out(found, block.rejects)


def _node(path: Path, single: Single, line: Line | Reject, limits: Limits) -> SkbNode | Reject:
    row = line if isinstance(line, Reject) else single(line)
    return _checked(path, row, limits) if isinstance(row, Row) else row


def _checked(path: Path, row: Row, limits: Limits) -> SkbNode | Reject:
    try:
        return node_of(row, limits)
    except RowError as error:
        return Reject(shown(path), row.line, str(error))


def _sorted_out(found: Iterator[SkbNode | Reject], rejects: list[Reject]) -> NodeBlock:
    rows = list(found)
    rejects = [*rejects, *(row for row in rows if isinstance(row, Reject))]
    return node_block([row for row in rows if isinstance(row, SkbNode)], rejects)


# --- tables ------------------------------------------------------------------------------------------


def _table(path: Path, limits: Limits) -> Iterator[NodeBlock]:
    for block in read_table_blocks(path, NODE_COLUMNS, _ROWS, _BYTES, _check_lists):
        if block.batches:
            yield _rows(path, block, limits)
        if block.problem is not None:
            yield node_block([], [block.problem])


def _check_lists(batch: pa.RecordBatch) -> None:
    """Raises UnicodeDecodeError for aliases that are not UTF-8, as reading their rows one by one does."""
    if "aliases" in batch.schema.names and not pa.types.is_null(batch.column("aliases").type):
        try:
            values = batch.column("aliases").flatten()
            values.cast(pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            values.to_pylist()


def _rows(path: Path, block: TableBlock, limits: Limits) -> NodeBlock:
    held, before = block.held(), block.before
    line = before + 1 + np.arange(block.n_rows)
    texts = {name: _utf8(column) for name, column in held.items()}
    if any(column is None for column in texts.values()):
        found, others = node_block([], []), np.arange(len(line))
    else:
        found, others = plain_nodes(texts, line, limits)
    return joined(found, _sorted_out(_taken(path, held, others, before, limits), []))


def _utf8(column: pa.Array) -> pa.Array | None:
    """Bytes as text, None where one is not UTF-8; other types as they are."""
    if not pa.types.is_large_binary(column.type):
        return column
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return None


def _taken(
    path: Path, held: dict[str, pa.Array], rows: np.ndarray, before: int, limits: Limits
) -> Iterator[SkbNode | Reject]:
    """Some rows of a table, one by one."""
    at = pa.array(rows)
    values: list[list[Any]] = [column.take(at).to_pylist() for column in held.values()]
    for row, *given in zip(rows.tolist(), *values):
        found = decoded(path, before + row + 1, dict(zip(held, given)))
        yield _checked(path, found, limits) if isinstance(found, Row) else found
