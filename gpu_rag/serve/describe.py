"""Descriptions: the methods of a server, its index, a passage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpu_rag.errors import MissingLayer
from gpu_rag.index.index import Index
from gpu_rag.serve.live import Live
from gpu_rag.serve.refusal import Refusal

_LINE = re.compile(r"gpu-rag index .*? --for [\w-]+")
_NO_LLM = "a language model that can take part: start the server with --set models.llm=MODEL"


def methods(live: Live) -> list[dict[str, Any]]:
    """Every method: whether it retrieves and answers here, why not, the line that builds what it lacks, and its
    parameters as they are set."""
    found: list[dict[str, Any]] = []
    for name, lack in live.lacking.items():
        answers, line = name in live.answering, None
        missing = str(lack) if lack is not None else None if answers else _NO_LLM
        if isinstance(lack, MissingLayer):
            missing, line = f"{lack.what}: {lack.given}", _LINE.search(lack.do or "")
        params = vars(live.engine.params(name)) if lack is None else {}
        found.append({"method": name, "retrieves": lack is None, "answers": answers, "missing": missing})
        found[-1].update(run=line[0] if line else None, params=params)
    return found


def index(live: Live) -> dict[str, Any]:
    """The content of the index, and the models that answer."""
    index = live.engine.index
    return {
        "index": Path(index.path).resolve().name,
        "digest": index.manifest.digest(),
        "layers": list(index.layers),
        "counts": index.counts(),
        "sources": index.manifest.sources,
        "models": {"embedder": index.manifest.model("embedder"), "llm": live.llm},
        "reader_passages": live.engine.settings.reader.passages,
    }


class Passages:
    """The passages of an index by id. Everything is loaded when this is made."""

    def __init__(self, index: Index):
        self._index, self._rows = index, {name: row for row, name in enumerate(index.passage_ids)}
        if self._rows:
            index.places([0])

    def __call__(self, name: str) -> dict[str, Any]:
        """The passage of an id, and its place. Raises Refusal (404)."""
        row = self._rows.get(name)
        if row is None:
            raise Refusal(404, "no such passage", given=name[:80])
        (found,) = self._index.passages.take([row]).to_pylist()
        file, place = self._index.places([row])[0]
        kept = {key: found[key] for key in ("doc_id", "title", "text", "start", "end")}
        return {"passage_id": name, **kept, "file": file, "place": place}
