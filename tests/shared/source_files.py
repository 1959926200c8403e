"""Files of rows for the readers of sources, and what they read of them: (rows, rejects)."""

import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.openie import OpenIERow, read_openie
from gpu_rag.sources.questions import QuestionRow, read_questions
from gpu_rag.sources.rows import Limits
from gpu_rag.types import Document, Reject

DOCS = [
    {"id": "a", "title": "Vell", "text": "Vell lies on the Orn."},
    {"id": "b", "title": "Orn", "text": "The Orn is a river.\nIt is long."},
    {"id": "c", "title": "", "text": "Ünïcode 🌊"},
]


def lines(path: Path, rows: Iterable[Any]) -> Path:
    """Writes rows as JSON Lines, those that are texts as they are."""
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    raw = text.encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def _parted(found: Iterable[Any]) -> tuple[list[Any], list[Reject]]:
    rows = list(found)
    return [x for x in rows if not isinstance(x, Reject)], [x for x in rows if isinstance(x, Reject)]


def documents_of(*paths: Path, **limits: Any) -> tuple[list[Document], list[Reject]]:
    return _parted(read_corpus(paths, Limits(**limits)))


def questions_of(path: Path, **limits: int) -> tuple[list[QuestionRow], list[Reject]]:
    return _parted(read_questions(path, Limits(**limits)))


def extractions_of(path: Path, **limits: int) -> tuple[list[OpenIERow], list[Reject]]:
    return _parted(read_openie(path, Limits(**limits)))


def id_of(path: Path, title: str) -> str:
    """The id that the corpus of the same file gives the passage of this title."""
    (found,) = [d.id for d in read_corpus([path]) if isinstance(d, Document) and d.title == title]
    return found


def plain(documents: Iterable[Document]) -> list[tuple[str, str, str]]:
    return [(d.id, d.title, d.text) for d in documents]


def sha(title: str, text: str) -> str:
    return "p_" + hashlib.sha1((title + "\n" + text).encode()).hexdigest()[:12]
