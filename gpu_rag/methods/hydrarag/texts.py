"""HydraRAG, step II in texts: documents of the topics and web pages, their best sentences, and paths from these.

BM25 scores every sentence; vectors score the MAX_EMBEDDED sentences of a document that BM25 ranks first. A triple
comes from the index's own extraction of the passage, or else from patterns in the sentence. It is a path if both its
ends occur in a chosen sentence; one of them may be the title. The decider may write more paths, in one request per
phase over the best sentences: the best sentence of every document comes before any second one. Entities of text paths
are linked to nodes in the same way as topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.errors import RequestFailed
from gpu_rag.methods.hydrarag.analysis import matches_of
from gpu_rag.methods.hydrarag.asks import TEXT_PATHS, WEB_RESULTS
from gpu_rag.methods.hydrarag.batched.names import passages_of, stated_triples
from gpu_rag.methods.hydrarag.batched.subgraphs import QuestionGraph
from gpu_rag.methods.hydrarag.batched.web import web_read, web_search
from gpu_rag.methods.hydrarag.state import Analysis, FoundPath, Params, Search, Sources
from gpu_rag.program.decide import decide
from gpu_rag.program.embed import embed
from gpu_rag.program.search import search_dense
from gpu_rag.runtime.gather import gather
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.language import ENGLISH, language_of
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction import extract_patterns
from gpu_rag.text.sentences import split_sentences

MAX_EMBEDDED = 1000  # sentences per document
MAX_RESULTS = 10  # results per web search
TOGETHER, MAX_CHARS = 27, 600  # sentences per request, characters per sentence
Triple = tuple[str, str, str]


@dataclass(frozen=True)
class Document:
    """A passage or page that is read. where: passage id or url; row: row of the passage, -1 for a page; kind, source:
    those of its paths; triples: triples of the index for it, () for a page."""

    where: str
    title: str
    text: str
    kind: str
    source: str
    row: int = -1
    triples: tuple[Triple, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """A sentence of a document that bears on the question. rank: within the document, from 0."""

    text: str
    document: Document
    rank: int


StatedPath = tuple[Document, tuple[Triple, ...]]  # the document that states a path, and the path


async def explore_texts(
    analysis: Analysis, sources: Sources, query: np.ndarray, graph: QuestionGraph | None, search: Search
) -> tuple[FoundPath, ...]:
    """Paths from the documents of the topics, including those read in earlier phases, and from the web."""
    documents: list[Document] = []
    if "document" in sources.kinds:
        documents += await _passages(analysis, query, search)
    if "web" in sources.kinds:
        documents += await _pages(analysis, search)
    if not documents:
        return ()
    sentences = await _sentences(documents, analysis.sought, query, search.params)
    search.run.note("sentences", len(documents), tuple(sentence.text for sentence in sentences))
    return await _linked(await _paths(analysis, sentences, search), graph, search)


async def _passages(analysis: Analysis, query: np.ndarray, search: Search) -> list[Document]:
    """`documents` passages of each topic by cosine, and those of earlier phases. Without a topic, by dense search."""
    k, read, index = search.params.documents, search.documents, search.run.index
    if analysis.mentions:
        near = await gather(*(passages_of((mention.nodes, query), k) for mention in analysis.mentions))
        passages = [pair for pairs in near for pair in pairs]
    else:
        ranking = await search_dense(query, k)
        passages = list(zip(ranking.rows, ranking.scores))
    read.update((row, score) for row, score in passages if row not in read)
    return [
        Document(e.passage_id, e.title, e.text, "document", "documents", row, tuple(stated_triples(index, row)))
        for row, e in zip(read, index.evidence(list(read), list(read.values()), ""))
    ]


async def _pages(analysis: Analysis, search: Search) -> list[Document]:
    """The web pages that the decider selects from the results, by title and snippet."""
    if "web" in search.missing:
        return []
    try:
        results = await web_search(analysis.sought, search.params.web, MAX_RESULTS)
    except RequestFailed as error:
        search.lost("web", error)
        return []
    if not results:
        return []
    options = [f"{result.title}: {result.snippet}" for result in results]
    fields = {**analysis.shown, "query": analysis.indicator, "k": search.params.w_max}
    chosen = await decide(search.run, WEB_RESULTS, options=options, **fields)
    pages = await web_read(tuple(results[i].url for i in chosen), search.params.web)
    search.run.note("web_pages", len(results), tuple(f"{page.url} {page.problem}".strip() for page in pages))
    if pages and all(page.problem for page in pages):
        given = f"{len(pages)} pages, such as {pages[0].url}: {pages[0].problem}"
        search.lost("web", RequestFailed("no page of the results could be read", given=given))
    return [Document(page.url, page.title, page.text, "web", "web") for page in pages if page.text]


async def _sentences(documents: Sequence[Document], sought: str, query: np.ndarray, params: Params) -> list[Sentence]:
    """The w_max best sentences of each document, in text order. The score is the sum of the cosine to the indicator and
    (unless sentences=cosine) the BM25 score, each divided by the best in the document."""
    spans = ((d.text[lo:hi].split() for lo, hi in split_sentences(d.text)) for d in documents)
    texts = [[" ".join(words) for words in runs if words] for runs in spans]
    by_words = Bm25.build([text for own in texts for text in own]).scores(sought).astype(np.float64)
    parts = np.split(by_words, np.cumsum([len(own) for own in texts])[:-1])
    read = [np.argsort(-words, kind="stable")[:MAX_EMBEDDED] for words in parts]
    vectors = await embed([own[i] for own, rows in zip(texts, read) for i in rows])
    cosine = iter((vectors.astype(np.float64) * query.astype(np.float64)).sum(1))
    sentences = []
    for document, own, words, rows in zip(documents, texts, parts, read):
        near = np.full(len(own), -1.0)
        near[rows] = [next(cosine) for _ in rows]
        counted = (near,) if params.sentences == "cosine" else (near, words)
        score = sum(values / max(values.max(initial=0.0), 1e-9) for values in counted)
        best = np.argsort(-score, kind="stable")[: params.w_max].tolist()
        sentences += [Sentence(own[i], document, best.index(i)) for i in sorted(best)]
    return sentences


async def _paths(analysis: Analysis, sentences: Sequence[Sentence], search: Search) -> list[StatedPath]:
    """The paths in the sentences, without duplicates."""
    paths: list[StatedPath] = [
        (item.document, (triple,)) for item in sentences for triple in triples_in(item.text, item.document)
    ]
    paths += await _written(analysis, sentences, search)
    return list({(document.where, steps): (document, steps) for document, steps in paths}.values())


async def _written(analysis: Analysis, sentences: Sequence[Sentence], search: Search) -> list[StatedPath]:
    """The paths that the decider writes from the best sentences."""
    best = sorted(range(len(sentences)), key=lambda i: sentences[i].rank)[:TOGETHER]
    part = [sentences[i] for i in sorted(best)]
    texts = [f"{sentence.document.title}: {sentence.text[:MAX_CHARS]}" for sentence in part]
    fields = {"analysis": analysis, "sentences": texts, "places": [sentence.rank for sentence in part]}
    reply = await decide(search.run, TEXT_PATHS, **fields)
    paths = ((part[path.sentence - 1].document, path.steps) for path in reply.paths)
    return [(document, tuple((s.subject, s.relation, s.object) for s in steps)) for document, steps in paths]


def triples_in(sentence: str, document: Document) -> list[Triple]:
    """The triples that a sentence of a document states, by rule, see the module."""
    text, title = f" {normalise_name(sentence)} ", normalise_name(document.title)

    def stands(triple: Triple) -> bool:
        ends = [normalise_name(end) for end in (triple[0], triple[2])]
        return all(end and (end in text or end == title) for end in ends) and any(end in text for end in ends)

    known = document.triples
    if not known and language_of(sentence) == ENGLISH:
        known = extract_patterns(document.title, sentence, connect=False).triples
    return [triple for triple in known if stands(triple)]


async def _linked(paths: Sequence[StatedPath], graph: QuestionGraph | None, search: Search) -> tuple[FoundPath, ...]:
    """Paths whose entities are linked to nodes by name. An entity without a node gets its own number below 0."""
    lists = [tuple(dict.fromkeys(end for s, _, o in steps for end in (s, o))) for _, steps in paths]
    names = list(dict.fromkeys(name for names_of in lists for name in names_of))
    if not names:
        return ()
    candidates = await matches_of(names, 1, search)
    node = {name: matches[0].node if matches else -1 - i for i, (name, matches) in enumerate(zip(names, candidates))}
    known = dict(zip(node, graph.holds(list(node.values())))) if graph is not None else {}
    return tuple(
        FoundPath(
            "; ".join(f"{s} - {r} -> {o}" for s, r, o in steps),
            document.kind,
            document.source,
            nodes=tuple(dict.fromkeys(node[name] for name in own)),
            places=tuple((node[name],) for name in own),
            edges=tuple((s, r, o, document.where) for s, r, o in steps),
            passages=(document.row,) if document.row >= 0 else (),
            relations=tuple(r for _, r, _ in steps),
            stated=set(steps) <= set(document.triples),
            known=sum(known.get(name, False) for name in own) / len(own),
            names=own,
        )
        for (document, steps), own in zip(paths, lists)
    )
