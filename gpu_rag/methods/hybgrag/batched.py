"""HybGRAG's hybrid module as one batched step: typed reachability, intersection, ranking by cosine.

Of a topic entity those nodes are reached at which a chain of 1 to `radius` edges ends, each edge of a relation that the
topic allows, walked either way. Candidates of a question are the nodes that all its topics reach, without the topic
nodes themselves; where no node is left, those that some topic reaches, and the result says so. They are ranked by
the cosine of question and document, ties to the lower node; before that, where that is wanted, by how far they are:
0 where a chain of every relation of the topic once, in any order, leads, else the edges of the shortest chain. Of
several topics the farthest counts, in a union the nearest. Nothing of size [B, N] is made, but by the sets themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import torch

from gpu_rag.graph.ragged import expand, ragged_of_keys, ragged_of_lists, row_of_value
from gpu_rag.graph.reach import EITHER, reachable
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.scores import score_nodes
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.search import Ranking, stacked
from gpu_rag.runtime.step import batched
from gpu_rag.types import Ragged

TILE = 256

Chain = tuple[int, ...]


@dataclass(frozen=True)
class TopicNodes:
    """A topic entity in the graph. nodes: all that bear its name; relations: those that a walk from them may follow."""

    nodes: tuple[int, ...]
    relations: tuple[int, ...]


Query = tuple[tuple[TopicNodes, ...], np.ndarray]  # the topics of a question, and its unit vector


@dataclass(frozen=True)
class Reached(Ranking):
    """The nodes that one question's topics lead to, at most K, best first, with their cosines.

    chains: for each node and each topic the first of `chains_of` that leads there, () where none does. met: whether the
    nodes are an intersection (of one topic: its set); else a union.
    """

    chains: tuple[tuple[Chain, ...], ...]
    met: bool


@dataclass(frozen=True)
class Walks:
    """All chains of all topics of all questions, and where each leads."""

    chains: list[Chain]
    of_topic: torch.Tensor  # i64[C]: the topic of each chain
    of_question: torch.Tensor  # i64[T]: the question of each topic
    ends: Ragged  # C lists of nodes


def chains_of(relations: Sequence[int], radius: int) -> list[Chain]:
    """Every chain of 1 to `radius` relations, in the order of the relations given: those of all once, then by length.

    >>> chains_of((5, 3), 2)
    [(5, 3), (3, 5), (5,), (3,), (5, 5), (3, 3)]
    """
    once = list(permutations(relations)) if 0 < len(relations) <= radius else []
    lengths = (chain for length in range(1, radius + 1) for chain in product(relations, repeat=length))
    return list(dict.fromkeys((*once, *lengths)))


@batched(GRAPH, tile=TILE)
def reach_nodes(index: Index, queries: list[Query], radius: int, k: int, by_distance: bool) -> list[Reached]:
    """The k best nodes that the topics of each question reach, see the module.

    by_distance: nearer nodes first, then by cosine; else by cosine alone. Memory: the sets, summed over chains. The
    same for a question alone and in any batch.
    """
    kb, questions = kb_of(index), [topics for topics, _ in queries]
    walks = walked(kb, questions, radius, index.threads)
    keys = walks.of_topic[row_of_value(walks.ends)] * max(kb.n, 1) + walks.ends.values.long()
    reached, at = torch.unique(keys, return_inverse=True)
    candidates, met = _candidates(kb, questions, walks, reached)
    far = _distances(kb, questions, walks, (reached, at), candidates, met) if by_distance else None
    vectors = stacked([vector for _, vector in queries], kb.device)
    best = _best(kb, vectors, candidates, far, k)
    first = _first_chains(kb, walks, best[2], best[0])
    return _split(questions, walks, (*best, first), met.tolist())


def walked(kb: KnowledgeBase, questions: Sequence[Sequence[TopicNodes]], radius: int, threads: int) -> Walks:
    """Every walk of at most `radius` steps from the topics of each question along their relations."""
    topics = [topic for one in questions for topic in one]
    chains = [chains_of(topic.relations, radius) for topic in topics]
    flat = [chain for one in chains for chain in one]
    starts = ragged_of_lists([topic.nodes for topic, one in zip(topics, chains) for _ in one], kb.device)
    relations = ragged_of_lists(flat, kb.device)
    either = Ragged(torch.full_like(relations.values, EITHER), relations.offsets)
    ends = reachable(kb.typed, starts, relations, either, threads=threads)
    of_topic = torch.tensor([t for t, one in enumerate(chains) for _ in one], dtype=torch.int64, device=kb.device)
    of_question = torch.tensor([q for q, one in enumerate(questions) for _ in one], dtype=torch.int64, device=kb.device)
    return Walks(flat, of_topic, of_question, ends)


def _candidates(
    kb: KnowledgeBase, questions: Sequence[Sequence[TopicNodes]], walks: Walks, reached: torch.Tensor
) -> tuple[Ragged, torch.Tensor]:
    """Each question's candidates, and whether they are an intersection: bool[B]. reached: keys topic * N + node."""
    n, batch = max(kb.n, 1), len(questions)
    own = ragged_of_lists([sorted({node for topic in one for node in topic.nodes}) for one in questions], kb.device)
    topic_keys = row_of_value(own) * n + own.values
    found, count = torch.unique(walks.of_question[reached // n] * n + reached % n, return_counts=True)
    free = ~torch.isin(found, topic_keys)
    found, count = found[free], count[free]
    question = found // n
    wanted = torch.tensor([len(one) for one in questions], dtype=torch.int64, device=kb.device)
    shared = count == wanted[question]
    met = torch.zeros(batch, dtype=torch.bool, device=kb.device)
    met[question[shared]] = True
    return ragged_of_keys(found[shared | ~met[question]], batch, kb.n), met


def _distances(
    kb: KnowledgeBase,
    questions: Sequence[Sequence[TopicNodes]],
    walks: Walks,
    reached: tuple[torch.Tensor, torch.Tensor],
    candidates: Ragged,
    met: torch.Tensor,
) -> torch.Tensor:
    """i64[T], how far each candidate is (see above). reached: keys topic * N + node, and which of them each end is."""
    n, (keys, at) = max(kb.n, 1), reached
    topics = [topic for one in questions for topic in one]
    lengths = [
        0 if sorted(chain) == sorted(topics[topic].relations) else len(chain)
        for chain, topic in zip(walks.chains, walks.of_topic.tolist())
    ]
    of_end = torch.tensor(lengths, dtype=torch.int64, device=kb.device)[row_of_value(walks.ends)]
    least = torch.zeros_like(keys).scatter_reduce_(0, at, of_end, "amin", include_self=False)
    question = row_of_value(candidates)
    wanted = question * n + candidates.values.long()
    ends = walks.of_question[keys // n] * n + keys % n
    inside = torch.isin(ends, wanted)
    place = torch.searchsorted(wanted, ends[inside])  # candidates are ascending
    nearest = torch.zeros_like(wanted).scatter_reduce_(0, place, least[inside], "amin", include_self=False)
    farthest = torch.zeros_like(wanted).scatter_reduce_(0, place, least[inside], "amax", include_self=False)
    return torch.where(met[question], farthest, nearest)


def _best(
    kb: KnowledgeBase, vectors: torch.Tensor, candidates: Ragged, far: torch.Tensor | None, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(nodes, scores, their questions) of the k best candidates of each question, by (question, far, -score, node)."""
    scores = score_nodes(kb, vectors, candidates)
    question = row_of_value(candidates)
    order = torch.argsort(scores, descending=True, stable=True)  # candidates are ascending: ties to the lower node
    if far is not None:
        order = order[torch.argsort(far[order], stable=True)]
    order = order[torch.argsort(question[order], stable=True)]
    place = torch.arange(order.shape[0], device=order.device) - candidates.offsets[:-1][question[order]]
    order = order[place < k]
    return candidates.values[order].long(), scores[order], question[order]


def _first_chains(kb: KnowledgeBase, walks: Walks, question: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """i64[M, most topics]: for each (question, node) the first chain of the question's j-th topic that ends there.

    -1 where none does.
    """
    n, n_topics = max(kb.n, 1), torch.bincount(walks.of_question, minlength=1)
    first_topic = n_topics.cumsum(0) - n_topics
    chain_question = walks.of_question[walks.of_topic]  # ascending
    keys = row_of_value(walks.ends) * n + walks.ends.values.long()  # ascending: by chain, then node
    found = torch.full((nodes.shape[0], int(n_topics.max())), len(walks.chains), device=nodes.device)
    first = torch.searchsorted(chain_question, question)
    last = torch.searchsorted(chain_question, question, right=True)
    for owner, chain in expand(first, last):
        wanted = chain * n + nodes[owner]
        at = torch.searchsorted(keys, wanted)
        there = (at < keys.shape[0]) & (keys[at.clamp(max=max(keys.shape[0] - 1, 0))] == wanted)
        topic = walks.of_topic[chain[there]]
        column = topic - first_topic[walks.of_question[topic]]
        flat = owner[there] * found.shape[1] + column
        found.view(-1).scatter_reduce_(0, flat, chain[there], "amin")
    return torch.where(found == len(walks.chains), -1, found)


def _split(
    questions: Sequence[Sequence[TopicNodes]],
    walks: Walks,
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    met: Sequence[bool],
) -> list[Reached]:
    rows, scores, question, first = best
    bounds = torch.searchsorted(question, torch.arange(len(questions) + 1, device=question.device)).tolist()
    nodes, values, chains = rows.tolist(), scores.tolist(), first.tolist()
    found = []
    for q, topics in enumerate(questions):
        part = slice(bounds[q], bounds[q + 1])
        ways = tuple(tuple(walks.chains[c] if c >= 0 else () for c in line[: len(topics)]) for line in chains[part])
        found.append(Reached(tuple(nodes[part]), tuple(values[part]), ways, met[q]))
    return found
