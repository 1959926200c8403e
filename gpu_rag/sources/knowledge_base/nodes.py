"""Nodes of knowledge bases as blocks of columns, and which rows of a table are nodes without a closer look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.knowledge_base.types import UNTYPED, SkbNode
from gpu_rag.sources.knowledge_graph.triples import may_be_blank
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits
from gpu_rag.types import Reject

ROWS = 1 << 14  # of a block that is read row by row
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


def node_block(nodes: Sequence[SkbNode], rejects: list[Reject]) -> NodeBlock:
    """The block of nodes that are at hand."""
    ids, names, types, texts = (
        pa.array([getattr(node, key) for node in nodes], pa.large_string()) for key in ("id", "name", "type", "text")
    )
    aliases = pa.array([list(node.aliases) for node in nodes], LISTS)
    return NodeBlock(ids, names, types, texts, aliases, np.array([node.line for node in nodes], np.int64), rejects)


def node_blocks(rows: Iterable[SkbNode | Reject]) -> Iterator[NodeBlock]:
    """Rows that are read one by one, as blocks."""
    rows = iter(rows)
    while held := list(islice(rows, ROWS)):
        nodes = [row for row in held if isinstance(row, SkbNode)]
        yield node_block(nodes, [row for row in held if isinstance(row, Reject)])


def nodes_of(block: NodeBlock) -> Iterator[SkbNode | Reject]:
    """The rows of a block one by one, rejects in their places."""
    rejects = iter([*block.rejects, None])
    reject = next(rejects)
    columns = (column.to_pylist() for column in _columns(block))
    for id, name, type, text, aliases, line in zip(*columns, block.line.tolist()):
        while reject is not None and reject.line < line:
            yield reject
            reject = next(rejects)
        yield SkbNode(id, name, type, text, tuple(aliases), line)
    while reject is not None:
        yield reject
        reject = next(rejects)


def joined(left: NodeBlock, right: NodeBlock) -> NodeBlock:
    """Two blocks of the same stretch of a file as one, by line."""
    rejects = sorted(left.rejects + right.rejects, key=lambda reject: reject.line)
    if not right.n:
        return NodeBlock(*_columns(left), left.line, rejects)
    ids, names, types, texts, aliases = (pa.concat_arrays(pair) for pair in zip(_columns(left), _columns(right)))
    both = NodeBlock(ids, names, types, texts, aliases, np.concatenate([left.line, right.line]))
    return both.take(np.argsort(both.line, kind="stable"), rejects)


def plain_nodes(held: Mapping[str, pa.Array], line: np.ndarray, limits: Limits) -> tuple[NodeBlock, np.ndarray]:
    """(the nodes of rows in the usual form, the rows that must be read one by one).

    held: columns of a table by name, strings or large_strings of valid UTF-8, of "id" integers too, of "aliases" lists
    of strings; what is missing is null. Rows that a rule of `skb.read_nodes` might change or reject are not usual.
    """
    n = len(line)
    id = _text(held.get("id"), n)
    good = _is_plain(id) & (np.asarray(pc.binary_length(id)) > 0)
    name, type = (_text(held.get(key), n) for key in ("name", "type"))
    for column in (name, type):
        good &= _is_plain(column)
    text, is_text = _texts(held.get("text"), n, limits)
    aliases, are_plain = _aliases(held.get("aliases"), n)
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


def raw_of(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
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
    raw, bounds = raw_of(text)
    if not len(raw):
        return np.zeros(len(text), bool)
    first = np.minimum(bounds[:-1], len(raw) - 1)
    edges = may_be_blank(raw, first) | (raw[first] == 0xEF) | _ENDS[raw[np.maximum(bounds[1:] - 1, 0)]]
    found: np.ndarray = edges & (bounds[1:] > bounds[:-1])
    return found


def _has_nul(text: pa.LargeStringArray) -> np.ndarray:
    raw, bounds = raw_of(text)
    part = raw[bounds[0] : bounds[-1]]
    if part.all():
        return np.zeros(len(text), bool)
    return np.asarray(pc.match_substring(text, "\x00"))


def _texts(column: pa.Array | None, n: int, limits: Limits) -> tuple[pa.LargeStringArray, np.ndarray]:
    """(texts, "" for those of white space alone; bool[n]: whether they are plain)."""
    text = _text(column, n)
    good = (np.asarray(pc.binary_length(text)) <= limits.max_document_chars) & ~_has_nul(text)
    raw, bounds = raw_of(text)
    if not len(raw):
        return text, good
    first = np.minimum(bounds[:-1], len(raw) - 1)
    good &= raw[first] != 0xEF  # a byte order mark, or what begins like one
    looked_at = np.flatnonzero((bounds[1:] > bounds[:-1]) & may_be_blank(raw, first))
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
