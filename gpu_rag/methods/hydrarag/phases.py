"""HydraRAG's three phases of exploration, each followed by pruning and a try to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_rag.methods.hydrarag.analysis import (
    analysed,
    available,
    by_chain,
    linked,
    read_chain,
    selected,
    warmer,
)
from gpu_rag.methods.hydrarag.answer import Attempt, attempt, ranked_nodes
from gpu_rag.methods.hydrarag.graph import Search, explore_graphs
from gpu_rag.methods.hydrarag.params import Params
from gpu_rag.methods.hydrarag.prune import prune
from gpu_rag.methods.hydrarag.schemas import CHAIN, NAME, PROMPTS, SENTENCE, json_list, json_object
from gpu_rag.methods.hydrarag.state import ANSWER, Analysis, Candidate, Chain, Chosen, Mention, Progress, Sources
from gpu_rag.methods.hydrarag.texts import explore_texts
from gpu_rag.program.verbs import Verbs
from gpu_rag.runtime.gather import gather
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema

INITIAL, REFINED, PREDICTED, TOGETHER = "initial", "refined", "predicted", "together"
MOST_PREDICTIONS = 3
_PREDICTION = json_object(answer=NAME, **CHAIN)
REFINE_SCHEMA = canonical_schema(json_object(question=SENTENCE, **CHAIN))
PREDICT_SCHEMA = canonical_schema(json_object(predictions=json_list(_PREDICTION, MOST_PREDICTIONS, 1)))


@dataclass(frozen=True)
class Outcome:
    """How a question ended: the last try, the paths that it rests on, and the phase that answered."""

    attempt: Attempt
    chosen: tuple[Chosen, ...]
    phase: str
    progress: Progress


async def explored(question: str, verbs: Verbs, params: Params) -> Outcome:
    """Steps I to IV of one question."""
    analysis, sources = await analysed(question, verbs, params)
    progress = Progress()
    phases = (_initial, _refined, _predicted)[: params.phases]
    for number, phase in enumerate(phases):
        name = (INITIAL, REFINED, PREDICTED)[number]
        (query,) = await verbs.embed([analysis.indicator])
        found = await phase(analysis, sources, query, progress, verbs, params)
        progress.candidates.extend(found)
        chosen = await prune(analysis, found, query, name, progress, verbs, params)
        progress.chosen.extend(chosen)
        tried = await attempt(analysis, chosen, progress, False, verbs, params)
        if tried.accepted and (tried.text is not None or verbs.settings.llm is None):
            return _ended(tried, chosen, name, progress, verbs)
    (query,) = await verbs.embed([analysis.indicator])
    chosen = await prune(analysis, progress.candidates, query, TOGETHER, progress, verbs, params)
    tried = await attempt(analysis, chosen, progress, True, verbs, params)
    return _ended(tried, chosen, TOGETHER, progress, verbs)


def _ended(tried: Attempt, chosen: list[Chosen], phase: str, progress: Progress, verbs: Verbs) -> Outcome:
    kinds = dict.fromkeys(kind for c in chosen for kind in (c.candidate.shown.kind, *c.judged.support))
    verbs.ctx.note("phase", 0, (f"{phase}: {'accepted' if tried.accepted else 'answered with what there is'}",))
    verbs.ctx.note("verified_by", len(chosen), tuple(kinds))
    return Outcome(tried, tuple(chosen), phase, progress)


async def _initial(
    analysis: Analysis, sources: Sources, query: np.ndarray, progress: Progress, verbs: Verbs, params: Params
) -> list[Candidate]:
    chosen = await selected(analysis, sources, verbs, params)
    search = Search(min(analysis.depth, params.d_max), True)
    return await _both(analysis, analysis, chosen, search, query, progress, verbs, params)


async def _both(
    analysis: Analysis,
    texts: Analysis,
    sources: Sources,
    search: Search,
    query: np.ndarray,
    progress: Progress,
    verbs: Verbs,
    params: Params,
) -> list[Candidate]:
    """The graphs by one analysis, documents and the web by another."""
    graphs = await explore_graphs(analysis, sources, search, query, verbs, params)
    said = await explore_texts(texts, sources, query, graphs.graph, progress, verbs, params)
    return [*graphs.candidates, *said]


async def _refined(
    analysis: Analysis, sources: Sources, query: np.ndarray, progress: Progress, verbs: Verbs, params: Params
) -> list[Candidate]:
    """A follow-up question drives documents and web, its indicator also the graphs; by rule both stay."""
    texts, indicator = analysis, query
    if verbs.models.model_decides:
        texts = await _follow_up(analysis, progress, verbs, params)
        (indicator,) = await verbs.embed([texts.indicator])
        sources = _joined(sources, available(texts, verbs, params))
    return await _both(analysis, texts, sources, Search(params.d_max, False), indicator, progress, verbs, params)


def _joined(one: Sources, other: Sources) -> Sources:
    graphs = tuple(sorted({*one.graphs, *other.graphs}))
    return Sources(graphs, one.documents or other.documents, one.web or other.web)


async def _follow_up(analysis: Analysis, progress: Progress, verbs: Verbs, params: Params) -> Analysis:
    """The follow-up question with its own topics and indicator; the old ones where the reply cannot be used."""
    reply = await _asked("refined", REFINE_SCHEMA, "follow_up", analysis, progress, verbs, params)
    chain = read_chain(reply, [mention.text for mention in analysis.mentions]) if reply else None
    if reply is None or chain is None:
        return analysis
    names = [entity for entity in chain.entities if entity != ANSWER]
    mentions = await linked(names, verbs, params)
    question = " ".join(reply["question"].split())
    verbs.ctx.note("follow_up/question", 0, (question, chain.text))
    return by_chain(question, mentions or analysis.mentions, chain, analysis.subquestions, chain.text)


async def _asked(
    prompt: str, schema: str, name: str, analysis: Analysis, progress: Progress, verbs: Verbs, params: Params
) -> dict[str, Any] | None:
    """A request that shows what was found so far."""
    fields = {"question": analysis.question, "indicator": analysis.indicator}
    facts = [f"- {c.candidate.shown.text}" for c in progress.chosen] or ["nothing"]
    reply = await warmer(verbs, params.temperature).ask(
        Prompt.read(PROMPTS, prompt),
        fields,
        schema=schema,
        max_tokens=params.max_tokens,
        evidence=facts,
        slot="paths",
        name=name,
    )
    return reply if isinstance(reply, dict) else None


@dataclass(frozen=True)
class _Prediction:
    """A candidate answer and its analysis: the topics and the candidate in the order of its own indicator."""

    name: str
    analysis: Analysis


async def _predicted(
    analysis: Analysis, sources: Sources, query: np.ndarray, progress: Progress, verbs: Verbs, params: Params
) -> list[Candidate]:
    """Paths through the topics and each predicted answer, which counts as one more topic."""
    if verbs.models.model_decides:
        predictions = await _by_model(analysis, progress, verbs, params)
    else:
        predictions = await _by_rule(analysis, progress, verbs, params)
    verbs.ctx.note("predictions", len(predictions), tuple(p.name for p in predictions))
    found = await gather(*(_explore(p.analysis, sources, progress, verbs, params) for p in predictions))
    return [candidate for some in found for candidate in some]


async def _explore(
    analysis: Analysis, sources: Sources, progress: Progress, verbs: Verbs, params: Params
) -> list[Candidate]:
    (query,) = await verbs.embed([analysis.indicator])
    search = Search(params.d_max, False)
    own = Progress(documents=dict(progress.documents))  # siblings run side by side: none may see another's documents
    return await _both(analysis, analysis, sources, search, query, own, verbs, params)


async def _by_model(analysis: Analysis, progress: Progress, verbs: Verbs, params: Params) -> list[_Prediction]:
    reply = await _asked("predict", PREDICT_SCHEMA, "predict", analysis, progress, verbs, params)
    if reply is None:
        return await _by_rule(analysis, progress, verbs, params)
    names = list(dict.fromkeys(" ".join(one["answer"].split()) for one in reply["predictions"]))
    mentions = {mention.text: mention for mention in await linked(names, verbs, params)}
    topics = [mention.text for mention in analysis.mentions]
    found = []
    for one in reply["predictions"]:
        name = " ".join(one["answer"].split())
        chain = read_chain(one, [*topics, name])
        if name in mentions and chain is not None:
            placed = tuple(name if entity == ANSWER else entity for entity in chain.entities)
            found.append(_prediction(analysis, mentions[name], Chain(placed, chain.relations)))
    return found


async def _by_rule(analysis: Analysis, progress: Progress, verbs: Verbs, params: Params) -> list[_Prediction]:
    """The first answers of what was kept so far."""
    names = [node.name for node in ranked_nodes(progress.chosen, progress, verbs)][:MOST_PREDICTIONS]
    mentions = await linked(names, verbs, params)
    chain = Chain(tuple(mention.text for mention in analysis.mentions), ())
    found = (_prediction(analysis, mention, chain) for mention in mentions)
    return [replace(p, analysis=replace(p.analysis, indicator=analysis.indicator)) for p in found]


def _prediction(analysis: Analysis, answer: Mention, chain: Chain) -> _Prediction:
    """The analysis with the predicted answer as a topic; both ends closed."""
    known = {mention.text for mention in analysis.mentions}
    mentions = [*analysis.mentions, *([answer] if answer.text not in known else [])]
    made = by_chain(analysis.question, mentions, chain, analysis.subquestions, chain.text or analysis.indicator)
    return _Prediction(answer.text, replace(made, opens=False, closes=len(mentions) == 1, predicted=answer))
