"""RDF statements in all formats: pyoxigraph parses, and array operations cut rows out of canonical N-Quads.

The files are untrusted: no context or entity is fetched or expanded, and no statement may exceed its limit.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote
from xml.parsers import expat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyoxigraph import BlankNode, Literal, NamedNode, Quad, RdfFormat, parse, serialize
from pyoxigraph import Triple as RdfTriple

from gpu_rag.sources.charset import mark_of
from gpu_rag.sources.knowledge_graph.blocks import (
    TEXT,
    Block,
    Reader,
    batch_of,
    read_lines_in_blocks,
    rows_of_lines,
    text_of,
)
from gpu_rag.sources.knowledge_graph.triples import MAX_NOTE_CHARS, TRIPLES, Triple
from gpu_rag.sources.lines import BLOCK_BYTES, Line, LineBlock, cut_out, open_binary, read_problem
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, one_line, shown
from gpu_rag.types import Reject

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
STRING = "http://www.w3.org/2001/XMLSchema#string"
MAX_ELEMENTS_DEEP = 1000  # the parser visits all open elements for each new one
MAX_TAG_BYTES = 1 << 20  # for each block of bytes, expat scans a tag from its start
MAX_BRACKETS_DEEP = 1 << 20  # open at once in Turtle, about 90 bytes each

# Canonical N-Quads (RDF 1.2): the parser writes it, and most dumps use it; ids of literals have this form.
_IRI = r'[A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x20<>"{}|^`\\]*'
# PN_CHARS_BASE of the grammar, with "_" and digits, which may begin a label
_FIRST = (
    "A-Za-z0-9_\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f"
    "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_INNER = _FIRST + "\\-\u00b7\u0300-\u036f\u203f\u2040"
_BLANK = rf"_:[{_FIRST}][{_INNER}]*(?:\.+[{_INNER}]+)*"
_ESCAPED = r'\\[tbnrf"\\]|\\u(?:000[1-7B]|000[EF]|001[0-9A-F]|007F|FFF[EF])'
_TEXT = rf'"(?:[^"\\\x00-\x1f\x7f{chr(0xFFFE)}{chr(0xFFFF)}]|{_ESCAPED})*"'
_LITERAL = rf"{_TEXT}(?:@[a-z]+(?:-[a-z0-9]+)*|\^\^<{_IRI}>)?"
_TRIPLE = rf"^(?P<head><{_IRI}>|{_BLANK}) <(?P<relation>{_IRI})> (?P<tail><{_IRI}>|{_BLANK}|{_LITERAL})"
_PATTERNS = {  # four groups and no ambiguity: RE2 then reads each character once
    RdfFormat.N_TRIPLES: rf"{_TRIPLE} \.$",
    RdfFormat.N_QUADS: rf"{_TRIPLE} (?:(?P<graph><{_IRI}>|{_BLANK}) )?\.$",
}
_WHOLE_IRI = re.compile(_IRI)
# Labels that the parser draws for blank nodes without one: 128 bits, without leading zeros.
_ANONYMOUS = "^_:[a-f][0-9a-f]{19,31}$"
_PLACE = re.compile(r"^Parser error at (?:line 1 )?")


# --- one statement a line ------------------------------------------------------------------------------


def read_rdf_lines(form: RdfFormat, path: Path, limits: Limits) -> Iterator[Block]:
    """Statements of a file of N-Triples or N-Quads, in blocks. A bad line is a Reject and affects no other line."""
    plain, single = partial(_plain_statements, form=form), partial(statement_of, form=form)
    return read_lines_in_blocks(TRIPLES.schema, path, limits, plain, single)


def statement_of(line: Line, form: RdfFormat = RdfFormat.N_TRIPLES) -> Triple | None:
    """Triple of a line; None for a comment. The name of a graph becomes the triple's note.

    Language tags are in lower case, IRIs absolute; IRIs, labels and texts have at most 1,000 characters.
    Raises RowError.
    """
    try:
        quads = list(parse(line.text, form, lenient=True))  # IRIs are checked below, equally for all formats
    except (SyntaxError, MemoryError) as error:
        raise RowError(one_line(_PLACE.sub("", str(error.args[0])))) from error
    if len(quads) > 1:
        raise RowError(f"the line holds {len(quads)} statements; expected one")
    return _triple_of(quads[0], line.number) if quads else None


def _triple_of(quad: Quad, number: int) -> Triple:
    value = quad.object
    if isinstance(value, Literal):
        tail = str(value)
        _checked(value.value, "literal")
        if value.datatype.value != STRING:
            _checked_iri(value.datatype.value, "datatype")
        if "\x00" in value.value:
            raise RowError("the literal holds a NUL character")
    else:
        tail = _node(value, "object")
    graph = quad.graph_name.value[:MAX_NOTE_CHARS] if isinstance(quad.graph_name, NamedNode) else ""
    relation = _checked_iri(quad.predicate.value, "predicate")
    return Triple(_node(quad.subject, "subject"), relation, tail, number, graph)


def _node(term: NamedNode | BlankNode | RdfTriple, name: str) -> str:
    if isinstance(term, NamedNode):
        return _checked_iri(term.value, name)
    if isinstance(term, BlankNode):
        return _checked(str(term), name)
    raise RowError(f"the {name} is a statement; expected an IRI, a blank node or a literal")


def _checked_iri(iri: str, name: str) -> str:
    if not _WHOLE_IRI.fullmatch(iri):
        raise RowError(f"the {name} is no absolute IRI: {iri[:80]!r}")
    return _checked(iri, name)


def _checked(id: str, name: str) -> str:
    if len(id) > MAX_ID_CHARS:
        raise RowError(f"the {name} has {len(id)} characters; expected at most {MAX_ID_CHARS}")
    return id


def _plain_statements(block: LineBlock, form: RdfFormat) -> tuple[Block, np.ndarray]:
    """(triples of the canonical lines whose parts have at most 1,000 bytes, the other rows)."""
    rows = np.flatnonzero(~block.alone)
    (lines,) = cut_out(block.data, np.stack([block.start[rows], block.end[rows]], 1), (0,))
    parts = pc.extract_regex(lines, _PATTERNS[form])
    good = np.asarray(parts.is_valid())
    part = {field.name: pc.struct_field(parts, field.name).fill_null("") for field in parts.type}
    head, relation, tail, *graph = (_without_brackets(column) for column in part.values())
    note = text_of(None, len(rows))
    if graph:
        note = pc.if_else(pc.starts_with(graph[0], "_:"), "", pc.utf8_slice_codeunits(graph[0], 0, MAX_NOTE_CHARS))
    good &= ~np.asarray(pc.ends_with(tail, f'"^^<{STRING}>'))
    for column in (head, relation, tail):
        good &= np.asarray(pc.binary_length(column)) <= MAX_ID_CHARS
    ready = Block(batch_of(TRIPLES.schema, head, relation, tail, note, block.number[rows]))
    return ready.take(np.flatnonzero(good)), np.setdiff1d(np.arange(len(block.start)), rows[good], assume_unique=True)


def _without_brackets(terms: pa.LargeStringArray) -> pa.LargeStringArray:
    """IRIs without their brackets, other terms unchanged."""
    return pc.if_else(pc.starts_with(terms, "<"), pc.ascii_trim(terms, "<>"), terms)


# --- documents -----------------------------------------------------------------------------------------


def read_rdf_document(form: RdfFormat, path: Path, limits: Limits) -> Iterator[Block]:
    """Statements of a file of Turtle, TriG, RDF/XML or JSON-LD, in blocks; their lines are their numbers, from 1.

    If the file is broken, the statements before the fault are kept and the rest is one Reject, which names the line if
    the parser knows it. Blank nodes without a label are numbered in order, `_:.1` first. Relative IRIs are based on the
    name of the file. Memory: a block, and the text before a statement (for JSON-LD with a @graph the whole file, so it
    may have at most max_line_bytes); about 150 bytes a blank node without a label.
    """
    plain = partial(_plain_statements, form=RdfFormat.N_QUADS)
    single = partial(statement_of, form=RdfFormat.N_QUADS)
    labels: dict[str, str] = {}
    for block in rows_of_lines(TRIPLES.schema, path, _canonical_lines(form, path, limits), plain, single):
        columns = {name: block[name] for name in block.columns.schema.names}
        for name in ("head", "tail"):
            columns[name] = _relabelled(columns[name], labels)
        yield Block(batch_of(TRIPLES.schema, *columns.values()), block.rejects)


def _relabelled(ids: pa.LargeStringArray, labels: dict[str, str]) -> pa.LargeStringArray:
    """Ids with numbers instead of the labels that the parser drew at random."""
    drawn = pc.match_substring_regex(ids, _ANONYMOUS)
    names = [labels.setdefault(id, f"_:.{len(labels) + 1}") for id in ids.filter(drawn).to_pylist()]
    return pc.replace_with_mask(ids, drawn, pa.array(names, TEXT)) if names else ids


def _canonical_lines(form: RdfFormat, path: Path, limits: Limits) -> Iterator[LineBlock | Reject]:
    """Statements of a document as lines of N-Quads; at last a Reject if it could not be read to the end."""
    number = 0
    problem: Exception | None = None
    try:
        with open_binary(path) as stream:
            given = _Document(stream, form, limits.max_line_bytes)
            base = f"file:///{quote(path.name.encode('utf-8', 'surrogateescape'))}"
            quads = parse(given, form, base_iri=base, lenient=True)  # type: ignore[arg-type]  # of IO it calls read alone
            while problem is None:
                sink, problems = BytesIO(), list[Exception]()
                serialize(_some(quads, given, sink, problems), sink, RdfFormat.N_QUADS)
                if data := sink.getvalue():
                    end = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
                    rows = np.arange(len(end))
                    start, lines = np.append(0, end[:-1] + 1), number + 1 + rows
                    yield LineBlock(path, data, start, end, lines, rows < 0, [])
                    number += len(end)
                problem = given.problem or next(iter(problems), None)
                if not data and problem is None:
                    return
    except (OSError, RowError) as error:
        problem = error
    if isinstance(problem, MemoryError):
        problem = RowError(f"a part of a statement is too long: {problem}")
    reason = problem.args[0] if isinstance(problem, SyntaxError) else read_problem(problem)
    line = getattr(problem, "lineno", None) or number + bool(number)
    yield Reject(shown(path), line, one_line(f"{reason[:200]}; what follows in this file is not read"))


def _some(quads: Iterator[Quad], given: _Document, sink: BytesIO, problems: list[Exception]) -> Iterator[Quad]:
    """Statements until 4 MiB of them are written, or reading stops."""
    try:
        for quad in quads:
            given.left = given.limit
            yield quad
            if sink.tell() >= BLOCK_BYTES:
                return
    except (SyntaxError, MemoryError, OSError, EOFError, zlib.error, RowError) as error:
        problems.append(error)


class _Document:
    """Bytes of a document for the parser. Reading ends, with a problem, when it would take too much memory.

    left: bytes that may be read before the next statement ends.
    """

    def __init__(self, stream: BinaryIO, form: RdfFormat, limit: int) -> None:
        self.left = self.limit = limit
        self.problem: RowError | None = None
        self._stream, self._n_read, self._depth = stream, 0, 0
        checks = {RdfFormat.RDF_XML: self._xml, RdfFormat.TURTLE: self._brackets, RdfFormat.TRIG: self._brackets}
        self._check: Callable[[bytes], bytes] | None = checks.get(form)
        self._expat = expat.ParserCreate()
        self._expat.EntityDeclHandler = self._refuse
        self._expat.StartElementHandler, self._expat.EndElementHandler = self._begin, self._end

    def read(self, size: int) -> bytes:
        """Next bytes; none after a problem."""
        if self.problem is not None:
            return b""
        data = self._stream.read(size)
        self.left -= len(data)
        try:
            if self.left < 0:
                do = "write it as N-Quads (.nq), which is read line by line"
                raise RowError(f"no statement ends within max_line_bytes = {self.limit}; {do}")
            if not self._n_read:
                mark, codec = mark_of(data)
                if codec not in ("", "utf-8"):
                    raise RowError(f"not UTF-8: the byte order mark of {codec.upper()}")
                data = data[len(mark) :]
            checked = self._check(data) if self._check else data
        except RowError as error:
            self.problem = error
            return b""
        self._n_read += len(data)
        return checked

    def _brackets(self, data: bytes) -> bytes:
        self._depth += data.count(b"[") + data.count(b"(") - data.count(b"]") - data.count(b")")
        if self._depth > MAX_BRACKETS_DEEP:
            raise RowError(f"more than {MAX_BRACKETS_DEEP} brackets are open at once")
        return data

    def _xml(self, data: bytes) -> bytes:
        """Bytes before the place where expat finds the XML broken; expat also notices a missing end."""
        try:
            self._expat.Parse(data, not data)
        except expat.ExpatError as error:
            self.problem = RowError(f"the XML is broken: {error}")
            return data[: max(self._expat.ErrorByteIndex - self._n_read, 0)]
        if self._n_read + len(data) - self._expat.CurrentByteIndex > MAX_TAG_BYTES:
            raise RowError(f"a tag or comment has more than {MAX_TAG_BYTES} bytes")
        return data

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_ELEMENTS_DEEP:
            raise RowError(f"more than {MAX_ELEMENTS_DEEP} elements are open at line {self._expat.CurrentLineNumber}")

    def _end(self, name: str) -> None:
        self._depth -= 1

    def _refuse(self, *_: object) -> None:
        raise RowError("the XML declares entities, which are refused; write it without them, or as .nt")


RDF_FORMATS: dict[tuple[str, ...], Reader] = {
    (".nt", ".nt.gz"): partial(read_rdf_lines, RdfFormat.N_TRIPLES),
    (".nq", ".nq.gz"): partial(read_rdf_lines, RdfFormat.N_QUADS),
    (".ttl", ".ttl.gz"): partial(read_rdf_document, RdfFormat.TURTLE),
    (".trig", ".trig.gz"): partial(read_rdf_document, RdfFormat.TRIG),
    (".rdf", ".owl", ".xml", ".rdf.gz", ".owl.gz", ".xml.gz"): partial(read_rdf_document, RdfFormat.RDF_XML),
    (".jsonld", ".jsonld.gz"): partial(read_rdf_document, RdfFormat.JSON_LD),
}
RDF_SUFFIXES = tuple(suffix for suffixes in RDF_FORMATS for suffix in suffixes)
