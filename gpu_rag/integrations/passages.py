"""Passages of a retrieval with the metadata that retrievers of other libraries carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_rag.api.indexes import Index
from gpu_rag.errors import GpuRagError
from gpu_rag.report.answers import Result
from gpu_rag.types import Evidence

PROMPTED = "title"  # the only metadata that a prompt should show beside the text


def opened(index: Index | Path | str) -> Index:
    """The index, opened if its folder is given. Raises the errors of `Index.open`."""
    return index if isinstance(index, Index) else Index.open(index)


def passages(index: Index, result: Result) -> list[tuple[Evidence, dict[str, Any]]]:
    """(passage, metadata) for each passage of a result, best first.

    The metadata holds passage_id, doc_id, title, score, file, start and end, and that of the document under its own
    names; of equal names, the former win. Raises GpuRagError if the question failed.
    """
    if result.error is not None:
        raise GpuRagError(result.error["message"], given=result.error["type"])
    own = ("passage_id", "title", "score", "file", "start", "end")
    doc_ids = index.passage_doc_ids
    return [
        (
            item,
            {
                **item.metadata,
                **{name: getattr(item, name) for name in own},
                "doc_id": doc_ids[index.rows_of_passages[item.passage_id]],
            },
        )
        for item in result.evidence
    ]
