"""Rules that read a question over a knowledge base, for every method: its topics with their chains, its operations, and
the nodes that it rules out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from gpu_rag.graph.reach import EITHER, IN
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.program.knowledge_base.chains import Asked, AskedChain, Read, asked_chains, reader_of
from gpu_rag.program.knowledge_base.names import MAX_HOMONYMS, masked, mentions_in
from gpu_rag.program.knowledge_base.query import (
    ALL,
    ANYTHING,
    STATED_BY,
    STATED_ON,
    Constraint,
    Operations,
    Part,
    Plan,
    Query,
    Topic,
    contrary_nodes,
    has_dates,
    operations_of,
    part_of,
)
from gpu_rag.program.knowledge_base.reading import words_without_cue
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.steps import embed_texts
from gpu_rag.runtime.gather import gather
from gpu_rag.text.rules.decomposition.phrases import AUX, BASE_VERBS
from gpu_rag.text.rules.extraction.lexicon import PREPOSITIONS, is_verb
from gpu_rag.text.rules.relations import units_of
from gpu_rag.text.rules.relations.hops import n_relations, relation_words
from gpu_rag.text.rules.relations.operators import Clause, operators_of, statements_in

_WORD_BEHIND = re.compile(r"\W+(?:(?:and|or)\W+\w+\W+)?(\w+)")  # "drinks or food companies": companies, behind drinks
_UNNAMED = re.compile(r"\b(?:(nobody|no\W?one|nothing|anybody|anyone|anything)|(no|any|a|an) (\w+))\b", re.IGNORECASE)
_REQUEST = re.compile(  # "I'd like to know", "could you tell me": words that say no relation
    r"^\W*(?:please\W+)?(?:(?:(?:can|could|would|will) you (?:please )?)?(?:tell|show|give|let) (?:me|us)\b(?: know\b)?"
    r"|do you know\b|i(?:\W?d| would| want| need)(?: like)? to (?:know|learn|hear)\b)",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"\b(?:the|an?) (?=#)", re.IGNORECASE)
_MODAL = re.compile(
    r"\b(?:should|must|may|can|could)\s((?:(?!\b(?:and|or|but|that|wh\w+)\b)[^,;:.?!])+?)\s(not|never)\b", re.I
)
_NEGATES = re.compile(r"\b(?:not|never|no|nor|neither|without)\b|n['’]t\b", re.IGNORECASE)
_NEWEST = re.compile(
    r"\b(?:these days|nowadays|now|currently|at present|present|current|(?:(?:according to|going by|by) )?(?:the )?"
    r"(?:latest|newest|most recent) (?:report|source|figure|information|record|data)s?(?: for| of)?)\b",
    re.IGNORECASE,
)
SAMPLE = 200  # nodes that stand for all nodes of a type when their relations are read
_ITSELF = Read((AskedChain((), 1.0, True),))
_WORD_BEFORE = re.compile(r"(\w+)\W+(?:(?:the|a|an)\W+)?$")


@dataclass(frozen=True)
class Named:
    """A topic that a question names. start, end: characters of its name there."""

    name: str
    nodes: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class TopicRead:
    """A topic as rules read it. negated, left_out: whether the question rules out the nodes that it leads to, or the
    topic itself, which is also so of a mere condition; opposed: relations that rule out nodes, see
    `ChainReader.rules_out`."""

    name: str
    nodes: tuple[int, ...]
    read: Read
    negated: bool = False
    left_out: bool = False
    opposed: Mapping[int, bool] = field(default_factory=dict)

    @property
    def chains(self) -> tuple[AskedChain, ...]:
        """The chains that the question may ask for, best first; none of a topic that is left out."""
        return () if self.left_out else self.read.chains

    @property
    def sure(self) -> bool:
        """Whether the question plainly says the first chain, or leaves the topic out."""
        return self.left_out or bool(self.chains and self.chains[0].sure)


@dataclass(frozen=True)
class Barred:
    """A reason why a node is not an answer: "relation of topic". said: whether the question says it is contrary."""

    reason: str
    said: bool


@dataclass(frozen=True)
class Spoken:
    """A question as rules read it. topics: clearly named in it; others: perhaps meant; anything: topics that stand for
    all things of a type; unread: words whose part in it is not understood; types: types of the nodes that it asks for;
    barred: nodes that only a contrary relation joins with a topic; plain: whether it has no
    operator."""

    topics: tuple[TopicRead, ...] = ()
    others: tuple[TopicRead, ...] = ()
    anything: tuple[Topic, ...] = ()
    operations: Operations = ALL
    unread: tuple[str, ...] = ()
    types: tuple[int, ...] = ()
    barred: dict[int, list[Barred]] = field(default_factory=dict)
    plain: bool = True

    @property
    def left_out(self) -> tuple[int, ...]:
        """The nodes that the question leaves out."""
        return tuple(node for topic in self.topics if topic.left_out for node in topic.nodes)

    def ruled_out(self, query: Query) -> dict[int, str]:
        """The barred nodes with reasons. A sure query may ask for a relation that the question's words leave open."""
        topics = [topic for topic in query.entities if query.sure and not topic.negated]
        asked = {f"{name} of {topic.entity}".casefold() for topic in topics for name in topic.relations[-1:]}
        pairs = ((node, barred) for node, reasons in self.barred.items() for barred in reasons)
        return {node: b.reason for node, b in pairs if b.said or b.reason.casefold() not in asked}

    def lacking(self, kb: KnowledgeBase) -> list[str]:
        """The relations that the question plainly says of a topic and that do not lead from it."""
        pairs = ((topic, row) for topic in self.topics for row, _ in topic.read.lacking if not topic.left_out)
        return list(dict.fromkeys(f"{kb.relation_names[row]} of {topic.name}" for topic, row in pairs))


