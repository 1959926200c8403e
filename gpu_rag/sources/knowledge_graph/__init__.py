"""Files of triples: tab-separated, N-Triples or Parquet. Every row in is a Triple or a Reject out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.sources.json_rows import Row, has_suffix
from gpu_rag.sources.knowledge_graph.ntriples import Literal, parse_ntriple
from gpu_rag.sources.lines import Line, read_lines
from gpu_rag.sources.parquet import Columns, read_parquet
from gpu_rag.sources.rows import MAX_LINE_BYTES, Limits, RowError, clean_string, id_text, shown
from gpu_rag.types import Reject

TSV_SUFFIXES = (".tsv", ".tsv.gz")
NT_SUFFIXES = (".nt", ".nt.gz")
ACCEPTED = ".tsv / .tsv.gz of head, relation, tail; .nt / .nt.gz (N-Triples); .parquet of head, relation, tail"
HEADERS = (("head", "relation", "tail"), ("subject", "predicate", "object"), ("src", "relation", "dst"))
COLUMNS = Columns(
    ("head", "relation", "tail", "subject", "predicate", "object", "src", "dst", "provenance"),
    HEADERS,
    ("head", "tail", "subject", "object", "src", "dst"),
    "head, relation and tail, or subject, predicate and object",
)


@dataclass(frozen=True)
class Triple:
    """head - relation -> tail, by ids as written: a name, an IRI without its brackets, or `_:label` of a blank node.

    literal: what the tail is where it is a value; the tail is then its N-Triples form. note: the provenance that the
    row itself gives. line: of a text file the line, of a table the row; both from 1.
    """

    head: str
    relation: str
    tail: str
    line: int
    note: str = ""
    literal: Literal | None = None


def read_kg(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Triple | Reject]:
    """The triples of `path` in its order, and a Reject for each row that cannot be used.

    - .tsv, .tsv.gz: head, relation, tail and, where known, provenance between tabs; a first line that names the
      columns is passed over.
    - .nt, .nt.gz: N-Triples 1.1, one statement a line, strictly: see `kg_ntriples`. Comments are passed over.
    - .parquet: columns head, relation, tail, or subject, predicate, object, or src, relation, dst, of strings (ends may
      be integers), and provenance.
    An id has 1 to 1,000 characters, not only white space. A triple given twice is given twice.

    max_line_bytes: see `rows.Limits`; what is larger is a Reject.
    Raises BadInput at once for a missing path or an unknown type. Memory: one line, or 1,024 rows of a table.
    """
    if not path.exists():
        raise BadInput("the file of triples does not exist", given=path, expected=ACCEPTED)
    limits = Limits(max_line_bytes=max_line_bytes)
    if has_suffix(path, TSV_SUFFIXES):
        return _tsv(path, limits)
    if has_suffix(path, NT_SUFFIXES):
        return _ntriples(path, limits)
    if has_suffix(path, (".parquet",)):
        return _parquet(path)
    raise BadInput("the type of the file of triples is not known", given=path, expected=ACCEPTED)


def _tsv(path: Path, limits: Limits) -> Iterator[Triple | Reject]:
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
            continue
        fields = line.text.split("\t")
        if line.number == 1 and tuple(field.strip().lower() for field in fields[:3]) in HEADERS:
            continue
        try:
            yield triple_of(fields, line.number)
        except RowError as error:
            yield Reject(shown(path), line.number, str(error))


def triple_of(fields: list[str], line: int) -> Triple:
    """The triple of a line's fields. Raises RowError."""
    if len(fields) not in (3, 4):
        raise RowError(f"{len(fields)} fields; expected head, relation, tail and perhaps provenance between tabs")
    head, relation, tail = (part_of(field, name) for field, name in zip(fields, HEADERS[0]))
    note = clean_string(fields[3], "provenance").strip() if len(fields) == 4 else ""
    return Triple(head, relation, tail, line, note[:300])


def part_of(value: object, name: str) -> str:
    """A part of a triple as text. Raises RowError unless it is an id with something in it."""
    text = id_text(value, name)
    if text.isspace():
        raise RowError(f"{name} is empty")
    return text


def _ntriples(path: Path, limits: Limits) -> Iterator[Triple | Reject]:
    for line in read_lines(path, limits):
        if isinstance(line, Reject):
            yield line
            continue
        try:
            found = statement_of(line)
        except RowError as error:
            yield Reject(shown(path), line.number, str(error))
            continue
        if found is not None:
            yield found


def statement_of(line: Line) -> Triple | None:
    """The triple of a line of N-Triples, None for a comment. Raises RowError."""
    found = parse_ntriple(line.text)
    if found is None:
        return None
    if isinstance(found.object, Literal):
        return Triple(found.subject, found.predicate, found.object.id, line.number, literal=found.object)
    return Triple(found.subject, found.predicate, found.object, line.number)


def _parquet(path: Path) -> Iterator[Triple | Reject]:
    for row in read_parquet(path, COLUMNS):
        if isinstance(row, Reject):
            yield row
            continue
        try:
            yield triple_of_row(row)
        except RowError as error:
            yield Reject(shown(path), row.line, str(error))


def triple_of_row(row: Row) -> Triple:
    """The triple of an object {head, relation, tail}, or of one with the other names of `HEADERS`. Raises RowError."""
    value: dict[str, Any] = row.value
    names = max(HEADERS, key=lambda names: len(value.keys() & set(names)))  # ties to the first
    head, relation, tail = (part_of(value.get(name), name) for name in names)
    note = value.get("provenance")
    return Triple(head, relation, tail, row.line, "" if note is None else clean_string(note, "provenance")[:300])
