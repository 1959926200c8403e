"""A corpus in any of the accepted formats to documents. Every row in is a Document or a Reject out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import repeat
from pathlib import Path

from gpu_rag.errors import BadInput
from gpu_rag.sources.corpus.folder import DOCUMENT_SUFFIXES, is_document_name, list_files, read_file, read_folder
from gpu_rag.sources.corpus.multihop import contexts_of, is_multihop
from gpu_rag.sources.corpus.parser import Parser, kind_of, require_reader, versions_for
from gpu_rag.sources.formats import (
    ARRAY_SUFFIXES,
    LINES_SUFFIXES,
    TABLE_SUFFIXES,
    has_suffix,
    reader_of,
    refuse_leading_out,
)
from gpu_rag.sources.json_rows import Row, read_rows
from gpu_rag.sources.parquet import read_parquet
from gpu_rag.sources.rows import (
    LIMITS,
    Limits,
    RowError,
    SeenIds,
    document_text,
    metadata_of,
    optional_string,
    passage_id,
    row_id,
    shown,
)
from gpu_rag.types import Document, Reject

ACCEPTED = (
    "a folder of .txt / .md / .pdf / .html files, a folder with corpus.jsonl (BEIR), .txt, .md, .pdf, .html, .htm, "
    ".jsonl, .jsonl.gz, .parquet, or .json / .json.gz of HotpotQA, 2Wiki, MuSiQue or HippoRAG"
)
# True: a document that other rows may repeat (the contexts of questions), which is then no duplicate.
_Found = tuple[Document | Reject, bool]
_Reader = Callable[[Limits, Parser], Iterator[_Found]]


def read_corpus(paths: Sequence[Path], limits: Limits = LIMITS) -> Iterator[Document | Reject]:
    """The documents of all `paths`, sorted by path, and a Reject for each row that cannot be used.

    Formats and ids:
    - folder: every .txt, .md, .pdf, .html and .htm file below it is a document, id = relative path; files of other
      types are Rejects; names that begin with "." are left out. A folder with corpus.jsonl or corpus.jsonl.gz (BEIR)
      is that file alone. .pdf and .html are parsed in a process of their own, see `parser`; it ends with the iterator.
    - rows {id or _id, title, text}: .jsonl, .jsonl.gz, .parquet, a JSON array (HippoRAG's corpus files). title may be
      missing; without an id it is "p_" + sha1(title + newline + text)[:12]; other keys are metadata.
    - HotpotQA, 2Wiki, MuSiQue (array or lines): the contexts of all questions, each passage once, ids as above.
    Of rows with one id the first is kept, across all paths; the others are Rejects that say where it was. Order of
    paths, files and ids does not depend on the locale. `Document.text` is the source's text, unchanged (but of .pdf and
    .html, see `pdf` and `html`).

    What is larger than the limits is a Reject.
    Raises at once BadInput for a missing path or an unknown type, and MissingBackend for a .pdf or .html file without
    the documents extra (in a folder it is a Reject); whatever is wrong inside a file is a Reject.
    Memory: one row (one file for .json), and about 150 bytes for each id seen.
    """
    if not paths:
        raise BadInput("there is no corpus to read", given="no path", expected=ACCEPTED)
    readers = [_reader(path) for path in sorted(map(Path, paths), key=os.fsencode)]
    return _unique(readers, limits)


def reader_versions(paths: Sequence[Path]) -> dict[str, str]:
    """{library: version or "absent"} for each library that parses files of this corpus: the documents depend on it."""
    names: list[str] = []
    for path in paths:
        if not path.is_dir():
            names.append(path.name)
        elif not _row_files(path):
            names += (os.fsdecode(name) for name in list_files(path))
    return versions_for(names)


def _unique(readers: list[_Reader], limits: Limits) -> Iterator[Document | Reject]:
    seen = SeenIds()
    with closing(Parser(limits)) as parser:
        for found, repeatable in (found for reader in readers for found in reader(limits, parser)):
            same, reason = (True, "") if isinstance(found, Reject) else seen.claim_document(found)
            if not reason:
                yield found
            elif not (same and repeatable):
                yield Reject(found.file, found.line, reason, found.id)


def _reader(path: Path) -> _Reader:
    """The reader of `path`. Raises BadInput where there is none, MissingBackend when its library is not installed."""
    if path.is_dir():
        return _folder_reader(path)
    read = reader_of(path, FORMATS, "the corpus", ACCEPTED)
    if kind_of(path.name):
        require_reader(path.name)
    return partial(read, path)


def _file(path: Path, limits: Limits, parser: Parser) -> Iterator[_Found]:
    return zip(read_file(path, os.fsencode(path.name), limits, parser), repeat(False))


def _rows(path: Path, limits: Limits, parser: Parser) -> Iterator[_Found]:
    for row in read_parquet(path) if has_suffix(path, TABLE_SUFFIXES) else read_rows(path, limits):
        if isinstance(row, Reject):
            yield row, False
        elif is_multihop(row.value):
            yield from zip(_contexts(path, row, limits), repeat(True))
        else:
            yield _document(path, row, limits), False


FORMATS = {DOCUMENT_SUFFIXES: _file, LINES_SUFFIXES + ARRAY_SUFFIXES + TABLE_SUFFIXES: _rows}


def _folder_reader(folder: Path) -> _Reader:
    corpora = _row_files(folder)
    refuse_leading_out(corpora, folder)
    if len(corpora) == 1:
        return _reader(corpora[0])
    if corpora:
        raise BadInput("the folder has two corpora", given=" and ".join(map(str, corpora)), do="give one of the files")
    names = list_files(folder)
    if not any(map(is_document_name, names)):
        raise BadInput("the folder has no document", given=folder, expected=ACCEPTED)
    return lambda limits, parser: zip(read_folder(folder, names, limits, parser), repeat(False))


def _row_files(folder: Path) -> list[Path]:
    """The files of rows that make a folder a BEIR folder."""
    return [path for suffix in LINES_SUFFIXES if (path := folder / f"corpus{suffix}").exists()]


def _document(path: Path, row: Row, limits: Limits) -> Document | Reject:
    id = None
    try:
        id = row_id(row.value, "id", "_id")
        title = optional_string(row.value, "title")
        text = document_text(row.value.get("text"), limits)
    except RowError as error:
        return Reject(shown(path), row.line, str(error), id or "")
    metadata = metadata_of(row.value, ("id", "_id", "title", "text"))
    return Document(id or passage_id(f"{title}\n{text}"), title, text, shown(path), row.line, metadata=metadata)


def _contexts(path: Path, row: Row, limits: Limits) -> Iterator[Document | Reject]:
    contexts = contexts_of(row.value, limits)
    if not contexts:
        yield Reject(shown(path), row.line, "the row has no context")
    for context in contexts:
        if context.problem:
            yield Reject(shown(path), row.line, context.problem)
        else:
            yield Document(context.id, context.title, context.text, shown(path), row.line)
