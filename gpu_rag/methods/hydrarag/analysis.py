"""HydraRAG, step I: topics, sub-questions, the skyline indicator, and which sources to ask first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.batched.names import match_mentions, names_in
from gpu_rag.methods.hydrarag.batched.web import has_web
from gpu_rag.methods.hydrarag.rules import chain_by_rules, mentions_by_rules
from gpu_rag.methods.hydrarag.state import (
    ANSWER,
    KINDS,
    MOST_TOPICS,
    Analysis,
    Chain,
    Match,
    Mention,
    Params,
    Search,
    Sources,
)
from gpu_rag.program.embed import embed
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.decomposition import plan_by_rules
from gpu_rag.text.rules.relations.hops import relation_words

MOST_STEPS = 9  # entities of a chain
NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
RELATION: dict[str, Any] = {**NAME, "maxLength": 120}
SENTENCE: dict[str, Any] = {**NAME, "maxLength": 500}


def json_list(items: dict[str, Any], most: int, least: int = 0) -> dict[str, Any]:
    """A list of `least` to `most` items."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


GRAPH_KINDS = ("kg", "skb", "extraction")
CHAIN = {"entities": json_list(NAME, MOST_STEPS, 1), "relations": json_list(RELATION, MOST_STEPS - 1)}
TOPICS_SCHEMA = canonical_schema(object_of({"topics": json_list(NAME, MOST_TOPICS)}))
ANALYSIS_SCHEMA = canonical_schema(object_of({"subquestions": json_list(SENTENCE, MOST_TOPICS), **CHAIN}))
SOURCE_WORDS = {
    "kg": "knowledge graph: facts as triples; exact, for chains of several steps; not always up to date",
    "document": "documents: passages about the entities; details that no graph has",
    "web": "web pages: recent or general things; the least reliable",
}


def graph_sources(search: Search) -> tuple[int, ...]:
    """The numbers of the knowledge graphs that `sources` allows. Raises UsageError for an unknown name."""
    allowed, sources = allowed_sources(search.kb, search.params), enumerate(search.kb.sources)
    return tuple(row for row, source in sources if source.kind in GRAPH_KINDS and source.name in allowed)


def allowed_sources(kb: KnowledgeBase, params: Params) -> list[str]:
    """The names of the sources that `sources` allows. Raises UsageError for an unknown one."""
    names = [*(source.name for source in kb.sources), "documents", "web"]
    if params.sources == "all":
        return names
    wanted = [name.strip() for name in params.sources.split(",")]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UsageError("unknown source of hydrarag", given=", ".join(unknown), expected=" | ".join(names))
    return wanted


async def analysed(question: str, search: Search) -> tuple[Analysis, Sources]:
    """Step I but for the selector: the analysis, and S_t, all sources that know a topic."""
    mentions = await linked(await _topics(question, search), search)
    analysis = await _analysis(question, mentions, search)
    sources, note = available(analysis, search), search.run.note
    names = (f"{m.text} -> {', '.join(search.kb.node_names[node] for node in m.nodes)}" for m in mentions)
    note("topics", len(mentions), tuple(names))
    indicator = f"indicator: {analysis.indicator}", f"predicted depth: {analysis.depth}"
    note("analysis", 0, (*indicator, *(f"sub-question: {text}" for text in analysis.subquestions)))
    note("sources", len(SOURCE_WORDS), sources.kinds)
    return analysis, sources


def available(analysis: Analysis, search: Search) -> Sources:
    """S_t of an analysis."""
    allowed, index = allowed_sources(search.kb, search.params), search.run.index
    known = {source for mention in analysis.mentions for match in mention.matches for source in match.sources}
    graphs = tuple(row for row in graph_sources(search) if row in known)
    documents, web = "documents" in allowed and index.n_passages > 0, search.params.web
    there = bool(graphs), documents, "web" in allowed and has_web(index, web)
    return Sources(graphs, tuple(compress(KINDS, there)))


async def matches_of(names: Sequence[str], most: int, search: Search) -> list[list[Match]]:
    """The nodes that each of at least one name may be, at most `most` of each source, best first."""
    vectors, sources = await embed(names), graph_sources(search)
    if not sources:
        return [[] for _ in names]
    return await match_mentions((tuple(names), vectors), sources, search.params.threshold, most)


