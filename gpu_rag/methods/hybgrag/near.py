"""Nodes near all entities of a question: HybGRAG's ranking if the question does not state its relations.

For an entity with d edges, an adjacent node gets 1 / log(3 + d), whatever the relation. A node two edges away gets half
of that, times its strength relative to the strongest such node; strength is the sum of 1 / log(3 + edges) over the
nodes between. Entities and middle nodes of more than FEW edges have no second step, so hubs cost no more than their own
edges. Equal nodes are ranked by the cosine of question and document. Sums are of integers, so they do not depend on the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ragged import ragged_of_keys, ragged_of_lists, row_of_value
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.scores import score_nodes
from gpu_rag.methods.hybgrag.batched import TILE
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.search import Ranking, stacked
from gpu_rag.runtime.step import batched

FEW = 500
UNIT = 2.0**40  # resolution of the sums


@dataclass(frozen=True)
class Entities:
    """The entities of a question. groups: the nodes of each entity; types: types of the wanted nodes, () for any;
    barred: nodes that cannot be answers or lead to answers."""

    groups: tuple[tuple[int, ...], ...]
    vector: np.ndarray
    types: tuple[int, ...] = ()
    barred: tuple[int, ...] = ()


@batched(GRAPH, tile=TILE, name="hybgrag_near")
@trusted()
def near_nodes(index: Index, queries: list[Entities], k: int) -> list[Ranking]:
    """The k nodes nearest to all entities of each question, see the module."""
    kb = kb_of(index)
    graph, n, device = kb.typed, max(kb.n, 1), kb.device
    own = ragged_of_lists([group for query in queries for group in query.groups], device)
    of_entity = torch.repeat_interleave(torch.tensor([len(query.groups) for query in queries], device=device))
    entity, edges = row_of_value(own), graph.out_indptr.diff() + graph.in_indptr.diff()
    size = torch.zeros_like(of_entity).index_add_(0, entity, edges[own.values])
    share = 1 / torch.log(3 + size.double())
    barred_keys = [place * n + node for place, query in enumerate(queries) for node in query.barred]
    barred = torch.tensor(barred_keys, dtype=torch.int64, device=device)
    pieces = [entity[place] * n + other[edge].long() for place, edge, _, other in graph.edges_at(own.values)]
    next_ = torch.unique(torch.cat([*pieces, entity[:0]]))
    next_ = next_[~torch.isin(_question_keys(next_, of_entity, n), barred)]
    keys, worth = [_question_keys(next_, of_entity, n)], [(UNIT * share[next_ // n]).long()]
    between = next_[(size[next_ // n] <= FEW) & (edges[next_ % n] <= FEW)]
    around = graph.edges_at(between % n)
    pairs = [(between[position] // n * n + other[edge].long(), position) for position, edge, _, other in around]
    if pairs:
        weight = (UNIT / torch.log(3 + edges[between % n].double())).long()
        second, place = torch.unique(torch.cat([key for key, _ in pairs]), return_inverse=True)
        sums = torch.zeros_like(second).index_add_(0, place, weight[torch.cat([position for _, position in pairs])])
        strongest = torch.ones_like(of_entity).scatter_reduce_(0, second // n, sums, "amax")
        keys.append(_question_keys(second, of_entity, n))
        worth.append((UNIT / 2 * share[second // n] * (sums.double() / strongest[second // n])).long())
    nodes, place = torch.unique(torch.cat(keys), return_inverse=True)
    total = torch.zeros_like(nodes).index_add_(0, place, torch.cat(worth))
    wanted = torch.tensor([[not query.types or t in query.types for t in range(kb.n_types)] for query in queries])
    of_type = torch.from_numpy(kb.node_type.astype(np.int64)).to(device)[nodes % n]
    kept = wanted.to(device)[nodes // n, of_type] & ~torch.isin(
        nodes, torch.cat([of_entity[entity] * n + own.values, barred])
    )
    nodes, total = nodes[kept], total[kept]
    order = lexsort(-total, nodes // n)
    starts = torch.searchsorted(nodes, torch.arange(len(queries) + 1, device=device) * n)
    last = torch.minimum(starts[:-1] + k, starts[1:]) - 1  # keep the k best of each question, and all equal to the last
    kept = total >= total[order][last.clamp(min=0)][nodes // n] if nodes.numel() else kept[:0]
    nodes, total = nodes[kept], total[kept]
    question = nodes // n
    vectors = stacked([query.vector for query in queries], device)
    cosine = score_nodes(kb, vectors, ragged_of_keys(nodes, len(queries), n))
    order = lexsort(-cosine, -total, question)  # stable: ties to the lower node
    bounds = torch.searchsorted(question, torch.arange(len(queries) + 1, device=device)).tolist()
    rows, scores = (nodes % n)[order].tolist(), cosine[order].tolist()
    parts = (slice(a, min(a + k, b)) for a, b in zip(bounds, bounds[1:]))
    return [Ranking(tuple(rows[part]), tuple(scores[part])) for part in parts]


def _question_keys(keys: torch.Tensor, of_entity: torch.Tensor, n: int) -> torch.Tensor:
    """The keys question * n + node for keys entity * n + node."""
    return of_entity[keys // n] * n + keys % n
