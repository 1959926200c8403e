"""Parquet tables of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.knowledge_base.nodes import NodeBlock, checked, joined, node_block, plain_nodes, sorted_out
from gpu_rag.sources.knowledge_base.types import NODE_KEYS, SkbNode
from gpu_rag.sources.parquet import Columns, TableBlock, decoded, read_table_blocks
from gpu_rag.sources.rows import Limits
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
            yield node_block([], [block.problem])


def _rows(path: Path, block: TableBlock, limits: Limits) -> NodeBlock:
    columns, before = block.by_name(), block.before
    line = before + 1 + np.arange(block.n_rows)
    texts = {name: _utf8(column) for name, column in columns.items()}
    if any(column is None for column in texts.values()):
        found, others = node_block([], []), np.arange(len(line))
    else:
        found, others = plain_nodes(texts, line, limits)
    return joined(found, sorted_out(_taken(path, columns, others, before, limits), []))


def _utf8(column: pa.Array) -> pa.Array | None:
    """Bytes as text, None where one is not UTF-8; other types as they are."""
    if not pa.types.is_large_binary(column.type):
        return column
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return None


def _taken(
    path: Path, columns: dict[str, pa.Array], rows: np.ndarray, before: int, limits: Limits
) -> Iterator[SkbNode | Reject]:
    """Some rows of a table, one by one."""
    at = pa.array(rows)
    values: list[list[Any]] = [column.take(at).to_pylist() for column in columns.values()]
    for row, *given in zip(rows.tolist(), *values):
        found = decoded(path, before + row + 1, dict(zip(columns, given)))
        yield checked(path, found, limits) if isinstance(found, Row) else found
