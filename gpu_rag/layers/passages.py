"""Documents -> passages: reading, chunking, and a record of every row that could not be used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index import tables
from gpu_rag.index.build import Sources, Work
from gpu_rag.index.folder import sha256_file
from gpu_rag.index.kb_tables import ORIGINS
from gpu_rag.settings import Settings
from gpu_rag.sources.corpora import read_corpus, reader_versions
from gpu_rag.sources.rows import shown
from gpu_rag.sources.skb import read_nodes, skb_files
from gpu_rag.text.chunk import chunk_spans
from gpu_rag.types import Document, Reject

TEXT_SUFFIXES = (".txt", ".md")  # files whose lines are lines of the document


def content_hash(paths: tuple[Path, ...]) -> str:
    """One hash of the names and bytes of all files below `paths`, whatever folder they lie in."""
    total = hashlib.sha256()
    for path in paths:
        if not path.exists():
            raise BadInput("no such corpus", given=path, expected="a file or folder that exists")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            total.update(f"{path.name}\0{name}\0{sha256_file(file)}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def reject_line(reject: Reject) -> str:
    """A reject as one JSON line."""
    return json.dumps(vars(reject), ensure_ascii=True, sort_keys=True) + "\n"


def stop_if_strict(strict: bool, reject: Reject) -> None:
    """Raises BadInput for a reject when bad rows are to stop the run."""
    if strict:
        raise BadInput(
            f"bad row: {reject.reason}",
            given=f"{reject.file}:{reject.line}",
            do="mend the row, or run without --strict",
        )


def short_name(file: str, paths: tuple[Path, ...]) -> str:
    """A source file's name from its corpus argument on, so that an index does not depend on where the corpus lies."""
    for path in paths:
        parent = os.path.join(path.parent, "")
        if file.startswith(parent):
            return file[len(parent) :]
    return file


def short_reject(reject: Reject, paths: tuple[Path, ...]) -> Reject:
    """A reject with short names, also in a reason that says where an id was used before."""
    reason = reject.reason
    for path in paths:
        reason = reason.replace(f" in {path}", f" in {path.name}")
    return replace(reject, file=short_name(reject.file, paths), reason=reason)


Row = dict[str, Any]


@dataclass(frozen=True)
class Pieces:
    """One document as a row of `documents`, and its passages as rows of `passages`, each with its `line` too.

    source: the name of its source, where sources have names; node: the id that the document's node has there, or "".
    """

    document: Row
    passages: list[Row]
    source: str = ""
    node: str = ""


def read_passages(sources: Sources, settings: Settings) -> Iterator[Pieces | Reject]:
    """The corpus cut into passages, document by document; what cannot be used as a Reject with a short file name.

    After it the documents of the nodes of knowledge bases: their id is the node's, "SOURCE:ID" where that is taken.
    What is wrong with other nodes is left to the layer `kb`, which reads them all.
    Raises BadInput for a corpus that does not exist, and for the first reject where `sources.strict`.
    """
    if not sources.corpus and not sources.named:
        raise BadInput("no corpus given", expected="one or more files or folders, or --kg, --skb, --source")
    taken: set[str] = set()
    documents: set[str] = set()
    for row in (
        read_corpus(sources.corpus, max_document_chars=settings.index.max_document_chars) if sources.corpus else ()
    ):
        if isinstance(row, Document):
            parts = _split(row, settings)
            twice = next((part["id"] for part in parts if part["id"] in taken), None)
            if twice is None:
                taken.update(part["id"] for part in parts)
                documents.add(row.id)
                yield Pieces(_row_of(row, sources.corpus), parts, source_of(row.file, sources))
                continue
            # "a" in chunks and a document "a#1"
            reason = f"its passage id {twice!r} is that of another document's passage"
            row = Reject(row.file, row.line, reason, row.id)
        stop_if_strict(sources.strict, row)
        yield short_reject(row, sources.corpus)
    yield from _node_documents(sources, settings, taken, documents)


def _row_of(document: Document, paths: tuple[Path, ...]) -> Row:
    file = short_name(document.file, paths)
    return {
        "id": document.id,
        "title": document.title,
        "file": file,
        "line": document.line,
        "pages": document.pages,
    }


def source_of(file: str, sources: Sources) -> str:
    """The name of the source of kind documents that a file belongs to; "documents" for a corpus without a name."""
    for source in sources.of_kind("documents"):
        if file == shown(source.path) or file.startswith(os.path.join(shown(source.path), "")):
            return source.name
    return "documents"


