"""The two modules of the CRAG variant. Each turns an action into a reference for the generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.methods.hybgrag.crag.pages import PageGraph, page_graph, page_pieces, walk_text, walks
from gpu_rag.methods.hybgrag.crag.state import TEXT, Action, Params
from gpu_rag.program.embed import embed
from gpu_rag.program.rerank import reranked
from gpu_rag.program.run import Run
from gpu_rag.program.search import search_dense
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Evidence, Page, Path, Question


@dataclass(frozen=True)
class Item:
    """A piece of a page, or a path. page: the index of the page that states it; answer: by rule, "" for none."""

    text: str
    page: int
    score: float
    answer: str = ""


@dataclass(frozen=True)
class Material:
    """The pages of a question and their graph. The pages are the question's own, or else the nearest passages of the
    index (`evidence`), best first.

    order: the pages by their best piece; pieces: pieces of each page, best first.
    """

    vector: np.ndarray
    pages: tuple[Page, ...]
    evidence: tuple[Evidence, ...]
    graph: PageGraph
    order: tuple[int, ...]
    pieces: tuple[tuple[Item, ...], ...]

    def n_batches(self, params: Params) -> int:
        """The number of batches of pages."""
        return -(-len(self.order) // params.batch)


async def material_of(question: Question, run: Run, params: Params) -> Material:
    """The pages of a question, ranked by the cosine of the question and their best piece."""
    (vector,) = await embed([question.text])
    pages, evidence = question.pages, tuple[Evidence, ...]()
    if not pages:
        ranking = await search_dense(vector, max(run.limit, params.batch * params.iterations))
        evidence = run.evidence(ranking, "near the question", "crag_passages", len(ranking.rows))
        if run.keep:
            evidence, _ = await reranked(run, question.text, evidence, (), run.keep)
        pages = tuple(Page(passage.passage_id, passage.title, passage.text) for passage in evidence)
    graph = await page_graph(pages)
    page_texts = await page_pieces((question.text, pages))
    vectors = await embed([f"{pages[page].title}\n{text}" for page, text in page_texts])
    scores = (vectors @ vector).tolist() if page_texts else []
    pieces: list[list[Item]] = [[] for _ in pages]
    for (page, text), score in zip(page_texts, scores):
        pieces[page].append(Item(" ".join(text.split()), page, score))
    ranked = tuple(tuple(sorted(items, key=lambda item: -item.score)) for items in pieces)  # stable
    order = sorted((i for i, items in enumerate(ranked) if items), key=lambda i: -ranked[i][0].score)
    lines = tuple(f"{pages[i].title} {pages[i].url} {ranked[i][0].score:.2f}" for i in order)
    run.note("crag_pages", len(pages), lines)
    run.note("crag_graph", len(graph.facts), (f"{len(graph.names)} names",))
    return Material(vector, pages, evidence, graph, tuple(order), ranked)


async def retrieve_by(action: Action, material: Material, params: Params, run: Run) -> tuple[Item, ...]:
    """The reference of an action, best first; empty if the graph has no such path."""
    if action.module == TEXT:
        batch = material.order[action.batch * params.batch :][: params.batch]
        items = [item for page in batch for item in material.pieces[page][: params.n_pieces]]
        return tuple(sorted(items, key=lambda item: -item.score))
    graph = material.graph
    known = ((graph.rows.get(normalise_name(topic.entity)), frozenset(topic.relations)) for topic in action.topics)
    paths, cut = walks(graph, [(node, allowed) for node, allowed in known if node is not None], params.radius)
    if cut:
        run.note("crag_cut", len(paths), ("the shorter paths alone",))
    if not paths:
        return ()
    texts = [walk_text(graph, *walk) for walk in paths]
    scores = (await embed(texts) @ material.vector).tolist()
    best = sorted(range(len(paths)), key=lambda i: -scores[i])[: params.n_paths]  # stable
    last = [paths[i][1][-1] for i in best]
    return tuple(
        Item(texts[i], graph.facts[step[0]].page, scores[i], graph.names[graph.end(step)])
        for i, step in zip(best, last)
    )


def blocks(items: Sequence[Item], material: Material) -> list[str]:
    """A reference in the format of a prompt."""
    return [f"[{number}] {material.pages[item.page].title}\n{item.text}" for number, item in enumerate(items, 1)]


def shown_paths(items: Sequence[Item], material: Material) -> tuple[Path, ...]:
    """A reference as it is recorded: texts, each with the address of its page, without edges of the index."""
    pages = material.pages
    return tuple(Path(f"{pages[i.page].title}: {i.text} [{pages[i.page].url}]", (), "pages") for i in items)


def shown_evidence(items: Sequence[Item], material: Material, limit: int) -> tuple[Evidence, ...]:
    """The index passages behind a reference, then the other passages; none if the question brought pages."""
    if not material.evidence:
        return ()
    order = dict.fromkeys([*(item.page for item in items), *range(len(material.evidence))])
    return tuple(material.evidence[page] for page in order)[:limit]
