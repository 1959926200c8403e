"""Scores of nodes: similarity of their documents to questions."""

from __future__ import annotations

import numpy as np
import torch

from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.ragged import check_ragged, expand, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.types import Ragged

MAX_MENTIONS = 3  # passages that represent a node without a document of its own


def shown_passages(kb: KnowledgeBase) -> torch.Tensor:
    """i64[N]: number of passages at the front of a node's list that represent it."""
    own, sizes = torch.from_numpy(kb.n_own).to(kb.device).long(), kb.node_passages.offsets.diff()
    return torch.where(own > 0, own, sizes.clamp(max=MAX_MENTIONS))


def score_nodes(kb: KnowledgeBase, queries: torch.Tensor, candidates: Ragged) -> torch.Tensor:
    """f64[T]: cosine of each question and each of its candidate nodes, in the order of candidates.values.

    It is the best cosine of the node's own passages; without a document, of the first three passages that mention it;
    without either, the cosine of its stand-in text.
    queries: f32[B, D], unit rows; candidates: Ragged of i32/i64, B lists of nodes. Dot products are exact (see
    `graph.dots`), so bits do not depend on batch or device. Memory: O(T). Raises BadInput, MissingLayer.
    """
    check_ragged(candidates, "candidates", n=kb.n, device=queries.device)
    question, node = row_of_value(candidates), candidates.values.long()
    shown = shown_passages(kb).to(queries.device)
    scores = torch.full((node.shape[0],), -2.0, dtype=torch.float64, device=queries.device)
    first = kb.node_passages.offsets.to(queries.device)[node]
    values = kb.node_passages.values.to(queries.device)
    if bool((shown[node] > 0).any()):
        vectors = kb.vectors("passage_vectors")
        for owner, place in expand(first, first + shown[node]):
            dots = exact_dots(queries, question[owner], vectors, values[place].long())
            scores.scatter_reduce_(0, owner, dots, "amax")
    alone = (shown[node] == 0).nonzero()[:, 0]
    if alone.numel():
        rows = torch.from_numpy(kb.text_row.astype(np.int64)).to(queries.device)[node[alone]]
        scores[alone] = exact_dots(queries, question[alone], kb.vectors("kb_text_vectors"), rows)
    return scores


def node_text(kb: KnowledgeBase, index: Index, node: int) -> str:
    """Text of a node in a prompt: its own document, or at most three passages that mention it, or its stand-in.

    "name (type)." if the stand-ins (stage kb_texts) were not built.
    """
    passages = kb.passages_of(node)
    rows = passages[: int(kb.n_own[node]) or MAX_MENTIONS].tolist()
    if rows:
        texts = index.passages["text"]
        return "\n".join(texts[row].as_py() for row in rows)
    if kb.text_row[node] >= 0:
        return kb.texts[kb.text_row[node]]
    return f"{kb.node_names[node]} ({kb.type_names[kb.node_type[node]]})."
