"""HydraRAG (Tan et al. 2025): paths through all topics of a question, from knowledge graphs, documents and the web. The
search has three phases; paths are pruned by relevance and by agreement with other kinds of sources.

Step I (`analysis`) finds topics, sub-questions and the skyline indicator, and selects sources. Step II (`graphs`,
`texts`) explores: first at the predicted depth in the selected sources, then at the greatest depth in all sources with
a follow-up question, then with predicted answers as further topics. Step III (`pruning`) prunes. Step IV (`attempt`)
summarises the paths (`refinement`) and tries to answer; the first accepted answer ends the search. The decisions are in
`asks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.methods.hydrarag import asks, rules
from gpu_rag.methods.hydrarag.analysis import allowed_sources, analysed, available, by_chain, linked, selected
from gpu_rag.methods.hydrarag.chains import realised
from gpu_rag.methods.hydrarag.evidence import MAX_ANSWERS, evidence_of, named_first, ranked_nodes
from gpu_rag.methods.hydrarag.graphs import Depth, explore_graphs
from gpu_rag.methods.hydrarag.pruning import allowed, pruned
from gpu_rag.methods.hydrarag.replies import FollowUp, Prediction, folded
from gpu_rag.methods.hydrarag.state import (
    ANSWER,
    KINDS,
    Analysis,
    Chain,
    FoundPath,
    Mention,
    Params,
    Search,
    Sources,
)
from gpu_rag.methods.hydrarag.texts import explore_texts
from gpu_rag.program.decide import decide
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.query import count_path
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.knowledge_base.walks import statements
from gpu_rag.program.reader import clean_answer, is_answer
from gpu_rag.program.run import Run
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Draft, Path, Question, RankedNode

__all__ = ["Params", "check", "program", "retrieve"]

INITIAL, REFINED, PREDICTED, TOGETHER = "initial", "refined", "predicted", "together"


def check(index: Index, params: Params) -> None:
    """Raise UsageError for a source that the index does not have. Called once before a run, not per question."""
    kb = kb_of(index)
    allowed_sources(kb, params)
    known = {*KINDS, *(source.name for source in kb.sources if "+" not in source.name)}  # a path joins names by "+"
    if unknown := sorted(params.shares.keys() - known):
        raise UsageError("unknown source in trust", given=", ".join(unknown), expected=" | ".join(sorted(known)))


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Steps I to IV of one question: explore until an answer is accepted; `unsupported` if there is none."""
    search = Search(run, params)
    analysis, sources = await analysed(question.text, search)
    realising = list[FoundPath]()
    if params.chains:
        search.asked, realising = await realised(analysis, sources, search)
    phases = ((INITIAL, _initial), (REFINED, _refined), (PREDICTED, _predicted))[: search.params.phases]
    for name, phase in phases:
        (query,) = await embed([analysis.indicator])
        paths = allowed(
            [*(realising if name == INITIAL else ()), *await phase(analysis, sources, query, search)], search
        )
        search.paths.extend(paths)
        chosen = await pruned(analysis, paths, query, name, search)
        search.chosen.extend(chosen)
        tried = await attempt(analysis, chosen, False, search)
        if tried.accepted and (tried.text is not None or search.run.models.llm is None):
            return _ended(tried, chosen, name, sources, search)
    search.release_reserve()
    (query,) = await embed([analysis.indicator])
    chosen = await pruned(analysis, search.paths, query, TOGETHER, search)
    if not chosen and search.params.knowledge:
        return await _known(analysis, sources, search)
    return _ended(await attempt(analysis, chosen, True, search), chosen, TOGETHER, sources, search)


retrieve = program  # by rules and similarity: the remaining paths and the passages that state them


async def _known(analysis: Analysis, sources: Sources, search: Search) -> Draft:
    """The model's own knowledge, for questions without any path. Its status is always `unsupported`."""
    text = clean_answer(await decide(search.run, asks.KNOWLEDGE, question=analysis.question))
    draft = _ended(Attempt(text if is_answer(text) else None, False), [], TOGETHER, sources, search)
    return replace(draft, status="unsupported", source="model" if draft.text is not None else "")


