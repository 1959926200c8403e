"""HydraRAG, step II: the query of a question, its exact answers, and paths that realise it.

A beam by cosine would lose such paths among thousands of walks. Paths along the chains of a sure query rank before
paths that are only near by cosine; other chains that the question may ask for get a bonus on their cosine, divided by
their rank. Chains of several topics must meet. A query with operations (not, or, how many, before 1990) is executed,
and its answers alone count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_rag.graph.reach import EITHER, IN, OUT
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.analysis import graph_sources
from gpu_rag.methods.hydrarag.asks import QUERY
from gpu_rag.methods.hydrarag.batched.facts import FactChoice, worded_paths
from gpu_rag.methods.hydrarag.replies import NAME_CHARS
from gpu_rag.methods.hydrarag.state import LIKELY, SURE, Analysis, FoundPath, Mention, Realised, Search, Sources
from gpu_rag.models.ask import read_prompt
from gpu_rag.program.decide import decide
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.names import unknown_names
from gpu_rag.program.knowledge_base.query import LISTED, Part, Plan, Query, Topic, part_of, solve, type_rows
from gpu_rag.program.knowledge_base.query_prompt import QueryPrompt
from gpu_rag.program.knowledge_base.spoken import Named, Spoken, spoken_of
from gpu_rag.program.knowledge_base.views import relation_row
from gpu_rag.program.knowledge_base.walks import Walk, walk_nodes
from gpu_rag.runtime.gather import gather
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.relations.operators import is_compared

N_CHAINS, N_PATHS = 3, LISTED  # chains read of a topic, and paths per chain


@dataclass(frozen=True)
class _Way:
    """Walks that share their end, and the bonus of the path that they make."""

    walks: list[Walk]
    bonus: float


async def realised(analysis: Analysis, sources: Sources, search: Search) -> tuple[Realised, list[FoundPath]]:
    """The query of a question to the graphs, and the paths that realise it. The query is noted in the trace."""
    mentions, kb = [mention for mention in analysis.mentions if mention.matches], search.kb
    alike = [kb.node_names[node] for mention in mentions for node in mention.nodes]
    names = unknown_names(analysis.question, alike, kb) if set(sources.kinds) <= {"kg"} else ()
    sought = [f"entity: {name}" for name in names]
    graphs = sources.graphs or graph_sources(search) * (not mentions)
    spoken = await _spoken(analysis, mentions, search) if graphs else Spoken()
    if not graphs:
        return Realised(sought=tuple(sought)), []
    (vector,) = await embed([analysis.indicator])
    proposal, prompt = _query(spoken, kb), read_prompt("gpu_rag.methods.hydrarag.prompts:query")
    shown = QueryPrompt(search.run, prompt, analysis.question, vector, proposal)
    query = await decide(search.run, QUERY, proposal=proposal, shown=shown, mentions=mentions, search=search)
    lines = dict.fromkeys(f"{'asked' if query.sure else 'perhaps'}: {topic.text()}" for topic in query.entities)
    search.run.note("relations_asked", len(query.entities), (*lines, *query.operations.lines()))
    sought += spoken.lacking(kb) if query == proposal else []
    unread = spoken.unread if query == proposal else ()
    barred = spoken.ruled_out(query)
    parts = [(topic, part) for topic in query.entities if (part := _part(topic, mentions, kb)) is not None]
    if query.plain:
        ways, met = await _ways(query, [part for _, part in parts])
        if query.sure and not met:
            sought.append(f"an answer to all of: {'; '.join(topic.text() for topic in query.entities)}")
        paths = await _worded(ways, graphs, search)
        return Realised(query, barred=barred, unread=unread, sought=tuple(sought)), paths
    first = _first(query, [part for _, part in parts])
    left_out = tuple(node for name in query.operations.without for node in kb.named(name))
    solved = await solve(Plan(first, query.operations, left_out, type_rows(kb, query.types)))
    nodes = tuple(node for node in solved.nodes if node not in barred)
    barred |= {**dict.fromkeys(solved.barred, "ruled out by the question")}
    ways = _ways_to(nodes[:N_PATHS], query, first, kb)
    if not nodes:
        request = (*(topic.text() for topic in query.entities), *query.operations.lines())
        sought.append(f"an answer to: {'; '.join(request)}")
    result = Realised(query, nodes, query.sure and not unread, barred, unread, tuple(sought))
    return result, await _worded(ways, graphs, search)


# --- reading ----------------------------------------------------------------------------------------


async def _spoken(analysis: Analysis, mentions: Sequence[Mention], search: Search) -> Spoken:
    text = normalise_name(analysis.question.replace("_", " "))
    named = [Named(mention.text, _nodes(mention), *span) for mention in mentions for span in _spans(mention, text)]
    topics = [
        t for t in sorted(named, key=lambda t: t.start) if not is_compared(text[: t.start], text[t.start : t.end])
    ]
    written = {topic.name for topic in named}
    others = [Named(mention.text, _nodes(mention), 0, 0) for mention in mentions if mention.text not in written]
    return await spoken_of(search.run.index, text, topics, others, search.params.d_max, N_CHAINS)


def _spans(mention: Mention, text: str) -> list[tuple[int, int]]:
    name = re.escape(normalise_name(mention.text.replace("_", " ")))
    return [match.span() for match in re.finditer(rf"(?<!\w){name}(?!\w)", text)]


def _nodes(mention: Mention) -> tuple[int, ...]:
    """The nodes with exactly this name, else all that it may denote."""
    return tuple(match.node for match in mention.matches if match.cosine >= 1.0) or mention.nodes


def _query(spoken: Spoken, kb: KnowledgeBase) -> Query:
    """The query that the rules propose: the topic with the best chain first."""
    topics = spoken.topics + spoken.others * spoken.plain
    known = sorted((topic for topic in topics if topic.chains), key=lambda topic: -topic.chains[0].score)
    sure = bool(known or spoken.anything) and all(topic.sure for topic in topics)
    chains = [(topic, chain) for topic in known for chain in topic.chains[: 1 if sure else N_CHAINS]]
    entities = [
        chain.topic(topic.name[:NAME_CHARS], _type(kb, topic.nodes), kb, topic.negated) for topic, chain in chains
    ]
    types = tuple(kb.type_names[row] for row in spoken.types)
    return Query((*entities, *spoken.anything), sure, spoken.operations, types)


def _type(kb: KnowledgeBase, nodes: Sequence[int]) -> str:
    """The type of the nodes; "" for several."""
    types = {kb.type_names[kb.node_type[node]] for node in nodes}
    return types.pop() if len(types) == 1 else ""


# --- paths ------------------------------------------------------------------------------------------


def _part(topic: Topic, mentions: Sequence[Mention], kb: KnowledgeBase) -> Part | None:
    """A topic of the query in the graph; None for an unknown one. Without ways each relation is walked either way.

    If no node of the mention may have the type of the topic, nodes with the name and type are taken, else all nodes of
    the mention, else all with the name.
    """
    nodes = next((_nodes(m) for m in mentions if m.text.casefold() == topic.entity.casefold()), ())
    name, type = topic.entity, topic.type or None
    part = part_of(kb, topic, tuple(kb.may_be(nodes, type) or kb.named(name, type) or nodes or kb.named(name)))
    if not part.nodes or len(part.relations) != len(topic.relations):
        return None
    return part if part.ways else replace(part, ways=(EITHER,) * len(part.relations))


def _first(query: Query, parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts of a sure query; else the first of each entity, whose further parts are alternatives."""
    if query.sure:
        return tuple(dict.fromkeys(parts))
    return tuple({(part.nodes, part.negated): part for part in reversed(parts)}.values())[::-1]


