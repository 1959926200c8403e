"""Readers of triples: tab-separated, RDF or Parquet. Every row becomes a triple or a Reject."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpu_rag.sources.formats import TABLE_SUFFIXES, TSV_SUFFIXES, reader_of
from gpu_rag.sources.knowledge_graph.blocks import Block, Reader, read_table
from gpu_rag.sources.knowledge_graph.rdf import RDF_FORMATS
from gpu_rag.sources.knowledge_graph.triples import TRIPLES, read_tsv
from gpu_rag.sources.rows import LIMITS, Limits

ACCEPTED = (
    ".tsv of head, relation, tail; RDF as .nt, .nq, .ttl, .trig, .rdf, .owl, .xml or .jsonld (these also as .gz); "
    ".parquet of head, relation, tail"
)
FORMATS: dict[tuple[str, ...], Reader] = {
    TSV_SUFFIXES: read_tsv,
    TABLE_SUFFIXES: partial(read_table, TRIPLES),
    **RDF_FORMATS,
}


def read_kg_blocks(path: Path, limits: Limits = LIMITS) -> Iterator[Block]:
    """Triples of `path` in order, in blocks (`TRIPLES`), with a Reject for each row that cannot be used.

    - .tsv, .tsv.gz: head, relation, tail and, if known, provenance between tabs; a first line that names the
      columns is skipped.
    - .nt, .nq (N-Triples, N-Quads): one statement per line; .ttl, .trig (Turtle, TriG), .rdf, .owl, .xml (RDF/XML),
      .jsonld (JSON-LD): as whole documents; all also as .gz: see `rdf`. The name of a graph is its provenance.
    - .parquet: columns head, relation, tail, or subject, predicate, object, or src, relation, dst, of strings (ends may
      be integers), and provenance.
    An id has 1 to 1,000 characters, not only white space. Repeated triples are not removed. Rows in the usual form are
    checked and cut by array operations, all others one by one.

    Rows and files above the limits are Rejects.
    Raises BadInput at once for a missing path or an unknown type. Memory: some 20 MB for blocks of 4 MiB, or 65,536
    rows of a table.
    """
    return reader_of(path, FORMATS, "the file of triples", ACCEPTED)(path, limits)