def _ended(tried: Attempt, chosen: list[FoundPath], phase: str, sources: Sources, search: Search) -> Draft:
    """The draft of an answer, with the kinds of sources that failed. If all of them failed, raises the first error."""
    missing = {kind: search.missing[kind] for kind in KINDS if kind in search.missing}
    if missing and not search.paths and missing.keys() >= set(sources.kinds):
        raise next(iter(missing.values()))
    lines = tuple(f"{kind}: {error}" for kind, error in missing.items())
    if lines:
        search.run.note("missing", len(lines), lines)
    kinds = dict.fromkeys(kind for path in chosen for kind in (path.kind, *path.scores.support))
    search.run.note("phase", 0, (f"{phase}: {'accepted' if tried.accepted else 'answered with what there is'}",))
    search.run.note("verified_by", len(chosen), tuple(kinds))
    evidence = evidence_of(chosen, search, search.run.limit)
    status = "answered" if tried.text is not None else "unsupported"
    query, names = search.asked, search.kb.node_names
    barred = tuple(f"{names[node]}: {reason}" for node, reason in sorted(query.barred.items()))[:MAX_ANSWERS]
    remarks: dict[str, Any] = {"missing": lines, "unread": query.unread, "sought": query.sought, "barred": barred}
    paths, pools = tuple(_path(path, search.kb) for path in chosen), tuple(search.pools)
    if query.query is not None and query.count:
        paths = (count_path(query.query, len(query.nodes)), *paths)
    ids = {search.kb.node_ids[node] for node in query.barred}
    nodes = tuple(node for node in tried.nodes if node.id not in ids)  # a reader may name one
    return Draft(tried.text, evidence, paths, status, nodes, pools, count=query.count, **remarks)


def _path(path: FoundPath, kb: KnowledgeBase) -> Path:
    """A path as it is recorded. Edges are given only if the index states them; otherwise the text names its source."""
    if path.stated:
        return Path(path.text, path.edges_in(kb), path.sources)
    where = ", ".join(dict.fromkeys(edge[3] for edge in path.edges_in(kb)))
    return Path(f"{path.text} [{where}]", (), path.sources)


# --- the phases -------------------------------------------------------------------------------------


async def _initial(analysis: Analysis, sources: Sources, query: np.ndarray, search: Search) -> list[FoundPath]:
    """Search at the predicted depth in the selected sources."""
    chosen = await selected(analysis, sources, search)
    depth = min(analysis.depth, search.params.d_max), True
    return await _both(analysis, analysis, chosen, depth, query, search)


async def _both(
    analysis: Analysis, texts: Analysis, sources: Sources, depth: Depth, query: np.ndarray, search: Search
) -> list[FoundPath]:
    """Search the graphs by one analysis, documents and the web by another."""
    try:
        paths, graph = await explore_graphs(analysis, sources, depth, query, search)
    except BadInput as error:  # for example a search that needs too much memory
        search.lost("kg", error)
        paths, graph = (), None
    return [*paths, *await explore_texts(texts, sources, query, graph, search)]


async def _refined(analysis: Analysis, sources: Sources, query: np.ndarray, search: Search) -> list[FoundPath]:
    """Search with a follow-up question: it drives documents and web, and its indicator also the graphs. If it equals
    the original question, nothing changes."""
    facts = [path.text for path in search.chosen]
    reply = await decide(search.run, asks.FOLLOW_UP, analysis=analysis, facts=facts)
    follow_up, indicator = analysis, query
    if reply != rules.follow_up(analysis):
        follow_up = await _follow_up(reply, analysis, search)
        (indicator,) = await embed([follow_up.indicator])
        more = available(follow_up, search)
        kinds = tuple(kind for kind in KINDS if kind in sources.kinds + more.kinds)
        sources = Sources(tuple(sorted({*sources.graphs, *more.graphs})), kinds)
    return await _both(analysis, follow_up, sources, (search.params.d_max, False), indicator, search)


