"""Files of triples read many rows at a time: the same triples and rejects as `kg.read_kg` gives one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.sources.json_rows import has_suffix
from gpu_rag.sources.knowledge_graph import (
    ACCEPTED,
    HEADERS,
    NT_SUFFIXES,
    TSV_SUFFIXES,
    Triple,
    statement_of,
    triple_of,
)
from gpu_rag.sources.knowledge_graph.lines import LineBlock, cut_out, read_line_blocks
from gpu_rag.sources.knowledge_graph.parquet import read_parquet_blocks
from gpu_rag.sources.knowledge_graph.statements import plain_statements
from gpu_rag.sources.knowledge_graph.triples import TripleBlock, block_of, joined, may_be_blank
from gpu_rag.sources.lines import Line
from gpu_rag.sources.rows import MAX_ID_CHARS, MAX_LINE_BYTES, Limits, RowError, shown
from gpu_rag.types import Reject

_MOST_NOTE = 300  # characters
Plain = Callable[[LineBlock], tuple[TripleBlock, np.ndarray]]  # what is plain, and the rows that are not
Single = Callable[[Line], Triple | None]  # raises RowError


def read_kg_blocks(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[TripleBlock]:
    """What `kg.read_kg` gives, as blocks of columns: equal triples, lines and rejects, in the same order.

    Rows in the usual form are checked and cut by array operations, all others one by one by the code of `read_kg`.
    Raises BadInput as `read_kg`. Memory: some 20 MB for blocks of 4 MiB of text, or 65,536 rows or 16 MiB of a table.
    """
    if not path.exists():
        raise BadInput("the file of triples does not exist", given=path, expected=ACCEPTED)
    limits = Limits(max_line_bytes=max_line_bytes)
    if has_suffix(path, TSV_SUFFIXES):
        return _text(path, limits, _plain_rows, _row)
    if has_suffix(path, NT_SUFFIXES):
        return _text(path, limits, plain_statements, statement_of)
    if has_suffix(path, (".parquet",)):
        return read_parquet_blocks(path)
    raise BadInput("the type of the file of triples is not known", given=path, expected=ACCEPTED)


def _text(path: Path, limits: Limits, plain: Plain, single: Single) -> Iterator[TripleBlock]:
    for block in read_line_blocks(path, limits):
        if isinstance(block, Reject):
            yield block_of([], [block])
            continue
        found, others = plain(block)
        triples, rejects = _one_by_one(block, others, single)
        rejects = sorted(block.rejects + rejects, key=lambda reject: reject.line)
        yield joined(found, block_of(triples, rejects))


def _one_by_one(block: LineBlock, rows: np.ndarray, single: Single) -> tuple[list[Triple], list[Reject]]:
    triples: list[Triple] = []
    rejects: list[Reject] = []
    for row in rows.tolist():
        line = block.line(row)
        if isinstance(line, Reject):
            rejects.append(line)
            continue
        try:
            if (triple := single(line)) is not None:
                triples.append(triple)
        except RowError as error:
            rejects.append(Reject(shown(block.path), line.number, str(error)))
    return triples, rejects


def _row(line: Line) -> Triple | None:
    """The triple of a line of tab-separated fields; None for one that names the columns. Raises RowError."""
    fields = line.text.split("\t")
    if line.number == 1 and tuple(field.strip().lower() for field in fields[:3]) in HEADERS:
        return None
    return triple_of(fields, line.number)


def _plain_rows(block: LineBlock) -> tuple[TripleBlock, np.ndarray]:
    """Lines of three or four fields, of which none begins as white space does or is too long, and no note is odd."""
    raw = np.frombuffer(block.data, np.uint8)
    tabs = np.flatnonzero(raw == 9)
    first, last = np.searchsorted(tabs, block.start), np.searchsorted(tabs, block.end)
    plain = ~block.alone & (last - first >= 2) & (last - first <= 3)
    rows = np.flatnonzero(plain)
    start, end, first, n_tabs = block.start[rows], block.end[rows], first[rows], (last - first)[rows]
    third = np.where(n_tabs == 3, tabs[np.minimum(first + 2, len(tabs) - 1)] if len(tabs) else end, end)
    cuts = [start, tabs[first], tabs[first + 1], third] if len(rows) else [start, start, start, start]
    begins, ends = [cuts[0], cuts[1] + 1, cuts[2] + 1], cuts[1:]
    good = np.ones(len(rows), bool)
    for begin, stop in zip(begins, ends):
        # the line end stands behind an empty last field, and is a blank
        good &= (stop > begin) & (stop - begin <= MAX_ID_CHARS) & ~may_be_blank(raw, np.minimum(begin, len(raw) - 1))
    note = np.minimum(third + 1, end)
    noted = note < end
    if noted.any():
        at = np.flatnonzero(noted)
        odd = may_be_blank(raw, note[at]) | (raw[end[at] - 1] <= 0x20) | (raw[end[at] - 1] >= 0x7F)
        good[at[odd | (end[at] - note[at] > _MOST_NOTE)]] = False
    bounds = np.stack([start, ends[0], begins[1], ends[1], begins[2], third, note, end], 1)[good]
    head, relation, tail, said = cut_out(block.data, bounds, (0, 2, 4, 6))
    found = TripleBlock(head, relation, tail, block.number[rows[good]], said if noted.any() else None)
    return found, np.setdiff1d(np.arange(len(block.start)), rows[good], assume_unique=True)
