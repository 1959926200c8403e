"""Nodes of knowledge bases, from tables and from lines of tab-separated fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.knowledge_graph.blocks import (
    TEXT,
    Block,
    RowKind,
    are_plain,
    batch_of,
    block_of,
    has_nul,
    may_be_blank,
    octets_of,
    plain_fields,
    read_lines_in_blocks,
    text_of,
)
from gpu_rag.sources.knowledge_graph.triples import part_of
from gpu_rag.sources.lines import Line, LineBlock
from gpu_rag.sources.parquet import Columns
from gpu_rag.sources.rows import (
    MAX_ID_CHARS,
    Limits,
    RowError,
    clean_string,
    document_text,
    id_text,
    optional_string,
    string_list,
)
from gpu_rag.types import UNTYPED

NODE_KEYS = ("id", "type", "name", "text")
LITERAL = "literal"  # the type of a value: a number, a date, a text
LISTS = pa.large_list(TEXT)


@dataclass(frozen=True)
class SkbNode:
    """A node. text: its own document, or "". line: in its file, from 1."""

    id: str
    name: str
    type: str
    text: str
    aliases: tuple[str, ...]
    line: int


def node_of(row: Row, limits: Limits) -> SkbNode:
    """Node of a row. Raises RowError."""
    value = row.value
    id = part_of(value.get("id"), "id")
    name, type = optional_string(value, "name").strip(), optional_string(value, "type").strip()
    text = "" if value.get("text") is None else clean_string(value["text"], "text")
    text = document_text(text, limits) if text.strip() else ""
    for key, given in (("name", name), ("type", type)):
        if given:
            id_text(given, key)  # at most as long as an id
    aliases = tuple(id_text(alias, "an alias") for alias in string_list(value.get("aliases"), "aliases"))
    return SkbNode(id, name or id.strip(), type or UNTYPED, text, aliases, row.line)


def _plain(columns: Mapping[str, pa.Array], line: np.ndarray, limits: Limits) -> tuple[Block, np.ndarray]:
    """The block of the plain rows, which no rule of `node_of` changes or rejects, and the numbers of other rows."""
    n = len(line)
    id, name, type = (text_of(columns.get(key), n) for key in ("id", "name", "type"))
    good = are_plain(id) & are_plain(name) & are_plain(type) & np.asarray(pc.not_equal(id, ""))
    text, is_text = _texts(columns.get("text"), n, limits)
    aliases, are_names = _aliases(columns.get("aliases"), n)
    good &= is_text & are_names
    name, type = pc.if_else(pc.equal(name, ""), id, name), pc.if_else(pc.equal(type, ""), UNTYPED, type).cast(TEXT)
    block, others = Block(batch_of(NODES.schema, id, name, type, text, aliases, line)), np.flatnonzero(~good)
    return (block.take(np.flatnonzero(good)) if len(others) else block), others


def _texts(column: pa.Array | None, n: int, limits: Limits) -> tuple[pa.LargeStringArray, np.ndarray]:
    """(texts with "" for blank texts, bool[n]: whether each is plain)."""
    text = text_of(column, n)
    good = (np.asarray(pc.binary_length(text)) <= limits.max_document_chars) & ~has_nul(text)
    octets, bounds = octets_of(text)
    if not len(octets):
        return text, good
    first = np.minimum(bounds[:-1], len(octets) - 1)
    good &= octets[first] != 0xEF  # a byte order mark, or a character with the same first byte
    candidates = np.flatnonzero((bounds[1:] > bounds[:-1]) & may_be_blank(octets, first))
    blank = np.zeros(n, bool)
    blank[candidates] = [value.isspace() for value in text.take(pa.array(candidates)).to_pylist()]
    return (pc.if_else(pa.array(blank), "", text).cast(TEXT) if blank.any() else text), good


def _aliases(column: pa.Array | None, n: int) -> tuple[pa.LargeListArray, np.ndarray]:
    if column is None or pa.types.is_null(column.type):
        return pa.LargeListArray.from_arrays(np.zeros(n + 1, np.int64), pa.array([], TEXT)), np.ones(n, bool)
    lists = column.cast(LISTS)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy()
    values = lists.flatten().fill_null("")
    length = np.asarray(pc.binary_length(values))
    odd = (length == 0) | (length > MAX_ID_CHARS) | has_nul(values)
    plain = np.ones(n, bool)
    plain[np.repeat(np.arange(n), sizes)[odd]] = False
    return pa.LargeListArray.from_arrays(np.append(0, np.cumsum(sizes)).astype(np.int64), values), plain


NODES = RowKind(
    pa.schema([*((name, TEXT) for name in ("id", "name", "type", "text")), ("aliases", LISTS), ("line", pa.int64())]),
    Columns(
        (*NODE_KEYS, "aliases"), (("id", "name"), ("id", "type"), ("id", "text")), ("id",),
        "id, type, name and perhaps text and aliases", ("aliases",),
    ),
    _plain,
    node_of,
)  # fmt: skip


def read_tsv_nodes(path: Path, limits: Limits) -> Iterator[Block]:
    """Nodes of a file of id, type, name and optionally text, or of the columns in its first line, in blocks."""
    keys: tuple[str, ...] = NODE_KEYS

    def plain(block: LineBlock) -> tuple[Block, np.ndarray]:
        nonlocal keys
        head = block.line(0) if len(block.number) and block.number[0] == 1 else None
        keys = named_columns(head) or keys if isinstance(head, Line) else keys
        # If a column name repeats, the last column counts; aliases are a list, not a text: read row by row.
        if len(set(keys)) < len(keys) or "aliases" in keys:
            return block_of(NODES.schema, ()), np.arange(len(block.start))
        return plain_fields(NODES, block, keys, 1, limits)

    def single(line: Line) -> SkbNode | None:
        return None if named_columns(line) else node_of(fields_row(line, keys), limits)

    return read_lines_in_blocks(NODES.schema, path, limits, plain, single)


def named_columns(line: Line) -> tuple[str, ...] | None:
    """Column names if this is a first line that names them, else None."""
    fields = tuple(field.strip().lower() for field in line.text.split("\t"))
    return fields if line.number == 1 and "id" in fields and set(fields) & {"name", "type", "text"} else None


def fields_row(line: Line, keys: tuple[str, ...]) -> Row:
    """Row of a line of tab-separated fields; keys: the column names. Raises RowError if there are more fields."""
    fields = line.text.split("\t")
    if len(fields) > len(keys):
        raise RowError(f"{len(fields)} fields; expected {', '.join(keys)} between tabs")
    return Row(line.number, dict(zip(keys, fields)))
