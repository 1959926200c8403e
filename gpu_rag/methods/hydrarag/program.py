"""HydraRAG (Tan et al. 2025): paths through all topics of a question out of knowledge graphs, documents and the web,
explored in three phases, pruned by relevance and by what other kinds of sources say.

Step I (`analysis`) names topics, sub-questions and the skyline indicator, and picks sources. Step II (`graphs`,
`texts`) explores: first at the predicted depth in the picked sources, then at the greatest depth in all of them with a
follow-up question, then with predicted answers as further topics. Step III (`pruning`) prunes, step IV (`answer`) tries
to answer; the first accepted answer ends the search. Rules (`rules`) stand in for a model that is not capable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpu_rag.errors import BadInput
from gpu_rag.index.index import Index
from gpu_rag.methods.hydrarag.analysis import (
    CHAIN,
    NAME,
    SENTENCE,
    allowed_sources,
    analysed,
    available,
    by_chain,
    json_list,
    linked,
    read_chain,
    selected,
)
from gpu_rag.methods.hydrarag.answer import Attempt, attempt, evidence_of, ranked_nodes
from gpu_rag.methods.hydrarag.chains import asked_paths
from gpu_rag.methods.hydrarag.graphs import Depth, explore_graphs
from gpu_rag.methods.hydrarag.pruning import pruned
from gpu_rag.methods.hydrarag.state import ANSWER, KINDS, Analysis, Chain, FoundPath, Mention, Params, Search, Sources
from gpu_rag.methods.hydrarag.texts import explore_texts
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.reader import clean_answer, is_answer
from gpu_rag.program.run import Run
from gpu_rag.runtime.gather import gather
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Draft, Path, Question

__all__ = ["Params", "check", "program", "retrieve"]

INITIAL, REFINED, PREDICTED, TOGETHER = "initial", "refined", "predicted", "together"
PHASE_CALLS = 4  # the least that a phase needs: one to begin it, then pruning, summary and answer
MOST_PREDICTIONS = 3
_PREDICTION = object_of({"answer": NAME, **CHAIN})
REFINE_SCHEMA = canonical_schema(object_of({"question": SENTENCE, **CHAIN}))
PREDICT_SCHEMA = canonical_schema(object_of({"predictions": json_list(_PREDICTION, MOST_PREDICTIONS, 1)}))


def check(index: Index, params: Params) -> None:
    """Raises UsageError for a source that the index does not have: once before a run, not for each question."""
    allowed_sources(kb_of(index), params)


async def program(question: Question, run: Run, params: Params) -> Draft:
    """Steps I to IV of one question: explore until an answer is accepted; `unsupported` where there is none."""
    search = Search(run, params)
    analysis, sources = await analysed(question.text, search)
    asked = () if run.model_decides else await asked_paths(analysis, sources, search)
    phases = ((INITIAL, _initial), (REFINED, _refined), (PREDICTED, _predicted))[: search.params.phases]
    for name, phase in phases:
        if name != INITIAL and search.run.model_decides and not search.may_ask(PHASE_CALLS):
            search.run.note("requests_spent", 0, (f"{name}: left out",))
            break
        (query,) = await embed([analysis.indicator])
        found = [*(asked if name == INITIAL else ()), *await phase(analysis, sources, query, search)]
        search.found.extend(found)
        chosen = await pruned(analysis, found, query, name, search)
        search.chosen.extend(chosen)
        tried = await attempt(analysis, chosen, False, search)
        if tried.accepted and (tried.text is not None or search.run.models.llm is None):
            return _ended(tried, chosen, name, sources, search)
    search.ending = True
    (query,) = await embed([analysis.indicator])
    chosen = await pruned(analysis, search.found, query, TOGETHER, search)
    if not chosen and search.params.knowledge and search.run.models.llm is not None:
        return await _known(analysis, sources, search)
    return _ended(await attempt(analysis, chosen, True, search), chosen, TOGETHER, sources, search)


retrieve = program  # by rules and similarity: the paths that are left, and the passages they are from


async def _known(analysis: Analysis, sources: Sources, search: Search) -> Draft:
    """What the model knows by itself, where no source has a path: never supported, whatever else the draft holds."""
    said = await search.ask("knowledge", {"question": analysis.question}, None, "knowledge", warm=False)
    text = clean_answer(said) if isinstance(said, str) else ""
    draft = _ended(Attempt(text if is_answer(text) else None, False), [], TOGETHER, sources, search)
    return replace(draft, status="unsupported", source="model" if draft.text is not None else "")


def _ended(tried: Attempt, chosen: list[FoundPath], phase: str, sources: Sources, search: Search) -> Draft:
    """The answer, with the kinds of sources that it lacks. Raises the error of the first where all of them failed."""
    missing = {kind: search.missing[kind] for kind in KINDS if kind in search.missing}
    if missing and not search.found and missing.keys() >= set(sources.kinds):
        raise next(iter(missing.values()))
    lines = tuple(f"{kind}: {error}" for kind, error in missing.items())
    if lines:
        search.run.note("missing", len(lines), lines)
    kinds = dict.fromkeys(kind for path in chosen for kind in (path.kind, *path.scores.support))
    search.run.note("phase", 0, (f"{phase}: {'accepted' if tried.accepted else 'answered with what there is'}",))
    search.run.note("verified_by", len(chosen), tuple(kinds))
    evidence = evidence_of(chosen, search, search.run.limit)
    status = "answered" if tried.text is not None else "unsupported"
    return Draft(
        tried.text, evidence, tuple(map(_path, chosen)), status, tried.nodes, tuple(search.pools), missing=lines
    )


def _path(found: FoundPath) -> Path:
    """A path as it is recorded: edges that the index states, else none, and where the text stands that says it."""
    if found.stated:
        return Path(found.text, found.edges, found.sources)
    where = ", ".join(dict.fromkeys(edge[3] for edge in found.edges))
    return Path(f"{found.text} [{where}]", (), found.sources)


# --- the phases -------------------------------------------------------------------------------------


async def _initial(analysis: Analysis, sources: Sources, query: np.ndarray, search: Search) -> list[FoundPath]:
    """At the predicted depth in the picked sources."""
    chosen = await selected(analysis, sources, search)
    depth = min(analysis.depth, search.params.d_max), True
    return await _both(analysis, analysis, chosen, depth, query, search)


async def _both(
    analysis: Analysis, texts: Analysis, sources: Sources, depth: Depth, query: np.ndarray, search: Search
) -> list[FoundPath]:
    """The graphs by one analysis, documents and the web by another."""
    try:
        paths, graph = await explore_graphs(analysis, sources, depth, query, search)
    except BadInput as error:  # such as a search that needs more memory than there is
        search.lost("kg", error)
        paths, graph = (), None
    return [*paths, *await explore_texts(texts, sources, query, graph, search)]


async def _refined(analysis: Analysis, sources: Sources, query: np.ndarray, search: Search) -> list[FoundPath]:
    """A follow-up question drives documents and web, its indicator also the graphs; by rule both stay."""
    texts, indicator = analysis, query
    if search.run.model_decides:
        texts = await _follow_up(analysis, search)
        (indicator,) = await embed([texts.indicator])
        more = available(texts, search)
        kinds = tuple(kind for kind in KINDS if kind in sources.kinds + more.kinds)
        sources = Sources(tuple(sorted({*sources.graphs, *more.graphs})), kinds)
    return await _both(analysis, texts, sources, (search.params.d_max, False), indicator, search)


async def _follow_up(analysis: Analysis, search: Search) -> Analysis:
    """The follow-up question with its own topics and indicator; the old ones where the reply cannot be used."""
    reply = await _ask("refined", REFINE_SCHEMA, "follow_up", analysis, search)
    chain = read_chain(reply, [mention.text for mention in analysis.mentions]) if reply else None
    if reply is None or chain is None:
        return analysis
    mentions = await linked([entity for entity in chain.entities if entity != ANSWER], search)
    question = " ".join(reply["question"].split())
    search.run.note("follow_up/question", 0, (question, chain.text))
    found = by_chain(analysis.question, mentions or analysis.mentions, chain, analysis.subquestions, chain.text)
    return replace(found, follow_up=question)


async def _ask(prompt: str, schema: str, name: str, analysis: Analysis, search: Search) -> dict[str, Any] | None:
    """A request that shows what was found so far."""
    facts = [f"- {path.text}" for path in search.chosen] or ["nothing"]
    reply = await search.ask(prompt, analysis.shown, schema, name, facts)
    return reply if isinstance(reply, dict) else None


async def _predicted(analysis: Analysis, sources: Sources, query: np.ndarray, search: Search) -> list[FoundPath]:
    """Paths through the topics and each predicted answer, which counts as one more topic."""
    made = await _by_model(analysis, search) if search.run.model_decides else None
    predictions = await _by_rule(analysis, search) if made is None else made
    while predictions and not search.may_ask(2 * len(predictions)) and search.run.model_decides:
        predictions.pop()  # each may choose pages and read sentences
    names = tuple(one.predicted.text for one in predictions if one.predicted is not None)
    search.run.note("predictions", len(predictions), names)
    found = await gather(*(_explore(one, sources, search) for one in predictions))
    return [path for some in found for path in some]


async def _explore(analysis: Analysis, sources: Sources, search: Search) -> list[FoundPath]:
    (query,) = await embed([analysis.indicator])
    own = replace(search, documents=dict(search.documents))  # siblings run side by side: none may see another's
    return await _both(analysis, analysis, sources, (search.params.d_max, False), query, own)


async def _by_model(analysis: Analysis, search: Search) -> list[Analysis] | None:
    reply = await _ask("predict", PREDICT_SCHEMA, "predict", analysis, search)
    if reply is None:
        return None
    names = list(dict.fromkeys(" ".join(one["answer"].split()) for one in reply["predictions"]))
    mentions = {mention.text: mention for mention in await linked(names, search)}
    topics = [mention.text for mention in analysis.mentions]
    found = []
    for one in reply["predictions"]:
        name = " ".join(one["answer"].split())
        chain = read_chain(one, [*topics, name])
        if name in mentions and chain is not None:
            placed = tuple(name if entity == ANSWER else entity for entity in chain.entities)
            found.append(_prediction(analysis, mentions[name], Chain(placed, chain.relations)))
    return found


async def _by_rule(analysis: Analysis, search: Search) -> list[Analysis]:
    """The first answers of what was kept so far."""
    names = [node.name for node in ranked_nodes(search.chosen, search)][:MOST_PREDICTIONS]
    chain = Chain(tuple(mention.text for mention in analysis.mentions), ())
    found = (_prediction(analysis, mention, chain) for mention in await linked(names, search))
    return [replace(one, indicator=analysis.indicator) for one in found]


def _prediction(analysis: Analysis, answer: Mention, chain: Chain) -> Analysis:
    """The analysis with a predicted answer as a topic, in the order of its own indicator; both ends closed."""
    known = {mention.text for mention in analysis.mentions}
    mentions = [*analysis.mentions, *([answer] if answer.text not in known else [])]
    made = by_chain(analysis.question, mentions, chain, analysis.subquestions, chain.text or analysis.indicator)
    return replace(made, opens=False, closes=len(mentions) == 1, predicted=answer)