async def spoken_of(
    index: Index, text: str, topics: Sequence[Named], others: Sequence[Named], longest: int, k: int
) -> Spoken:
    """Read a question. topics: entities that it clearly names, in the order of their places; others: entities that it
    may mean; longest: maximum length of a chain; k: maximum number of chains of a topic."""
    kb, reader = kb_of(index), reader_of(index)
    text, source, newest = _without_source(index, _REQUEST.sub(lambda match: " " * len(match[0]), text))
    text, (topics, others) = _with_modals(text, topics, others)
    places = sorted([*topics, *_unnamed(index, text, topics)], key=lambda topic: topic.start)
    whole = text
    text, stated = _without_statements(index, text, places)
    spans = [(topic.start, topic.end) for topic in places]
    operators = operators_of(text, spans, reader.groups, reader.valued, reader.pairs)
    conditions = stated | _conditions(index, operators.clauses, places)
    plain = operators.plain and not (source or newest or conditions)
    if plain:
        places = list(topics)
    asked = [_about(text, topic, places, index) for topic in (*places, *others)]
    clauses = [*([Clause("")] * len(places) if plain else operators.clauses), *[Clause("")] * len(others)]
    for place, clause in enumerate(() if plain else operators.clauses[: len(places)]):
        asked[place] = replace(asked[place], text=clause.text, hops=n_relations(clause.text, []))
    types_of = [kb.type_names[kb.node_type[ask.nodes[0]]] if ask.nodes else "" for ask in asked]
    words = [words_without_cue(reader, ask.text) if i < len(places) else [] for i, ask in enumerate(asked)]
    flat = [word for own in words for word in own]
    texts = (*(ask.text.replace("#", type) for ask, type in zip(asked, types_of)), *flat)
    vectors = iter(await embed_texts(texts))
    asked = [replace(ask, vector=next(vectors)) for ask in asked]
    asked = [replace(ask, words=tuple((word, next(vectors)) for word in own)) for ask, own in zip(asked, words)]
    reads = await _chains_of(kb, asked, len(places), longest, k)
    topic_reads = [
        TopicRead(named.name, named.nodes, _ITSELF if clause.itself else read, clause.negated, clause.left_out)
        for named, read, clause in zip((*places, *others), reads, clauses)
    ]
    if any(not (topic.negated or topic.left_out) for topic in topic_reads[: len(places)]):
        pairs = enumerate(zip(topic_reads, asked))  # "that people with # need not avoid"
        conditions |= {i for i, (topic, ask) in pairs if topic.negated and not topic.sure and reader.denies(ask.text)}
    plainly = [ask.text for ask, clause in zip(asked, clauses) if not clause.negated]
    asks_harm = any(map(reader.denies, plainly)) and not operators.unread
    for place, (topic, ask) in enumerate(zip(topic_reads, asked)):
        opposed = reader.rules_out(ask.text, topic.negated, topic.sure, place in conditions)
        left_out = topic.left_out or place in conditions
        opposed = dict.fromkeys(reader.forbidding, True) if topic.left_out else opposed
        topic_reads[place] = replace(topic, left_out=left_out, opposed=opposed)
    own, other_reads = topic_reads[: len(places)], tuple(topic_reads[len(places) :])
    types = tuple(sorted(reader.asked_types(text)))
    named_reads = tuple(topic for topic in own if topic.name != ANYTHING)
    unsaid = _beside(index, whole, places, asks_harm) if reader.denials else []
    barred = await _contrary(index, (*named_reads, *unsaid))
    unheard = [topic.read.unread for topic in own if not topic.left_out]
    unread = tuple(dict.fromkeys(word for words in unheard for word in words)) if all(unheard) else ()
    spoken = Spoken(named_reads, other_reads, unread=unread, types=types, barred=barred, plain=plain)
    if plain:
        return spoken
    spoken = replace(spoken, anything=_anything(kb, own, types))
    operations, not_compared = await operations_of((operators, _plan(kb, spoken)))
    unsure = any(topic.negated and not topic.sure for topic in own)
    narrower = reader.unread_of(operators.words, operators.order)
    unread = tuple(dict.fromkeys((*unread, *not_compared, *narrower, *(["not"] if unsure else []))))
    return replace(spoken, operations=_by_source(operations, source, newest), unread=unread)


