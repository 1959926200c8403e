"""N-Triples 1.1 (W3C Recommendation of 25 February 2014), read strictly: one line, and many at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from gpu_rag.sources.knowledge_graph.blocks import Block, batch_of, read_lines_in_blocks, text_of
from gpu_rag.sources.knowledge_graph.triples import TRIPLES, Triple
from gpu_rag.sources.lines import Line, LineBlock, cut_out
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, clean_string

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
STRING = "http://www.w3.org/2001/XMLSchema#string"

_UCHAR = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_IRI = rf"<((?:[^\x00-\x20<>\"{{}}|^`\\]|{_UCHAR})*+)>"
# PN_CHARS_BASE of the grammar, with "_", ":" and digits where a label may begin with them
_FIRST = (
    "A-Za-z0-9_:\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f"
    "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_INNER = _FIRST + r"\-\u00b7\u0300-\u036f\u203f\u2040"
_BLANK = rf"_:([{_FIRST}][{_INNER}]*+(?:\.++[{_INNER}]++)*+)"
_LITERAL = rf'"((?:[^"\\\n\r]|\\[tbnrf"\'\\]|{_UCHAR})*+)"(?:\^\^{_IRI}|@([A-Za-z]++(?:-[A-Za-z0-9]++)*+))?'
_SPACE = re.compile(r"[ \t]*")
_SUBJECT, _PREDICATE = re.compile(f"{_IRI}|{_BLANK}"), re.compile(_IRI)
_OBJECT = re.compile(f"{_IRI}|{_BLANK}|{_LITERAL}")
_END = re.compile(r"\.[ \t]*(?:#.*)?\Z", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_NO_IRI = re.compile('[\x00-\x20<>"{}|^`\\\\]')


def read_ntriples(path: Path, limits: Limits) -> Iterator[Block]:
    """The statements of a file, in blocks; comments are passed over."""
    return read_lines_in_blocks(TRIPLES.schema, path, limits, _plain_statements, statement_of)


def literal_id(text: str, language: str = "", datatype: str = "") -> str:
    """A value as N-Triples writes it, in one way: equal values have equal ids.

    language: of a text, lower case, or ""; datatype: its IRI, "" for a plain string.
    """
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    mark = f"@{language}" if language else f"^^<{datatype}>" if datatype else ""
    return f'"{text}"{mark}'


def statement_of(row: Line) -> Triple | None:
    """The triple of a line of N-Triples; None for a comment or an empty line. Linear in the length of the line.

    Escapes are decoded. IRIs must be absolute; IRIs, labels and values have at most 1,000 characters.
    Raises RowError that says which part is wrong, and at which character.
    """
    line = row.text
    at = _skip(line, 0)
    if at == len(line) or line[at] == "#":
        return None
    subject, at = _take(line, at, _SUBJECT, "subject", "an IRI in <> or a blank node _:label")
    predicate, at = _take(line, at, _PREDICATE, "predicate", "an IRI in <>")
    object_, at = _take(line, at, _OBJECT, "object", "an IRI in <>, a blank node, or a literal in quotes")
    if not _END.match(line, at):
        raise RowError(f"no full stop ends the statement, at character {at}")
    return Triple(_node(subject, "subject"), _iri(predicate[1], "predicate"), _object(object_), row.number)


def _skip(line: str, at: int) -> int:
    found = _SPACE.match(line, at)
    return found.end() if found else at


def _take(line: str, at: int, pattern: re.Pattern[str], name: str, expected: str) -> tuple[re.Match[str], int]:
    found = pattern.match(line, at)
    if found is None:
        raise RowError(f"the {name} is not readable at character {at}; expected {expected}")
    return found, _skip(line, found.end())


def _object(found: re.Match[str]) -> str:
    if found[1] is not None or found[2] is not None:
        return _node(found, "object")
    text = _short(clean_string(_unescaped(found[3], "the literal"), "the literal"), "literal")
    datatype = _iri(found[4], "datatype") if found[4] is not None else ""
    return literal_id(text, (found[5] or "").lower(), "" if datatype == STRING else datatype)


def _node(found: re.Match[str], name: str) -> str:
    if found[1] is not None:
        return _iri(found[1], name)
    return _short(f"_:{found[2]}", name)


def _iri(written: str, name: str) -> str:
    iri = clean_string(_unescaped(written, f"the {name}"), f"the {name}")
    if not _ABSOLUTE.match(iri):
        raise RowError(f"the {name} is no absolute IRI: {iri[:80]!r}")
    if _NO_IRI.search(iri):
        raise RowError(f"the {name} holds a character that no IRI has")
    return _short(iri, name)


def _short(id: str, name: str) -> str:
    if len(id) > MAX_ID_CHARS:
        raise RowError(f"the {name} has {len(id)} characters; expected at most {MAX_ID_CHARS}")
    return id


def _unescaped(written: str, name: str) -> str:
    """`written` with its escapes decoded. Raises RowError for one that is no character."""

    def decoded(found: re.Match[str]) -> str:
        code = found[1]
        if len(code) == 1:
            return _CONTROLS.get(code, code)
        number = int(code[1:], 16)
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            raise RowError(f"{name} has the escape \\{code}, which is no character")
        return chr(number)

    return _ESCAPE.sub(decoded, written) if "\\" in written else written


# --- many lines at a time ------------------------------------------------------------------------------

_PLAIN_IRI = r'https?:[^\x00-\x20<>"{}|^`\\]*'
# The id of a literal is then the literal as it stands: no escape, language in lower case, no type that is left out.
_PLAIN_LITERAL = rf'"[^"\\\r\n]*"(?:@[a-z]+(?:-[a-z0-9]+)*|\^\^<{_PLAIN_IRI}>)?'
_PLAIN_STATEMENT = (
    rf"^<(?P<head>{_PLAIN_IRI})> <(?P<relation>{_PLAIN_IRI})> "
    rf"(?:<(?P<iri>{_PLAIN_IRI})>|(?P<literal>{_PLAIN_LITERAL})) \.$"
)


def _plain_statements(block: LineBlock) -> tuple[Block, np.ndarray]:
    """(triples of the lines `<http..> <http..> O .`, the other rows), O an IRI of http or a literal without escapes.

    One space between the parts and none behind the full stop; IRIs and literals of at most 1,000 bytes.
    """
    rows = np.flatnonzero(~block.alone)
    (lines,) = cut_out(block.data, np.stack([block.start[rows], block.end[rows]], 1), (0,))
    parts = pc.extract_regex(lines, _PLAIN_STATEMENT)
    good = np.asarray(parts.is_valid())
    head, relation, iri, tail = (
        pc.struct_field(parts, name).fill_null("") for name in ("head", "relation", "iri", "literal")
    )
    good &= ~np.asarray(pc.ends_with(tail, f'"^^<{STRING}>'))
    tail = pc.if_else(pc.equal(iri, ""), tail, iri)
    for part in (head, relation, tail):
        good &= np.asarray(pc.binary_length(part)) <= MAX_ID_CHARS
    found = Block(batch_of(TRIPLES.schema, head, relation, tail, text_of(None, len(rows)), block.number[rows]))
    return found.take(np.flatnonzero(good)), np.setdiff1d(np.arange(len(block.start)), rows[good], assume_unique=True)
