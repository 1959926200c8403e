"""Triples, edges and nodes read row by row: the plain reference of the readers of blocks."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu_rag.sources.formats import LINES_SUFFIXES, TABLE_SUFFIXES, TSV_SUFFIXES, has_suffix
from gpu_rag.sources.json_rows import Row, read_rows
from gpu_rag.sources.knowledge_base import read_edge_blocks, read_node_blocks, skb_files, stark
from gpu_rag.sources.knowledge_base.nodes import NODE_KEYS, NODES, SkbNode, fields_row, named_columns, node_of
from gpu_rag.sources.knowledge_graph import rdf, read_kg_blocks
from gpu_rag.sources.knowledge_graph.blocks import Block
from gpu_rag.sources.knowledge_graph.triples import TRIPLES, Triple, triple_of, triple_of_row
from gpu_rag.sources.lines import read_lines
from gpu_rag.sources.parquet import read_parquet
from gpu_rag.sources.rows import LIMITS, Limits, RowError, attempted, shown
from gpu_rag.types import Reject


def _each(path: Path, rows: Iterable[Any], read: Callable[[Any], Any]) -> Iterator[Any]:
    """read(row) of each row, a Reject where it raises, nothing for None."""
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        try:
            found = read(row)
        except RowError as error:
            yield Reject(shown(path), getattr(row, "line", 0) or row.number, str(error))
            continue
        if found is not None:
            yield found


def read_kg(path: Path, limits: Limits = LIMITS) -> Iterator[Triple | Reject]:
    """The triples of a file. Raises BadInput as `read_kg_blocks`."""
    read_kg_blocks(path)
    if has_suffix(path, TABLE_SUFFIXES):
        return _each(path, read_parquet(path, TRIPLES.columns), _triple)
    read = rdf.statement_of if has_suffix(path, rdf.RDF_SUFFIXES) else triple_of
    return _each(path, read_lines(path, limits), read)


def _triple(row: Row) -> Triple:
    return triple_of_row(row, LIMITS)


def read_edges(folder: Path, limits: Limits = LIMITS) -> Iterator[Triple | Reject]:
    """The edges of a knowledge base."""
    read_edge_blocks(folder)
    files = skb_files(folder)
    if files.stark:
        return _stark_edges(folder, limits)
    if has_suffix(files.edges, LINES_SUFFIXES):
        return _each(files.edges, read_rows(files.edges, limits), _triple)
    return read_kg(files.edges, limits)


def _stark_edges(folder: Path, limits: Limits) -> Iterator[Triple | Reject]:
    path = folder / stark.NEEDED[1]
    try:
        edges = stark.stark_edges(folder, limits)
    except RowError as error:
        yield Reject(shown(path), 0, str(error))
        return
    for number, given in enumerate(edges.kinds, 1):
        relation = edges.names.get(str(given))
        if relation is None:
            yield Reject(shown(path), number, f"edge_type_dict.json has no type {given}")
        else:
            yield Triple(str(edges.ends[0, number - 1]), relation, str(edges.ends[1, number - 1]), number)


def read_nodes(folder: Path, limits: Limits = LIMITS) -> Iterator[SkbNode | Reject]:
    """The nodes of a knowledge base, each id once."""
    read_node_blocks(folder)
    files = skb_files(folder)
    return _unique(files.nodes, stark._nodes(folder, limits) if files.stark else _nodes(files.nodes, limits))


def _unique(path: Path, rows: Iterator[SkbNode | Reject]) -> Iterator[SkbNode | Reject]:
    lines: dict[str, int] = {}
    for row in rows:
        if isinstance(row, SkbNode) and (before := lines.setdefault(row.id, row.line)) != row.line:
            yield Reject(shown(path), row.line, f"duplicate of {row.id!r} in line {before}", row.id)
        else:
            yield row


def _nodes(path: Path, limits: Limits) -> Iterator[SkbNode | Reject]:
    if has_suffix(path, TSV_SUFFIXES):
        rows = _tsv_rows(path, limits)
    else:
        rows = read_parquet(path, NODES.columns) if has_suffix(path, TABLE_SUFFIXES) else read_rows(path, limits)
    return _each(path, rows, lambda row: node_of(row, limits))


def _tsv_rows(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    keys: tuple[str, ...] = NODE_KEYS
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
        elif (named := named_columns(line)) is not None:
            keys = named
        else:
            yield attempted(path, line.number, fields_row, line, keys)


def rows_of(block: Block) -> Iterator[Triple | SkbNode | Reject]:
    """The rows of a block one by one, rejects in their places."""
    things = [
        SkbNode(**{**row, "aliases": tuple(row["aliases"])}) if "aliases" in row else Triple(**row)
        for row in block.columns.to_pylist()
    ]
    return iter(sorted([*block.rejects, *things], key=lambda row: row.line))


def _same(read_blocks: Callable[..., Iterator[Block]], read_rows: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    def read(path: Path, **limits: int) -> list[Any]:
        """The rows of a file or folder read both ways, found equal."""
        found = [row for block in read_blocks(path, Limits(**limits)) for row in rows_of(block)]
        assert found == list(read_rows(path, Limits(**limits)))
        return found

    return read


same_triples, same_edges = _same(read_kg_blocks, read_kg), _same(read_edge_blocks, read_edges)
same_nodes = _same(read_node_blocks, read_nodes)