async def _chains_of(kb: KnowledgeBase, asked: Sequence[Asked], n_named: int, longest: int, k: int) -> list[Read]:
    """The chains of each topic. The first n_named are clearly named: if one of these has a sure chain, the others among
    them are read again for the types of its end nodes."""
    reads = list(await gather(*(asked_chains(ask, longest, k) for ask in asked)))
    is_sure = [bool(read.chains and read.chains[0].sure) for read in reads[:n_named]]
    if n_named > 1 and any(is_sure):
        ends = reads[is_sure.index(True)].chains[0].ends
        types = frozenset(kb.node_type[[*ends]].tolist())
        unsure = [place for place, sure in enumerate(is_sure) if not sure]
        again = await gather(*(asked_chains(replace(asked[place], types=types), longest, k) for place in unsure))
        for place, read in zip(unsure, again):
            reads[place] = read
    return reads


def _without_statements(index: Index, text: str, topics: Sequence[Named]) -> tuple[str, set[int]]:
    """(a question without the words of other statements, except for topics; the places of their topics, which
    are conditions), if some relations deny others and the question itself names another topic."""
    kb, statements = kb_of(index), statements_in(text) if reader_of(index).denials else []
    of_topic = [next((span for span in statements if span[0] <= t.start < span[1]), None) for t in topics]
    asked = {node for topic, span in zip(topics, of_topic) if span is None for node in topic.nodes}
    if not (asked and statements):
        return text, set()
    first = min(topic.start for topic, span in zip(topics, of_topic) if span is None)
    kept = {place for topic in topics for place in range(topic.start, topic.end)}
    for start, end in statements:
        if start < first or mentions_in(kb, text[start:end]):
            blank = (text[i] if i in kept or i == end - 1 else " " for i in range(start, end))
            text = f"{text[:start]}{''.join(blank)}{text[end:]}"
    return text, {i for i, span in enumerate(of_topic) if span and asked.isdisjoint(topics[i].nodes)}


def _beside(index: Index, text: str, topics: Sequence[Named], asks_harm: bool) -> list[TopicRead]:
    """The names in a question that were not taken as topics, nor lie in one ("hypertension" beside a longer name). They
    rule out what a denying relation joins with them; if the question asks for such a relation, one that forbids."""
    kb, reader = kb_of(index), reader_of(index)
    opposed = dict.fromkeys(reader.forbidding if asks_harm else reader.denials, True)
    beside = [m for m in mentions_in(kb, text) if not any(t.start <= m.start and m.end <= t.end for t in topics)]
    names = dict.fromkeys(text[m.start : m.end] for m in beside)
    return [TopicRead(name, tuple(kb.named(name)[:MAX_HOMONYMS]), Read(), opposed=opposed) for name in names]


