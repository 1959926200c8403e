"""Lines of N-Triples in the form in which dumps are written, many at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.sources.knowledge_graph.lines import LineBlock, count_between, cut_out
from gpu_rag.sources.knowledge_graph.ntriples import STRING
from gpu_rag.sources.knowledge_graph.triples import TripleBlock
from gpu_rag.sources.rows import MAX_ID_CHARS

_NO_IRI = np.isin(np.arange(256), [*range(0x21), *b'<>"{}|^`\\'])
# The id of a literal is then the literal as it stands: no escape, language in lower case, no type that is left out.
_LITERAL = r'^"[^"\\\r\n]*"(?:@[a-z]+(?:-[a-z0-9]+)*|\^\^<https?://[^\x00-\x20<>"{}|^`\\]*>)?$'
_PLAIN_STRING = f'"^^<{STRING}>'


def plain_statements(block: LineBlock) -> tuple[TripleBlock, np.ndarray]:
    """(triples of the lines `<http..> <http..> O .`, the other rows), O an IRI of http or a literal without escapes.

    One space between the parts and none behind the full stop; IRIs and literals of at most 1,000 bytes.
    """
    raw = np.frombuffer(block.data, np.uint8)
    spaces = np.flatnonzero(raw == 32)
    first = np.searchsorted(spaces, block.start)
    plain = ~block.alone & (np.searchsorted(spaces, block.end) - first >= 3) & (block.end - block.start >= 8)
    rows = np.flatnonzero(plain)
    start, end = block.start[rows], block.end[rows] - 2  # without " ."
    one, two = (spaces[first[rows] + k] if len(rows) else start for k in (0, 1))
    forbidden = _NO_IRI[raw]
    good = (raw[end] == 32) & (raw[end + 1] == 46) & (two + 1 < end)
    good &= _is_iri(raw, forbidden, start, one) & _is_iri(raw, forbidden, one + 1, two)
    quoted = raw[np.minimum(two + 1, len(raw) - 1)] == 34
    good &= quoted | _is_iri(raw, forbidden, two + 1, end)
    rows, start, one, two, end, quoted = (values[good] for values in (rows, start, one, two, end, quoted))
    inner = (~quoted).astype(np.int64)  # brackets stand around an IRI
    bounds = np.stack([start + 1, one - 1, one + 2, two - 1, two + 1 + inner, end - inner], 1)
    head, relation, tail = cut_out(block.data, bounds, (0, 2, 4))
    kept = np.arange(len(rows))
    if quoted.any():
        kept = np.flatnonzero(~quoted | _is_literal(tail))
    found = TripleBlock(head, relation, tail, block.number[rows]).take(kept, [])
    return found, np.setdiff1d(np.arange(len(block.start)), rows[kept], assume_unique=True)


def _is_iri(raw: np.ndarray, forbidden: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """bool[n]: whether `<http...>` or `<https...>` stands there, of at most 1,000 bytes."""
    found = (end - start > len(b"<https://>")) & (end - start <= MAX_ID_CHARS + 2)
    start = np.minimum(start, len(raw) - 1)
    found &= (raw[start] == 60) & (raw[end - 1] == 62)
    for place, char in enumerate(b"http", 1):
        found &= raw[np.minimum(start + place, len(raw) - 1)] == char
    after = np.minimum(start + 5, len(raw) - 1)
    after = np.where(raw[after] == 115, np.minimum(after + 1, len(raw) - 1), after)
    found &= raw[after] == 58
    found &= count_between(forbidden, start + 1, np.maximum(end - 1, start + 1)) == 0
    return found


def _is_literal(tail: pa.LargeStringArray) -> np.ndarray:
    plain = pc.match_substring_regex(tail, _LITERAL)
    named = pc.ends_with(tail, _PLAIN_STRING)
    short = pc.less_equal(pc.binary_length(tail), MAX_ID_CHARS)
    found: np.ndarray = pc.and_(pc.and_not(plain, named), short).to_numpy(zero_copy_only=False)
    return found