async def _follow_up(reply: FollowUp, analysis: Analysis, search: Search) -> Analysis:
    """The analysis of the follow-up question, with its own topics and indicator."""
    chain = Chain(reply.entities, reply.relations)
    mentions = await linked([entity for entity in chain.entities if entity != ANSWER], search) or analysis.mentions
    follow_up = by_chain(analysis.question, mentions, chain, analysis.subquestions, analysis.indicator)
    return replace(follow_up, follow_up=reply.question)


async def _predicted(analysis: Analysis, sources: Sources, query: np.ndarray, search: Search) -> list[FoundPath]:
    """Paths through the topics and each predicted answer, which counts as a further topic."""
    facts = [path.text for path in search.chosen]
    reply = await decide(search.run, asks.PREDICT, analysis=analysis, facts=facts, search=search)
    names = list(dict.fromkeys(prediction.answer for prediction in reply.predictions))
    mentions = {mention.text: mention for mention in await linked(names, search)}
    known = [p for p in reply.predictions if p.answer in mentions]
    predictions = [_with_prediction(analysis, mentions[p.answer], p) for p in known]
    search.run.note("predictions", len(predictions), tuple(p.answer for p in known))
    searches = search.siblings(len(predictions))
    paths = await gather(*(_explore(guess, sources, own) for guess, own in zip(predictions, searches)))
    return [path for group in paths for path in group]


async def _explore(analysis: Analysis, sources: Sources, search: Search) -> list[FoundPath]:
    (query,) = await embed([analysis.indicator])
    return await _both(analysis, analysis, sources, (search.params.d_max, False), query, search)


def _with_prediction(analysis: Analysis, answer: Mention, prediction: Prediction) -> Analysis:
    """The analysis with a predicted answer as a topic, in the order of the prediction's chain; both ends are closed."""
    entities = tuple(answer.text if entity == ANSWER else entity for entity in prediction.entities)
    chain = Chain(entities, prediction.relations)
    known = {mention.text for mention in analysis.mentions}
    mentions = [*analysis.mentions, *([answer] if answer.text not in known else [])]
    changed = by_chain(analysis.question, mentions, chain, analysis.subquestions, analysis.indicator)
    return replace(changed, opens=False, closes=len(mentions) == 1, predicted=answer)


# --- the answer -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One attempt to answer. accepted: whether the search may end; text: None if no answer was found."""

    text: str | None
    accepted: bool
    nodes: tuple[RankedNode, ...] = ()


async def attempt(analysis: Analysis, chosen: Sequence[FoundPath], last: bool, search: Search) -> Attempt:
    """An attempt to answer from the chosen paths. last: no phase follows, so any known answer is given."""
    if not chosen:
        return Attempt(None, False, ranked_nodes(chosen, search))
    facts = [f"- {path.text} ({path.said_by}){statements(path.edges_in(search.kb))}" for path in chosen]
    shown = {"question": analysis.question, "subquestions": analysis.subquestions}
    if search.params.refinement:
        facts.insert(0, await decide(search.run, asks.REFINE, **shown, facts=facts))
    exact = search.asked
    if exact.exact and exact.nodes:
        names = "; ".join(search.kb.node_names[node] for node in exact.nodes[:MAX_ANSWERS])
        facts.insert(0, f"- by the graph these {len(exact.nodes)} answer the question: {names}")
    fields = {"analysis": analysis, "chosen": chosen, "last": last, "search": search}
    reply = await decide(search.run, asks.ANSWER, **shown, facts=facts, **fields)
    text, nodes = folded(reply.answer), ranked_nodes(chosen, search)
    if not is_answer(text):
        return Attempt(None, reply.sufficient, nodes)
    return Attempt(text, reply.sufficient, named_first(text, nodes, chosen, search.kb))
