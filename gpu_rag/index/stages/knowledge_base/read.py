"""Sources of a knowledge base as columns: the statements of each source, before things are linked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.stages.knowledge_base.columns import (
    LISTS,
    EdgeColumns,
    Interner,
    SourceColumns,
    ascending,
    joined,
    lists_of,
    no_lists,
    single_spaced,
    two_halves,
)
from gpu_rag.index.stages.knowledge_base.rdf import RdfStatements
from gpu_rag.index.stages.rejected import short_name
from gpu_rag.index.work import NamedSource
from gpu_rag.sources.formats import has_suffix
from gpu_rag.sources.knowledge_base import read_edge_blocks, read_node_blocks, skb_files
from gpu_rag.sources.knowledge_graph import read_kg_blocks
from gpu_rag.sources.knowledge_graph.blocks import Block, together
from gpu_rag.sources.knowledge_graph.rdf import RDF_SUFFIXES
from gpu_rag.sources.rows import Limits, shown
from gpu_rag.types import UNTYPED, Reject

MAX_ALIASES = 50
_NODES = 1 << 16  # rejects of edges held as Python objects
_MIN_LOOKED_UP = 1 << 16  # ends of edges per look-up, at least
OnReject = Callable[[Reject], None]
OnRows = Callable[[int], None]


def read_source(
    source: NamedSource, on_reject: OnReject, max_document_chars: int, on_rows: OnRows = lambda n: None
) -> SourceColumns:
    """Read a source of kind kg or skb. Rows that cannot be used go to on_reject, in order.

    on_rows: called with the numbers of triples and nodes read. Raises BadInput, as the readers do.
    Memory: 20 bytes a triple (and its note, if any), about three times the text of distinct ids, a block, and 30 bytes
    a node of a knowledge base plus twice its strings.
    """
    if source.kind == "skb":
        return _skb(source, on_reject, max_document_chars, on_rows)
    blocks = _reported(_first(read_kg_blocks(source.path), source.most), on_reject, on_rows)
    if has_suffix(source.path, RDF_SUFFIXES):
        statements = RdfStatements()
        for block in blocks:
            statements.take(block)
        return statements.finish(source.name, source.path.name)
    return _triples(source, blocks)


def _first(blocks: Iterator[Block], limit: int) -> Iterator[Block]:
    """Blocks with only the first `most` rows."""
    for block in blocks:
        yield block if block.n <= limit else block.take(np.arange(limit))
        limit -= block.n
        if limit <= 0:
            break


def _reported(blocks: Iterator[Block], on_reject: OnReject, on_rows: OnRows) -> Iterator[Block]:
    for block in blocks:
        for reject in block.rejects:
            on_reject(reject)
        on_rows(block.n)
        yield block


def _triples(source: NamedSource, blocks: Iterator[Block]) -> SourceColumns:
    """Columns of triples whose ids are names."""
    ends, columns = Interner(), EdgeColumns()
    for block in blocks:
        ends.add(pa.concat_arrays([block["head"], block["tail"]]))
        columns.add(block.line, block["relation"], block["note"])
    strings, codes = ends.finish()
    ids, rank = ascending(strings)
    del strings
    relations, edges = columns.spaced(*(rank[half] for half in two_halves(codes)))
    return SourceColumns(
        source.name, "kg", [source.path.name], ids, single_spaced(ids), no_lists(len(ids)), no_lists(len(ids)),
        edges, relations, source.path.name,
    )  # fmt: skip


# --- knowledge bases of nodes and edges ------------------------------------------------------------


def _skb(source: NamedSource, on_reject: OnReject, max_document_chars: int, on_rows: OnRows) -> SourceColumns:
    """Columns of nodes, then edges. An edge with an end that is not a node is a Reject."""
    files = skb_files(source.path)
    shorts = [short_name(shown(path), (source.path,)) for path in dict.fromkeys((files.nodes, files.edges))]
    ids, names, aliases, types = _nodes(source, on_reject, max_document_chars, on_rows)
    columns = EdgeColumns()
    heads, tails = list[np.ndarray](), list[np.ndarray]()
    at_once = max(_MIN_LOOKED_UP, len(ids))  # each look-up scans all ids once
    for block in together(_first(read_edge_blocks(source.path), source.most), at_once):
        rows = pc.index_in(pa.concat_arrays([block["head"], block["tail"]]), value_set=ids).fill_null(-1).to_numpy()
        head, tail = rows[: block.n], rows[block.n :]
        lost = np.flatnonzero((head < 0) | (tail < 0))
        known = np.flatnonzero((head >= 0) & (tail >= 0))
        for reject in merge(block.rejects, _lost(block, lost, head, shown(files.edges)), key=attrgetter("line")):
            on_reject(reject)
        on_rows(block.n)
        block = block.take(known)
        columns.add(block.line, block["relation"], block["note"])
        heads.append(head[known])
        tails.append(tail[known])
    relations, edges = columns.spaced(joined(heads), joined(tails))
    return SourceColumns(source.name, "skb", shorts, ids, names, aliases, types, edges, relations, shorts[-1])


def _lost(block: Block, rows: np.ndarray, head: np.ndarray, file: str) -> Iterator[Reject]:
    """Rejects of edges without nodes; if the nodes belong to another base, every edge is one."""
    for start in range(0, len(rows), _NODES):
        some = rows[start : start + _NODES]
        few = pa.array(some)
        for row, h, t in zip(some.tolist(), block["head"].take(few).to_pylist(), block["tail"].take(few).to_pylist()):
            yield Reject(file, int(block.line[row]), f"no node has the id {(h if head[row] < 0 else t)[:100]!r}")


def _nodes(
    source: NamedSource, on_reject: OnReject, max_document_chars: int, on_rows: OnRows
) -> tuple[pa.LargeStringArray, pa.LargeStringArray, pa.LargeListArray, pa.LargeListArray]:
    """(ids, names, aliases, types), sorted by id."""
    parts: list[tuple[pa.Array, ...]] = []
    for block in _reported(read_node_blocks(source.path, Limits(max_document_chars)), on_reject, on_rows):
        parts.append(tuple(block[name] for name in ("id", "name", "type", "aliases")))
    kinds = (pa.large_string(), pa.large_string(), pa.large_string(), LISTS)
    columns = zip(*parts) if parts else [()] * len(kinds)
    ids, names, types, aliases = (pa.concat_arrays([pa.array([], k), *some]) for k, some in zip(kinds, columns))
    order = pc.sort_indices(ids)
    ids, names, types, aliases = (column.take(order) for column in (ids, names, types, aliases))
    return ids, single_spaced(names), _few(aliases), _typed(types)


def _few(aliases: pa.LargeListArray) -> pa.LargeListArray:
    """First 50 distinct aliases of each node."""
    owner = np.repeat(np.arange(len(aliases)), np.diff(aliases.offsets.to_numpy()))
    return lists_of(owner, aliases.flatten(), len(aliases), MAX_ALIASES)


def _typed(types: pa.LargeStringArray) -> pa.LargeListArray:
    """Type of each node as a list, empty for a node without a type."""
    named = pc.not_equal(types, UNTYPED)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(named))]).astype(np.int64)
    return pa.LargeListArray.from_arrays(offsets, types.filter(named))
