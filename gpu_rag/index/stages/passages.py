"""Stage from documents to passages: reads, chunks, and records every row that could not be used."""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import BadInput
from gpu_rag.index import tables
from gpu_rag.index.database import Database, database
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.metadata import FILE as METADATA
from gpu_rag.index.metadata import LANGUAGE, read_metadata, to_text, write_metadata
from gpu_rag.index.removed import has_removed, left_out, removed_params
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.held import HeldDocument, held_readers
from gpu_rag.index.stages.kept import PASSAGE_ID, Kept, carry_for_next, in_order, kept_files
from gpu_rag.index.stages.node_documents import SCHEMAS, Parts, Taken, node_documents
from gpu_rag.index.stages.rejected import Rejects, checked, short_name
from gpu_rag.index.tables import TableWriter
from gpu_rag.index.work import Sources, Work
from gpu_rag.index.workers import TEXTS, Shared
from gpu_rag.models.fingerprint import file_sha256
from gpu_rag.settings import Settings
from gpu_rag.sources.columns import columns_of
from gpu_rag.sources.corpus import files_to_read, is_read_by_file, none_left_out, read_corpus, reader_versions
from gpu_rag.sources.corpus.folder import TEXT_SUFFIXES, unreadable
from gpu_rag.sources.rows import Limits, shown
from gpu_rag.text.chunk import chunk_spans
from gpu_rag.text.language import ENGLISH, language_of
from gpu_rag.types import Document, Reject

_PYTHON_ROWS, _PYTHON_CHARS = 1 << 10, 1 << 26  # documents held as Python objects
_SPANS = pa.list_(pa.int32())
_READ = pa.schema([("language", pa.string()), ("starts", _SPANS), ("ends", _SPANS)])
Row = dict[str, Any]


def packed(rows: Mapping[str, Sequence[Row]]) -> Parts:
    """Rows of tables as columns, by table name; rows of passages also have their `line`."""
    return {name: pa.RecordBatch.from_pylist(list(rows.get(name, ())), schema) for name, schema in SCHEMAS.items()}


def corpus_hash(paths: tuple[Path, ...], left_out: Callable[[str], bool] = none_left_out) -> str:
    """One hash of a corpus: the names of its files, and the bytes of the files that are read."""
    return _hash_of(paths, lambda path: files_to_read(path, left_out))


def file_hashes(sources: Sources) -> dict[str, str]:
    """{name: sha256} of the corpus, in its order: of each file if files are read one by one, else of each source as a
    whole; named as in rejects. "" for a file whose content is not read."""
    hashes, held, removed = dict[str, str](), {source.path: source.sha256 for source in sources.held}, left_out(sources)
    for path in sources.corpus:
        if path not in held and is_read_by_file(path):
            files = (
                (short_name(shown(path / name), sources.corpus), file) for name, file in files_to_read(path, removed)
            )
            hashes |= {name: _file_hash(file) if file else "" for name, file in files}
        else:
            hashes[short_name(shown(path), sources.corpus)] = held.get(path) or corpus_hash((path,), removed)
    return hashes


def content_hash(paths: tuple[Path, ...]) -> str:
    """One hash of the names and bytes of all files below `paths`, independent of their folder."""
    return _hash_of(paths, _all_files)


