"""Semi-structured knowledge bases: folders of typed nodes, some with a text, and of edges between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.sources.json_rows import LINES_SUFFIXES, Row, has_suffix, read_rows
from gpu_rag.sources.knowledge_base.stark import is_stark, read_stark_edges, read_stark_nodes
from gpu_rag.sources.knowledge_base.types import UNTYPED, SkbNode
from gpu_rag.sources.knowledge_graph import TSV_SUFFIXES, Triple, read_kg, triple_of_row
from gpu_rag.sources.lines import Line, read_lines
from gpu_rag.sources.parquet import Columns, read_parquet
from gpu_rag.sources.rows import (
    MAX_DOCUMENT_CHARS,
    MAX_LINE_BYTES,
    Limits,
    RowError,
    clean_string,
    document_text,
    id_text,
    optional_string,
    shown,
    string_list,
)
from gpu_rag.types import Reject

_SUFFIXES = (*LINES_SUFFIXES, ".parquet", *TSV_SUFFIXES)
_EDGE_NAMES = ("edges", "kg")
NODE_KEYS = ("id", "type", "name", "text")
NODE_COLUMNS = Columns(
    (*NODE_KEYS, "aliases"), (("id", "name"), ("id", "type"), ("id", "text")), ("id",),
    "id, type, name and perhaps text and aliases", ("aliases",),
)  # fmt: skip
ACCEPTED = (
    "a folder with nodes.jsonl / .parquet / .tsv of {id, type, name, text} and edges.jsonl / .parquet / .tsv "
    "of {src, relation, dst} (.jsonl and .tsv also as .gz; edges may be called kg)"
)


@dataclass(frozen=True)
class SkbFiles:
    """What a folder is read from: files of nodes and of edges, or a folder in STaRK's layout."""

    nodes: Path
    edges: Path
    stark: bool = False


def skb_files(folder: Path) -> SkbFiles:
    """The files of a knowledge base. Raises BadInput where they are missing, or doubled."""
    if not folder.is_dir():
        raise BadInput("the knowledge base is no folder", given=folder, expected=ACCEPTED)
    nodes = _one(folder, ("nodes",))
    if nodes is None and is_stark(folder):  # which says what is missing
        return SkbFiles(folder, folder, stark=True)
    edges = _one(folder, _EDGE_NAMES)
    if nodes is None or edges is None:
        lacking = "nodes" if nodes is None else "edges"
        raise BadInput("the folder is no knowledge base", given=f"{folder} without {lacking}", expected=ACCEPTED)
    return SkbFiles(nodes, edges)


def _one(folder: Path, names: tuple[str, ...]) -> Path | None:
    found = [path for name in names for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").exists()]
    if len(found) > 1:
        given = " and ".join(path.name for path in found)
        raise BadInput(
            "the knowledge base has one table twice", given=f"{folder}: {given}", do="leave one in the folder"
        )
    return found[0] if found else None


def read_nodes(
    folder: Path, *, max_document_chars: int = MAX_DOCUMENT_CHARS, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[SkbNode | Reject]:
    """The nodes of a knowledge base in the order of its file, and a Reject for each row that cannot be used.

    Rows {id, type, name, text, aliases}: all but the id may be missing; other keys are not read. Without a name the id
    is the name, without a type (or null) the type is "entity". A .tsv file has id, type, name and perhaps text, or a
    first line that names its columns. Of rows with one id the first is kept. STaRK's layout: see `skb_stark`.

    max_...: see `rows.Limits`. Raises BadInput at once where files are missing. Memory: one row, and the ids.
    """
    files, limits = skb_files(folder), Limits(max_document_chars, max_line_bytes)
    rows = read_stark_nodes(folder, limits) if files.stark else _nodes(files.nodes, limits)
    return _unique(files.nodes, rows)


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
        rows = read_parquet(path, NODE_COLUMNS) if has_suffix(path, (".parquet",)) else read_rows(path, limits)
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        try:
            yield node_of(row, limits)
        except RowError as error:
            yield Reject(shown(path), row.line, str(error))


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
    for key, held in (("name", name), ("type", type)):
        if held:
            id_text(held, key)  # as long as an id at most
    aliases = tuple(id_text(alias, "an alias") for alias in string_list(value.get("aliases"), "aliases"))
    return SkbNode(id, name or id.strip(), type or UNTYPED, text if text.strip() else "", aliases, row.line)


def _tsv_rows(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    keys: tuple[str, ...] = NODE_KEYS
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
            continue
        if (named := named_columns(line)) is not None:
            keys = named
        else:
            yield tsv_row(path, line, keys)


def named_columns(line: Line) -> tuple[str, ...] | None:
    """The names of the columns, where the line is a first one that names them."""
    named = tuple(field.strip().lower() for field in line.text.split("\t"))
    return named if line.number == 1 and "id" in named and set(named) & {"name", "type", "text"} else None


def tsv_row(path: Path, line: Line, keys: tuple[str, ...]) -> Row | Reject:
    """A line of tab-separated fields by the names of its columns; it may have fewer, not more."""
    fields = line.text.split("\t")
    if len(fields) > len(keys):
        return Reject(shown(path), line.number, f"{len(fields)} fields; expected {', '.join(keys)} between tabs")
    return Row(line.number, dict(zip(keys, fields)))


def read_edges(folder: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Triple | Reject]:
    """The edges of a knowledge base in the order of its file, and a Reject for each row that cannot be used.

    Rows {src, relation, dst}, or with the names that `kg.read_kg` knows; .tsv and .parquet as there. Whether the ends
    are nodes is not looked at here. Raises BadInput at once where files are missing.
    """
    files, limits = skb_files(folder), Limits(max_line_bytes=max_line_bytes)
    if files.stark:
        return read_stark_edges(folder, limits)
    if has_suffix(files.edges, LINES_SUFFIXES):
        return _edge_rows(files.edges, limits)
    return read_kg(files.edges, max_line_bytes=max_line_bytes)


def _edge_rows(path: Path, limits: Limits) -> Iterator[Triple | Reject]:
    for row in read_rows(path, limits):
        if isinstance(row, Reject):
            yield row
            continue
        try:
            yield triple_of_row(row)
        except RowError as error:
            yield Reject(shown(path), row.line, str(error))