def _conditions(index: Index, clauses: Sequence[Clause], topics: Sequence[Named]) -> set[int]:
    """The places of topics that are only conditions, such as asthma in "I have asthma, what is there for hay fever", if
    some relations deny others: beside a topic of its type whose clause says more of what is denied."""
    kb, reader = kb_of(index), reader_of(index)
    may_be = kb.untyped.union(*(reader.leads[2 * row + back] for row in reader.denials for back in (0, 1)))
    types = [{*kb.node_type[[*topic.nodes]].tolist()} & may_be for topic in topics]
    free = [i for i, c in enumerate(clauses) if types[i] and not (c.negated or c.left_out or c.itself)]
    worth = {place: min(reader.purpose(clauses[place].text), 2) for place in free}
    return {
        place
        for place in worth
        if any((types[place] | kb.untyped) & types[other] and worth[place] < worth[other] for other in worth)
        and not clauses[place].text.startswith(("and #", "or #", "as well as #"))
    }


async def _contrary(index: Index, topics: Sequence[TopicRead]) -> dict[int, list[Barred]]:
    """The nodes that a contrary relation joins with a topic, and others of their names. If it does not forbid, and the
    topic is the only one or plainly asked, no other relation may join them too."""
    kb, forbidding = kb_of(index), reader_of(index).forbidding
    opposed, barred = [topic for topic in topics if topic.opposed], dict[int, list[Barred]]()
    pairs = list[tuple[TopicRead, frozenset[int], bool]]()
    for topic in opposed:
        alone = len(opposed) == 1 or (topic.sure and not (topic.negated or topic.left_out))
        forbids = forbidding & topic.opposed.keys()
        others = frozenset(topic.opposed) - forbids
        pairs += [(topic, rows, only) for rows, only in ((others, alone), (forbids, False)) if rows]
    nodes_of = await gather(*(contrary_nodes((topic.nodes, rows, alone)) for topic, rows, alone in pairs))
    for (topic, _, _), nodes in zip(pairs, nodes_of):
        for node, row in nodes.items():
            reason = Barred(f"{kb.relation_names[row]} of {topic.name}", topic.opposed[row] or topic.sure)
            for same in {node, *kb.named(kb.node_names[node])}:
                barred.setdefault(same, []).append(reason)
    return barred


def _anything(kb: KnowledgeBase, topics: Sequence[TopicRead], types: Sequence[int]) -> tuple[Topic, ...]:
    """The topics that stand for all things of a type. If all topics are negated, the things of the one type that is
    asked for are one of them, so that the query has something to rule out from."""
    anything = [_of_type(topic, kb) for topic in topics if topic.name == ANYTHING and topic.chains and topic.sure]
    named = [topic for topic in topics if topic.name != ANYTHING]
    all_negated = all(topic.negated for topic in named) and all(topic.negated for topic in anything)
    if len(types) == 1 and all_negated and (anything or not named):
        anything.append(Topic(ANYTHING, kb.type_names[types[0]], ()))
    return tuple(anything)


def _plan(kb: KnowledgeBase, spoken: Spoken) -> Plan:
    """A question in the graph, by the best chain of each topic, without operations."""
    firsts = [(topic, topic.chains[0]) for topic in spoken.topics if topic.chains]
    parts = [Part(topic.nodes, chain.relations, chain.ways, topic.negated) for topic, chain in firsts]
    return Plan(
        (*parts, *(part_of(kb, topic) for topic in spoken.anything)), without=spoken.left_out, types=spoken.types
    )


def _by_source(operations: Operations, source: str, newest: bool) -> Operations:
    """The operations, limited to statements of a source ("": of any), and to the newest ones."""
    if source:
        stated = Constraint(STATED_BY, "equal", source)
        operations = structs.replace(operations, constraints=(*operations.constraints, stated))
    if newest and not operations.aggregate:
        operations = structs.replace(operations, aggregate="last", by=STATED_ON)
    return operations


def _without_source(index: Index, text: str) -> tuple[str, str, bool]:
    """(a question with spaces instead of the words that say who states the answer; the name of this source, or "";
    whether it asks for the newest statement)."""
    kb, source = kb_of(index), ""
    for name in (source.name for source in kb.sources if len(kb.sources) > 1):
        named = rf"(?:the )?{re.escape(name)}"
        verbs = "(?:call|name|give|list|report|say)"
        states = rf"\b(?:according to|as per|going by) {named}\b|\b(?:do|does|did) {named} {verbs}\b"
        if match := re.search(states, text, re.IGNORECASE):
            verb = "" if match[0][0] in "Aa" else "is"
            text, source = f"{text[: match.start()]}{verb:<{len(match[0])}}{text[match.end() :]}", name
    newest = [match.span() for match in _NEWEST.finditer(text)]
    if not (bool(newest) and index.loaded("dated notes", has_dates)):
        return text, source, False
    for start, end in newest:
        text = f"{text[:start]}{' ' * (end - start)}{text[end:]}"
    return text, source, True


