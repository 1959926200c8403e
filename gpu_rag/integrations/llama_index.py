"""A retriever for LlamaIndex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_rag.api.indexes import Index
from gpu_rag.errors import MissingBackend
from gpu_rag.integrations.passages import PROMPTED, opened, passages
from gpu_rag.methods.registry import AUTO
from gpu_rag.report.answers import Result

try:
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    lacking = "LlamaIndex's retriever needs llama-index-core"
    raise MissingBackend(lacking, given=str(error), do="pip install 'gpu-rag[llama-index]'") from error


class GpuRagRetriever(BaseRetriever):
    """The best passages of an index as nodes with scores, best first; asks no language model.

    index: an `Index` or its folder; method, k, where: as in `Index`. Metadata of a node: see
    `integrations.passages.passages`; prompts show the title alone.
    """

    def __init__(
        self,
        index: Index | Path | str,
        *,
        method: str = AUTO,
        k: int | None = None,
        where: str = "",
        callback_manager: CallbackManager | None = None,
    ):
        super().__init__(callback_manager=callback_manager)
        self._index = opened(index)
        self._options: dict[str, Any] = {"method": method, "k": k, "where": where}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(self._index.retrieve(query_bundle.query_str, **self._options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        result = await self._index.aretrieve(query_bundle.query_str, **self._options)
        return self._nodes(result)  # type: ignore[arg-type]

    def _nodes(self, result: Result) -> list[NodeWithScore]:
        nodes = []
        for item, metadata in passages(self._index, result):
            unshown = [name for name in metadata if name != PROMPTED]
            node = TextNode(
                id_=item.passage_id, text=item.text, metadata=metadata, start_char_idx=item.start,
                end_char_idx=item.end, excluded_llm_metadata_keys=unshown, excluded_embed_metadata_keys=unshown,
            )  # fmt: skip
            nodes.append(NodeWithScore(node=node, score=item.score))
        return nodes