async def _ways(query: Query, parts: Sequence[Part]) -> tuple[list[_Way], bool]:
    """Walks along a plain query, and whether all topics meet. If they do not, the walks of the first topic alone."""
    first = _first(query, parts)
    for together in dict.fromkeys((first, first[:2])):
        if len(together) > 1:
            nodes = (await solve(Plan(together))).nodes
            bonus = SURE if query.sure and len(together) == len(first) else LIKELY
            if nodes:
                return [_Way([_walk(part, node) for part in together], bonus) for node in nodes[:N_PATHS]], True
    same = [part for part in parts if part.nodes == first[0].nodes] if first else []
    ends = await gather(*(solve(Plan((part,))) for part in same))
    bonus = SURE if query.sure and len(first) == 1 else LIKELY
    ends_of = enumerate(zip(same, ends), 1)  # the likeliest first
    ways = [_Way([_walk(part, node)], bonus / n) for n, (part, end) in ends_of for node in end.nodes[:N_PATHS]]
    return ways, len(first) < 2 and bool(ways)


def _ways_to(nodes: Sequence[int], query: Query, parts: Sequence[Part], kb: KnowledgeBase) -> list[_Way]:
    """Walks from the topics to each answer; without a topic to start from, a fact of the answer itself."""
    bonus = SURE if query.sure else LIKELY
    positive = [part for part in parts if part.relations and not part.negated and not part.anything]
    if positive:
        return [_Way([_walk(part, node) for part in positive], bonus) for node in nodes]
    compared = (query.operations.by, *(constraint.relation for constraint in query.operations.constraints))
    facts = [(part.relations[-1], part.ways[-1]) for part in parts if part.relations]
    facts += [(row, EITHER) for name in compared if (row := relation_row(kb, name)) is not None]
    walks = (_own_fact(facts, node, kb) for node in nodes)
    return [_Way([walk], bonus) for walk in walks if walk is not None]


