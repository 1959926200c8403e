"""BubbleRAG (Pan et al. 2026): small trees that connect a question's concepts, found by growing bubbles in the graph.

The steps: pre-retrieval by dense search, and a check whether it suffices; keywords, and groups of anchors, which are
entities and relations (`anchors`); candidate trees by bubble expansion (`batched`); ranking, and growth hop by hop
(`trees`); passages, paths and the answer. The decisions are in `asks`, their rules without a model in `rules`.

Passages by `order`:
  walk    a random walk with restart over entities, relations and passages, from the nodes of the graphs, from the
          anchors, from names in the question and from passages near it, see `batched`.
  trees   BubbleRAG's specification: by (best graph, number of nodes, cosine), then the pre-retrieved ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from gpu_rag.graph.bubble import ALONE, INSIDE
from gpu_rag.methods.bubblerag.anchors import find_groups, find_keywords
from gpu_rag.methods.bubblerag.asks import ANSWER, ENOUGH, ENOUGH_OPTIONS, blocks_of
from gpu_rag.methods.bubblerag.batched import Params, Tree, TreePassage, bubble_passages, bubble_trees, bubble_walk
from gpu_rag.methods.bubblerag.graph import node_texts, passages_of
from gpu_rag.methods.bubblerag.rules import Group
from gpu_rag.methods.bubblerag.trees import EvidenceGraph, best_trees, expanded, missing
from gpu_rag.program.choices import DEPTH, Choices, by_rules
from gpu_rag.program.decide import decide
from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support, clean_answer, is_answer, read
from gpu_rag.program.rerank import reranked
from gpu_rag.program.run import Run, depth_for
from gpu_rag.program.search import Ranking, search_dense
from gpu_rag.runtime.gather import gather
from gpu_rag.types import Draft, Evidence, Path, Question


@dataclass(frozen=True)
class Before:
    """The result of the pre-retrieval: the question's vector, passages best first, and the shown ones, which are read
    when called."""

    vector: np.ndarray
    ranking: Ranking
    shown: Callable[[], tuple[Evidence, ...]]


@dataclass(frozen=True)
class Grown:
    """Evidence graphs, best first, the anchors of all groups that they should join, and the choices made."""

    graphs: list[EvidenceGraph]
    anchors: tuple[int, ...]
    choices: Choices


async def pre_retrieval(run: Run, question: Question, params: Params, limit: int) -> Before:
    """Step 1, noted in the trace."""
    (vector,) = await embed([question.text])
    ranking = await search_dense(vector, max(params.n_before, limit, DEPTH))
    rows, index = ranking.rows[: params.n_before], run.index
    titles = tuple(f"{index.passage_ids[row]} {index.passage_titles[row]}" for row in rows)
    shown = ranking.rows, ranking.scores, "nearest by vector", params.n_before
    run.note("pre_retrieval", index.n_passages, titles)
    return Before(vector, ranking, partial(run.different, *shown))


async def evidence_graphs(run: Run, question: str, before: Before, params: Params) -> Grown:
    """Steps 2 to 6."""
    keywords = await find_keywords(run, question, lambda: blocks_of(before.shown()), params)
    choices = Choices()
    groups, weighed = await find_groups(run, question, keywords, choices, params)
    trees = await bubble_trees((before.vector, tuple(g.anchors for g in groups)), params)
    rank = params.rank == "score" or (params.rank == "auto" and weighed)
    best = best_trees(trees, groups, params.n_trees, alpha=params.alpha, intra_penalty=params.intra_penalty, rank=rank)
    texts = iter(node_texts(run.index, (v for tree, _ in best for v in tree.nodes)))
    lines = (_in_words(islice(texts, len(tree.nodes)), tree, value, groups) for tree, value in best)
    how = "alone" if trees and trees[0].kind == ALONE else "score" if rank else "first"
    run.note(f"trees/{how}", len(trees), tuple(lines))
    numbered = enumerate((tree for tree, _ in best), 1)
    grown = (expanded(run, question, before.vector, number, tree, choices, params) for number, tree in numbered)
    graphs = list(await gather(*grown))
    run.saw(lambda: passages_of(run.index, _nodes(graphs)))
    anchors = dict.fromkeys(v for group in groups for v in group.anchors)
    return Grown(graphs, tuple(anchors), choices)


def _nodes(graphs: Iterable[EvidenceGraph]) -> tuple[int, ...]:
    """The nodes of evidence graphs, in order, once each."""
    return tuple(dict.fromkeys(v for graph in graphs for v in (*graph.entities, *graph.relations)))


def _in_words(texts: Iterable[str], tree: Tree, value: float, groups: Sequence[Group]) -> str:
    """A tree in words, for the trace. texts: texts of its nodes."""
    nodes = "; ".join(texts)
    inside = ", inside one group" if tree.kind == INSIDE else ""
    return f"score {value:.3f} (cost {tree.cost:.3f}, missing {missing(tree, groups):.2f}{inside}): {nodes}"


async def supported_by(run: Run, question: str, before: Before, grown: Grown, params: Params, limit: int) -> Support:
    """The evidence and paths of evidence graphs."""
    evidence = await read_passages(run, question, before, grown, params, limit)
    return Support(evidence, paths(run, grown.graphs, evidence))


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The first run.limit passages. Step 1 never ends the search early here."""
    before = await pre_retrieval(run, question, params, run.limit)
    grown = await evidence_graphs(run, question.text, before, params)
    return await supported_by(run, question.text, before, grown, params, run.limit)


