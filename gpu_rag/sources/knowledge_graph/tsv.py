"""Tab-separated files of triples: head, relation, tail and, where known, provenance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpu_rag.sources.knowledge_graph.lines import LineBlock, cut_out
from gpu_rag.sources.knowledge_graph.triples import (
    HEADERS,
    MAX_NOTE_CHARS,
    Triple,
    TripleBlock,
    may_be_blank,
    part_of,
    triples_of_lines,
)
from gpu_rag.sources.lines import Line
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, clean_string


def read_tsv(path: Path, limits: Limits) -> Iterator[TripleBlock]:
    """The triples of a file, in blocks; a first line that names the columns is passed over."""
    return triples_of_lines(path, limits, _plain_rows, triple_of)


def triple_of(line: Line) -> Triple | None:
    """The triple of a line of tab-separated fields; None for one that names the columns. Raises RowError."""
    fields = line.text.split("\t")
    if line.number == 1 and tuple(field.strip().lower() for field in fields[:3]) in HEADERS:
        return None
    if len(fields) not in (3, 4):
        raise RowError(f"{len(fields)} fields; expected head, relation, tail and perhaps provenance between tabs")
    head, relation, tail = (part_of(field, name) for field, name in zip(fields, HEADERS[0]))
    note = clean_string(fields[3], "provenance").strip() if len(fields) == 4 else ""
    return Triple(head, relation, tail, line.number, note[:MAX_NOTE_CHARS])


def _plain_rows(block: LineBlock) -> tuple[TripleBlock, np.ndarray]:
    """Lines of three or four fields, of which none begins as white space does or is too long, and no note is odd."""
    octets = np.frombuffer(block.data, np.uint8)
    tabs = np.flatnonzero(octets == 9)
    first, last = np.searchsorted(tabs, block.start), np.searchsorted(tabs, block.end)
    plain = ~block.alone & (last - first >= 2) & (last - first <= 3)
    rows = np.flatnonzero(plain)
    start, end, first, n_tabs = block.start[rows], block.end[rows], first[rows], (last - first)[rows]
    third = np.where(n_tabs == 3, tabs[np.minimum(first + 2, len(tabs) - 1)] if len(tabs) else end, end)
    cuts = [start, tabs[first], tabs[first + 1], third] if len(rows) else [start, start, start, start]
    begins, ends = [cuts[0], cuts[1] + 1, cuts[2] + 1], cuts[1:]
    good = np.ones(len(rows), bool)
    for begin, stop in zip(begins, ends):
        good &= (stop > begin) & (stop - begin <= MAX_ID_CHARS)
        # the line end stands behind an empty last field, and is a blank
        good &= ~may_be_blank(octets, np.minimum(begin, len(octets) - 1))
    note = np.minimum(third + 1, end)
    noted = note < end
    if noted.any():
        at = np.flatnonzero(noted)
        odd = may_be_blank(octets, note[at]) | (octets[end[at] - 1] <= 0x20) | (octets[end[at] - 1] >= 0x7F)
        good[at[odd | (end[at] - note[at] > MAX_NOTE_CHARS)]] = False
    bounds = np.stack([start, ends[0], begins[1], ends[1], begins[2], third, note, end], 1)[good]
    head, relation, tail, said = cut_out(block.data, bounds, (0, 2, 4, 6))
    found = TripleBlock(head, relation, tail, block.number[rows[good]], said if noted.any() else None)
    return found, np.setdiff1d(np.arange(len(block.start)), rows[good], assume_unique=True)
