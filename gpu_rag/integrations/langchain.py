"""A retriever for LangChain."""

from __future__ import annotations

from typing import Any

from gpu_rag.errors import needing
from gpu_rag.integrations.passages import opened, passages
from gpu_rag.methods.registry import AUTO
from gpu_rag.report.answers import Result

with needing("this needs langchain-core", "pip install 'gpu-rag[langchain]'"):
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import field_validator


class GpuRagRetriever(BaseRetriever):
    """The best passages of an index as documents, best first; asks no language model.

    index: an `Index` or its folder; method, k, where: as in `Index`. Metadata: see `integrations.passages.passages`.
    """

    index: Any
    method: str = AUTO
    k: int | None = None
    where: str = ""

    _open = field_validator("index")(opened)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self._documents(self.index.retrieve(query, method=self.method, k=self.k, where=self.where))

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self._documents(await self.index.aretrieve(query, method=self.method, k=self.k, where=self.where))

    def _documents(self, result: Result) -> list[Document]:
        pairs = passages(self.index, result)
        return [Document(id=item.passage_id, page_content=item.text, metadata=metadata) for item, metadata in pairs]
