"""Reader of entities and triples made elsewhere: our JSON Lines, or the file that HippoRAG writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_rag.sources.formats import ARRAY_SUFFIXES, LINES_SUFFIXES, reader_of
from gpu_rag.sources.json_rows import Row, read_object, read_rows
from gpu_rag.sources.rows import LIMITS, Limits, RowError, clean_string, kind, passage_id, row_id, shown
from gpu_rag.types import Reject

ACCEPTED = ".jsonl / .jsonl.gz of {id, entities, triples}, or HippoRAG's .json {docs: [...]}"
_Triple = tuple[str, str, str]


@dataclass(frozen=True)
class OpenIERow:
    """Extraction of the passage `id`: names, and (subject, relation, object) triples, as written."""

    id: str
    entities: tuple[str, ...]
    triples: tuple[_Triple, ...]


def read_openie(path: Path, limits: Limits = LIMITS) -> Iterator[OpenIERow | Reject]:
    """Extractions of `path` in order, and a Reject for everything that cannot be used.

    Rows: {id, entities: [name], triples: [[subject, relation, object]]}. For HippoRAG's {"docs": [{passage,
    extracted_entities, extracted_triples}]} the id is "p_" + sha1(passage)[:12], where passage is title, newline, text:
    the id that `read_corpus` gives a passage without one. A name or triple that is not made of non-empty strings is
    left out, with a Reject of its own whose reason begins "entity" or "triple"; the row is kept. Of rows with one id
    the first is kept.

    Rows and files above the limits are Rejects.
    Raises BadInput at once for a missing path or an unknown type. Memory: one row; the whole file for .json.
    """
    formats = {LINES_SUFFIXES: read_rows, ARRAY_SUFFIXES: _hipporag_rows}
    return _extractions(path, reader_of(path, formats, "the file of extractions", ACCEPTED)(path, limits))


def _hipporag_rows(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    try:
        docs = read_object(path, limits, 'an object with a list "docs"').get("docs")
        if not isinstance(docs, list):
            raise RowError('the file is an object; expected an object with a list "docs"')
    except RowError as error:
        yield Reject(shown(path), 0, str(error))
        return
    for number, value in enumerate(docs, start=1):
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            yield Reject(shown(path), number, f"the row is {kind(value)}; expected an object")


def _extractions(path: Path, rows: Iterator[Row | Reject]) -> Iterator[OpenIERow | Reject]:
    seen: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        id = None
        try:
            id = _passage(row.value)
            if id in seen:
                raise RowError(f"duplicate of {id!r} in line {seen[id]}")
            keys = ("extracted_entities", "extracted_triples") if "passage" in row.value else ("entities", "triples")
            names, triples = (_list(row.value, key) for key in keys)
        except RowError as error:
            yield Reject(shown(path), row.line, str(error), id or "")
            continue
        seen[id] = row.line
        usable_names, usable = list(filter(_is_name, names)), list(filter(_is_triple, triples))
        yield OpenIERow(id, tuple(usable_names), tuple((s, r, o) for s, r, o in usable))
        problems = list[str]()
        if len(usable_names) < len(names):
            odd = [(number, value) for number, value in enumerate(names, 1) if not _is_name(value)]
            problems += [f"entity {number} is {kind(value)} or empty; expected a name" for number, value in odd]
        if len(usable) < len(triples):
            wrong = [number for number, value in enumerate(triples, 1) if not _is_triple(value)]
            problems += [f"triple {n} is not [subject, relation, object] of three non-empty strings" for n in wrong]
        yield from (Reject(shown(path), row.line, problem, id) for problem in problems)


def _passage(row: dict[str, Any]) -> str:
    """Id of the passage that a row describes. Raises RowError."""
    if "passage" in row:
        return passage_id(clean_string(row["passage"], "passage"))
    id = row_id(row, "id")
    if id is None:
        raise RowError("id is missing")
    return id


def _list(row: dict[str, Any], key: str) -> list[Any]:
    value = row.get(key)
    if not isinstance(value, list):
        raise RowError(f"the key {key} is {kind(value)}; expected a list")
    return value


def _is_name(value: object) -> bool:
    """Whether a value is a non-blank string that a table can hold."""
    return isinstance(value, str) and bool(value) and not value.isspace() and "\x00" not in value


def _is_triple(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_name, value))
