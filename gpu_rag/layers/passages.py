"""Documents -> passages: reading, chunking, and a record of every row that could not be used."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index import tables
from gpu_rag.index.build import Sources, Work
from gpu_rag.index.folder import sha256_file
from gpu_rag.settings import Settings
from gpu_rag.sources.corpora import read_corpus
from gpu_rag.text.chunk import chunk_spans
from gpu_rag.types import Document, Reject


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


class Passages:
    """Table `documents`, table `passages` (sorted by id), and rejects.jsonl."""

    name = "passages"
    version = 1
    needs: tuple[str, ...] = ()

    def params(self, settings: Settings, sources: Sources) -> dict[str, Any]:
        """What the output depends on."""
        index = settings.index
        return {
            "corpus": content_hash(sources.corpus),
            "chunk_words": index.chunk_words,
            "overlap_words": index.overlap_words,
            "max_document_chars": index.max_document_chars,
        }

    def roles(self, settings: Settings) -> tuple[str, ...]:
        """No model."""
        return ()

    def run(self, work: Work) -> dict[str, int]:
        """Reads the corpus. Raises BadInput when nothing in it could be used."""
        if not work.sources.corpus:
            raise BadInput("no corpus given", expected="one or more files or folders")
        documents, n_rejects, first = [], 0, None
        passages: dict[str, dict[str, Any]] = {}
        corpus = work.sources.corpus
        with (work.out / "rejects.jsonl").open("w", encoding="utf-8") as rejects:
            for row in read_corpus(corpus, max_document_chars=work.settings.index.max_document_chars):
                if isinstance(row, Document):
                    parts = self._split(row, work)
                    taken = next((part["id"] for part in parts if part["id"] in passages), None)
                    if taken is not None:  # "a" in chunks and a document "a#1"
                        reason = f"its passage id {taken!r} is that of another document's passage"
                        row = Reject(row.file, row.line, reason, row.id)
                if isinstance(row, Reject):
                    stop_if_strict(work.sources.strict, row)
                    row = short_reject(row, corpus)
                    rejects.write(reject_line(row))
                    n_rejects, first = n_rejects + 1, first or row
                    continue
                file = short_name(row.file, corpus)
                documents.append({"id": row.id, "title": row.title, "file": file, "line": row.line})
                passages.update((part["id"], part) for part in parts)
                work.progress.advance(1)
        if not passages:
            reason = (
                f"{n_rejects} rows rejected, the first: {first.file}:{first.line} {first.reason}"
                if first
                else "no rows"
            )
            raise BadInput("the corpus holds no passage", given=reason)
        tables.write_rows(work.out / "documents.parquet", tables.DOCUMENTS, sorted(documents, key=lambda r: r["id"]))
        tables.write_rows(work.out / "passages.parquet", tables.PASSAGES, [passages[id] for id in sorted(passages)])
        return {"documents": len(documents), "passages": len(passages), "rejects": n_rejects}

    @staticmethod
    def _split(document: Document, work: Work) -> list[dict[str, Any]]:
        index = work.settings.index
        spans = chunk_spans(document.text, index.chunk_words, index.overlap_words)
        return [
            {
                "id": document.id if len(spans) == 1 else f"{document.id}#{number}",
                "doc_id": document.id,
                "title": document.title,
                "text": document.text[start:end],
                "start": start,
                "end": end,
            }
            for number, (start, end) in enumerate(spans)
        ]
