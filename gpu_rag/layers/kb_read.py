"""The sources of a knowledge base as columns: what each one says of each thing, before things are linked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.build import NamedSource
from gpu_rag.layers.kb_columns import (
    LISTS,
    EdgeColumns,
    Interner,
    SourceColumns,
    ascending,
    joined,
    no_lists,
    single_spaced,
    spaced_relations,
)
from gpu_rag.layers.kb_rdf import RdfStatements
from gpu_rag.layers.passages import short_name
from gpu_rag.sources.json_rows import has_suffix
from gpu_rag.sources.kg import NT_SUFFIXES
from gpu_rag.sources.kg_blocks import read_kg_blocks
from gpu_rag.sources.kg_triples import TripleBlock, together
from gpu_rag.sources.rows import shown
from gpu_rag.sources.skb import read_nodes, skb_files
from gpu_rag.sources.skb_blocks import read_edge_blocks
from gpu_rag.sources.skb_types import UNTYPED
from gpu_rag.types import Reject

MOST_ALIASES = 50
_NODES = 1 << 16  # held as Python objects
_LEAST_LOOKED_UP = 1 << 16  # ends of edges
OnReject = Callable[[Reject], None]
OnRows = Callable[[int], None]


def read_source(
    source: NamedSource, on_reject: OnReject, max_document_chars: int, on_rows: OnRows = lambda n: None
) -> SourceColumns:
    """Reads a source of kind kg or skb; rows that cannot be used go to on_reject, in their order.

    on_rows: called with the numbers of triples and nodes read. Raises BadInput, as the readers.
    Memory: 20 bytes a triple (and its note, where it has one), about three times the text of distinct ids, a block, and
    some 150 bytes a node of a knowledge base, whose ids are kept apart to find those that are given twice.
    """
    if source.kind == "skb":
        return _skb(source, on_reject, max_document_chars, on_rows)
    blocks = _kept(read_kg_blocks(source.path), on_reject, on_rows)
    if has_suffix(source.path, NT_SUFFIXES):
        statements = RdfStatements()
        for block in blocks:
            statements.take(block)
        return statements.finish(source.name, source.path.name)
    return _triples(source, blocks)


def _kept(blocks: Iterator[TripleBlock], on_reject: OnReject, on_rows: OnRows) -> Iterator[TripleBlock]:
    for block in blocks:
        for reject in block.rejects:
            on_reject(reject)
        on_rows(block.n)
        yield block


def _triples(source: NamedSource, blocks: Iterator[TripleBlock]) -> SourceColumns:
    """Triples whose ids are names."""
    ends, columns = Interner(), EdgeColumns()
    for block in blocks:
        ends.add(pa.concat_arrays([block.head, block.tail]))
        columns.add(block.line, block.relation, block.note)
    strings, codes = ends.finish()
    ids, rank = ascending(strings)
    del strings
    head, tail = (joined([rank[half] for half in halves]) for halves in _halves(codes))
    texts, relation = columns.relations.finish()
    relations, row = spaced_relations(texts)
    return SourceColumns(
        source.name, "kg", [source.path.name], ids, single_spaced(ids), no_lists(len(ids)), no_lists(len(ids)),
        columns.edges(head, tail, row, relation), relations, source.path.name,
    )  # fmt: skip


def _halves(codes: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The codes of heads and of tails of blocks that were given one behind the other."""
    return [part[: len(part) // 2] for part in codes], [part[len(part) // 2 :] for part in codes]


# --- knowledge bases of nodes and edges ------------------------------------------------------------


def _skb(source: NamedSource, on_reject: OnReject, max_document_chars: int, on_rows: OnRows) -> SourceColumns:
    """Nodes, then edges; an edge of which an end is no node is a Reject."""
    files = skb_files(source.path)
    shorts = [short_name(shown(path), (source.path,)) for path in dict.fromkeys((files.nodes, files.edges))]
    ids, names, aliases, types = _nodes(source, on_reject, max_document_chars, on_rows)
    columns = EdgeColumns()
    heads, tails = list[np.ndarray](), list[np.ndarray]()
    at_once = max(_LEAST_LOOKED_UP, len(ids))  # each look-up goes through all ids once
    for block in together(read_edge_blocks(source.path), at_once):
        rows = pc.index_in(pa.concat_arrays([block.head, block.tail]), value_set=ids).fill_null(-1).to_numpy()
        head, tail = rows[: block.n], rows[block.n :]
        lost = np.flatnonzero((head < 0) | (tail < 0))
        known = np.flatnonzero((head >= 0) & (tail >= 0))
        for reject in merge(block.rejects, _lost(block, lost, head, shown(files.edges)), key=attrgetter("line")):
            on_reject(reject)
        on_rows(block.n)
        block = block.take(known, [])
        columns.add(block.line, block.relation, block.note)
        heads.append(head[known])
        tails.append(tail[known])
    texts, relation = columns.relations.finish()
    relations, row = spaced_relations(texts)
    edges = columns.edges(joined(heads), joined(tails), row, relation)
    return SourceColumns(source.name, "skb", shorts, ids, names, aliases, types, edges, relations, shorts[-1])


def _lost(block: TripleBlock, rows: np.ndarray, head: np.ndarray, file: str) -> Iterator[Reject]:
    """The rejects of edges without their nodes; where the nodes are those of another base, that is every edge."""
    for start in range(0, len(rows), _NODES):
        some = rows[start : start + _NODES]
        at = pa.array(some)
        for row, h, t in zip(some.tolist(), block.head.take(at).to_pylist(), block.tail.take(at).to_pylist()):
            yield Reject(file, int(block.line[row]), f"no node has the id {(h if head[row] < 0 else t)[:100]!r}")


def _nodes(
    source: NamedSource, on_reject: OnReject, max_document_chars: int, on_rows: OnRows
) -> tuple[pa.LargeStringArray, pa.LargeStringArray, pa.LargeListArray, pa.LargeListArray]:
    """(ids, names, aliases, types), by id."""
    held: list[tuple[str, str, list[str], list[str]]] = []
    parts: list[pa.RecordBatch] = []
    schema = pa.schema([("id", pa.large_string()), ("name", pa.large_string()), ("aliases", LISTS), ("types", LISTS)])

    def pack() -> None:
        columns = list(zip(*held)) if held else [(), (), (), ()]
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema)]
        parts.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        on_rows(len(held))
        held.clear()

    for node in read_nodes(source.path, max_document_chars=max_document_chars):
        if isinstance(node, Reject):
            on_reject(node)
            continue
        types = [] if node.type == UNTYPED else [node.type]
        aliases = list(dict.fromkeys(node.aliases))[:MOST_ALIASES]
        held.append((node.id, " ".join(node.name.split()), aliases, types))
        if len(held) == _NODES:
            pack()
    pack()
    table = pa.Table.from_batches(parts).combine_chunks()
    table = table.take(pc.sort_indices(table["id"])).combine_chunks()
    ids, names, aliases, types = (_whole(table[name]) for name in schema.names)
    return ids, names, aliases, types


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