async def linked(names: Sequence[str], search: Search) -> tuple[Mention, ...]:
    """Mentions with the nodes that they may be. Those without are dropped, and those that are an earlier one."""
    if not names:
        return ()
    mentions: list[Mention] = []
    taken: set[int] = set()
    for name, matches in zip(names, await matches_of(names, search.params.matches, search)):
        if matches and matches[0].node not in taken:
            kept = tuple(match for match in matches if match.node not in taken)
            taken.update(match.node for match in kept)
            mentions.append(Mention(name, kept))
    return tuple(mentions[:MOST_TOPICS])


async def _topics(question: str, search: Search) -> list[str]:
    if search.run.model_decides:
        reply = await search.ask("topics", {"question": question}, TOPICS_SCHEMA, "topics/model")
        if isinstance(reply, dict) and reply["topics"]:
            return list(dict.fromkeys(" ".join(topic.split()) for topic in reply["topics"]))
    known = await names_in(question.replace("_", " "))
    return mentions_by_rules(question, known, _relation_words(search))


def _relation_words(search: Search) -> frozenset[str]:
    return search.run.index.loaded("words of relations", lambda _: relation_words(search.kb.relation_texts))


async def _analysis(question: str, mentions: tuple[Mention, ...], search: Search) -> Analysis:
    topics = [mention.text for mention in mentions]
    if search.run.model_decides:
        fields = {"question": question, "topics": "; ".join(topics) or "none"}
        reply = await search.ask("analysis", fields, ANALYSIS_SCHEMA, "analysis/model")
        chain = read_chain(reply, topics) if isinstance(reply, dict) else None
        if chain is not None and isinstance(reply, dict):
            return by_chain(question, mentions, chain, tuple(reply["subquestions"]), chain.text)
        search.run.note("analysis/refused", 0, ("the model's chain could not be used: rules take its place",))
    chain = chain_by_rules(question, topics, search.params.d_max, _relation_words(search))
    steps = tuple(step.question for step in plan_by_rules(question).steps)
    return by_chain(question, mentions, chain, steps, question.rstrip("? "))


def read_chain(reply: dict[str, Any], topics: Sequence[str]) -> Chain | None:
    """The chain of a reply with topics as they were given; None unless it has the answer once and a relation between
    each two."""
    known = {topic.casefold(): topic for topic in topics}
    entities = [" ".join(entity.split()) for entity in reply["entities"]]
    entities = [ANSWER if e.upper() == ANSWER else known.get(e.casefold(), e) for e in entities]
    if entities.count(ANSWER) != 1 or len(reply["relations"]) != len(entities) - 1:
        return None
    return Chain(tuple(entities), tuple(" ".join(relation.split()) for relation in reply["relations"]))


def by_chain(
    question: str, mentions: Sequence[Mention], chain: Chain, subquestions: tuple[str, ...], indicator: str
) -> Analysis:
    """An analysis with the mentions in the order of the chain, those that it lacks behind."""
    place = {entity: i for i, entity in reversed(list(enumerate(chain.entities)))}
    ordered = tuple(sorted(mentions, key=lambda m: place.get(m.text, len(place) + len(chain.entities))))
    at = place.get(ANSWER, len(chain.entities))
    places = [place[m.text] for m in ordered if m.text in place]
    opens, closes = all(at < p for p in places) and bool(places), all(at > p for p in places)
    depth = chain.depth([m.text for m in mentions])
    return Analysis(question, ordered, subquestions, indicator, depth, opens, closes)


async def selected(analysis: Analysis, sources: Sources, search: Search) -> Sources:
    """S_a: the sources of the first phase. By similarity, and without the selector: all of them."""
    kinds = sources.kinds
    if not search.params.selector or len(kinds) < 2 or not search.run.model_decides:
        return sources
    options, scores = [SOURCE_WORDS[kind] for kind in kinds], [1.0] * len(kinds)
    chosen = await search.choose("sources", analysis, options, len(kinds), "source_selector", scores)
    taken = tuple(kind for i, kind in enumerate(kinds) if i in chosen)
    return Sources(sources.graphs if "kg" in taken else (), taken)
