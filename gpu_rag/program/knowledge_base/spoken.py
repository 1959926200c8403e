"""A question over a knowledge base as rules read it, for every method: its topics with their chains, its operations,
and the nodes that it rules out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from msgspec import structs

from gpu_rag.graph.reach import IN
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.knowledge_base.chains import Asked, AskedChain, Read, asked_chains, reader_of
from gpu_rag.program.knowledge_base.names import masked
from gpu_rag.program.knowledge_base.query import (
    ALL,
    ANYTHING,
    DATED,
    STATED_BY,
    STATED_ON,
    Constraint,
    Operations,
    Part,
    Plan,
    Topic,
    contrary_nodes,
    operations_of,
    part_of,
)
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.runtime.gather import gather
from gpu_rag.text.rules.decomposition.phrases import BASE_VERBS
from gpu_rag.text.rules.extraction.lexicon import PREPOSITIONS, is_verb
from gpu_rag.text.rules.relations import units_of
from gpu_rag.text.rules.relations.hops import n_relations, relation_words
from gpu_rag.text.rules.relations.operators import Clause, is_compared, operators_of

_BEHIND = re.compile(r"\W+(?:(?:and|or)\W+\w+\W+)?(\w+)")  # "drinks or food companies": companies, behind drinks
_THING = re.compile(r"\b(?:(nobody|no\W?one|nothing|anybody|anyone|anything)|(no|any|a|an) (\w+))\b", re.IGNORECASE)
_NEGATES = re.compile(r"\b(?:not|never|no|nor|neither|without)\b|n['’]t\b", re.IGNORECASE)
_NEWEST = re.compile(
    r"\b(?:these days|nowadays|now|currently|at present|present|current|(?:(?:according to|going by|by) )?(?:the )?"
    r"(?:latest|newest|most recent) (?:report|source|figure|information|record|data)s?(?: for| of)?)\b",
    re.IGNORECASE,
)
FAR_BEHIND = 0.6  # of chains that meet: how much lower their scores may be than the best ones
SAMPLE = 200  # nodes of a type that are looked at to read the relations of all
_ITSELF = Read((AskedChain((), 1.0, True),))
_WORD_BEFORE = re.compile(r"(\w+)\W+(?:(?:the|a|an)\W+)?$")


@dataclass(frozen=True)
class Named:
    """A topic that a question names. start, end: characters of its name there; vector: of the question with a word for
    the topic, None for no cosine."""

    name: str
    nodes: tuple[int, ...]
    start: int
    end: int
    vector: np.ndarray | None = None


@dataclass(frozen=True)
class TopicRead:
    """A topic as rules read it. negated, left_out: whether the question rules out the nodes that it leads to, or the
    topic itself; opposed: relations that mean the contrary of what is asked."""

    name: str
    nodes: tuple[int, ...]
    read: Read
    negated: bool = False
    left_out: bool = False
    opposed: frozenset[int] = frozenset()

    @property
    def chains(self) -> tuple[AskedChain, ...]:
        """The chains that the question may ask for, best first; none of a topic that is left out."""
        return () if self.left_out else self.read.chains

    @property
    def sure(self) -> bool:
        """Whether the question plainly says the first chain, or leaves the topic out."""
        return self.left_out or bool(self.chains and self.chains[0].sure)


@dataclass(frozen=True)
class Spoken:
    """A question as rules read it. topics: that it clearly names; others: that it may mean; anything: topics that stand
    for all things of a type; unread: words whose part in it is not understood; types: of the nodes that it asks for;
    barred: nodes that only a contrary relation joins with a topic, each with the reason; plain: whether it has no
    operator."""

    topics: tuple[TopicRead, ...] = ()
    others: tuple[TopicRead, ...] = ()
    anything: tuple[Topic, ...] = ()
    operations: Operations = ALL
    unread: tuple[str, ...] = ()
    types: tuple[int, ...] = ()
    barred: dict[int, str] = field(default_factory=dict)
    plain: bool = True

    @property
    def left_out(self) -> tuple[int, ...]:
        """The nodes that the question leaves out."""
        return tuple(node for topic in self.topics if topic.left_out for node in topic.nodes)

    def lacking(self, kb: KnowledgeBase) -> list[str]:
        """The relations that the question plainly says of a topic and that do not lead from it."""
        pairs = ((topic, row) for topic in self.topics for row, _ in topic.read.lacking if not topic.left_out)
        return list(dict.fromkeys(f"{kb.relation_names[row]} of {topic.name}" for topic, row in pairs))


async def spoken_of(
    index: Index, text: str, topics: Sequence[Named], others: Sequence[Named], longest: int, k: int
) -> Spoken:
    """A question about topics that it clearly names, in the order of their places, and other ones that it may mean."""
    kb = kb_of(index)
    text, source, newest = _without_source(index, text)
    things = _things(index, text, topics)
    spots = sorted([*topics, *things], key=lambda topic: topic.start)
    spans, reader = [(topic.start, topic.end) for topic in spots], reader_of(index)
    operators = operators_of(text, spans, reader.groups, reader.valued, reader.pairs)
    plain = operators.plain and not (source or newest)
    if plain:
        spots = list(topics)
    asked = [_about(text, topic, spots, index) for topic in (*spots, *others)]
    clauses = [*([Clause("")] * len(spots) if plain else operators.clauses), *[Clause("")] * len(others)]
    for place, clause in enumerate(() if plain else operators.clauses[: len(spots)]):
        asked[place] = replace(asked[place], text=clause.text, hops=n_relations(clause.text, []))
    reads = list(await gather(*(asked_chains(ask, longest, k) for ask in asked)))
    if len(spots) > 1:
        sure = [read.chains[0] for read in reads[: len(spots)] if read.chains and read.chains[0].sure]
        types_of_ends = frozenset(kb.node_type[[*sure[0].ends]].tolist()) if sure else frozenset()
        open_ = [i for i, read in enumerate(reads[: len(spots)]) if sure and not (read.chains and read.chains[0].sure)]
        again = await gather(*(asked_chains(replace(asked[i], types=types_of_ends), longest, k) for i in open_))
        for place, chains in zip(open_, again):
            reads[place] = chains
    if plain and len(topics) > 1:
        reads[: len(topics)] = _meeting(reads[: len(topics)])
    read = [
        TopicRead(
            named.name, named.nodes, _ITSELF if clause.itself else chains, clause.negated, clause.left_out,
            reader.opposed(ask.text),
        )
        for named, chains, clause, ask in zip((*spots, *others), reads, clauses, asked)
    ]  # fmt: skip
    types = tuple(sorted(reader.asked_types(text)))
    topic_reads = tuple(topic for topic in read[: len(spots)] if topic.name != ANYTHING)
    spoken = Spoken(topic_reads, tuple(read[len(spots) :]), types=types, plain=plain)
    against = [topic for topic in topic_reads if topic.opposed and not (topic.negated or topic.left_out)]
    for topic, nodes in zip(against, await gather(*(contrary_nodes((t.nodes, t.opposed)) for t in against))):
        spoken.barred.update((node, f"{kb.relation_names[row]} of {topic.name}") for node, row in nodes.items())
    if plain:
        return spoken
    anything = [_of_type(topic, kb) for topic in read[: len(spots)] if topic.name == ANYTHING and topic.sure]
    negated = [topic.negated for topic in topic_reads] + [topic.negated for topic in anything]
    if len(types) == 1 and all(negated) and (anything or not topic_reads):
        anything.append(Topic(ANYTHING, kb.type_names[types[0]], ()))
    firsts = [(topic, topic.chains[0]) for topic in topic_reads if topic.chains]
    parts = [Part(topic.nodes, chain.relations, chain.ways, topic.negated) for topic, chain in firsts]
    plan = Plan((*parts, *(part_of(kb, topic) for topic in anything)), without=spoken.left_out, types=types)
    operations, unread = await operations_of((operators, plan))
    stated = (Constraint(STATED_BY, "equal", source),) if source else ()
    operations = structs.replace(operations, constraints=(*operations.constraints, *stated))
    if newest and not operations.aggregate:
        operations = structs.replace(operations, aggregate="last", by=STATED_ON)
    unsure = any(topic.negated and not topic.sure for topic in read[: len(spots)])
    narrower = reader.unread_of(operators.words, operators.order)
    unread = tuple(dict.fromkeys((*unread, *narrower, *(["not"] if unsure else []))))
    return replace(spoken, operations=operations, unread=unread, anything=tuple(anything))


def _meeting(reads: Sequence[Read]) -> list[Read]:
    """The readings of topics, each with that of its chains first which leads to nodes that the other topics' chains
    lead to, if some of the best chains are not sure. The best sum of scores counts."""
    choices = [read.chains[: 1 if read.chains and read.chains[0].sure else None] for read in reads]
    met = [chosen for chosen in product(*choices) if set.intersection(*(set(chain.ends) for chain in chosen))]
    best = max(met, key=lambda chosen: sum(chain.score for chain in chosen), default=())
    if not best or sum(read.chains[0].score - chain.score for read, chain in zip(reads, best)) > FAR_BEHIND:
        return list(reads)
    pairs = zip(reads, best)
    return [replace(read, chains=tuple(dict.fromkeys((chain, *read.chains)))) for read, chain in pairs]


def _without_source(index: Index, text: str) -> tuple[str, str, bool]:
    """(a question with spaces for the words that say who states the answer, this source or "", whether the newest
    statement is asked for)."""
    kb, source = kb_of(index), ""
    for name in (source.name for source in kb.sources if len(kb.sources) > 1):
        the = rf"(?:the )?{re.escape(name)}"
        says = (
            rf"\b(?:according to|as per|going by) {the}\b|\b(?:do|does|did) {the} (?:call|name|give|list|report|say)\b"
        )
        if match := re.search(says, text, re.IGNORECASE):
            verb = "" if match[0][0] in "Aa" else "is"
            text, source = f"{text[: match.start()]}{verb:<{len(match[0])}}{text[match.end() :]}", name
    newest = [match.span() for match in _NEWEST.finditer(text)]
    if not (bool(newest) and index.loaded("dated notes", _has_dates)):
        return text, source, False
    for start, end in newest:
        text = f"{text[:start]}{' ' * (end - start)}{text[end:]}"
    return text, source, True


def _has_dates(index: Index) -> bool:
    return any(map(DATED.search, kb_of(index).provenance))


def _things(index: Index, text: str, topics: Sequence[Named]) -> list[Named]:
    """The words of a question for all things of a type: "no band", "any band" beside a negation, "nobody"; where it
    names no topic, also "a band". The nodes are a sample, enough to read the relations."""
    kb, things, asked = kb_of(index), list[Named](), reader_of(index).asked_types(text)
    for match in _THING.finditer(text):
        word, noun = (match[1] or match[2]).casefold(), match[3]
        types = reader_of(index).asked_types(noun) if noun else set(range(kb.n_types))
        counts = word.startswith("no") or (
            _NEGATES.search(text) if word.startswith("any") else not (topics or types & asked)
        )
        if counts and types and not any(match.start() < t.end and t.start < match.end() for t in topics):
            nodes = np.flatnonzero(np.isin(kb.node_type, sorted(types)))
            sample = nodes[:: max(1, len(nodes) // SAMPLE)].tolist()
            things += [Named(ANYTHING, tuple(sample), *match.span())] if sample else []
    return things


def _of_type(topic: TopicRead, kb: KnowledgeBase) -> Topic:
    """A topic for all things of the type that most edges of its first relation have on its side."""
    (relation, way), chain = topic.chains[0].steps[0], topic.chains[0]
    here = np.unique((kb.tail if way == IN else kb.head)[kb.relation == relation])
    type = kb.type_names[int(np.bincount(kb.node_type[here]).argmax())]
    return chain.topic(ANYTHING, type, kb, topic.negated)


def _about(text: str, topic: Named, topics: Sequence[Named], index: Index) -> Asked:
    """The whole question about one topic: "#" stands for it, and the other topics are removed."""
    hops = n_relations(text, [text[topic.start : topic.end]], _words_of_relations(index))
    masked_text, places = text, {(other.start, other.end) for other in topics} | {(topic.start, topic.end)}
    for start, end in sorted(places, reverse=True):
        if (start, end) == (topic.start, topic.end) and end:
            masked_text = masked(masked_text, start, end, "#")
        elif end <= topic.start or start >= topic.end:
            masked_text = masked(masked_text, start, end, "")
    return Asked(masked_text, topic.nodes, hops, topic.vector, anything=topic.name == ANYTHING)


def stands_as_name(index: Index, text: str, start: int, end: int) -> bool:
    """Whether a plain word stands where a name does: before a word for a type ("energy companies"), or behind a
    preposition, a verb or a word of a relation ("made from moonwort", "plays the harp"). A word in small letters is no
    name if the graph writes it with a capital ("the primary languages")."""
    kb = kb_of(index)
    if not any(kb.node_names[node][:1].islower() for node in kb.named(text[start:end])):
        return False
    if any(unit.groups for unit in units_of(text[start:end])) or reader_of(index).asked_types(text[start:end]):
        return False
    behind, before = _BEHIND.match(text[end:]), _WORD_BEFORE.search(text[:start].casefold())
    word = before[1] if before else ""
    leads = is_verb(word, "") or word in ("neither", "nor")
    leads = leads or not {word, word.removesuffix("s")}.isdisjoint(BASE_VERBS | _words_of_relations(index))
    return bool(behind and reader_of(index).asked_types(behind[1])) or word in PREPOSITIONS or leads


def _words_of_relations(index: Index) -> frozenset[str]:
    return index.loaded("words of relations", lambda index: relation_words(kb_of(index).relation_texts))


def is_value(text: str, start: int, end: int) -> bool:
    """Whether a name is a number or a date that the question compares others with ("before 1970")."""
    return is_compared(text[:start], text[start:end])
