"""HybGRAG's router without a language model: ranked entities and relations, and a rule for each feedback.

First action: all names that clearly occur in the question, else the first candidate. Each is followed along the chain
of relations that the question asks for (`program.knowledge_base.chains`), else along its nearest relation.
Next action: depending on the critic's feedback, the first of these that was not taken before:
  incorrect entity      the next-ranked entity in its place, or no entity there
  incorrect relation    the other relations if any is left, else the next-ranked relations, or without the entity
  missing entity        one more entity, the next-ranked one
  no entity             each candidate alone, in order
  an intersection       one entity is changed, the last one first: the next-ranked relations, the next-ranked entity, or
                        without it
  wrong module          the other module
If all of these were taken: variants of every entity, one more entity, the other module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hybgrag.state import DIRECTIONS, HYBRID, TEXT, Action, Fault, Feedback, History, Params, Topic
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.chains import Asked, Read, asked_chains
from gpu_rag.program.knowledge_base.names import Linked, link_names, masked
from gpu_rag.program.knowledge_base.relations import NearRelations, near_relations
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run
from gpu_rag.runtime.gather import gather
from gpu_rag.text.keywords import keywords
from gpu_rag.text.rules.relations.hops import n_relations, relation_words

N_CANDIDATES = 12
N_RANKED = 8  # relations tried per entity
CLEAR, PLAIN = 3.0, 2.0  # minimum scores of a name in the question, see `Linked`
N_CHAINS, LONGEST = 4, 3  # chains tried per entity, relations per chain
WAYS: Any = {direction: word for word, direction in DIRECTIONS.items()}
N_VARIANTS = 1  # relation sets tried to repair an intersection before an entity is dropped


@dataclass(frozen=True)
class Candidate:
    """An entity that the question may mean.

    relations: (name, whether it can be the first step), best first; chains: that the question may ask for, best first;
    sure: whether the first chain is certain; plain: whether the question says little else.
    """

    linked: Linked
    relations: tuple[tuple[str, bool], ...]
    chains: tuple[Topic, ...] = ()
    sure: bool = False
    plain: bool = True

    def topics(self, size: int) -> list[Topic]:
        """The entity along each of its chains, then along each set of at most `size` of its relations that can begin a
        walk. Single relations come first by rank, then pairs by the sum of their ranks, ..."""
        places = range(len(self.relations))
        sizes = range(1, min(size, len(places)) + 1)
        sets = [s for n in sizes for s in combinations(places, n) if any(self.relations[i][1] for i in s)]
        sets.sort(key=lambda s: (len(s), sum(s), s))
        named = (tuple(self.relations[i][0] for i in s) for s in sets)
        return [*self.chains, *(Topic(self.linked.name, self.linked.type, relations) for relations in named)]

    @property
    def first(self) -> Topic:
        """The entity along the best chain, else along the best relation that can begin a walk."""
        return self.topics(1)[0]

    def is_of(self, topic: Topic) -> bool:
        """Whether the topic is this entity."""
        return (self.linked.name, self.linked.type) == (topic.entity, topic.type)

    def overlaps(self, other: Candidate) -> bool:
        """Whether both come from the same words of the question."""
        mine, its = self.linked, other.linked
        return mine.start < its.end and its.start < mine.end


async def candidates(question: str, run: Run, params: Params) -> list[Candidate]:
    """The entities that a question may mean, best first. At one place, the type with the nearest relation comes first.

    Relations are ranked by the cosine of their words and the question with the name replaced by its type. Chains are
    looked up for names that occur in the question.
    """
    phrases = sorted(keywords(question), key=lambda phrase: (-len(phrase), phrase))[:N_CANDIDATES]
    kb = kb_of(run.index)
    linked = await link_names(kb, question, phrases, N_CANDIDATES, params.name_threshold)
    if not linked:
        return []
    vectors = await embed([masked(question, e.start, e.end, e.type) for e in linked])
    ranked = await gather(
        *(near_relations((e.nodes, vector), params.radius, N_RANKED) for e, vector in zip(linked, vectors))
    )
    common = run.index.loaded("words of relations", lambda index: relation_words(kb_of(index).relation_texts))
    asked = [_asked(question, e, linked, vector, common) for e, vector in zip(linked, vectors)]
    chains = await gather(*(asked_chains(one, LONGEST, N_CHAINS) for one in asked))
    found = [_candidate(e, near, some, kb) for e, near, some in zip(linked, ranked, chains) if any(near.first)]
    found.sort(key=lambda pair: (-pair[0].linked.score, pair[0].linked.start, -pair[1]))  # stable
    return [candidate for candidate, _ in found]


def _asked(question: str, topic: Linked, linked: Sequence[Linked], vector: np.ndarray, common: frozenset[str]) -> Asked:
    """The question about one topic: "#" stands for the topic, and other names that clearly occur in it are removed."""
    text = question
    for other in sorted({(e.start, e.end): e for e in linked}.values(), key=lambda e: -e.start):
        if (other.start, other.end) == (topic.start, topic.end) and topic.end:
            text = masked(text, topic.start, topic.end, "#")
        elif other.score >= CLEAR and (other.end <= topic.start or other.start >= topic.end):
            text = masked(text, other.start, other.end, "")
    return Asked(text, topic.nodes, n_relations(question, [question[topic.start : topic.end]], common), vector)


def _candidate(linked: Linked, near: NearRelations, read: Read, kb: KnowledgeBase) -> tuple[Candidate, float]:
    """The candidate, and a score that ranks the types of one name: of the best chain, else of the best relation."""
    names, chains = kb.relation_names, read.chains
    relations = tuple((names[r], first) for r, first in zip(near.rows, near.first))
    topics = [
        Topic(linked.name, linked.type, tuple(names[r] for r in one.relations), tuple(WAYS[way] for way in one.ways))
        for one in chains
    ]
    sure = bool(chains) and chains[0].sure
    if read.fitting and not read.plain:
        topics.insert(0, Topic(linked.name, linked.type, tuple(names[r] for r in read.fitting)))
    score = chains[0].score if chains else max(near.scores) - 1
    return Candidate(linked, relations, tuple(topics), sure, read.plain), score


def first_action(ranked: Sequence[Candidate], params: Params) -> Action:
    """The action before any feedback."""
    least = CLEAR if any(c.linked.score >= CLEAR for c in ranked) else PLAIN
    taken: list[Candidate] = []
    for candidate in ranked:
        plain = candidate.linked.score >= least and not any(candidate.overlaps(other) for other in taken)
        if plain and len(taken) < params.max_topics:
            taken.append(candidate)
    topics = tuple(candidate.first for candidate in taken or ranked[:1])
    return Action(HYBRID, topics) if topics else Action(TEXT)


def next_action(history: History, ranked: Sequence[Candidate], params: Params) -> Action | None:
    """The action after the last feedback; None if every action was taken."""
    proposed = _Reactions(history, ranked, params).proposals()
    return next((action for action in proposed if not history.seen(action)), None)


@dataclass
class _Reactions:
    history: History
    ranked: Sequence[Candidate]
    params: Params

    @cached_property
    def known(self) -> list[Candidate]:
        """The candidates that were never called wrong."""
        wrong = {name for feedback in self.history.feedback for name in feedback.entities}
        return [candidate for candidate in self.ranked if candidate.linked.name not in wrong]

    def proposals(self) -> Iterator[Action]:
        action, kind = self.history.actions[-1], self.history.feedback[-1].kind
        of_hybrid = {
            Fault.INCORRECT: self._mended,
            Fault.MISSING: self._extended,
            Fault.NO_INTERSECTION: self._one_changed,
            Fault.WRONG_INTERSECTION: self._one_changed,
        }
        of_any = {Fault.NO_ENTITY: self._single, Fault.WRONG_MODULE: self._switched}
        reactions = [of_any[kind]] if kind in of_any else []
        if action.module == HYBRID:
            reactions += [*([of_hybrid[kind]] if kind in of_hybrid else []), self._one_changed, self._extended]
        for reaction in (*reactions, self._switched, self._single):
            yield from reaction(action)
        yield Action(TEXT)

    def _mended(self, action: Action) -> Iterator[Action]:
        """Actions that change all wrong topics at once: each to its first choice, then to its second, ..."""
        choices = [self._choices(action, topic, self.history.feedback[-1]) for topic in action.topics]
        for turn in range(max(map(len, choices))):
            picked = (line[min(turn, len(line) - 1)] for line in choices)
            topics = tuple(topic for topic in picked if topic is not None)
            yield Action(HYBRID, topics) if topics else Action(TEXT)

    def _choices(self, action: Action, topic: Topic, feedback: Feedback) -> list[Topic | None]:
        """The possible replacements of a topic; None means to leave it out."""
        wrong = {relation for entity, relation in feedback.relations if entity == topic.entity}
        if topic.entity in feedback.entities:
            return [*(c.first for c in self._spare(action, topic)), None]
        if not wrong:
            return [topic]
        left = tuple(dict.fromkeys(relation for relation in topic.relations if relation not in wrong))
        kept: list[Topic | None] = [Topic(topic.entity, topic.type, left)] if left else []
        return [*kept, *self._variants(topic, wrong), None]

    def _variants(self, topic: Topic, without: set[str]) -> list[Topic]:
        """The topic along other relations; sets without any of `without` come first."""
        tried = {t.key for action in self.history.actions for t in action.topics}
        own = next((c.topics(self.params.n_relations) for c in self.known if c.is_of(topic)), [])
        return sorted((t for t in own if t.key not in tried), key=lambda t: bool(without.intersection(t.relations)))

    def _spare(self, action: Action, replaced: Topic | None = None) -> list[Candidate]:
        """Candidates that are not topics. One that overlaps a topic is allowed only if that topic is replaced, and
        comes first."""
        used = [c for c in self.ranked if any(c.is_of(topic) for topic in action.topics)]
        old = [c for c in used if replaced and c.is_of(replaced)]
        kept = [c for c in used if c not in old]
        spare = [c for c in self.known if c not in used and not any(c.overlaps(other) for other in kept)]
        return sorted(spare, key=lambda c: not any(c.overlaps(other) for other in old))

    def _extended(self, action: Action) -> Iterator[Action]:
        if len(action.topics) < self.params.max_topics:
            for candidate in self._spare(action):
                yield from _hybrid(*action.topics, candidate.first)

    def _one_changed(self, action: Action) -> Iterator[Action]:
        for place in reversed(range(len(action.topics))):
            topic = action.topics[place]
            before, after = action.topics[:place], action.topics[place + 1 :]
            spare = (c.first for c in self._spare(action, topic)[:1])
            for other in (*self._variants(topic, set())[:N_VARIANTS], *spare):
                yield from _hybrid(*before, other, *after)
            yield from _hybrid(*before, *after)

    def _single(self, action: Action) -> Iterator[Action]:
        for candidate in self.known:
            yield from _hybrid(candidate.first)

    def _switched(self, action: Action) -> Iterator[Action]:
        if action.module == HYBRID:
            yield Action(TEXT, action.topics)
        else:
            yield from _hybrid(*action.topics)
            yield first_action(self.known, self.params)


def _hybrid(*topics: Topic) -> Iterator[Action]:
    if topics:
        yield Action(HYBRID, topics)
