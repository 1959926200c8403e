"""HydraRAG, step II in texts: documents of the topics and web pages, their best sentences, and paths out of these.

By a capable model the sentences of all documents become paths in one request. By rule a path is one triple: what the
index's own extraction found in the passage, else what the patterns find, where both ends stand in a chosen sentence;
the title counts as said. Entities of text paths are linked to nodes as topics are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_rag.methods.hydrarag.analysis import graph_sources, warmer
from gpu_rag.methods.hydrarag.params import Params
from gpu_rag.methods.hydrarag.schemas import NAME, PROMPTS, json_list, json_object
from gpu_rag.methods.hydrarag.state import Analysis, Candidate, Progress, Sources
from gpu_rag.methods.hydrarag.subgraphs import QuestionGraph
from gpu_rag.methods.hydrarag.wording import ShownPath
from gpu_rag.program.verbs import Verbs
from gpu_rag.runtime.gather import gather
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.text.rules.extraction import extract_patterns
from gpu_rag.text.sentences import split_sentences

MOST_SENTENCES = 200  # of a document that are compared
MOST_PATHS, MOST_HOPS = 12, 4  # of a reply
_STEP = json_object(subject=NAME, relation=NAME, object=NAME)
_PATH = json_object(sentence={"type": "integer", "minimum": 1}, steps=json_list(_STEP, MOST_HOPS, 1))
PATHS_SCHEMA = canonical_schema(json_object(paths=json_list(_PATH, MOST_PATHS)))
Triple = tuple[str, str, str]


@dataclass(frozen=True)
class Document:
    """A passage or page that is read. where: passage id or url; row: of the passage, -1 for a page; kind, source: of
    its paths; triples: those that the index knows of it, () for a page."""

    where: str
    title: str
    text: str
    kind: str
    source: str
    row: int = -1
    triples: tuple[Triple, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """A sentence of a document that is near the indicator."""

    text: str
    document: Document


async def explore_texts(
    analysis: Analysis,
    sources: Sources,
    query: np.ndarray,
    graph: QuestionGraph | None,
    progress: Progress,
    verbs: Verbs,
    params: Params,
) -> tuple[Candidate, ...]:
    """Paths out of the documents of the topics, those read before included, and out of the web."""
    documents: list[Document] = []
    if sources.documents:
        documents += await _passages(analysis, query, progress, verbs, params)
    if sources.web:
        documents += await _pages(analysis, verbs, params)
    if not documents:
        return ()
    sentences = await _sentences(documents, query, verbs, params)
    verbs.ctx.note("sentences", len(documents), tuple(sentence.text for sentence in sentences))
    paths = await _paths(analysis, sentences, verbs, params)
    return await _linked(paths, graph, verbs, params)


async def _passages(
    analysis: Analysis, query: np.ndarray, progress: Progress, verbs: Verbs, params: Params
) -> list[Document]:
    """`documents` passages of each topic by cosine, then those of earlier phases; by dense search without a topic."""
    if analysis.mentions:
        asked = (verbs.passages_of(mention.nodes, query, params.documents) for mention in analysis.mentions)
        found = [pair for pairs in await gather(*asked) for pair in pairs]
    else:
        ranking = await verbs.search_dense(query, params.documents)
        found = list(zip(ranking.rows, ranking.scores))
    progress.documents.update((row, score) for row, score in found if row not in progress.documents)
    evidence = verbs.index.evidence(list(progress.documents), list(progress.documents.values()), "")
    return [
        Document(e.passage_id, e.title, e.text, "document", "documents", row, tuple(verbs.stated_triples(row)))
        for row, e in zip(progress.documents, evidence)
    ]


async def _pages(analysis: Analysis, verbs: Verbs, params: Params) -> list[Document]:
    """The web pages that the decider takes among the results, by title and snippet."""
    results = await verbs.web_search(params.web, analysis.question, 10)
    if not results:
        return []
    options = [f"{result.title}: {result.snippet}" for result in results]
    chosen = await verbs.choose(
        Prompt.read(PROMPTS, "web"),
        {"question": analysis.question, "indicator": analysis.indicator},
        options,
        query=analysis.indicator,
        k=params.w_max,
        name="web_results",
    )
    pages = await verbs.web_read(params.web, [results[i].url for i in chosen])
    read = tuple(f"{page.url} {page.problem}".strip() for page in pages)
    verbs.ctx.note("web_pages", len(results), read)
    return [Document(page.url, page.title, page.text, "web", "web") for page in pages if page.text]


async def _sentences(documents: Sequence[Document], query: np.ndarray, verbs: Verbs, params: Params) -> list[Sentence]:
    """The w_max sentences of each document of highest cosine to the indicator, in the order of the text."""
    texts = [_split(document.text) for document in documents]
    vectors = await verbs.embed([text for some in texts for text in some])
    cosine = (vectors.astype(np.float64) * query.astype(np.float64)).sum(1)
    found, at = [], 0
    for document, some in zip(documents, texts):
        near = cosine[at : at + len(some)]
        at += len(some)
        best = sorted(range(len(some)), key=lambda i: (-near[i], i))[: params.w_max]
        found += [Sentence(some[i], document) for i in sorted(best)]
    return found


def _split(text: str) -> list[str]:
    spans = split_sentences(text)[:MOST_SENTENCES]
    return [sentence for lo, hi in spans if (sentence := " ".join(text[lo:hi].split()))]


async def _paths(
    analysis: Analysis, sentences: Sequence[Sentence], verbs: Verbs, params: Params
) -> list[tuple[Document, tuple[Triple, ...]]]:
    """The paths in some sentences, each once, with the document that says it."""
    made = await _paths_by_model(analysis, sentences, verbs, params) if verbs.models.model_decides else None
    if made is None:
        made = [(s.document, (triple,)) for s in sentences for triple in triples_in(s)]
    once = {(document.where, steps): (document, steps) for document, steps in made}
    return list(once.values())


def triples_in(sentence: Sentence) -> list[Triple]:
    """The triples that a sentence states, by rule, see the module."""
    document = sentence.document
    known = document.triples or extract_patterns(document.title, sentence.text, connect=False).triples
    said = f" {normalise_name(sentence.text)} "
    title = normalise_name(document.title)

    def stands(name: str) -> bool:
        key = normalise_name(name)
        return key != "" and (key in said or key == title)

    return [
        triple for triple in known if stands(triple[0]) and stands(triple[2]) and any(
            normalise_name(end) in said for end in (triple[0], triple[2])
        )
    ]  # fmt: skip


async def _paths_by_model(
    analysis: Analysis, sentences: Sequence[Sentence], verbs: Verbs, params: Params
) -> list[tuple[Document, tuple[Triple, ...]]] | None:
    warm = warmer(verbs, params.temperature)
    prompt = Prompt.read(PROMPTS, "text_paths")
    topics = "; ".join(mention.text for mention in analysis.mentions) or "none"
    fields = {"question": analysis.question, "indicator": analysis.indicator, "topics": topics}
    lines = [f"[{i}] {s.document.title}: {s.text}" for i, s in enumerate(sentences, 1)]
    text, n_shown, _ = warm.pack(prompt, fields, "sentences", lines, max_tokens=params.max_tokens, separator="\n")
    reply = await warm.ask_text(
        prompt, text, schema=PATHS_SCHEMA, max_tokens=params.max_tokens, name="text_paths/model"
    )
    if not isinstance(reply, dict):
        return None
    return [
        (sentences[path["sentence"] - 1].document, tuple(_triple(step) for step in path["steps"]))
        for path in reply["paths"]
        if path["sentence"] <= n_shown
    ]


def _triple(step: dict[str, Any]) -> Triple:
    subject, relation, object_ = (" ".join(step[key].split()) for key in ("subject", "relation", "object"))
    return subject, relation, object_


async def _linked(
    paths: Sequence[tuple[Document, tuple[Triple, ...]]], graph: QuestionGraph | None, verbs: Verbs, params: Params
) -> tuple[Candidate, ...]:
    """Paths as candidates, every entity as the node of its name, or as a number below 0 of its own."""
    lists = [tuple(dict.fromkeys(end for s, _, o in steps for end in (s, o))) for _, steps in paths]
    names = list(dict.fromkeys(name for some in lists for name in some))
    if not names:
        return ()
    vectors = await verbs.embed(names)
    found = await verbs.match_mentions(names, vectors, graph_sources(verbs, params), params.threshold, 1)
    node = {name: matches[0].node if matches else -1 - i for i, (name, matches) in enumerate(zip(names, found))}
    held = dict(zip(node, graph.holds(list(node.values())))) if graph is not None else {}
    return tuple(_candidate(document, steps, some, node, held, verbs) for (document, steps), some in zip(paths, lists))


def _candidate(
    document: Document,
    steps: tuple[Triple, ...],
    names: tuple[str, ...],
    node: dict[str, int],
    held: dict[str, bool],
    verbs: Verbs,
) -> Candidate:
    edges = tuple((s, r, o, document.where) for s, r, o in steps)
    text = "; ".join(f"{s} - {r} -> {o}" for s, r, o in steps)
    entities = tuple(dict.fromkeys(node[name] for name in names))
    places = tuple((node[name],) for name in names)
    passages = (document.row,) if document.row >= 0 else ()
    relations = tuple(r for _, r, _ in steps)
    stated = set(steps) <= set(document.triples)
    shown = ShownPath(text, edges, document.kind, document.source, entities, places, passages, relations, stated)
    known = sum(held.get(name, False) for name in names) / len(names)
    return Candidate(shown, entities, known, (), names)
