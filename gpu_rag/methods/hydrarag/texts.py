"""HydraRAG, step II in texts: documents of the topics and web pages, their best sentences, and paths out of these.

By a capable model the sentences of all documents become paths, `TOGETHER` of them in a request. By rule a path is one
triple: one that the index's own extraction found in the passage, else one of the patterns, where both ends stand in a
chosen sentence; the title counts as said. Entities of text paths are linked to nodes as topics are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_rag.methods.hydrarag.analysis import NAME, RELATION, json_list, matches_of
from gpu_rag.methods.hydrarag.batched.names import passages_of, stated_triples
from gpu_rag.methods.hydrarag.batched.subgraphs import QuestionGraph
from gpu_rag.methods.hydrarag.batched.web import web_read, web_search
from gpu_rag.methods.hydrarag.state import PROMPTS, Analysis, FoundPath, Search, Sources
from gpu_rag.program.ask import ask_text, embed, packed
from gpu_rag.program.budget import reply_tokens
from gpu_rag.program.search import search_dense
from gpu_rag.runtime.gather import gather
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.extraction import extract_patterns
from gpu_rag.text.sentences import split_sentences

MOST_SENTENCES = 200  # of a document that are compared
MOST_RESULTS = 10  # of a web search
TOGETHER = 9  # sentences of a request at most
MOST_PATHS, MOST_HOPS = 6, 3  # of a reply
_STEP = object_of({"subject": NAME, "relation": RELATION, "object": NAME})
_PATH = object_of({"sentence": {"type": "integer", "minimum": 1}, "steps": json_list(_STEP, MOST_HOPS, 1)})
PATHS_SCHEMA = canonical_schema(object_of({"paths": json_list(_PATH, MOST_PATHS)}))
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


Sentence = tuple[str, Document]  # of it, near the indicator
Said = tuple[Document, tuple[Triple, ...]]  # a path, and the document that says it


async def explore_texts(
    analysis: Analysis, sources: Sources, query: np.ndarray, graph: QuestionGraph | None, search: Search
) -> tuple[FoundPath, ...]:
    """Paths out of the documents of the topics, those read before included, and out of the web."""
    documents: list[Document] = []
    if "document" in sources.kinds:
        documents += await _passages(analysis, query, search)
    if "web" in sources.kinds:
        documents += await _pages(analysis, search)
    if not documents:
        return ()
    sentences = await _sentences(documents, query, search.params.w_max)
    search.run.note("sentences", len(documents), tuple(text for text, _ in sentences))
    return await _linked(await _paths(analysis, sentences, search), graph, search)


async def _passages(analysis: Analysis, query: np.ndarray, search: Search) -> list[Document]:
    """`documents` passages of each topic by cosine, then those of earlier phases; by dense search without a topic."""
    k, read, index = search.params.documents, search.documents, search.run.index
    if analysis.mentions:
        near = await gather(*(passages_of((mention.nodes, query), k) for mention in analysis.mentions))
        found = [pair for pairs in near for pair in pairs]
    else:
        ranking = await search_dense(query, k)
        found = list(zip(ranking.rows, ranking.scores))
    read.update((row, score) for row, score in found if row not in read)
    return [
        Document(e.passage_id, e.title, e.text, "document", "documents", row, tuple(stated_triples(index, row)))
        for row, e in zip(read, index.evidence(list(read), list(read.values()), ""))
    ]


async def _pages(analysis: Analysis, search: Search) -> list[Document]:
    """The web pages that the decider takes among the results, by title and snippet."""
    results = await web_search(analysis.question, search.params.web, MOST_RESULTS)
    if not results:
        return []
    options = [f"{result.title}: {result.snippet}" for result in results]
    chosen = await search.choose("web", analysis, options, search.params.w_max, "web_results")
    pages = await web_read(tuple(results[i].url for i in chosen), search.params.web)
    search.run.note("web_pages", len(results), tuple(f"{page.url} {page.problem}".strip() for page in pages))
    return [Document(page.url, page.title, page.text, "web", "web") for page in pages if page.text]


async def _sentences(documents: Sequence[Document], query: np.ndarray, k: int) -> list[Sentence]:
    """The k sentences of each document of highest cosine to the indicator, in the order of the text."""
    spans = ((d.text[lo:hi].split() for lo, hi in split_sentences(d.text)[:MOST_SENTENCES]) for d in documents)
    texts = [[" ".join(words) for words in of if words] for of in spans]
    vectors = await embed([text for some in texts for text in some])
    cosine = (vectors.astype(np.float64) * query.astype(np.float64)).sum(1)
    found, at = [], 0
    for document, some in zip(documents, texts):
        near = cosine[at : at + len(some)]
        at += len(some)
        best = sorted(range(len(some)), key=lambda i: (-near[i], i))[:k]
        found += [(some[i], document) for i in sorted(best)]
    return found


async def _paths(analysis: Analysis, sentences: Sequence[Sentence], search: Search) -> list[Said]:
    """The paths in some sentences, each once."""
    by_model = search.run.models.model_decides
    made = await _paths_by_model(analysis, sentences, search) if by_model else _paths_by_rule(sentences)
    once = {(document.where, steps): (document, steps) for document, steps in made}
    return list(once.values())


def _paths_by_rule(sentences: Sequence[Sentence]) -> list[Said]:
    return [(of, (triple,)) for text, of in sentences for triple in triples_in(text, of)]


def triples_in(sentence: str, document: Document) -> list[Triple]:
    """The triples that a sentence of a document states, by rule, see the module."""
    said, title = f" {normalise_name(sentence)} ", normalise_name(document.title)

    def stands(triple: Triple) -> bool:
        ends = [normalise_name(end) for end in (triple[0], triple[2])]
        return all(end and (end in said or end == title) for end in ends) and any(end in said for end in ends)

    known = document.triples or extract_patterns(document.title, sentence, connect=False).triples
    return [triple for triple in known if stands(triple)]


async def _paths_by_model(analysis: Analysis, sentences: Sequence[Sentence], search: Search) -> list[Said]:
    """The paths in some sentences, by one request for those that fit it; by rule where a reply cannot be read."""
    run, prompt = search.warm, Prompt.read(PROMPTS, "text_paths")
    room = reply_tokens(run.models.language_model, PATHS_SCHEMA)
    topics = "; ".join(mention.text for mention in analysis.mentions) or "none"
    fields = {"question": analysis.question, "indicator": analysis.indicator, "topics": topics}

    async def of_part(text: str, part: Sequence[Sentence]) -> list[Said]:
        reply = await ask_text(run, prompt, text, schema=PATHS_SCHEMA, max_tokens=room, name="text_paths/model")
        if not isinstance(reply, dict):
            return _paths_by_rule(part)
        said = ((path["sentence"] - 1, tuple(map(_triple, path["steps"]))) for path in reply["paths"])
        return [(part[at][1], steps) for at, steps in said if at < len(part)]

    parts, at = [], 0
    while at < len(sentences):
        lines = [f"[{i}] {of.title}: {text}" for i, (text, of) in enumerate(sentences[at : at + TOGETHER], 1)]
        text, n_shown, _ = packed(run, prompt, fields, "sentences", lines, max_tokens=room, separator="\n")
        part = sentences[at : at + max(1, n_shown)]
        parts.append(of_part(text, part))
        at += len(part)
    return [path for found in await gather(*parts) for path in found]


def _triple(step: dict[str, Any]) -> Triple:
    return " ".join(step["subject"].split()), " ".join(step["relation"].split()), " ".join(step["object"].split())


async def _linked(paths: Sequence[Said], graph: QuestionGraph | None, search: Search) -> tuple[FoundPath, ...]:
    """Paths with every entity as the node of its name, or as a number below 0 of its own."""
    lists = [tuple(dict.fromkeys(end for s, _, o in steps for end in (s, o))) for _, steps in paths]
    names = list(dict.fromkeys(name for some in lists for name in some))
    if not names:
        return ()
    found = await matches_of(names, 1, search)
    node = {name: matches[0].node if matches else -1 - i for i, (name, matches) in enumerate(zip(names, found))}
    known = dict(zip(node, graph.holds(list(node.values())))) if graph is not None else {}
    return tuple(
        FoundPath(
            "; ".join(f"{s} - {r} -> {o}" for s, r, o in steps),
            tuple((s, r, o, document.where) for s, r, o in steps),
            document.kind,
            document.source,
            nodes=tuple(dict.fromkeys(node[name] for name in own)),
            places=tuple((node[name],) for name in own),
            passages=(document.row,) if document.row >= 0 else (),
            relations=tuple(r for _, r, _ in steps),
            stated=set(steps) <= set(document.triples),
            known=sum(known.get(name, False) for name in own) / len(own),
            names=own,
        )
        for (document, steps), own in zip(paths, lists)
    )
