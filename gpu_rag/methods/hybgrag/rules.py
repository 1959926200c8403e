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

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hybgrag.state import HYBRID, TEXT, Action, Fault, Feedback, History, Params
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.names import Linked, link_names, masked, unknown_names
from gpu_rag.program.knowledge_base.query import Topic
from gpu_rag.program.knowledge_base.relations import NearRelations, near_relations
from gpu_rag.program.knowledge_base.spoken import Named, Spoken, TopicRead, spoken_of, stands_as_name
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.run import Run
from gpu_rag.runtime.gather import gather
from gpu_rag.text.keywords import keywords
from gpu_rag.text.rules.relations.operators import is_compared

N_CANDIDATES = 12
N_RANKED = 8  # relations tried per entity
CLEAR, PLAIN = 3.0, 2.0  # minimum scores of a name in the question, see `Linked`
N_CHAINS, LONGEST = 4, 3  # chains tried per entity, relations per chain
N_VARIANTS = 1  # relation sets tried to repair an intersection before an entity is dropped


@dataclass(frozen=True)
class Candidate:
    """An entity that the question may mean.

    relations: (name, whether it can be the first step), best first; chains: that the question may ask for, best first;
    sure: whether the first chain is certain; plain: whether the question says little else. negated: whether the
    question rules out the nodes that it leads to; lacking: relations that the question plainly says and that do not
    lead from it.
    """

    linked: Linked
    relations: tuple[tuple[str, bool], ...]
    chains: tuple[Topic, ...] = ()
    sure: bool = False
    plain: bool = True
    negated: bool = False
    lacking: tuple[str, ...] = ()

    def topics(self, size: int) -> list[Topic]:
        """The entity along each of its chains, then along each set of at most `size` of its relations that can begin a
        walk. Single relations come first by rank, then pairs by the sum of their ranks, ..."""
        places = range(len(self.relations))
        sizes = range(1, min(size, len(places)) + 1)
        sets = [s for n in sizes for s in combinations(places, n) if any(self.relations[i][1] for i in s)]
        sets.sort(key=lambda s: (len(s), sum(s), s))
        named = (tuple(self.relations[i][0] for i in s) for s in sets)
        name, type = self.linked.name, self.linked.type
        return [*self.chains, *(Topic(name, type, relations, negated=self.negated) for relations in named)]

    @property
    def first(self) -> Topic:
        """The entity along the best chain, else along the best relation that can begin a walk."""
        return self.topics(1)[0]

    def is_of(self, topic: Topic) -> bool:
        """Whether the topic is this entity."""
        return (self.linked.name, self.linked.type) == (topic.entity, topic.type)

    def overlaps(self, other: Candidate) -> bool:
        """Whether both come from the same words of the question."""
        return _overlap(self.linked, other.linked)


async def candidates(question: str, run: Run, params: Params) -> tuple[list[Candidate], Spoken, tuple[str, ...]]:
    """(the entities that a question may mean, best first; the question as rules read it; names in it that no node has).

    At one place, the type with the nearest relation comes first. Relations are ranked by the cosine of their words and
    the question with the name replaced by its type.
    """
    phrases = sorted(keywords(question), key=lambda phrase: (-len(phrase), phrase))[:N_CANDIDATES]
    index, kb = run.index, kb_of(run.index)
    linked = await link_names(kb, question, phrases, N_CANDIDATES, params.name_threshold)
    spots = [spot for entity in linked for spot in _places(entity, question)]
    linked = [e for e in spots if not is_compared(question[: e.start], question[e.start : e.end])]
    clear = sorted(_clear(linked, index, question, params.max_topics), key=lambda e: e.start)
    linked = [*clear, *(e for e in linked if e not in clear)]
    vectors = list(await embed([masked(question, e.start, e.end, e.type) for e in linked])) if linked else []
    named = [Named(e.name, e.nodes, e.start, e.end) for e in linked]
    spoken = await spoken_of(index, question, named[: len(clear)], named[len(clear) :], LONGEST, N_CHAINS)
    near = await gather(
        *(near_relations((e.nodes, vector), params.radius, N_RANKED) for e, vector in zip(linked, vectors))
    )
    left_out = set(spoken.left_out)
    kept = [(e, n, r) for e, n, r in zip(linked, near, spoken.topics + spoken.others) if not {*e.nodes} <= left_out]
    scored = [_candidate(e, n, r, kb) for e, n, r in kept if any(n.first)]
    scored.sort(key=lambda pair: (-pair[0].linked.score, pair[0].linked.start, -pair[1]))  # stable
    return [candidate for candidate, _ in scored], spoken, unknown_names(question, [e.name for e in linked], kb)


def _clear(linked: Sequence[Linked], index: Index, question: str, limit: int) -> list[Linked]:
    """The names that clearly occur in a question, one for each place."""
    min_score, chosen = CLEAR if any(e.score >= CLEAR for e in linked) else PLAIN, list[Linked]()
    for e in linked:
        clear = e.score >= min_score or (e.score >= PLAIN and stands_as_name(index, question, e.start, e.end))
        if clear and not any(_overlap(e, other) for other in chosen) and len(chosen) < limit:
            chosen.append(e if e.score >= min_score else replace(e, score=min_score))
    return chosen


def _places(entity: Linked, question: str) -> list[Linked]:
    """An entity at each place of its name in the question."""
    name = question[entity.start : entity.end]
    places = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", question)] if name else []
    return [replace(entity, start=start, end=end) for start, end in places] or [entity]


def _overlap(first: Linked, other: Linked) -> bool:
    return first.start < other.end and other.start < first.end


def _candidate(linked: Linked, near: NearRelations, topic: TopicRead, kb: KnowledgeBase) -> tuple[Candidate, float]:
    """The candidate, and a score that ranks the types of one name: by the best chain, else by the best
    relation."""
    names, read = kb.relation_names, topic.read
    relations = tuple((names[r], first) for r, first in zip(near.rows, near.first))
    topics = [chain.topic(linked.name, linked.type, kb, topic.negated) for chain in topic.chains]
    if read.fitting and not read.plain:
        fitting = tuple(names[r] for r in read.fitting)
        topics.insert(0, Topic(linked.name, linked.type, fitting, negated=topic.negated))
    score = read.chains[0].score if read.chains else max(near.scores) - 1
    lacking = tuple(dict.fromkeys(names[row] for row, _ in read.lacking))
    return Candidate(linked, relations, tuple(topics), topic.sure, read.plain, topic.negated, lacking), score


def first_action(ranked: Sequence[Candidate], params: Params) -> Action:
    """The action before any feedback."""
    min_score = CLEAR if any(c.linked.score >= CLEAR for c in ranked) else PLAIN
    named: list[Candidate] = []
    for candidate in ranked:
        plain = candidate.linked.score >= min_score and not any(candidate.overlaps(other) for other in named)
        if plain and len(named) < params.max_topics:
            named.append(candidate)
    certain = [candidate for candidate in named if candidate.sure or not candidate.negated]
    topics = tuple(candidate.first for candidate in certain or named or ranked[:1])
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
        right = tuple(dict.fromkeys(relation for relation in topic.relations if relation not in wrong))
        kept: list[Topic | None] = [Topic(topic.entity, topic.type, right)] if right else []
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
        replaced_ones = [c for c in used if replaced and c.is_of(replaced)]
        kept = [c for c in used if c not in replaced_ones]
        spare = [c for c in self.known if c not in used and not any(c.overlaps(other) for other in kept)]
        return sorted(spare, key=lambda c: not any(c.overlaps(other) for other in replaced_ones))

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
