"""Passages of a retrieval with the metadata that retrievers of other libraries carry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_rag.api.indexes import Index
from gpu_rag.errors import GpuRagError
from gpu_rag.report.answers import Result
from gpu_rag.types import Evidence

OWN = ("passage_id", "title", "score", "file", "start", "end")


def opened(index: Index | Path | str) -> Index:
    """The index, opened if its folder is given. Raises the errors of `Index.open`."""
    return index if isinstance(index, Index) else Index.open(index)


def passages(index: Index, result: Result) -> Iterator[tuple[Evidence, dict[str, Any]]]:
    """(passage, metadata) for each passage of a result, best first. Raises GpuRagError if the question failed.

    The metadata holds doc_id and OWN, and the metadata of the document, except equal names.
    """
    if result.error is not None:
        raise GpuRagError(result.error["message"], given=result.error["type"])
    for item in result.evidence:
        own = {name: getattr(item, name) for name in OWN}
        doc_id = index.passage_doc_ids[index.rows_of_passages[item.passage_id]]
        yield item, {**item.metadata, **own, "doc_id": doc_id}