async def ranking(question: Question, run: Run, params: Params) -> Ranking:
    """The passages of `retrieve` with passages=walk, as rows and scores only, for `fused`."""
    before = await pre_retrieval(run, question, params, run.limit)
    return await _walked(question.text, before, await evidence_graphs(run, question.text, before, params), run.limit)


async def _walked(question: str, before: Before, grown: Grown, k: int) -> Ranking:
    """The k best passages by the walk from evidence graphs and anchors."""
    return await bubble_walk((question, before.vector, _nodes(grown.graphs), grown.anchors), k)


async def _enough(run: Run, question: str, before: Before) -> Draft | None:
    """The answer from the pre-retrieved passages; None if they do not suffice or the reader finds none."""
    shown = before.shown()
    if not shown:
        return None
    fields = {"question": question, "evidence": shown, "rows": before.ranking.rows[: len(shown)]}
    (choice,) = await decide(run, ENOUGH, options=ENOUGH_OPTIONS, **fields)
    draft = await read(run, question, Support(shown)) if choice == 1 else Draft(None)
    return draft if draft.text is not None else None


async def program(question: Question, run: Run, params: Params) -> Draft:
    """The answer from the pre-retrieved passages if they suffice; else evidence graphs, and one reading of facts and
    passages."""
    before = await pre_retrieval(run, question, params, params.n_passages)
    early = await _enough(run, question.text, before)
    if early is not None:
        return early
    grown = await evidence_graphs(run, question.text, before, params)
    support = await supported_by(run, question.text, before, grown, params, params.n_passages)
    evidence, best = await reranked(run, question.text, support.evidence, support.paths)
    if not evidence:
        return Draft(None, (), best, "unsupported")
    fields = {"question": question.text, "facts": facts(run, grown.graphs), "evidence": evidence}
    answer = clean_answer(await decide(run, ANSWER, run=run, max_tokens=run.reader.max_tokens, **fields))
    return Draft(answer, evidence, best) if is_answer(answer) else Draft(None, evidence, best, "unsupported")


# --- passages and paths of evidence graphs --------------------------------------------------------


async def read_passages(
    run: Run, question: str, before: Before, grown: Grown, params: Params, limit: int
) -> tuple[Evidence, ...]:
    """The first `limit` passages of evidence graphs and of the pre-retrieval, noted in the trace."""
    graphs, order = grown.graphs, params.passages
    tree_of: dict[int, int] = {}
    for number, graph in enumerate(graphs):
        for v in (*graph.entities, *graph.relations):
            tree_of.setdefault(v, number)
    k = limit if order == "trees" else DEPTH
    passages = await bubble_passages((before.vector, tree_of), order, k)
    if order == "walk":
        depth = max(depth_for(limit), DEPTH)
        walked = without = await _walked(question, before, grown, depth)
        if grown.choices.made:
            ruled = await evidence_graphs(by_rules(run), question, before, params)
            without = await _walked(question, before, ruled, depth)
        ranking = grown.choices.ranked(without, walked, depth)
        rows = list(zip(ranking.rows, ranking.scores))
    else:
        rows = appended(passages, before.ranking, depth_for(limit))
    of_graphs = {passage.row: passage for passage in passages}
    why = [_why(of_graphs.get(row), len(graphs), order) for row, _ in rows]
    evidence = run.different([row for row, _ in rows], [value for _, value in rows], why, limit)
    titles = tuple(f"{e.passage_id} {e.title}" for e in evidence)
    run.note("bubble_passages", len({*of_graphs, *before.ranking.rows}), titles)
    return evidence


def appended(passages: Sequence[TreePassage], before: Ranking, limit: int) -> list[tuple[int, float]]:
    """The first `limit` (passage row, cosine): passages of the graphs, then of the pre-retrieval."""
    cosines = {passage.row: passage.cosine for passage in passages}
    for row, value in zip(before.rows, before.scores):
        cosines.setdefault(row, value)
    return list(cosines.items())[:limit]


def _why(passage: TreePassage | None, n_graphs: int, order: str) -> str:
    if passage is None:
        by_walk = "reached from the evidence graphs, or near the question"
        return by_walk if order == "walk" else "nearest by vector, before the graph was asked"
    nodes = f"{passage.n_nodes} node{'s' if passage.n_nodes != 1 else ''}"
    return f"holds {nodes} of the evidence graphs, first of graph {passage.tree + 1} of {n_graphs}"


def facts(run: Run, graphs: Sequence[EvidenceGraph]) -> list[str]:
    """The relations of all graphs as "A - R - B", without duplicates."""
    return node_texts(run.index, dict.fromkeys(v for graph in graphs for v in graph.relations))


def paths(run: Run, graphs: Sequence[EvidenceGraph], evidence: Sequence[Evidence]) -> tuple[Path, ...]:
    """Each graph with relations as a path. For a relation, a passage in the evidence that states it is preferred."""
    shown = {e.passage_id for e in evidence}
    graph_paths = []
    for graph in graphs:
        edges = []
        for v in graph.relations:
            subject, label, object_, stated = run.fact(v - run.index.n_entities)
            edges.append((subject, label, object_, next((p for p in stated if p in shown), (*stated, "")[0])))
        if edges:
            graph_paths.append(Path("; ".join(" - ".join(edge[:3]) for edge in edges), tuple(edges), "graph"))
    return tuple({path.edges: path for path in graph_paths}.values())
