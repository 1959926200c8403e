"""Nodes of knowledge bases one by one and in blocks of columns, and which rows are nodes without a closer look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.knowledge_graph.lines import LineBlock
from gpu_rag.sources.knowledge_graph.triples import may_be_blank
from gpu_rag.sources.lines import Line
from gpu_rag.sources.rows import (
    MAX_ID_CHARS,
    Limits,
    RowError,
    attempted,
    clean_string,
    document_text,
    id_text,
    optional_string,
    string_list,
)
from gpu_rag.types import Reject

UNTYPED = "entity"  # the type of a node that has none
NODE_KEYS = ("id", "type", "name", "text")
LITERAL = "literal"  # of a value: a number, a date, a text


@dataclass(frozen=True)
class SkbNode:
    """text: the node's own document, "" where it has none. line: of the file that it stands in, from 1."""

    id: str
    name: str
    type: str
    text: str
    aliases: tuple[str, ...]
    line: int


ROWS = 1 << 14  # of a block that is read row by row
Single = Callable[[Line], Row | Reject]
LISTS = pa.large_list(pa.large_string())
# What the last byte of white space of Unicode may be; more than white space ends so.
_ENDS = np.isin(np.arange(256), [*range(0x21), 0x85, 0xA0, *range(0x80, 0x8B), 0xA8, 0xA9, 0xAF, 0x9F])


@dataclass(frozen=True)
class NodeBlock:
    """n nodes of one base, by ascending line. ids, names, types, texts: as in `SkbNode`, large_string[n]; aliases:
    LISTS[n]; line: i64[n]. rejects: between them, ascending."""

    ids: pa.LargeStringArray
    names: pa.LargeStringArray
    types: pa.LargeStringArray
    texts: pa.LargeStringArray
    aliases: pa.LargeListArray
    line: np.ndarray
    rejects: list[Reject] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.line)

    def take(self, rows: np.ndarray, rejects: list[Reject]) -> NodeBlock:
        """Some of the nodes, with other rejects."""
        at = pa.array(rows)
        ids, names, types, texts, aliases = (column.take(at) for column in _columns(self))
        return NodeBlock(ids, names, types, texts, aliases, self.line[rows], rejects)


def _columns(block: NodeBlock) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array, pa.Array]:
    return block.ids, block.names, block.types, block.texts, block.aliases


def node_block(rows: Iterable[SkbNode | Reject]) -> NodeBlock:
    """The block of rows that are at hand, its nodes by line."""
    rows = list(rows)
    nodes = [row for row in rows if isinstance(row, SkbNode)]
    rejects = [row for row in rows if isinstance(row, Reject)]
    ids, names, types, texts = (
        pa.array([getattr(node, key) for node in nodes], pa.large_string()) for key in ("id", "name", "type", "text")
    )
    aliases = pa.array([list(node.aliases) for node in nodes], LISTS)
    return NodeBlock(ids, names, types, texts, aliases, np.array([node.line for node in nodes], np.int64), rejects)


def node_blocks(rows: Iterable[SkbNode | Reject]) -> Iterator[NodeBlock]:
    """Rows that are read one by one, as blocks."""
    rows = iter(rows)
    while some := list(islice(rows, ROWS)):
        yield node_block(some)


def joined(left: NodeBlock, right: NodeBlock) -> NodeBlock:
    """Two blocks of the same stretch of a file as one, by line."""
    rejects = sorted(left.rejects + right.rejects, key=lambda reject: reject.line)
    if not right.n:
        return NodeBlock(*_columns(left), left.line, rejects)
    ids, names, types, texts, aliases = (pa.concat_arrays(pair) for pair in zip(_columns(left), _columns(right)))
    both = NodeBlock(ids, names, types, texts, aliases, np.concatenate([left.line, right.line]))
    return both.take(np.argsort(both.line, kind="stable"), rejects)


def plain_nodes(columns: Mapping[str, pa.Array], line: np.ndarray, limits: Limits) -> tuple[NodeBlock, np.ndarray]:
    """(the nodes of rows in the usual form, the rows that must be read one by one).

    columns: of a table by name, strings or large_strings of valid UTF-8, of "id" integers too, of "aliases" lists
    of strings; what is missing is null. Rows that a rule of `node_of` might change or reject are not usual.
    """
    n = len(line)
    id = _text(columns.get("id"), n)
    good = _is_plain(id) & (np.asarray(pc.binary_length(id)) > 0)
    name, type = (_text(columns.get(key), n) for key in ("name", "type"))
    for column in (name, type):
        good &= _is_plain(column)
    text, is_text = _texts(columns.get("text"), n, limits)
    aliases, are_plain = _aliases(columns.get("aliases"), n)
    good &= is_text & are_plain
    names = pc.if_else(pc.equal(name, ""), id, name)
    types = pc.if_else(pc.equal(type, ""), UNTYPED, type)
    block = NodeBlock(id, names, types.cast(pa.large_string()), text, aliases, line)
    others = np.flatnonzero(~good)
    return (block.take(np.flatnonzero(good), []) if len(others) else block), others