def _hash_of(paths: tuple[Path, ...], files_of: Callable[[Path], Iterable[tuple[str, Path | None]]]) -> str:
    total = hashlib.sha256()
    for path in paths:
        if not path.exists():
            raise BadInput("no such corpus", given=path, expected="a file or folder that exists")
        for name, file in files_of(path):
            content = "" if file is None else _file_hash(file)
            total.update(f"{path.name}\0{name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _all_files(path: Path) -> Iterator[tuple[str, Path | None]]:
    if not path.is_dir():
        yield path.name, path
        return
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        yield file.relative_to(path).as_posix(), None if unreadable(file, path) else file


def _file_hash(path: Path) -> str:
    """sha256 of a file; "" if its size is 0, as for files of /proc, or if it cannot be read."""
    try:
        return file_sha256(path) if path.stat().st_size else ""
    except OSError:
        return ""  # the reading stage reports the reason


def read_passages(
    sources: Sources, settings: Settings, taken: Taken | None = None, kept: Collection[str] = ()
) -> Iterator[Parts | Reject]:
    """Passages of the corpus, many documents at a time. A row that cannot be used becomes a Reject with a short file
    name.

    Documents of the nodes of knowledge bases follow, see `node_documents`. taken: gets all ids. kept: names in
    `file_hashes` of files that are left out. Raises BadInput for a corpus that does not exist, and for the first reject
    if `sources.strict`.
    """
    taken = Taken() if taken is None else taken
    return chain(read_documents(sources, settings, taken, kept), node_documents(sources, settings, taken))


def read_documents(
    sources: Sources, settings: Settings, taken: Taken, kept: Collection[str] = ()
) -> Iterator[Parts | Reject]:
    """Passages of the corpus alone, as `read_passages`; adds its ids to `taken`."""
    if not sources.corpus and not sources.named:
        raise BadInput("no corpus given", expected="one or more files or folders, or --kg, --skb, --source")
    limits = Limits(settings.index.max_document_chars, columns=columns_of(settings.index.columns), part=sources.part)
    paths = [path for path in sources.corpus if short_name(shown(path), sources.corpus) not in kept]
    removed = left_out(sources)
    skipped = (lambda file: removed(file) or short_name(file, sources.corpus) in kept) if kept else removed
    corpus = read_corpus(paths, limits, skipped, held_readers(sources)) if paths else ()
    cut: dict[str, Any] = {"chunk_words": settings.index.chunk_words, "overlap_words": settings.index.overlap_words}
    with Shared(read_texts, settings, **cut) as read:
        for block in _blocks(corpus, sources.strict):
            rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
            texts = ["" if isinstance(row, Reject | HeldDocument) else row.text for row in block]
            for row, about in zip(block, read(pa.record_batch([texts], TEXTS)).to_pylist()):
                if has_removed(sources, row.id):
                    taken.documents.add(row.id)
                    continue
                if isinstance(row, Document):
                    passages = _split(row, [*zip(about["starts"], about["ends"])])
                    ids = [passage["id"] for passage in passages]
                    if taken.give(row.id, ids):
                        document = {name: getattr(row, name) for name in tables.DOCUMENTS.names}
                        language = row.language if isinstance(row, HeldDocument) else about["language"]
                        more = {"metadata": to_text(row.metadata), "language": language}
                        rows["documents"].append({**document, "file": short_name(row.file, sources.corpus), **more})
                        rows["passages"] += passages
                        rows["origins"].append({"document": row.id, "source": source_of(row.file, sources), "node": ""})
                        continue
                    # "a" in chunks collides with a document "a#1"
                    twice = next(id for id in ids if id in taken.passages)
                    reason = f"{PASSAGE_ID}{twice!r} is that of another document's passage"
                    row = Reject(row.file, row.line, reason, row.id)
                yield checked(row, sources.strict, sources.corpus)
            yield packed(rows)


def _blocks(rows: Iterable[Document | Reject], strict: bool) -> Iterator[list[Document | Reject]]:
    """The rows, some at a time; the last block may be empty. strict: a reject ends its block, so that no further row is
    read."""
    block, n_chars = list[Document | Reject](), 0
    for row in rows:
        block.append(row)
        n_chars += len(row.text) if isinstance(row, Document) else 0
        if len(block) == _PYTHON_ROWS or n_chars > _PYTHON_CHARS or (strict and isinstance(row, Reject)):
            yield block
            block, n_chars = [], 0
    yield block


def read_texts(texts: pa.RecordBatch, chunk_words: int, overlap_words: int) -> pa.RecordBatch:
    """The language of each text, and the spans of its passages."""
    lines = texts["text"].to_pylist()
    spans = [chunk_spans(line, chunk_words, overlap_words) for line in lines]
    starts, ends = ([[span[k] for span in of_text] for of_text in spans] for k in (0, 1))
    return pa.record_batch([[*map(language_of, lines)], starts, ends], _READ)


def source_of(file: str, sources: Sources) -> str:
    """Name of the source of kind documents that a file belongs to; "documents" for a corpus without a name."""
    for source in sources.of_kind("documents"):
        if file == shown(source.path) or file.startswith(os.path.join(shown(source.path), "")):
            return source.name
    return "documents"


def are_of_nodes(folder: Path, documents: pa.ChunkedArray) -> np.ndarray:
    """bool[n]: whether each of n documents, by id, is the text of a node. folder: folder of the stage `passages`."""
    if not (folder / "origins.parquet").exists():
        return np.zeros(len(documents), bool)
    origins = tables.read_table(folder / "origins.parquet", ORIGINS)
    of_nodes = origins["document"].filter(pc.not_equal(origins["node"], ""))
    return pc.is_in(documents, value_set=tables.whole_text(of_nodes).cast(documents.type)).to_numpy()


def are_english(folder: Path, documents: pa.ChunkedArray) -> np.ndarray:
    """bool[n]: whether each of n documents, by id, is in English, or in a language that is not known. folder: of the
    stage `passages`."""
    others = pa.array(languages_of(folder), documents.type)
    return ~pc.is_in(documents, value_set=others).to_numpy()


def languages_of(folder: Path) -> dict[str, str]:
    """{id: language} of the documents in other languages than English. folder: folder of the stage `passages`."""
    if not (folder / METADATA).exists():
        return {}
    ids = tables.read_table(folder / "documents.parquet", tables.DOCUMENTS, ["id"])["id"]
    about = read_metadata(folder / METADATA, len(ids))
    if LANGUAGE not in about.column_names:
        return {}
    languages = about[LANGUAGE].cast(pa.string())
    others = pc.fill_null(pc.not_equal(languages, ENGLISH), False)
    return dict(zip(ids.filter(others).to_pylist(), languages.filter(others).to_pylist()))


def no_passage(n_rejects: int, first: Reject | None) -> BadInput:
    """Error for a corpus without usable rows."""
    reason = f"{n_rejects} rows rejected, the first: {first.file}:{first.line} {first.reason}" if first else "no rows"
    return BadInput("the corpus holds no passage", given=reason)


def _split(document: Document, spans: Sequence[tuple[int, int]]) -> list[Row]:
    """Passages of a document. line: where a passage begins in a text file, from 1; 0 in a source of rows or pages."""
    if isinstance(document, HeldDocument):
        numbers = [f"#{number}" for number in range(len(document.passages))] if len(document.passages) > 1 else [""]
        parts = zip(numbers, document.passages)
        return [{**part, "id": f"{document.id}{number}", "doc_id": document.id} for number, part in parts]
    is_text_file = not document.line and document.file.lower().endswith(TEXT_SUFFIXES)
    offsets = [offset for offset, _ in document.headings] if len(spans) > 1 else []
    rows, line, counted = [], 1, 0
    for number, (start, end) in enumerate(spans):
        line, counted = line + document.text.count("\n", counted, start), start
        row = {
            "id": document.id if len(spans) == 1 else f"{document.id}#{number}",
            "doc_id": document.id,
            "title": _title(document, offsets, start, end),
            "text": document.text[start:end],
            "start": start,
            "end": end,
            "line": line if is_text_file else 0,
        }
        rows.append(row)
    return rows


_HEADING_CHARS = 100
_WORD = re.compile(r"\w+")
_BRACKETS = str.maketrans("", "", "()")


def _n_words(text: str) -> int:
    return len(_WORD.findall(text))


def _title(document: Document, offsets: Sequence[int], start: int, end: int) -> str:
    """Title of a passage: the document's, and in brackets the heading above it, or the first and last one in it.

    A final bracket is not part of a name, so all passages of a document are about the same thing.
    """
    first, last = bisect_right(offsets, start), bisect_right(offsets, end - 1)
    while last > first and _n_words(document.text[offsets[last - 1] : end]) <= _n_words(document.headings[last - 1][1]):
        last -= 1  # nothing of this section but its heading
    inside = (document.headings[n - 1][1] for n in range(first or 1, last + 1))
    headings = [words.translate(_BRACKETS)[:_HEADING_CHARS].strip() for words in inside]
    headings = [words for words in headings if words and words.casefold() != document.title.casefold()]
    words = " - ".join(dict.fromkeys((*headings[:1], *headings[-1:])))
    return f"{document.title} ({words})" if words else document.title


def keep_passages(db: Database, parts: Iterable[Parts]) -> None:
    """Insert the rows of all tables into a database."""
    for name, schema in SCHEMAS.items():
        db.create(name, schema)
    for part in parts:
        for name in SCHEMAS:
            db.add(name, part[name])


def write_passages(db: Database, folder: Path, *, origins: bool) -> dict[str, int]:
    """Write the tables `documents`, `passages`, `lines`, `metadata` if there is some, and `origins` if wanted, sorted
    by id.

    If not all documents are English, their metadata get the column LANGUAGE. Returns the numbers of documents in other
    languages, as language_CODE.
    """
    languages = Counter[str]()
    for batch in db.batches("SELECT language FROM documents WHERE language NOT IN ('', 'en') ORDER BY id"):
        languages.update(batch["language"].to_pylist())
    if languages or db.count("documents WHERE metadata <> ''"):
        rows = db.batches("SELECT metadata, language FROM documents ORDER BY id")
        given = (row for batch in rows for row in zip(batch["metadata"].to_pylist(), batch["language"].to_pylist()))
        write_metadata(folder / METADATA, [_with_language(*row) if languages else row[0] for row in given])
    _write(db, "documents", "id", {folder / "documents.parquet": tables.DOCUMENTS})
    files = {folder / "passages.parquet": tables.PASSAGES, folder / "lines.parquet": tables.LINES}
    _write(db, "passages", "id", files)
    if origins:
        _write(db, "origins", "document", {folder / "origins.parquet": ORIGINS})
    return {f"language_{code}": n for code, n in sorted(languages.items())}


def _with_language(metadata: str, language: str) -> str:
    given = json.loads(metadata) if metadata else {}
    return to_text({LANGUAGE: language, **given} if language else given)


def _write(db: Database, name: str, key: str, files: Mapping[Path, pa.Schema]) -> None:
    """Write columns of a table to files, in the order of its unique key."""
    columns = ", ".join(f'"{column}"' for schema in files.values() for column in schema.names)
    with ExitStack() as stack:
        writers = [(stack.enter_context(TableWriter(path, schema)), schema) for path, schema in files.items()]
        for batch in db.batches(f"SELECT {columns} FROM {name} ORDER BY {key}"):
            for writer, schema in writers:
                writer.add([batch[column] for column in schema.names])


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    index = settings.index
    named = sources.of_kind("skb", "documents")
    more: dict[str, Any] = {}
    if named:
        more["named"] = [[s.name, s.kind, content_hash((s.path,))] for s in named]
    if sources.part[1] > 1:
        more["part"] = list(sources.part)
    if columns := columns_of(index.columns):
        more["columns"] = [list(pair) for pair in columns]
    held, removed = {source.path: source for source in sources.held}, left_out(sources)
    readers = reader_versions([path for path in sources.corpus if path not in held], removed)
    for source in sources.held:
        readers |= source.readers
    hashes = (held[path].sha256 if path in held else corpus_hash((path,), removed) for path in sources.corpus)
    return {
        **more,
        **removed_params(sources),
        "corpus": [[path.name, sha256] for path, sha256 in zip(sources.corpus, hashes)],
        "readers": readers,
        "chunk_words": index.chunk_words,
        "overlap_words": index.overlap_words,
        "max_document_chars": index.max_document_chars,
    }


@stage("passages", version=15, params=_params, size="characters")
def passages_stage(work: Work) -> dict[str, int]:
    """Tables `documents`, `passages` and `lines` (of each passage), and rejects.jsonl. With named sources of documents
    or knowledge bases also `origins`, the source of each document; if documents have metadata, also `metadata`.

    Reads the corpus, but for files that an earlier run read, see `kept_files`. Raises BadInput if nothing in it
    could be used; a part of it may be empty. Memory: `index.memory`, and about 200 bytes a document and a passage that
    are read, for their unique ids.
    """
    hashes = file_hashes(work.sources)
    kept = kept_files(work, hashes)
    counts = _made(work, hashes, kept) if kept else None
    if counts is None:
        counts = _made(work, hashes, None)
        assert counts is not None
    return counts


def _made(work: Work, hashes: dict[str, str], kept: Kept | None) -> dict[str, int] | None:
    """Write the tables, and carry what the next run may take over. None if kept documents and new ones claim one id, so
    that all must be read."""
    sources, taken = work.sources, Taken()
    with Rejects(work) as rejects, database(work) as db:

        def parts() -> Iterator[Parts]:
            items = read_passages(sources, work.settings, taken, kept.names if kept else ())
            for item in in_order(kept, items) if kept else items:
                if isinstance(item, Reject):
                    rejects.write(item)
                else:
                    yield item
                    work.progress.advance(item["documents"].num_rows)

        keep_passages(db, parts())
        n_read = db.count("documents")
        if kept and not kept.add_to(db, sources, taken):
            return None
        carry_for_next(work, hashes, db)
        n_documents, n_passages = db.count("documents"), db.count("passages")
        work.report.reused = n_documents - n_read
        may_be_none = sources.part[1] > 1 or (sources.named and not sources.corpus)
        if not n_passages and not may_be_none:
            raise no_passage(rejects.n, rejects.first)
        languages = write_passages(db, work.out, origins=bool(sources.of_kind("skb", "documents")))
    return {"documents": n_documents, "passages": n_passages, "rejects": rejects.n, **languages}
