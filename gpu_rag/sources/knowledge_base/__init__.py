"""Semi-structured knowledge bases: folders of typed nodes, some with a text, and of edges between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.sources import knowledge_graph
from gpu_rag.sources.formats import LINES_SUFFIXES, TABLE_SUFFIXES, TSV_SUFFIXES, reader_of
from gpu_rag.sources.knowledge_base.jsonl import read_json_edges, read_json_nodes
from gpu_rag.sources.knowledge_base.nodes import NODES, read_tsv_nodes
from gpu_rag.sources.knowledge_base.stark import is_stark, read_stark_edges, read_stark_nodes
from gpu_rag.sources.knowledge_graph.blocks import Block, Reader, read_table
from gpu_rag.sources.rows import LIMITS, Limits, shown
from gpu_rag.types import Reject

NODE_FORMATS: dict[tuple[str, ...], Reader] = {
    LINES_SUFFIXES: read_json_nodes,
    TABLE_SUFFIXES: partial(read_table, NODES),
    TSV_SUFFIXES: read_tsv_nodes,
}
EDGE_FORMATS: dict[tuple[str, ...], Reader] = {LINES_SUFFIXES: read_json_edges, **knowledge_graph.FORMATS}
_SUFFIXES = tuple(suffix for suffixes in NODE_FORMATS for suffix in suffixes)
ACCEPTED = (
    "a folder with nodes.jsonl / .parquet / .tsv of {id, type, name, text} and edges.jsonl / .parquet / .tsv "
    "of {src, relation, dst} (.jsonl and .tsv also as .gz; edges may be called kg)"
)


@dataclass(frozen=True)
class SkbFiles:
    """Files of a knowledge base: files of nodes and of edges, or a folder in STaRK's layout."""

    nodes: Path
    edges: Path
    stark: bool = False


def skb_files(folder: Path) -> SkbFiles:
    """Files of a knowledge base. Raises BadInput if one is missing, or exists twice."""
    if not folder.is_dir():
        raise BadInput("the knowledge base is no folder", given=folder, expected=ACCEPTED)
    nodes = _file_named(folder, ("nodes",))
    if nodes is None and is_stark(folder):  # it raises if files are missing
        return SkbFiles(folder, folder, stark=True)
    edges = _file_named(folder, ("edges", "kg"))
    if nodes is None or edges is None:
        lacking = "nodes" if nodes is None else "edges"
        raise BadInput("the folder is no knowledge base", given=f"{folder} without {lacking}", expected=ACCEPTED)
    return SkbFiles(nodes, edges)


def _file_named(folder: Path, names: tuple[str, ...]) -> Path | None:
    files = [path for name in names for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").exists()]
    if len(files) > 1:
        given = " and ".join(path.name for path in files)
        raise BadInput(
            "the knowledge base has one table twice", given=f"{folder}: {given}", do="leave one in the folder"
        )
    return files[0] if files else None


def read_node_blocks(folder: Path, limits: Limits = LIMITS) -> Iterator[Block]:
    """Nodes of a knowledge base in the order of its file, in blocks (`NODES`), with a Reject for each unusable row.

    Rows {id, type, name, text, aliases}: all but the id may be missing; other keys are ignored. A missing name is the
    id, a missing (or null) type is "entity". A .tsv file has id, type, name and optionally text, or a first line that
    names its columns. Of rows with one id the first is kept. STaRK's layout: see `stark`. Rows in the usual form are
    read by array operations, all others one by one.

    Raises BadInput at once if files are missing. Memory: some 100 MB for blocks of 4 MiB of text, and about 150 bytes
    an id, to find duplicates.
    """
    files = skb_files(folder)
    if files.stark:
        return _unique(files.nodes, read_stark_nodes(folder, limits))
    read = reader_of(files.nodes, NODE_FORMATS, "the file of nodes", ACCEPTED)
    return _unique(files.nodes, read(files.nodes, limits))


def _unique(path: Path, blocks: Iterator[Block]) -> Iterator[Block]:
    """Keep the first of the nodes with one id; the others become Rejects."""
    lines: dict[str, int] = {}
    for block in blocks:
        ids, line = block["id"].to_pylist(), block.line
        first = np.array([lines.setdefault(id, number) for id, number in zip(ids, line.tolist())], np.int64)
        if (first == line).all():
            yield block
            continue
        rejects = [
            Reject(shown(path), int(line[row]), f"duplicate of {ids[row]!r} in line {first[row]}", ids[row])
            for row in np.flatnonzero(first != line).tolist()
        ]
        everything = sorted(block.rejects + rejects, key=lambda reject: reject.line)
        yield block.take(np.flatnonzero(first == line), everything)


def read_edge_blocks(folder: Path, limits: Limits = LIMITS) -> Iterator[Block]:
    """Edges of a knowledge base in the order of its file, in blocks, with a Reject for each unusable row.

    Rows {src, relation, dst}, or with the names of `read_kg_blocks`; .tsv and .parquet as there. Does not check whether
    the ends are nodes. Raises BadInput at once if files are missing. Memory: a block.
    """
    files = skb_files(folder)
    if files.stark:
        return read_stark_edges(folder, limits)
    return reader_of(files.edges, EDGE_FORMATS, "the file of edges", ACCEPTED)(files.edges, limits)