def _walk(part: Part, end: int) -> Walk:
    return Walk(part.nodes, part.relations, end, part.ways)


def _own_fact(facts: Sequence[tuple[int, int]], node: int, kb: KnowledgeBase) -> Walk | None:
    """A fact of a node by the first of `facts` = (relation, direction) that it has, such as the employer of a person
    who does not work for the company that the question names."""
    for relation, direction in facts:
        for bit, own, other in ((IN, kb.head, kb.tail), (OUT, kb.tail, kb.head)):
            rows = (kb.relation == relation) & (own == node)
            if direction & bit and rows.any():
                return Walk((int(other[rows.argmax()]),), (relation,), node, (bit,))
    return None


async def _worded(ways: Sequence[_Way], graphs: tuple[int, ...], search: Search) -> list[FoundPath]:
    """The paths of walks; without paths that return to a node, unless all do."""
    nodes = await gather(*(gather(*map(walk_nodes, way.walks)) for way in ways))
    reached = [(way, [(w, n) for w, n in zip(way.walks, legs) if n]) for way, legs in zip(ways, nodes)]
    routes = [(_joined([n for _, n in legs]), legs, way.bonus) for way, legs in reached if legs]
    routes = [route for route in routes if len(set(route[0])) == len(route[0])] or routes
    topics = tuple(dict.fromkeys(node for way in ways for walk in way.walks for node in walk.starts))
    choice = FactChoice(graphs, search.params.draw)
    paths = await gather(*(worded_paths((route, topics), choice) for route, _, _ in routes))
    return [
        path._replace(answers=(legs[0][0].end,), asked=bonus, chain=tuple(zip(legs[0][0].chain, legs[0][0].directions)))
        for path, (_, legs, bonus) in zip(paths, routes)
        if path is not None
    ]


def _joined(walks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The nodes along the first walk, then back along the other walks to their topics."""
    return (*walks[0], *(node for walk in walks[1:] for node in walk[-2::-1]))
