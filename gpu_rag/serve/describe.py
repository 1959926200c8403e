"""What a server can say of itself: its methods, its index, a passage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpu_rag.errors import MissingLayer, UsageError
from gpu_rag.index.index import Index
from gpu_rag.serve.live import Live
from gpu_rag.serve.refusal import Refusal

_LINE = re.compile(r"gpu-rag index .*? --for [\w-]+")


def methods(live: Live) -> list[dict[str, Any]]:
    """Of every method: whether it retrieves and answers here, why not, the line that builds what it lacks, and its
    parameters as they are set."""
    return [_method(live, name, lack) for name, lack in live.lacking.items()]


def retrieving(live: Live) -> list[str]:
    """The methods that retrieve here."""
    return [name for name, lack in live.lacking.items() if lack is None]


def _method(live: Live, name: str, lack: UsageError | None) -> dict[str, Any]:
    answers = name in live.answering
    missing, run = _missing(lack)
    if lack is None and not answers:
        missing = "a language model that can take part: start the server with --set models.llm=MODEL"
    return {
        "method": name,
        "retrieves": lack is None,
        "answers": answers,
        "missing": missing,
        "run": run,
        "params": vars(live.engine.params(name)) if lack is None else {},
    }


def _missing(lack: UsageError | None) -> tuple[str | None, str | None]:
    """(what is missing, the line to run), both None where nothing is."""
    if not isinstance(lack, MissingLayer):
        return (None if lack is None else str(lack)), None
    line = _LINE.search(lack.do or "")
    return f"{lack.what}: {lack.given}", line[0] if line else None


def index(live: Live) -> dict[str, Any]:
    """What is in the index, and which models answer."""
    engine = live.engine
    held = engine.index
    return {
        "index": Path(held.path).resolve().name,
        "digest": held.manifest.digest(),
        "layers": list(held.layers),
        "counts": held.counts(),
        "sources": held.manifest.sources,
        "models": {"embedder": held.manifest.model("embedder"), "llm": live.llm},
        "reader_passages": engine.settings.reader.passages,
    }


class Passages:
    """Looks passages up by id. Everything is loaded when this is made."""

    def __init__(self, held: Index):
        self._index, self._rows = held, {name: row for row, name in enumerate(held.passage_ids)}
        if self._rows:
            held.places([0])

    def __call__(self, name: str) -> dict[str, Any]:
        """The passage of an id, and its place. Raises Refusal (404)."""
        row = self._rows.get(name)
        if row is None:
            raise Refusal(404, "no such passage", given=name[:80])
        (found,) = self._index.passages.take([row]).to_pylist()
        file, place = self._index.places([row])[0]
        return {
            "passage_id": name,
            "doc_id": found["doc_id"],
            "title": found["title"],
            "text": found["text"],
            "start": found["start"],
            "end": found["end"],
            "file": file,
            "place": place,
        }
