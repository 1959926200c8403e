"""HybGRAG's hybrid module as one batched step: typed reachability, intersection, ranking by cosine.

A topic entity reaches the nodes at the end of a chain of 1 to `radius` edges. Each edge must have a relation that the
topic allows, and may be walked in either direction. A topic with its own chain reaches only the ends of that chain. The
candidates of a question are the nodes that all its topics reach, without the topic nodes. If there are none, all nodes
that some topic reaches are candidates, and the result says so. Candidates are ranked by the cosine of question and
document, ties to the lower node. With `by_distance`, distance comes first: 0 if a chain uses every relation of the
topic once, in any order, else the number of edges of the shortest chain. Over several topics the largest distance
counts, in a union the smallest. If the candidates of a question are given, only they are ranked.
Nothing of size [B, N] is allocated except the sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ragged import ragged_of_keys, ragged_of_lists, row_of_value
from gpu_rag.graph.reach import ANY, EITHER, reachable
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.scores import score_nodes
from gpu_rag.methods.hybgrag.state import Retrieved
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.search import stacked
from gpu_rag.runtime.step import batched
from gpu_rag.types import Ragged

TILE = 256

Chain = tuple[int, ...]


@dataclass(frozen=True)
class TopicNodes:
    """A topic entity in the graph. nodes: all with its name; relations: that a walk from them may follow; ways: their
    directions if they form one chain, else ()."""

    nodes: tuple[int, ...]
    relations: tuple[int, ...]
    ways: tuple[int, ...] = ()


# the topics of a question, its unit vector, and its candidates if they are known
Query = tuple[tuple[TopicNodes, ...], np.ndarray, tuple[int, ...] | None]


@dataclass(frozen=True)
class Walks:
    """All chains of all topics of all questions, and the nodes they reach. n: nodes of the graph."""

    n: int
    topics: list[TopicNodes]
    n_topics: torch.Tensor  # i64[B]: topics per question
    max_topics: int  # maximum topics per question
    chains: list[Chain]
    of_topic: list[int]  # the topic of each chain
    ends: Ragged  # C lists of nodes

    @cached_property
    def of_question(self) -> torch.Tensor:
        """i64[T]: the question of each topic."""
        return torch.repeat_interleave(self.n_topics, output_size=len(self.topics))

    @cached_property
    def keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(distinct topic * N + node of all reached nodes, ascending; the position there of each end)."""
        topic = torch.tensor(self.of_topic, dtype=torch.int64, device=self.n_topics.device)[row_of_value(self.ends)]
        return torch.unique(topic * self.n + self.ends.values.long(), return_inverse=True)

    def minimum(self, of_chain: torch.Tensor) -> torch.Tensor:
        """i64[keys + 1]: the minimum of a number i64[C] over the chains that reach each key, then a 0."""
        keys, place = self.keys
        of_end = of_chain[row_of_value(self.ends)]
        return keys.new_zeros(len(keys) + 1).scatter_reduce_(0, place, of_end, "amin", include_self=False)

    def distances(self) -> torch.Tensor:
        """i64[keys + 1]: 0 if a chain with every relation of the topic once reaches the key, else the length of the
        shortest chain."""
        lengths = [
            0 if sorted(chain) == sorted(self.topics[topic].relations) else len(chain)
            for chain, topic in zip(self.chains, self.of_topic)
        ]
        return self.minimum(torch.tensor(lengths, dtype=torch.int64, device=self.n_topics.device))

    def of_topics(self, question: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(i64[M, max_topics], bool of that shape): positions of (topic of the question, node) in `keys`, and whether
        `keys` has it."""
        keys, count = self.keys[0], self.n_topics[question]
        number = torch.arange(max(1, self.max_topics), device=nodes.device)
        first = self.n_topics.cumsum(0)[question] - count
        wanted = (first[:, None] + number) * self.n + nodes[:, None]
        position = torch.searchsorted(keys, wanted)
        known = torch.cat([keys, keys.new_full((1,), -1)])  # no topic may reach anything
        return position, (number < count[:, None]) & (known[position] == wanted)


def chains_of(relations: Sequence[int], radius: int) -> list[Chain]:
    """Every chain of 1 to `radius` relations, in the order of the given relations. Chains with all relations once come
    first, then the others by length.

    >>> chains_of((5, 3), 2)
    [(5, 3), (3, 5), (5,), (3,), (5, 5), (3, 3)]
    """
    complete = list(permutations(relations)) if 0 < len(relations) <= radius else []
    lengths = (chain for length in range(1, radius + 1) for chain in product(relations, repeat=length))
    return list(dict.fromkeys((*complete, *lengths)))


@batched(GRAPH, tile=TILE)
@trusted()
def reach_nodes(index: Index, queries: list[Query], radius: int, k: int, by_distance: bool) -> list[Retrieved]:
    """The k best nodes that the topics of each question reach, see the module; with chains by topic.

    by_distance: nearer nodes first, then by cosine; else by cosine alone. Memory: the sets, summed over chains. The
    result does not depend on the batch.
    """
    kb, questions = kb_of(index), [topics for topics, _, _ in queries]
    walks = walked(kb, questions, radius, index.threads)
    candidates, met = _candidates(walks, [within for _, _, within in queries])
    question = row_of_value(candidates)
    distance = torch.zeros_like(question)
    if by_distance:
        position, hit = walks.of_topics(question, candidates.values.long())
        of_topic = walks.distances()[position]
        nearest, farthest = torch.where(hit, of_topic, radius + 1).amin(1), torch.where(hit, of_topic, 0).amax(1)
        distance = torch.where(met[question], farthest, nearest)
    scores = score_nodes(kb, stacked([vector for _, vector, _ in queries], kb.device), candidates)
    order = lexsort(-scores, distance, question)  # candidates are ascending, so ties go to the lower node
    order = order[torch.arange(order.shape[0], device=order.device) - candidates.offsets[:-1][question[order]] < k]
    nodes, question = candidates.values[order].long(), question[order]
    position, hit = walks.of_topics(question, nodes)
    chain = torch.where(hit, walks.minimum(torch.arange(len(walks.chains), device=kb.device))[position], -1)
    ends = torch.searchsorted(question, torch.arange(len(questions) + 1, device=question.device))
    first, rows, values, kept, bounds = (part.tolist() for part in to_host(chain, nodes, scores[order], met, ends))
    results = []
    for q, topics in enumerate(questions):
        part = slice(bounds[q], bounds[q + 1])
        chains = tuple(tuple(walks.chains[c] if c >= 0 else () for c in line[: len(topics)]) for line in first[part])
        results.append(Retrieved(tuple(rows[part]), tuple(values[part]), chains=chains, met=kept[q]))
    return results


def walked(kb: KnowledgeBase, questions: Sequence[Sequence[TopicNodes]], radius: int, threads: int) -> Walks:
    """Every walk of at most `radius` steps from the topics of each question along their relations."""
    topics = [topic for group in questions for topic in group]
    chains = [[topic.relations] if topic.ways else chains_of(topic.relations, radius) for topic in topics]
    flat = [chain for group in chains for chain in group]
    starts = ragged_of_lists([topic.nodes for topic, group in zip(topics, chains) for _ in group], kb.device)
    relations = ragged_of_lists(flat, kb.device)
    directions = (topic.ways or [EITHER] * len(chain) for topic, group in zip(topics, chains) for chain in group)
    ends = reachable(kb.typed, starts, relations, ragged_of_lists(list(directions), kb.device), threads=threads)
    of_topic = [t for t, group in enumerate(chains) for _ in group]
    sizes = [len(group) for group in questions]
    n_topics = torch.tensor(sizes, dtype=torch.int64, device=kb.device)
    return Walks(max(kb.n, 1), topics, n_topics, max(sizes, default=0), flat, of_topic, ends)


def _candidates(walks: Walks, within: Sequence[tuple[int, ...] | None]) -> tuple[Ragged, torch.Tensor]:
    """The candidates of each question, and whether they are an intersection, or given: bool[B]."""
    n, batch, reached = walks.n, len(walks.n_topics), walks.keys[0]
    own = ragged_of_lists([topic.nodes for topic in walks.topics], reached.device)
    topic_keys = walks.of_question[row_of_value(own)] * n + own.values
    in_question, count = torch.unique(walks.of_question[reached // n] * n + reached % n, return_counts=True)
    free, question = ~torch.isin(in_question, topic_keys), in_question // n
    shared = free & (count == walks.n_topics[question])
    met = torch.zeros(batch, dtype=torch.int32, device=reached.device)
    met = met.scatter_reduce_(0, question, shared.int(), "amax") > 0
    given = torch.tensor([nodes is not None for nodes in within], device=reached.device)
    rows = [place * n + node for place, nodes in enumerate(within) for node in nodes or ()]
    kept = in_question[free & (shared | ~met[question]) & ~given[question]]
    keys = torch.cat([kept, torch.tensor(rows, dtype=torch.int64, device=reached.device)]).sort().values
    return ragged_of_keys(keys, batch, n), met | given


@dataclass(frozen=True)
class Leads:
    """The links from a topic to gold nodes.

    nodes: gold nodes that it reaches; relations: relations of the topic in a chain to such a node; ball: whether a
    chain of any relations reaches a gold node.
    """

    nodes: tuple[int, ...]
    relations: tuple[int, ...]
    ball: bool


@batched(GRAPH, tile=TILE, name="kb_held")
def leading(index: Index, queries: list[tuple[TopicNodes, Sequence[int]]], radius: int) -> list[Leads]:
    """The gold nodes that each topic reaches within `radius` steps."""
    kb = kb_of(index)
    walks = walked(kb, [[topic, TopicNodes(topic.nodes, (ANY,))] for topic, _ in queries], radius, index.threads)
    gold = ragged_of_lists([sorted(set(nodes)) for _, nodes in queries], kb.device)
    keys = row_of_value(gold) * max(kb.n, 1) + gold.values
    chain, node = row_of_value(walks.ends), walks.ends.values.long()
    of_topic = torch.tensor(walks.of_topic, device=kb.device)
    hit = torch.isin(of_topic[chain] // 2 * max(kb.n, 1) + node, keys)
    nodes: list[set[int]] = [set() for _ in queries]
    relations: list[set[int]] = [set() for _ in queries]
    for c, v in zip(chain[hit].tolist(), node[hit].tolist()):
        topic, by_any = divmod(walks.of_topic[c], 2)
        relations[topic].update(walks.chains[c])
        if not by_any:
            nodes[topic].add(v)
    return [
        Leads(tuple(sorted(reached)), tuple(r for r in topic.relations if r in used), ANY in used)
        for (topic, _), reached, used in zip(queries, nodes, relations)
    ]
