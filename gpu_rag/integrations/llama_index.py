"""A retriever for LlamaIndex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_rag.api.indexes import Index
from gpu_rag.errors import needing
from gpu_rag.integrations.passages import opened, passages
from gpu_rag.methods.registry import AUTO

with needing("this needs llama-index-core", "pip install 'gpu-rag[llama-index]'"):
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode


class GpuRagRetriever(BaseRetriever):
    """The best passages of an index as nodes with scores, best first; asks no language model.

    index: an `Index` or its folder; method, k, where: as in `Index`. Metadata: see `integrations.passages.passages`; a
    prompt shows the title alone.
    """

    def __init__(self, index: Index | Path | str, *, method: str = AUTO, k: int | None = None, where: str = ""):
        super().__init__()
        self._index = opened(index)
        self._options: dict[str, Any] = {"method": method, "k": k, "where": where}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(self._index.retrieve(query_bundle.query_str, **self._options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(await self._index.aretrieve(query_bundle.query_str, **self._options))

    def _nodes(self, result: Any) -> list[NodeWithScore]:
        nodes = []
        for item, metadata in passages(self._index, result):
            unshown = [name for name in metadata if name != "title"]
            hidden = {"excluded_llm_metadata_keys": unshown, "excluded_embed_metadata_keys": unshown}
            place = {"start_char_idx": item.start, "end_char_idx": item.end}
            node = TextNode(id_=item.passage_id, text=item.text, metadata=metadata, **place, **hidden)
            nodes.append(NodeWithScore(node=node, score=item.score))
        return nodes
