"""HydraRAG, step I: topics, sub-questions, the skyline indicator, and the choice of sources."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from gpu_rag.errors import UsageError
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.asks import ANALYSE, SOURCES, TOPICS
from gpu_rag.methods.hydrarag.batched.names import match_mentions
from gpu_rag.methods.hydrarag.batched.web import has_web
from gpu_rag.methods.hydrarag.state import (
    ANSWER,
    KINDS,
    MAX_TOPICS,
    Analysis,
    Chain,
    Match,
    Mention,
    Params,
    Search,
    Sources,
)
from gpu_rag.program.decide import decide
from gpu_rag.program.embed import embed

GRAPH_KINDS = ("kg", "skb", "extraction")
SOURCE_WORDS = {
    "kg": "knowledge graph: facts as triples; exact, for chains of several steps; not always up to date",
    "document": "documents: passages about the entities; details that no graph has",
    "web": "web pages: recent or general things; the least reliable",
}


def graph_sources(search: Search, *, of_documents: bool = False) -> tuple[int, ...]:
    """Row numbers of the graphs that `sources` allows. of_documents: also of the one extracted from allowed documents,
    which keep their topics without it. Raises UsageError for an unknown name."""
    allowed, sources = allowed_sources(search.kb, search.params), enumerate(search.kb.sources)
    also = {"extraction"} if of_documents and "documents" in allowed else set()
    return tuple(row for row, s in sources if s.kind in GRAPH_KINDS and (s.name in allowed or s.kind in also))


def allowed_sources(kb: KnowledgeBase, params: Params) -> list[str]:
    """The names of the sources that `sources` allows. Raises UsageError for an unknown name."""
    names = [*(source.name for source in kb.sources), "documents", "web"]
    if params.sources == "all":
        return names
    wanted = [name.strip() for name in params.sources.split(",")]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UsageError("unknown source of hydrarag", given=", ".join(unknown), expected=" | ".join(names))
    return wanted


async def analysed(question: str, search: Search) -> tuple[Analysis, Sources]:
    """Step I without the source selector: the analysis, and S_t, all sources that know a topic."""
    run = search.run
    mentions = await linked((await decide(run, TOPICS, question=question, search=search)).topics, search)
    topics = [mention.text for mention in mentions]
    reply = await decide(run, ANALYSE, question=question, topics=topics, search=search)
    chain = Chain(reply.entities, reply.relations)
    analysis = by_chain(question, mentions, chain, reply.subquestions, question.rstrip("? "))
    sources = available(analysis, search)
    names = (f"{m.text} -> {', '.join(search.kb.node_names[node] for node in m.nodes)}" for m in mentions)
    run.note("topics", len(mentions), tuple(names))
    indicator = f"indicator: {analysis.indicator}", f"predicted depth: {analysis.depth}"
    run.note("analysis", 0, (*indicator, *(f"sub-question: {text}" for text in analysis.subquestions)))
    run.note("sources", len(SOURCE_WORDS), sources.kinds)
    return analysis, sources


def available(analysis: Analysis, search: Search) -> Sources:
    """S_t: the sources that know a topic of the analysis."""
    allowed, index = allowed_sources(search.kb, search.params), search.run.index
    known = {source for mention in analysis.mentions for match in mention.matches for source in match.sources}
    graphs = tuple(row for row in graph_sources(search) if row in known)
    documents, web = "documents" in allowed and index.n_passages > 0, search.params.web
    are_there = bool(graphs), documents, "web" in allowed and has_web(index, web)
    return Sources(graphs, tuple(compress(KINDS, are_there)))


async def matches_of(names: Sequence[str], limit: int, search: Search) -> list[list[Match]]:
    """The nodes that each of one or more names may denote: at most `limit` per source, best first."""
    vectors, sources = await embed(names), graph_sources(search, of_documents=True)
    if not sources:
        return [[] for _ in names]
    return await match_mentions((tuple(names), vectors), sources, search.params.threshold, limit)


async def linked(names: Sequence[str], search: Search) -> tuple[Mention, ...]:
    """Mentions with the nodes that they may denote. Drops mentions without nodes, and mentions whose best node an
    earlier mention already has."""
    if not names:
        return ()
    mentions: list[Mention] = []
    used: set[int] = set()
    for name, matches in zip(names, await matches_of(names, search.params.matches, search)):
        if matches and matches[0].node not in used:
            kept = tuple(match for match in matches if match.node not in used)
            used.update(match.node for match in kept)
            mentions.append(Mention(name, kept))
    return tuple(mentions[:MAX_TOPICS])


def by_chain(
    question: str, mentions: Sequence[Mention], chain: Chain, subquestions: tuple[str, ...], otherwise: str
) -> Analysis:
    """An analysis with the mentions in the order of the chain; mentions that the chain lacks come last. otherwise: the
    indicator if the chain names no relation."""
    place = {entity: i for i, entity in reversed(list(enumerate(chain.entities)))}
    ordered = tuple(sorted(mentions, key=lambda m: place.get(m.text, len(place) + len(chain.entities))))
    answer = place.get(ANSWER, len(chain.entities))
    places = [place[m.text] for m in ordered if m.text in place]
    opens, closes = all(answer < p for p in places) and bool(places), all(answer > p for p in places)
    depth = chain.depth([m.text for m in mentions])
    return Analysis(question, ordered, subquestions, chain.indicator(otherwise), depth, opens, closes)


async def selected(analysis: Analysis, sources: Sources, search: Search) -> Sources:
    """S_a: the sources of the first phase; all of them without the selector. The rules score all sources equally."""
    kinds = sources.kinds
    if not search.params.selector:
        return sources
    fields = {"options": [SOURCE_WORDS[kind] for kind in kinds], "scores": [1.0] * len(kinds), "k": max(len(kinds), 1)}
    chosen = await decide(search.run, SOURCES, **fields, **analysis.shown, kinds=kinds)
    chosen_kinds = tuple(kind for i, kind in enumerate(kinds) if i in chosen)
    return Sources(sources.graphs if "kg" in chosen_kinds else (), chosen_kinds)
