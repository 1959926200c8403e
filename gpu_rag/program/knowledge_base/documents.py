"""Dense search over the documents of the nodes of a knowledge base."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.graph.ragged import expand
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.scores import shown_passages
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.search import Ranking, rankings, stacked
from gpu_rag.runtime.step import batched
from gpu_rag.types import TopK


class DocumentSearch:
    """Exact search for nodes by the cosine of a query and their document.

    The texts of a node are those that `score_nodes` compares: its own passages; else the first three that mention it;
    else its text in words. Its score is that of its best text. Passages come before texts in words; `_nodes` lists the
    nodes of each text, from `_offsets`.
    """

    def __init__(self, kb: KnowledgeBase, threads: int):
        passages, shown = kb.node_passages, shown_passages(kb)
        counts = passages.offsets.diff()
        node = torch.repeat_interleave(torch.arange(kb.n, device=kb.device), counts)
        place = torch.arange(passages.values.shape[0], device=kb.device) - passages.offsets[:-1][node]
        kept = place < shown[node]
        standin = torch.from_numpy(kb.text_row).to(kb.device).long()
        standing_in = (standin >= 0).nonzero()[:, 0]
        base = [kb.vectors("passage_vectors")] if bool(kept.any()) else []
        n_passages = base[0].shape[0] if base else 0
        base += [kb.vectors("kb_text_vectors")] if standing_in.numel() else []
        self._base = torch.cat([part.to(base[0].dtype) for part in base]) if base else torch.zeros(0, 1)
        self._rows, self._n = NearestRows(self._base, threads), kb.n
        pairs = torch.cat(
            [passages.values[kept].long() * kb.n + node[kept], (n_passages + standin[standing_in]) * kb.n + standing_in]
        )
        pairs = pairs.sort().values
        self._nodes = pairs % max(kb.n, 1)
        self._offsets = torch.searchsorted(pairs, torch.arange(self._base.shape[0] + 1, device=kb.device) * kb.n)

    def best(self, queries: torch.Tensor, k: int) -> TopK:
        """The k nodes of highest cosine to each query f32[B, D], by (-score, node).

        Texts are read in rank order. Their number is doubled until the k nodes of each query are certain, that is,
        until the k-th scores more than every unread text.
        """
        ids = torch.full((queries.shape[0], k), -1, dtype=torch.int32, device=queries.device)
        scores = torch.full((queries.shape[0], k), -torch.inf, device=queries.device)
        if not self._nodes.numel() or not k or not len(queries):
            return TopK(ids, scores)
        n_texts, depth = self._base.shape[0], min(4 * k, self._base.shape[0])
        open_ = torch.arange(queries.shape[0], device=queries.device)
        while True:
            top = self._rows.search(queries[open_], depth)
            rows, values, sure = self._nodes_of(top, k)
            done = (sure | (depth == n_texts)).nonzero()[:, 0]
            ids[open_[done]], scores[open_[done]] = rows[done], values[done]
            if len(done) == len(open_):
                break
            open_, depth = open_[~sure], min(2 * depth, n_texts)
        return TopK(ids, scores)

    def _nodes_of(self, texts: TopK, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The k best nodes of ranked texts (every row full), and whether no further text could change them."""
        batch, depth = texts.ids.shape
        text = texts.ids.long().flatten()
        pieces = [*expand(self._offsets[text], self._offsets[text + 1])]
        position, place = (torch.cat(parts) for parts in zip(*pieces))
        node = self._nodes[place]
        query, score = position // depth, texts.scores.flatten()[position]
        keys, place = torch.unique(query * self._n + node, return_inverse=True)
        best = torch.full((keys.shape[0],), -torch.inf, device=text.device)
        best.scatter_reduce_(0, place, score, "amax")
        order = lexsort(-best, keys // self._n)
        owner = keys[order] // self._n
        rank = torch.arange(order.shape[0], device=text.device) - torch.searchsorted(owner, owner)
        inside = (rank < k).nonzero()[:, 0]
        owner, rank, order = owner[inside], rank[inside], order[inside]
        ids = torch.full((batch, k), -1, dtype=torch.int32, device=text.device)
        scores = torch.full((batch, k), -torch.inf, device=text.device)
        ids[owner, rank], scores[owner, rank] = (keys[order] % self._n).int(), best[order]
        return ids, scores, scores[:, -1] > texts.scores[:, -1]


@batched(GRAPH)
@trusted()
def search_documents(index: Index, queries: list[np.ndarray], k: int) -> list[Ranking]:
    """The k nodes whose document, or its substitute, has the highest cosine to each unit vector."""
    search = index.loaded("documents of nodes", lambda index: DocumentSearch(kb_of(index), index.threads))
    return rankings(search.best(stacked(queries, index.device), k))
