"""HydraRAG, step I: topics, sub-questions, the skyline indicator, and which sources to ask first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag.params import MOST_TOPICS, Params
from gpu_rag.methods.hydrarag.rules import (
    chain_by_rules,
    mentions_by_rules,
    relation_words,
    subquestions_by_rules,
)
from gpu_rag.methods.hydrarag.schemas import CHAIN, NAME, PROMPTS, SENTENCE, json_list, json_object
from gpu_rag.methods.hydrarag.state import ANSWER, Analysis, Chain, Mention, Sources
from gpu_rag.program.verbs import Verbs
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema

GRAPH_KINDS = ("kg", "skb", "extraction")
TOPICS_SCHEMA = canonical_schema(json_object(topics=json_list(NAME, MOST_TOPICS)))
ANALYSIS_SCHEMA = canonical_schema(json_object(subquestions=json_list(SENTENCE, MOST_TOPICS), **CHAIN))
SOURCE_WORDS = {
    "kg": "knowledge graph: facts as triples; exact, for chains of several steps; not always up to date",
    "document": "documents: passages about the entities; details that no graph has",
    "web": "web pages: recent or general things; the least reliable",
}


def warmer(verbs: Verbs, temperature: float) -> Verbs:
    """The same verbs with another temperature of requests: exploration samples, pruning and answers do not."""
    settings = replace(verbs.settings, temperature=temperature)
    return Verbs(verbs.ctx, verbs.index, settings, verbs.reader, verbs.limit)


def graph_sources(verbs: Verbs, params: Params) -> tuple[int, ...]:
    """The numbers of the knowledge graphs that `sources` allows. Raises UsageError for an unknown name."""
    allowed = allowed_sources(verbs.kb, params)
    return tuple(
        row for row, source in enumerate(verbs.kb.sources) if source.kind in GRAPH_KINDS and source.name in allowed
    )


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


async def analysed(question: str, verbs: Verbs, params: Params) -> tuple[Analysis, Sources]:
    """Step I but for the selector: the analysis, and S_t, all sources that know a topic."""
    mentions = await linked(await _topics(question, verbs, params), verbs, params)
    analysis = await _analysis(question, mentions, verbs, params)
    sources = available(analysis, verbs, params)
    told = (f"{m.text} -> {', '.join(verbs.kb.node_names[n] for n in m.nodes)}" for m in mentions)
    verbs.ctx.note("topics", len(mentions), tuple(told))
    indicator = f"indicator: {analysis.indicator}", f"predicted depth: {analysis.depth}"
    verbs.ctx.note("analysis", 0, (*indicator, *(f"sub-question: {text}" for text in analysis.subquestions)))
    verbs.ctx.note("sources", len(SOURCE_WORDS), sources.kinds)
    return analysis, sources


def available(analysis: Analysis, verbs: Verbs, params: Params) -> Sources:
    """S_t of an analysis."""
    allowed = allowed_sources(verbs.kb, params)
    known = {source for mention in analysis.mentions for match in mention.matches for source in match.sources}
    graphs = tuple(row for row in graph_sources(verbs, params) if row in known)
    documents = "documents" in allowed and params.documents > 0 and verbs.index.n_passages > 0
    return Sources(graphs, documents, "web" in allowed and verbs.has_web(params.web))


async def linked(names: Sequence[str], verbs: Verbs, params: Params) -> tuple[Mention, ...]:
    """Mentions with the nodes that they may be. Those without are dropped, and those that are an earlier one."""
    if not names:
        return ()
    vectors = await verbs.embed(list(names))
    found = await verbs.match_mentions(names, vectors, graph_sources(verbs, params), params.threshold, params.matches)
    mentions: list[Mention] = []
    taken: set[int] = set()
    for name, matches in zip(names, found):
        if matches and matches[0].node not in taken:
            kept = tuple(match for match in matches if match.node not in taken)
            taken.update(match.node for match in kept)
            mentions.append(Mention(name, kept))
    return tuple(mentions[:MOST_TOPICS])


async def _topics(question: str, verbs: Verbs, params: Params) -> list[str]:
    if verbs.models.model_decides:
        prompt = Prompt.read(PROMPTS, "topics")
        reply = await warmer(verbs, params.temperature).ask(
            prompt, {"question": question}, schema=TOPICS_SCHEMA, max_tokens=params.max_tokens, name="topics/model"
        )
        if isinstance(reply, dict) and reply["topics"]:
            return list(dict.fromkeys(" ".join(topic.split()) for topic in reply["topics"]))
    known = await verbs.names_in(question.replace("_", " "))
    return mentions_by_rules(question, known, _relation_words(verbs))


def _relation_words(verbs: Verbs) -> frozenset[str]:
    return verbs.index.loaded("words of relations", lambda _: relation_words(verbs.kb.relation_texts))


async def _analysis(question: str, mentions: tuple[Mention, ...], verbs: Verbs, params: Params) -> Analysis:
    topics = [mention.text for mention in mentions]
    if verbs.models.model_decides:
        prompt = Prompt.read(PROMPTS, "analysis")
        reply = await warmer(verbs, params.temperature).ask(
            prompt,
            {"question": question, "topics": "; ".join(topics) or "none"},
            schema=ANALYSIS_SCHEMA,
            max_tokens=params.max_tokens,
            name="analysis/model",
        )
        chain = read_chain(reply, topics) if isinstance(reply, dict) else None
        if chain is not None and isinstance(reply, dict):
            return by_chain(question, mentions, chain, tuple(reply["subquestions"]), chain.text)
        verbs.ctx.note("analysis/refused", 0, ("the model's chain could not be used: rules take its place",))
    chain = chain_by_rules(question, topics, params.d_max, _relation_words(verbs))
    return by_chain(question, mentions, chain, subquestions_by_rules(question), question.rstrip("? "))


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


async def selected(analysis: Analysis, sources: Sources, verbs: Verbs, params: Params) -> Sources:
    """S_a: the sources of the first phase. By similarity, and without the selector: all of them."""
    kinds = sources.kinds
    if not params.selector or len(kinds) < 2 or not verbs.models.model_decides:
        return sources
    chosen = await verbs.choose(
        Prompt.read(PROMPTS, "sources"),
        {"question": analysis.question, "indicator": analysis.indicator},
        [SOURCE_WORDS[kind] for kind in kinds],
        query=analysis.question,
        k=len(kinds),
        similarity=[1.0] * len(kinds),
        name="source_selector",
    )
    return sources.only([kinds[i] for i in chosen])
