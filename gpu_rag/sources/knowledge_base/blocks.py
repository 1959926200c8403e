"""The edges of semi-structured knowledge bases, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpu_rag.sources.json_rows import LINES_SUFFIXES, has_suffix
from gpu_rag.sources.knowledge_base import read_edges, skb_files
from gpu_rag.sources.knowledge_base.stark import NEEDED, StarkEdges, stark_edges
from gpu_rag.sources.knowledge_graph.blocks import read_kg_blocks
from gpu_rag.sources.knowledge_graph.triples import TripleBlock, block_of, blocks_of
from gpu_rag.sources.rows import MAX_LINE_BYTES, Limits, RowError, shown
from gpu_rag.types import Reject

_ROWS = 1 << 18


def read_edge_blocks(folder: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[TripleBlock]:
    """What `skb.read_edges` gives, as blocks of columns: equal edges, lines and rejects, in the same order.

    Raises BadInput as `read_edges`. Memory: a block. JSON Lines are read row by row.
    """
    files = skb_files(folder)
    if files.stark:
        return _stark(folder, Limits(max_line_bytes=max_line_bytes))
    if has_suffix(files.edges, LINES_SUFFIXES):
        return blocks_of(read_edges(folder, max_line_bytes=max_line_bytes))
    return read_kg_blocks(files.edges, max_line_bytes=max_line_bytes)


def _stark(folder: Path, limits: Limits) -> Iterator[TripleBlock]:
    path = folder / NEEDED[1]
    try:
        edges = stark_edges(folder, limits)
    except RowError as error:
        yield block_of([], [Reject(shown(path), 0, str(error))])
        return
    for start in range(0, len(edges.kinds), _ROWS):
        yield _part(edges, slice(start, start + _ROWS), shown(path))


def _part(edges: StarkEdges, part: slice, file: str) -> TripleBlock:
    kinds, which = np.unique(edges.kinds[part], return_inverse=True)
    names = [edges.names.get(str(kind)) for kind in kinds.tolist()]
    known = np.array([name is not None for name in names], bool)[which]
    line = part.start + 1 + np.arange(len(which))
    rejects = [
        Reject(file, number, f"edge_type_dict.json has no type {kind}")
        for number, kind in zip(line[~known].tolist(), kinds[which[~known]].tolist())
    ]
    head, tail = (pa.array(np.ascontiguousarray(end[part][known])).cast(pa.large_string()) for end in edges.ends)
    relation = pa.array(names, pa.large_string()).take(pa.array(which[known]))
    return TripleBlock(head, relation, tail, line[known], None, rejects)