def _text(column: pa.Array | None, n: int) -> pa.LargeStringArray:
    """A column as text, "" for null."""
    if column is None or pa.types.is_null(column.type):
        return pa.array([""] * n, pa.large_string())
    return column.cast(pa.large_string()).fill_null("")


def octets_of(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, i64[n + 1]: where each text begins in them, and where the last ends)."""
    _, offsets, data = text.buffers()
    if not len(text):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    start = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), start


def _is_plain(text: pa.LargeStringArray) -> np.ndarray:
    """bool[n]: short enough for an id, without NUL, without white space at its ends or a byte order mark in front."""
    good: np.ndarray = (np.asarray(pc.binary_length(text)) <= MAX_ID_CHARS) & ~_has_nul(text)
    looked_at = np.flatnonzero(may_have_edges(text))
    for row, said in zip(looked_at.tolist(), text.take(pa.array(looked_at)).to_pylist()):
        good[row] &= said == said.strip() and not said.startswith("\ufeff")
    return good


def may_have_edges(text: pa.LargeStringArray) -> np.ndarray:
    """bool[n]: whether white space or a byte order mark may stand at an end; False for an empty text."""
    octets, bounds = octets_of(text)
    if not len(octets):
        return np.zeros(len(text), bool)
    first = np.minimum(bounds[:-1], len(octets) - 1)
    edges = may_be_blank(octets, first) | (octets[first] == 0xEF) | _ENDS[octets[np.maximum(bounds[1:] - 1, 0)]]
    found: np.ndarray = edges & (bounds[1:] > bounds[:-1])
    return found


def _has_nul(text: pa.LargeStringArray) -> np.ndarray:
    octets, bounds = octets_of(text)
    part = octets[bounds[0] : bounds[-1]]
    if part.all():
        return np.zeros(len(text), bool)
    return np.asarray(pc.match_substring(text, "\x00"))


def _texts(column: pa.Array | None, n: int, limits: Limits) -> tuple[pa.LargeStringArray, np.ndarray]:
    """(texts, "" for those of white space alone; bool[n]: whether they are plain)."""
    text = _text(column, n)
    good = (np.asarray(pc.binary_length(text)) <= limits.max_document_chars) & ~_has_nul(text)
    octets, bounds = octets_of(text)
    if not len(octets):
        return text, good
    first = np.minimum(bounds[:-1], len(octets) - 1)
    good &= octets[first] != 0xEF  # a byte order mark, or what begins like one
    looked_at = np.flatnonzero((bounds[1:] > bounds[:-1]) & may_be_blank(octets, first))
    blank = [said.isspace() for said in text.take(pa.array(looked_at)).to_pylist()]
    if any(blank):
        mask = np.zeros(n, bool)
        mask[looked_at[np.array(blank)]] = True
        text = pc.if_else(pa.array(mask), "", text).cast(pa.large_string())
    return text, good


def _aliases(column: pa.Array | None, n: int) -> tuple[pa.LargeListArray, np.ndarray]:
    if column is None or pa.types.is_null(column.type):
        return pa.array([[]] * n, LISTS), np.ones(n, bool)
    lists = column.cast(LISTS)
    offsets = np.concatenate([[0], np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy())]).astype(np.int64)
    values = lists.flatten()
    length = np.asarray(pc.binary_length(values.fill_null("")))
    odd = (length == 0) | (length > MAX_ID_CHARS) | _has_nul(values.fill_null(""))
    owner = np.repeat(np.arange(n), np.diff(offsets))
    plain = np.ones(n, bool)
    plain[owner[odd]] = False
    return pa.LargeListArray.from_arrays(offsets, values.fill_null("")), plain


# --- rows one by one -----------------------------------------------------------------------------------


def node_of(row: Row, limits: Limits) -> SkbNode:
    """The node of a row. Raises RowError."""
    value: dict[str, Any] = row.value
    id = id_text(value.get("id"), "id")
    if id.isspace():
        raise RowError("id is empty")
    name, type = optional_string(value, "name").strip(), optional_string(value, "type").strip()
    text = "" if value.get("text") is None else clean_string(value["text"], "text")
    if text.strip():
        text = document_text(text, limits)
    for key, columns in (("name", name), ("type", type)):
        if columns:
            id_text(columns, key)  # as long as an id at most
    aliases = tuple(id_text(alias, "an alias") for alias in string_list(value.get("aliases"), "aliases"))
    return SkbNode(id, name or id.strip(), type or UNTYPED, text if text.strip() else "", aliases, row.line)


def nodes_of_lines(block: LineBlock, rows: np.ndarray, single: Single, limits: Limits) -> NodeBlock:
    """Some lines of a block one by one, and its rejects."""
    lines = (block.line(row) for row in rows.tolist())
    found = (line if isinstance(line, Reject) else single(line) for line in lines)
    return node_block([*block.rejects, *(checked(block.path, row, limits) for row in found)])


def checked(path: Path, row: Row | Reject, limits: Limits) -> SkbNode | Reject:
    """The node of a row, or why it cannot be used."""
    return row if isinstance(row, Reject) else attempted(path, row.line, node_of, row, limits)
