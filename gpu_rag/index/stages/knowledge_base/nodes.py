"""Nodes of a knowledge base: the records of all its sources, linked and numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.stages.knowledge_base.columns import SourceColumns, first_of, lists_of, replaced, rest_of
from gpu_rag.index.stages.knowledge_base.fuse import Fused, fuse
from gpu_rag.sources.knowledge_base.nodes import LITERAL
from gpu_rag.types import UNTYPED


@dataclass(frozen=True)
class Records:
    """Records of all sources, by (source, id). source: i32; first_type: null for a record without types."""

    source: np.ndarray
    ids: pa.LargeStringArray
    names: pa.LargeStringArray
    aliases: pa.LargeListArray
    types: pa.LargeListArray
    first_type: pa.LargeStringArray

    @classmethod
    def of(cls, source: np.ndarray, parts: Iterable[tuple[pa.Array, ...]]) -> Records:
        """Records of parts, each (ids, names, aliases, types), in order. source: source of each record."""
        ids, names, aliases, types = (pa.concat_arrays(columns) for columns in zip(*parts))
        return cls(source.astype(np.int32), ids, names, aliases, types, _first_or_null(types))


@dataclass(frozen=True)
class Nodes:
    """Nodes made from records: one for each group of linked records, by ascending id.

    node: i32, node of each record; start: first record of each source. ids: unique, ascending; names, aliases: the
    first record's name, and all other names; type: i32, rows of type_names, which are ascending.
    """

    records: Records
    fused: Fused
    node: np.ndarray
    start: np.ndarray
    ids: pa.LargeStringArray
    names: pa.LargeStringArray
    aliases: pa.LargeListArray
    type: np.ndarray
    type_names: list[str]

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @classmethod
    def of(cls, sources: Sequence[SourceColumns]) -> Nodes:
        """Link the records and number the nodes. Memory: some 60 bytes a record plus twice its strings."""
        source = np.repeat(np.arange(len(sources)), [part.n for part in sources])
        records = Records.of(source, ((part.ids, part.names, part.aliases, part.types) for part in sources))
        is_value = np.asarray(pc.equal(records.first_type, LITERAL).fill_null(False))
        fused = fuse(records.ids, records.names, is_value, records.source)
        first = np.flatnonzero(fused.node == np.arange(len(fused.node)))
        ids = _own_ids(records.ids.take(pa.array(first)), records.source[first], [part.name for part in sources])
        order = pc.sort_indices(ids)
        number = np.empty(len(records.ids), np.int32)
        number[first[order.to_numpy()]] = np.arange(len(first), dtype=np.int32)
        node = number[fused.node]
        start = np.cumsum([0, *(part.n for part in sources)])
        names, aliases = names_of(records, node, len(first))
        type, type_names = types_of(records, node, len(first))
        return cls(records, fused, node, start, ids.take(order), names, aliases, type, type_names)

    def of_source(self, number: int) -> np.ndarray:
        """Node of each record of a source, in the order of the record ids."""
        return self.node[self.start[number] : self.start[number + 1]]

    def with_ids(self, number: int, ids: Sequence[str]) -> np.ndarray:
        """i64: nodes of a source's records with these ids, -1 if it has no such record."""
        first, last = self.start[number], self.start[number + 1]
        known = self.records.ids.slice(first, last - first)
        rows = pc.index_in(pa.array(ids, pa.large_string()), value_set=known).fill_null(-1).to_numpy()
        return np.where(rows < 0, -1, self.of_source(number)[rows] if last > first else -1).astype(np.int64)

    def is_value(self) -> np.ndarray:
        """bool: whether a node is a value."""
        rows = [row for row, name in enumerate(self.type_names) if name == LITERAL]
        return np.isin(self.type, rows)


def _first_or_null(lists: pa.LargeListArray) -> pa.LargeStringArray:
    offsets = lists.offsets.to_numpy()
    place = np.where(np.diff(offsets) > 0, offsets[:-1], -1)
    return lists.values.take(pa.array(place, mask=place < 0))


def _own_ids(ids: pa.LargeStringArray, source: np.ndarray, names: Sequence[str]) -> pa.LargeStringArray:
    """Unique ids: if two things share an id, all but the first become "SOURCE:ID"."""
    while len(again := _repeats(ids)):  # a new id may collide with another one, which is then changed
        given = zip(ids.take(pa.array(again)).to_pylist(), source[again])
        ids = replaced(ids, again, [f"{names[number]}:{id}" for id, number in given])
    return ids


def _repeats(ids: pa.LargeStringArray) -> np.ndarray:
    """Rows, ascending, of ids that an earlier row has."""
    code = ids.dictionary_encode().indices.to_numpy()
    return np.delete(np.arange(len(code)), np.unique(code, return_index=True)[1])


def names_of(records: Records, node: np.ndarray, n: int) -> tuple[pa.LargeStringArray, pa.LargeListArray]:
    """(first record's name, all other names) of each node."""
    record = np.arange(len(node))
    order = np.argsort(node, kind="stable")
    rank = np.empty(len(node), np.int64)
    rank[order] = record
    owner = np.repeat(record, np.diff(records.aliases.offsets.to_numpy()))
    text_record = np.concatenate([record, owner])
    texts = pa.concat_arrays([records.names, records.aliases.flatten()])
    by_rank = np.argsort(rank[text_record], kind="stable")  # a record's name comes before its aliases
    named = lists_of(node[text_record[by_rank]].astype(np.int64), texts.take(pa.array(by_rank)), n)
    return first_of(named), rest_of(named)


def types_of(records: Records, node: np.ndarray, n: int) -> tuple[np.ndarray, list[str]]:
    """(type of each node as a row of the names, names of types). The type is the first one in the node's records."""
    order = np.argsort(node, kind="stable")
    typed = order[np.asarray(records.first_type.is_valid())[order]]
    nodes, first = np.unique(node[typed], return_index=True)
    encoded = records.first_type.take(pa.array(typed[first])).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    type_names = sorted({*names, *([UNTYPED] if len(nodes) < n else [])})
    row = {name: row for row, name in enumerate(type_names)}
    type = np.full(n, row.get(UNTYPED, -1), np.int32)
    type[nodes] = np.array([row[name] for name in names], np.int32)[encoded.indices.to_numpy()]
    return type, type_names
