"""Edges of a knowledge base: sorted, made unique, and written one range of heads at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.knowledge_base.names import relation_text
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_RELATIONS
from gpu_rag.index.stages.knowledge_base.columns import SourceColumns, joined
from gpu_rag.index.stages.knowledge_base.nodes import Nodes
from gpu_rag.index.tables import TableWriter, write_columns
from gpu_rag.index.work import Work

_AT_ONCE = 1 << 19  # edges sorted at a time; the edges of one head stay together
_KEY_BITS = 63
_NO_PASSAGES = pa.scalar([], pa.list_(pa.int32()))


@dataclass(frozen=True)
class _Column:
    """Edges of all sources, source by source: i32 each; start: first edge of each source."""

    head: np.ndarray
    relation: np.ndarray
    tail: np.ndarray
    start: np.ndarray


def write_edges(work: Work, nodes: Nodes, sources: Sequence[SourceColumns]) -> tuple[int, int, int]:
    """Write the tables `kb_relations` and `kb_edges`. Returns (relations, edges, repeated edges within a source).

    Edges are sorted by (head, relation, tail, source); of equal ones the first of the source is kept. Memory: 24 bytes
    an edge beside the sources' own, and some 60 MB for a range of 2^19 edges, or of as many as one node has.
    """
    name_of = relation_names(sources)
    ids = sorted(name_of, key=name_of.__getitem__)
    names, row = [name_of[id] for id in ids], {id: row for row, id in enumerate(ids)}
    rows = [np.array([row[id] for id, _ in source.relations], np.int32) for source in sources]
    columns = [names, ids, [relation_text(name) for name in names]]
    write_columns(work.out / "kb_relations.parquet", KB_RELATIONS, [pa.array(c, pa.string()) for c in columns])
    edges = _Column(
        joined([nodes.of_source(k)[source.edges.head] for k, source in enumerate(sources)]),
        joined([rows[k][source.edges.relation] for k, source in enumerate(sources)]),
        joined([nodes.of_source(k)[source.edges.tail] for k, source in enumerate(sources)]),
        np.cumsum([0, *(source.edges.n for source in sources)]),
    )
    n = 0
    with TableWriter(work.out / "kb_edges.parquet", KB_EDGES) as writer:
        for part in _stretches(edges.head, nodes.n):
            chosen, source = _sorted(edges, part)
            where, passages = _provenance(sources, edges.start, chosen, source)
            writer.add([edges.head[chosen], edges.relation[chosen], edges.tail[chosen], source, where, passages])
            work.progress.advance(len(chosen))
            n += len(chosen)
    return len(ids), n, len(edges.head) - n


def _stretches(head: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Rows of edges by ranges of heads, in their order within each."""
    if len(head) <= _AT_ONCE:
        yield np.arange(len(head))
        return
    number = (np.cumsum(np.bincount(head, minlength=n)) - 1) // _AT_ONCE
    stretch = number.astype(np.uint16 if number[-1] < 1 << 16 else np.int64)[head]
    order = np.argsort(stretch, kind="stable").astype(np.int32 if len(head) < 1 << 31 else np.int64)
    yield from np.split(order, np.cumsum(np.bincount(stretch))[:-1])


def _sorted(edges: _Column, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows sorted by (head, relation, tail, source), the first of equal ones, and their sources). rows: ascending."""
    if not len(rows):
        return rows, np.zeros(0, np.int64)
    source = np.searchsorted(edges.start, rows, side="right") - 1
    head, tail = edges.head[rows].astype(np.int64), edges.tail[rows].astype(np.int64)
    parts = [head - head.min(), edges.relation[rows].astype(np.int64), tail, source]
    sizes = [int(part.max()) + 1 for part in parts]
    if sum(size.bit_length() for size in sizes) <= _KEY_BITS:
        key = parts[0]
        for part, size in zip(parts[1:], sizes[1:]):
            key = key * size + part
        order = np.argsort(key, kind="stable")
        new = np.diff(key[order], prepend=-1) != 0
    else:
        order = np.lexsort(parts[::-1])
        new = np.any([np.diff(part[order], prepend=-1) != 0 for part in parts], axis=0)
    order = order[new]
    return rows[order], source[order]


def _provenance(
    sources: Sequence[SourceColumns], start: np.ndarray, rows: np.ndarray, source: np.ndarray
) -> tuple[pa.Array, pa.Array]:
    """ "file:line (note)" and the lists of passages of some edges."""
    where, passages = list[pa.Array](), list[pa.Array]()
    order = np.argsort(source, kind="stable")
    for number in np.unique(source).tolist():
        mine = order[source[order] == number]
        places, part = pa.array(rows[mine] - start[number]), sources[number]
        where.append(_own_provenance(part, places))
        listed = part.edges.passages
        passages.append(pa.repeat(_NO_PASSAGES, len(places)) if listed is None else listed.take(places))
    if not where:
        return pa.array([], pa.string()), pa.array([], _NO_PASSAGES.type)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(where).take(pa.array(back)), pa.concat_arrays(passages).take(pa.array(back))


def _own_provenance(part: SourceColumns, places: pa.Array) -> pa.Array:
    if not part.file:
        return pa.repeat("", len(places))
    line = pa.array(part.edges.line).take(places).cast(pa.string())
    text = pc.binary_join_element_wise(part.file, line, ":")
    if part.edges.note is None:
        return text
    note = part.edges.note.take(places).cast(pa.string())
    noted = pc.binary_join_element_wise(text, " (", note, ")", "")
    return pc.if_else(pc.equal(note, ""), text, noted)


def relation_names(sources: Sequence[SourceColumns]) -> dict[str, str]:
    """A unique name for each relation id. If two would share a name, the later one by id gets its id as name."""
    names: dict[str, str] = {}
    for part in sources:
        for id, name in part.relations:
            names.setdefault(id, name)
    taken: set[str] = {id for id, name in names.items() if id == name}
    for id in sorted(names):
        if names[id] != id and names[id] in taken:
            names[id] = id
        taken.add(names[id])
    return names
