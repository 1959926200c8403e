"""Which nodes of the knowledge graphs a mention is, and which passages speak of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gpu_rag.errors import BadInput
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.names import name_key
from gpu_rag.sources.knowledge_base.nodes import LITERAL
from gpu_rag.text.linking import mentioned_names

GRID = float(2**22)
_PART = 1 << 22  # components that are multiplied at a time


@dataclass(frozen=True)
class Match:
    """A node that a mention may be. cosine: of the two names, 1 where they are one; sources: numbers of those that have
    the node."""

    node: int
    cosine: float
    sources: tuple[int, ...]


@dataclass(eq=False)
class NameSearch:
    """The names of the nodes of every source, ready for search."""

    kb: KnowledgeBase
    _rows: dict[int, tuple[torch.Tensor, NearestRows]] = field(default_factory=dict)
    _known: dict[str, int] = field(default_factory=dict)
    _keys: list[str] = field(default_factory=list)

    def match(
        self, mentions: Sequence[str], vectors: np.ndarray, sources: Sequence[int], threshold: float, most: int
    ) -> list[list[Match]]:
        """For each mention the nodes that it may be, of every source at most `most`, by (-cosine, node).

        Where a source has nodes of that very name or alias (`KnowledgeBase.named`), these, at cosine 1; else the
        nearest of cosine >= threshold. Values that are no nearer than the nearest thing are left out. vectors:
        f32[M, D], unit rows, of the mentions.
        """
        if len(mentions) != len(vectors):
            raise BadInput("mentions and vectors do not fit", given=f"{len(mentions)} and {len(vectors)}")
        queries = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(self.kb.device)
        best: list[dict[int, float]] = [{} for _ in range(len(vectors))]
        same = [self.kb.named(mention) for mention in mentions]
        for source in sources:
            nodes, names = self._of(source)
            top = names.search(queries, min(most, max(len(nodes), 1)))
            for found, exact, ids, scores in zip(best, same, top.ids.tolist(), top.scores.tolist()):
                own = [node for node in exact if self.kb.node_sources[node, source]][:most]
                found.update(dict.fromkeys(own, 1.0))
                for row, score in zip(ids, scores):
                    if not own and row >= 0 and score >= threshold:
                        found.setdefault(int(nodes[row]), score)
        return [
            [
                Match(node, score, tuple(np.flatnonzero(self.kb.node_sources[node]).tolist()))
                for node, score in sorted(found.items(), key=lambda item: (-item[1], item[0]))
                if score > nearest_thing or not self._is_value(node)
            ]
            for found in best
            for nearest_thing in [max((s for node, s in found.items() if not self._is_value(node)), default=-2.0)]
        ]

    def _is_value(self, node: int) -> bool:
        return self.kb.type_names[self.kb.node_type[node]] == LITERAL

    def _of(self, source: int) -> tuple[torch.Tensor, NearestRows]:
        """The nodes that a source has a record of, and their names, ready to be searched."""
        if source not in self._rows:
            nodes = torch.from_numpy(np.flatnonzero(self.kb.node_sources[:, source])).to(self.kb.device)
            names = self.kb.vectors("kb_name_vectors")
            self._rows[source] = nodes, NearestRows(names if len(nodes) == self.kb.n else names[nodes])
        return self._rows[source]

    def named(self, text: str) -> list[str]:
        """The names and aliases of nodes that stand in a text, under `name_key`: see `text.linking`."""
        if not self._keys:
            names = (name for of in zip(self.kb.node_names, self.kb.node_aliases) for name in (of[0], *of[1]))
            self._known.update((key, row) for row, key in enumerate(dict.fromkeys(map(name_key, names))))
            self._keys.extend(self._known)
        return [self._keys[row] for row in mentioned_names(text, self._known)]


def best_passages(
    kb: KnowledgeBase, passages: torch.Tensor, nodes: Sequence[Sequence[int]], queries: Sequence[np.ndarray], k: int
) -> list[list[tuple[int, float]]]:
    """For each question the k passages of its nodes of highest cosine to its query: (row, cosine), ties to the lower.

    passages: f16/f32[P, D], unit rows, on the grid of 2^-22 as they are multiplied, so that bits do not depend on the
    batch. Passages of nodes are `KnowledgeBase.node_passages`. Memory: bounded beside the rows of the batch.
    """
    if not nodes:
        return []
    device = passages.device
    width, listed = max(passages.shape[0], 1), ragged_of_lists(nodes, device)
    values, offsets = kb.node_passages.values, kb.node_passages.offsets
    owner, node = row_of_value(listed), listed.values
    keys = [owner[:0], *(owner[at] * width + values[place] for at, place in expand(offsets[node], offsets[node + 1]))]
    held = torch.unique(torch.cat(keys))  # question * P + passage, ascending
    question, row = held // width, held % width
    scores = _cosines(torch.from_numpy(np.stack(queries)).to(device), question, passages, row)
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.argsort(question[order], stable=True)]
    starts = torch.searchsorted(question, torch.arange(len(nodes), device=device))
    order = order[torch.arange(len(order), device=device) - starts[question[order]] < k]
    found: list[list[tuple[int, float]]] = [[] for _ in nodes]
    of, rows = torch.stack([question[order], row[order]]).tolist()
    for q, best, score in zip(of, rows, scores[order].tolist()):
        found[q].append((best, score))
    return found


def _cosines(queries: torch.Tensor, question: torch.Tensor, passages: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """f64[T]: the product of each question and its passage, in parts of bounded size."""
    asked = queries.double().mul_(GRID).round_()
    scores = asked.new_zeros(row.shape[0])
    step = max(1, _PART // max(passages.shape[1], 1))
    for first in range(0, row.shape[0], step):
        part = slice(first, first + step)
        held = passages[row[part]].double().mul_(GRID).round_()
        scores[part] = (held * asked[question[part]]).sum(1) / GRID**2
    return scores
