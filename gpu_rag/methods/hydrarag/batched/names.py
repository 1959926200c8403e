"""Links names to nodes of the knowledge graphs, and nodes to passages about them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.ragged import expand, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.names import SortedRows
from gpu_rag.methods.hydrarag.batched.prune import GRID, on_grid
from gpu_rag.methods.hydrarag.state import Match
from gpu_rag.program.kinds import GRAPH, TEXT
from gpu_rag.program.knowledge_base.names import node_names
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.sources.knowledge_base.nodes import LITERAL
from gpu_rag.text.mentions import mentioned_names

_PART = 1 << 22  # vector components multiplied at a time


@batched(TEXT, name="name_nodes")
def names_in(index: Index, texts: list[str]) -> list[list[str]]:
    """The names of nodes that occur in each text, as `KnowledgeBase.keys_of_names` has them. At each word the longest
    name wins, see `text.mentions`."""
    known = index.loaded("keys of names", _keys)
    return [[known.column[row].as_py() for row in mentioned_names(text, known)] for text in texts]


def _keys(index: Index) -> SortedRows:
    return SortedRows(pa.chunked_array([pa.array(kb_of(index).keys_of_names(), pa.large_string())]))


Named = tuple[tuple[str, ...], np.ndarray]  # the names of one question, and their unit vectors f32[M, D]


@batched(GRAPH)
def match_mentions(
    index: Index, queries: list[Named], sources: tuple[int, ...], threshold: float, k: int
) -> list[list[list[Match]]]:
    """For each name of each question the nodes that it may denote: at most k per source, by (-cosine, node).

    If a source has nodes with exactly that name or alias (`KnowledgeBase.named`), these match with cosine 1. Otherwise
    its nearest nodes of cosine >= threshold match. Literal values are left out unless they are nearer than the nearest
    other node.
    """
    kb = kb_of(index)
    vectors = np.concatenate([name_vectors for _, name_vectors in queries])
    matrix = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(kb.device)
    best: list[dict[int, float]] = [{} for _ in range(len(vectors))]
    same = [kb.named(name) for names, _ in queries for name in names]
    for source in sources:
        nodes, names = node_names(index, source=source)
        top = names.search(matrix, min(k, max(len(nodes), 1)))
        for candidates, exact, ids, scores in zip(best, same, top.ids.tolist(), top.scores.tolist()):
            own = [node for node in exact if kb.node_sources[node, source]][:k]
            candidates.update(dict.fromkeys(own, 1.0))
            for row, score in zip(ids, scores):
                if not own and row >= 0 and score >= threshold:
                    candidates.setdefault(int(nodes[row]), score)
    matches = iter([_matches(kb, candidates) for candidates in best])
    return [[next(matches) for _ in names] for names, _ in queries]


def _matches(kb: KnowledgeBase, cosines: dict[int, float]) -> list[Match]:
    """Matches from {node: cosine}, best first, without literal values that are no nearer than the nearest other
    node."""
    values = {node for node in cosines if kb.type_names[kb.node_type[node]] == LITERAL}
    nearest_thing = max((score for node, score in cosines.items() if node not in values), default=-2.0)
    return [
        Match(node, score, tuple(np.flatnonzero(kb.node_sources[node]).tolist()))
        for node, score in sorted(cosines.items(), key=lambda item: (-item[1], item[0]))
        if score > nearest_thing or node not in values
    ]


@batched(GRAPH)
def passages_of(
    index: Index, queries: list[tuple[tuple[int, ...], np.ndarray]], k: int
) -> list[list[tuple[int, float]]]:
    """For each (nodes, unit vector) the k passages of these nodes with the highest cosine: (row, cosine), ties to the
    lower.

    Vectors are rounded to a grid of 2^-22 before they are multiplied, so the bits do not depend on the batch.
    `KnowledgeBase.node_passages` gives the passages of nodes. Memory beyond the rows of the batch is bounded.
    """
    kb, passages = kb_of(index), index.vectors("passage_vectors")
    device, width = passages.device, max(passages.shape[0], 1)
    listed = ragged_of_lists([nodes for nodes, _ in queries], device)
    values, offsets = kb.node_passages.values, kb.node_passages.offsets
    owner, node = row_of_value(listed), listed.values
    keys = [owner[:0], *(owner[i] * width + values[place] for i, place in expand(offsets[node], offsets[node + 1]))]
    pairs = torch.unique(torch.cat(keys))  # question * P + passage, ascending
    question, row = pairs // width, pairs % width
    vectors = torch.from_numpy(np.stack([vector for _, vector in queries])).to(device)
    scores = _cosines(vectors, question, passages, row)
    order = lexsort(-scores, question)
    order = order[torch.arange(len(order), device=device) - torch.searchsorted(question, question) < k]
    lists: list[list[tuple[int, float]]] = [[] for _ in queries]
    for q, best, score in zip(*torch.stack([question[order], row[order]]).tolist(), scores[order].tolist()):
        lists[q].append((best, score))
    return lists


def _cosines(queries: torch.Tensor, question: torch.Tensor, passages: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """f64[T]: the product of each question vector and its passage vector, computed in parts of bounded size."""
    exact = on_grid(queries)
    scores = exact.new_zeros(row.shape[0])
    step = max(1, _PART // max(passages.shape[1], 1))
    for first in range(0, row.shape[0], step):
        part = slice(first, first + step)
        scores[part] = (on_grid(passages[row[part]]) * exact[question[part]]).sum(1) / GRID**2
    return scores


def stated_triples(index: Index, passage: int) -> list[tuple[str, str, str]]:
    """The triples (subject, relation, object) that the index's own extraction found in a passage."""
    kb = kb_of(index)
    edges, offsets = index.loaded("edges of passages", _edges_of_passages)
    return [kb.triple(edge)[:3] for edge in edges[offsets[passage] : offsets[passage + 1]].tolist()]


def _edges_of_passages(index: Index) -> tuple[np.ndarray, np.ndarray]:
    """(edge rows sorted by passage, offset of each passage's first row)."""
    kb = kb_of(index)
    edge, passage = row_of_value(kb.edge_passages).cpu().numpy(), kb.edge_passages.values.cpu().numpy()
    order = np.argsort(passage, kind="stable")
    return edge[order], np.searchsorted(passage[order], np.arange(index.n_passages + 1))
