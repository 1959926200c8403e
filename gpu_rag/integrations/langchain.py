"""A retriever for LangChain."""

from __future__ import annotations

from typing import Any

from gpu_rag.errors import MissingBackend
from gpu_rag.integrations.passages import opened, passages
from gpu_rag.methods.registry import AUTO
from gpu_rag.report.answers import Result

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import field_validator
except ImportError as error:
    lacking = "LangChain's retriever needs langchain-core"
    raise MissingBackend(lacking, given=str(error), do="pip install 'gpu-rag[langchain]'") from error


class GpuRagRetriever(BaseRetriever):
    """The best passages of an index as documents, best first; asks no language model.

    index: an `Index` or its folder; method, k, where: as in `Index`. Metadata of a document: see
    `integrations.passages.passages`.
    """

    index: Any
    method: str = AUTO
    k: int | None = None
    where: str = ""

    _open = field_validator("index")(opened)

    @property
    def _options(self) -> dict[str, Any]:
        return {"method": self.method, "k": self.k, "where": self.where}

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self._documents(self.index.retrieve(query, **self._options))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self._documents(await self.index.aretrieve(query, **self._options))

    def _documents(self, result: Result) -> list[Document]:
        return [
            Document(id=item.passage_id, page_content=item.text, metadata=metadata)
            for item, metadata in passages(self.index, result)
        ]