def _with_modals(text: str, *lists: Sequence[Named]) -> tuple[str, list[list[Named]]]:
    """A question with "should not #" for "should # not", so that "should not" is one phrase, and its names."""
    moved = [list(names) for names in lists]
    for match in _MODAL.finditer(text):
        (start, end), width = match.span(1), len(match[2]) + 1
        text = f"{text[:start]}{match[2]} {text[start:end]}{text[match.end() :]}"
        for names in moved:
            names[:] = [
                replace(name, start=name.start + width, end=name.end + width) if start <= name.start < end else name
                for name in names
            ]
    return text, moved


def _unnamed(index: Index, text: str, topics: Sequence[Named]) -> list[Named]:
    """The topics of a question that stand for all things of a type: "no band", "any band" with a negation, "nobody";
    and "a band" in a question that names no topic. Their nodes are a sample, enough to read the relations. One stands
    behind "no" with a word for a relation ("has no warden")."""
    kb, unnamed, asked = kb_of(index), list[Named](), reader_of(index).asked_types(text)
    for match in _UNNAMED.finditer(text):
        word, noun, span = (match[1] or match[2]).casefold(), match[3], match.span()
        types = reader_of(index).asked_types(noun) if noun else set(range(kb.n_types))
        is_last = all(topic.start < span[0] for topic in topics)
        if noun and word == "no" and not types and is_last and reader_of(index).cues(noun):
            types, span = set(range(kb.n_types)), (span[1], span[1])
        stands_for_all = word.startswith("no") or (
            _NEGATES.search(text) if word.startswith("any") else not (topics or types & asked)
        )
        if stands_for_all and types and not any(match.start() < t.end and t.start < match.end() for t in topics):
            nodes = np.flatnonzero(np.isin(kb.node_type, sorted(types)))
            sample = nodes[:: max(1, len(nodes) // SAMPLE)].tolist()
            unnamed += [Named(ANYTHING, tuple(sample), *span)] if sample else []
    return unnamed


def _of_type(topic: TopicRead, kb: KnowledgeBase) -> Topic:
    """A topic for all things of a type: the commonest one where the first chain starts, any if it has no direction."""
    chain = topic.chains[0]
    relation, direction = chain.steps[0]
    if direction == EITHER:
        return chain.topic(ANYTHING, "", kb, topic.negated)
    starts = np.unique((kb.tail if direction == IN else kb.head)[kb.relation == relation])
    type = kb.type_names[int(np.bincount(kb.node_type[starts]).argmax())]
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
    return Asked(_ARTICLE.sub("", masked_text), topic.nodes, hops, anything=topic.name == ANYTHING)


def stands_as_name(index: Index, text: str, start: int, end: int) -> bool:
    """Whether a plain word is used as a name: before a word for a type ("energy companies") or an auxiliary verb, or
    after a preposition, a verb or a word of a relation ("made from moonwort", "plays the harp"). A word in small
    letters is not a name if the graph writes it with a capital ("the primary languages")."""
    kb = kb_of(index)
    if not any(kb.node_names[node][:1].islower() for node in kb.named(text[start:end])):
        return False
    if any(unit.groups for unit in units_of(text[start:end])) or reader_of(index).asked_types(text[start:end]):
        return False
    behind, before = _WORD_BEHIND.match(text[end:]), _WORD_BEFORE.search(text[:start].casefold())
    word = before[1] if before else ""
    leads = is_verb(word, "") or word in ("both", "either", "neither", "nor", "and", "or")
    leads = leads or word in PREPOSITIONS or bool(reader_of(index).cues(word))
    leads = leads or not {word, word.removesuffix("s")}.isdisjoint(BASE_VERBS | _words_of_relations(index))
    return leads or bool(behind and (behind[1] in AUX or reader_of(index).asked_types(behind[1])))


def _words_of_relations(index: Index) -> frozenset[str]:
    return index.loaded("words of relations", lambda index: relation_words(kb_of(index).relation_texts))
