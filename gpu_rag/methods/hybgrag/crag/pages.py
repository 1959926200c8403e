"""The web pages of a question: their graph, and their pieces ranked by words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.program.kinds import TEXT
from gpu_rag.runtime.step import batched
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.chunk import chunk_spans
from gpu_rag.text.language import ENGLISH, language_of
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction import extract_patterns
from gpu_rag.types import Page

PIECE_WORDS = 120
MAX_PIECES = 12  # pieces per page that are compared by vector: the best by BM25
MAX_NAME_CHARS = 80  # a longer text is not a name
MAX_CHARS = 200_000  # characters per page that its graph uses
MAX_WALKS = 500  # maximum number of walks from the entities of an action, shortest first
_SITE = re.compile(r"\s+[|–—•-]\s+")

Step = tuple[int, bool]  # a fact, and whether it is walked from subject to object


@dataclass(frozen=True)
class Fact:
    """A triple that a page states. subject, object: nodes; page: its index among the pages of the question."""

    subject: int
    relation: str
    object: int
    page: int


@dataclass(frozen=True)
class PageGraph:
    """The graph of some pages. All names that are equal under `normalise_name` form one node, spelled as the first."""

    names: tuple[str, ...]
    facts: tuple[Fact, ...]

    @cached_property
    def rows(self) -> dict[str, int]:
        """The node of each normal form of a name."""
        return {normalise_name(name): row for row, name in enumerate(self.names)}

    @cached_property
    def steps(self) -> list[list[Step]]:
        """The steps from each node, in the order of the facts."""
        steps: list[list[Step]] = [[] for _ in self.names]
        for row, fact in enumerate(self.facts):
            steps[fact.subject].append((row, True))
            steps[fact.object].append((row, False))
        return steps

    def end(self, step: Step) -> int:
        """The node that a step leads to."""
        row, forward = step
        return self.facts[row].object if forward else self.facts[row].subject


def graph_of(pages: Sequence[Page]) -> PageGraph:
    """The triples of English pages by patterns, without duplicates. Names and relations of more than MAX_NAME_CHARS
    are left out.

    >>> graph = graph_of([Page("", "", "Ada Holm was born in Oslo.")])
    >>> graph.names, graph.facts
    (('Ada Holm', 'Oslo'), (Fact(subject=0, relation='was born in', object=1, page=0),))
    """
    rows: dict[str, int] = {}
    names: list[str] = []
    facts: dict[tuple[int, str, int], Fact] = {}
    for number, page in enumerate(pages):
        if language_of(page.text) != ENGLISH:
            continue
        extraction = extract_patterns(_SITE.split(page.title)[0], page.text[:MAX_CHARS], connect=False)
        for subject, relation, object in extraction.triples:
            forms = normalise_name(subject), normalise_name(object)
            if all(forms) and forms[0] != forms[1] and max(map(len, (subject, relation, object))) <= MAX_NAME_CHARS:
                for form, name in zip(forms, (subject, object)):
                    if rows.setdefault(form, len(names)) == len(names):
                        names.append(name)
                ends = rows[forms[0]], rows[forms[1]]
                facts.setdefault((ends[0], relation, ends[1]), Fact(ends[0], relation, ends[1], number))
    return PageGraph(tuple(names), tuple(facts.values()))


@batched(TEXT)
def page_graph(index: Index, queries: list[tuple[Page, ...]]) -> list[PageGraph]:
    """The graph of each question's pages."""
    return [graph_of(pages) for pages in queries]


def walks(
    graph: PageGraph, topics: Sequence[tuple[int, frozenset[str]]], radius: int
) -> tuple[list[tuple[int, tuple[Step, ...]]], bool]:
    """((start, steps) of the paths of 1 to `radius` edges, whether there were more than MAX_WALKS). Paths start at
    topics (node, relations). Each fact has a relation of its topic, is walked in either direction, and no node
    repeats."""
    paths: list[tuple[int, tuple[Step, ...]]] = []
    for walk in _longer(graph, topics, radius):
        if len(paths) == MAX_WALKS:
            return paths, True
        paths.append(walk)
    return paths, False


def _longer(
    graph: PageGraph, topics: Sequence[tuple[int, frozenset[str]]], radius: int
) -> Iterator[tuple[int, tuple[Step, ...]]]:
    edge: list[tuple[int, frozenset[str], tuple[Step, ...]]] = [(node, allowed, ()) for node, allowed in topics]
    for _ in range(radius):
        longer = []
        for start, allowed, steps in edge:
            visited = {start, *map(graph.end, steps)}
            for step in graph.steps[graph.end(steps[-1]) if steps else start]:
                if graph.facts[step[0]].relation in allowed and graph.end(step) not in visited:
                    yield start, (*steps, step)
                    longer.append((start, allowed, (*steps, step)))
                    if len(longer) > MAX_WALKS:
                        break
        edge = longer


def walk_text(graph: PageGraph, start: int, steps: Sequence[Step]) -> str:
    """A path in words: "A - r -> B <- s - C"."""
    words = [graph.names[start]]
    for step in steps:
        relation = graph.facts[step[0]].relation
        words += [f"- {relation} ->" if step[1] else f"<- {relation} -", graph.names[graph.end(step)]]
    return " ".join(words)


Piece = tuple[int, str]  # the index of its page, and its text


@batched(TEXT)
def page_pieces(index: Index, queries: list[tuple[str, tuple[Page, ...]]]) -> list[tuple[Piece, ...]]:
    """The pieces of each question's pages in their order: per page at most MAX_PIECES, the best by BM25."""
    return [_pieces(question, pages) for question, pages in queries]


def _pieces(question: str, pages: Sequence[Page]) -> tuple[Piece, ...]:
    spans = [chunk_spans(page.text, PIECE_WORDS, 0) for page in pages]
    pieces = [(i, pages[i].text[a:b]) for i, page_spans in enumerate(spans) for a, b in page_spans]
    if not pieces:
        return ()
    scores = Bm25.build([f"{pages[i].title}\n{text}" for i, text in pieces]).scores(question)
    kept, first = [], 0
    for page_spans in spans:
        best = np.argsort(-scores[first : first + len(page_spans)], kind="stable")[:MAX_PIECES]
        kept += [pieces[first + row] for row in sorted(best.tolist())]
        first += len(page_spans)
    return tuple(kept)