def _node_documents(
    sources: Sources, settings: Settings, taken: set[str], documents: set[str]
) -> Iterator[Pieces | Reject]:
    """The documents of the nodes of knowledge bases."""
    for source in sources.of_kind("skb"):
        path, limit = skb_files(source.path).nodes, settings.index.max_document_chars
        for node in read_nodes(source.path, max_document_chars=limit):
            if isinstance(node, Reject) or not node.text:
                continue
            for id in (node.id, f"{source.name}:{node.id}"):
                parts = _split(Document(id, node.name, node.text), settings)
                if id not in documents and taken.isdisjoint(part["id"] for part in parts):
                    break
            else:
                reject = Reject(shown(path), node.line, "its ids as a document are taken by other documents", node.id)
                stop_if_strict(sources.strict, reject)
                yield short_reject(reject, (source.path,))
                continue
            taken.update(part["id"] for part in parts)
            documents.add(id)
            document = Document(id, node.name, node.text, shown(path), node.line)
            yield Pieces(_row_of(document, (source.path,)), parts, source.name, node.id)


def no_passage(n_rejects: int, first: Reject | None) -> BadInput:
    """The error for a corpus of which nothing could be used."""
    reason = f"{n_rejects} rows rejected, the first: {first.file}:{first.line} {first.reason}" if first else "no rows"
    return BadInput("the corpus holds no passage", given=reason)


def _split(document: Document, settings: Settings) -> list[Row]:
    """The passages of a document. line: where it begins in a text file, from 1; 0 in a source of rows or pages."""
    spans = chunk_spans(document.text, settings.index.chunk_words, settings.index.overlap_words)
    is_text_file = not document.line and document.file.lower().endswith(TEXT_SUFFIXES)
    rows, line, counted = [], 1, 0
    for number, (start, end) in enumerate(spans):
        line, counted = line + document.text.count("\n", counted, start), start
        row = {
            "id": document.id if len(spans) == 1 else f"{document.id}#{number}",
            "doc_id": document.id,
            "title": document.title,
            "text": document.text[start:end],
            "start": start,
            "end": end,
            "line": line if is_text_file else 0,
        }
        rows.append(row)
    return rows


def write_passages(folder: Path, documents: list[Row], passages: list[Row]) -> None:
    """The tables `documents`, `passages` and `lines`, sorted by id."""
    documents = sorted(documents, key=lambda row: row["id"])
    passages = sorted(passages, key=lambda row: row["id"])
    tables.write_rows(folder / "documents.parquet", tables.DOCUMENTS, documents)
    tables.write_rows(folder / "passages.parquet", tables.PASSAGES, passages)
    tables.write_rows(folder / "lines.parquet", tables.LINES, passages)


class Passages:
    """Tables `documents`, `passages` and `lines` (of each passage), and rejects.jsonl; with named sources of documents
    or knowledge bases `origins`, the source of each document."""

    name = "passages"
    version = 2
    needs: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """What the output depends on."""
        index = settings.index
        named = sources.of_kind("skb", "documents")
        more = {"named": [[s.name, s.kind, content_hash((s.path,))] for s in named]} if named else {}
        return {
            **more,
            "corpus": content_hash(sources.corpus),
            "readers": reader_versions(sources.corpus),
            "chunk_words": index.chunk_words,
            "overlap_words": index.overlap_words,
            "max_document_chars": index.max_document_chars,
        }

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """No model."""
        return ()

    def run(self, work: Work) -> dict[str, int]:
        """Reads the corpus. Raises BadInput when nothing in it could be used."""
        documents, n_rejects, first = [], 0, None
        passages: list[Row] = []
        origins: list[Row] = []
        with (work.out / "rejects.jsonl").open("w", encoding="utf-8") as rejects:
            for found in read_passages(work.sources, work.settings):
                if isinstance(found, Reject):
                    rejects.write(reject_line(found))
                    n_rejects, first = n_rejects + 1, first or found
                    continue
                documents.append(found.document)
                passages.extend(found.passages)
                origins.append({"document": found.document["id"], "source": found.source, "node": found.node})
                work.progress.advance(1)
        if not passages and (work.sources.corpus or not work.sources.named):
            raise no_passage(n_rejects, first)
        write_passages(work.out, documents, passages)
        if work.sources.of_kind("skb", "documents"):
            origins.sort(key=lambda row: row["document"])
            tables.write_rows(work.out / "origins.parquet", ORIGINS, origins)
        return {"documents": len(documents), "passages": len(passages), "rejects": n_rejects}
