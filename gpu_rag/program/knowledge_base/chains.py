"""Chains of relations that a question asks for, from the nodes of one of its topics.

`reading` scores chains. Chains that lead nowhere from the topic's nodes are dropped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.common.trusted import trusted
from gpu_rag.graph.ragged import ragged_of_lists
from gpu_rag.graph.reach import reachable
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.kinds import GRAPH
from gpu_rag.program.knowledge_base.chain_reader import ChainReader
from gpu_rag.program.knowledge_base.query import DIRECTIONS, Topic
from gpu_rag.program.knowledge_base.reading import FAR, PLAINLY, TRIED, Reading
from gpu_rag.program.knowledge_base.relations import directed_at, relations_of
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.step import batched
from gpu_rag.types import Ragged

MAX_ENDS = 100  # nodes kept per chain
SURE, MARGIN, SPARE = 0.5, 0.15, 3  # for a sure chain: minimum cover per step and lead, maximum other words
HEARD = 0.2  # below this cover of all chains, a relation that is named only in part is lacking too
Steps = tuple[tuple[int, int], ...]
_WAYS: Any = {direction: word for word, direction in DIRECTIONS.items()}


@dataclass(frozen=True)
class Asked:
    """A question about one topic.

    text: with "#" in place of the topic; nodes: nodes of the topic; hops: number of relations that the question names;
    vector: vector of the question with a word for the topic, None for no cosine; types: types of the answers, if they
    are known; anything: whether the topic stands for all things of a type, so that its nodes may be answers too; words:
    with their vectors, those that may mean a relation, if none names one.
    """

    text: str
    nodes: tuple[int, ...]
    hops: int
    vector: np.ndarray | None = None
    types: frozenset[int] = frozenset()
    anything: bool = False
    words: tuple[tuple[str, np.ndarray], ...] = ()


@dataclass(frozen=True)
class Read:
    """The interpretation of a question.

    chains: that it may ask for, best first; fitting: relations at the topic that lead to the asked type of node and do
    not mean the contrary; plain: whether the question says little besides relations; lacking: relations that it plainly
    says and that do not lead from the topic, with their directions; unread: words that seem to mean a relation, but
    none that the question can ask for.
    """

    chains: tuple[AskedChain, ...] = ()
    fitting: tuple[int, ...] = ()
    plain: bool = True
    lacking: Steps = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class AskedChain:
    """A chain that a question may ask for.

    steps: (relation, OUT, IN or EITHER); sure: whether words of the question name it, no chain to other nodes is nearly
    as good, and the question says little else; ends: its end nodes, at most MAX_ENDS.
    """

    steps: Steps
    score: float
    sure: bool
    ends: tuple[int, ...] = ()

    @property
    def relations(self) -> tuple[int, ...]:
        """The relation of each step."""
        return tuple(relation for relation, _ in self.steps)

    @property
    def ways(self) -> tuple[int, ...]:
        """The direction of each step."""
        return tuple(direction for _, direction in self.steps)

    def topic(self, name: str, type: str, kb: KnowledgeBase, negated: bool = False) -> Topic:
        """The chain of a topic of this name and type."""
        relations = tuple(kb.relation_names[row] for row in self.relations)
        return Topic(name, type, relations, tuple(_WAYS[way] for way in self.ways), negated)


@batched(GRAPH, name="kb_chains")
@trusted()
def asked_chains(index: Index, queries: list[Asked], longest: int, k: int) -> list[Read]:
    """The k chains of at most `longest` relations that each question asks for, best first, see the module."""
    reader = reader_of(index)
    kb = reader.kb
    vectors = [query.vector for query in queries if query.vector is not None]
    lines = iter(relations_of(index).cosines(vectors).tolist() if vectors else ())
    cosines = [[0.0] * kb.n_relations if query.vector is None else next(lines) for query in queries]
    every = range(kb.n_relations)
    first = directed_at(kb, [query.nodes for query in queries], reader.either)
    types = [set(reader.node_type[list(query.nodes)].tolist()) for query in queries]
    near = [[d // 2 for d in at_topic] if query.hops == 1 else every for query, at_topic in zip(queries, first)]
    readings = [
        Reading(reader, query.text, query.types, query.hops, line, rows)
        for query, line, rows in zip(queries, cosines, near)
    ]
    best = [
        reading.chains(first_relations, topic_types, longest, query.hops)[:TRIED]
        for reading, query, first_relations, topic_types in zip(readings, queries, first, types)
    ]
    flat = [(query.nodes, chain) for query, own in zip(queries, best) for chain, _, _ in own]
    starts = ragged_of_lists([nodes for nodes, _ in flat], kb.device)
    steps = ragged_of_lists([[d // 2 for d in chain] for _, chain in flat], kb.device)
    directions = ragged_of_lists([[reader.direction(d) for d in chain] for _, chain in flat], kb.device)
    ends = reachable(kb.typed, starts, steps, Ragged(directions.values, steps.offsets), threads=index.threads)
    values, cuts = to_host(ends.values, ends.offsets)
    nodes = iter(np.split(values.numpy(), cuts[1:-1].tolist()))
    reads = []
    for query, reading, first_relations, topic_types, own in zip(queries, readings, first, types, best):
        ranked = [
            (tuple((d // 2, reader.direction(d)) for d in chain), score, covered, next(nodes))
            for chain, score, covered in own
        ]
        read = _read(query, reading, first_relations, topic_types, ranked, k)
        reads.append(replace(read, unread=_unread(index, query, reading, read)))
    return reads


def _unread(index: Index, query: Asked, reading: Reading, read: Read) -> tuple[str, ...]:
    """The query's words without a cue, if none of them is as near to a relation as relations usually are to each other,
    and neither the rest of the question nor a type that it names says the relation."""
    is_fitting = len(read.fitting) == 1 and bool(reading.wanted) and not reading.implied
    if is_fitting or (read.chains and read.chains[0].sure) or not (query.words and reading.near):
        return ()
    relations = relations_of(index)
    cosines = relations.cosines([vector for _, vector in query.words])[:, list(reading.near)]
    return () if float(cosines.max()) >= relations.apart else tuple(word for word, _ in query.words)


Ranked = tuple[Steps, float, float, np.ndarray]
"""(chain, score, cover per step, end nodes)."""


def _read(
    query: Asked, reading: Reading, first: Sequence[int], types: set[int], ranked: Sequence[Ranked], k: int
) -> Read:
    """The reading of one question. first: directed relations at its topic; types: types of the topic; ranked: its best
    chains."""
    reader = reading.reader
    chains = _that_lead(() if query.anything else query.nodes, ranked, reading.spare, query.hops)
    if reading.by_meaning:
        chains = [replace(chain, sure=False) for chain in chains]
    fitting = {
        d // 2
        for d in first
        if reading.is_allowed[d] and any(reader.leads[d].get(type, set()) & reading.wanted for type in types)
    }
    plain, lacking = reading.spare <= SPARE, Steps()
    only = [chain for chain in chains if chain.relations == tuple(fitting)]
    says_little = reading.says_no_relation or (plain and reader.purpose(query.text) == 2)
    if len(fitting) == 1 and only and says_little:  # "which drug works for #"
        chains = [replace(only[0], sure=True), *(chain for chain in chains if chain is not only[0])]
    if plain and not any(chain.sure for chain in chains):
        least = PLAINLY if max((covered for _, _, covered, _ in ranked), default=0.0) >= HEARD else SURE
        named = reading.plainly_named(least)
        named = [d for d in named if reader.heads[d // 2][0].noun or not types.isdisjoint(reader.leads[d])]
        plainly = {(d // 2, reader.direction(d)) for d in named}
        walked = {step for chain in chains[:k] if len(chain.steps) <= query.hops for step in chain.steps}
        lacking = () if plainly & walked else tuple(sorted(plainly))
    return Read(tuple(_one_way(chains)[:k]), tuple(sorted(fitting)), plain, lacking)


def _one_way(chains: Sequence[AskedChain]) -> list[AskedChain]:
    """The chains without those that walk the relations of a better one in other directions."""
    best = {chain.relations: chain.score for chain in reversed(chains)}
    return [chain for chain in chains if chain.score >= best[chain.relations]]


def reader_of(index: Index) -> ChainReader:
    """The relations of an index's knowledge base, prepared for comparison with questions."""
    return index.loaded("chains", lambda index: ChainReader(kb_of(index)))


def _that_lead(topic: tuple[int, ...], ranked: Sequence[Ranked], spare: int, hops: int) -> list[AskedChain]:
    """Chains that lead away from the nodes of their topic, each with whether it is sure.

    spare: number of words of the question that name no relation; hops: number of relations that it names. The lead of a
    chain is that over the next chain with another target; chains that share half of their end nodes have one target.
    """
    away = [(steps, score, covered, set(ends.tolist()) - set(topic)) for steps, score, covered, ends in ranked]
    kept = [chain for chain in away if chain[3]]
    leading = []
    for rank, (steps, score, covered, ends) in enumerate(kept):
        rivals = (other for _, other, _, targets in kept[rank + 1 :] if 2 * len(ends & targets) < len(ends | targets))
        lead = score - next(rivals, score - FAR)
        guessed = len(steps) > hops or (spare > 0 and len(steps) > 1)  # a step may stand for no word, or another word
        shorter = spare > 0 and 1 < len(steps) < hops
        sure = spare <= SPARE and covered >= (PLAINLY if guessed else SURE) and lead >= MARGIN and not shorter
        leading.append(AskedChain(steps, score, sure, tuple(sorted(ends)[:MAX_ENDS])))
    return leading
