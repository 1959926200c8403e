"""Links a name or a question to nodes: first by names that occur in the text, then by near names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase, name_key
from gpu_rag.program.kinds import GRAPH, TEXT
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.search import Ranking, rankings, stacked
from gpu_rag.program.steps import embed_texts
from gpu_rag.runtime.gather import gather
from gpu_rag.runtime.step import batched
from gpu_rag.sources.knowledge_base.nodes import LITERAL
from gpu_rag.text.keywords import written_names
from gpu_rag.text.tokens import STOP_WORDS
from gpu_rag.types import UNTYPED

MAX_WORDS = 12
MAX_HOMONYMS = 64  # nodes kept per name and type
_WORD = re.compile(r"[^\W_]+(?:['’.\-&/+,][^\W_]+)*")
_POSSESSIVE, _POSSESSIVES = re.compile(r"['’]s$"), re.compile(r"['’]s\b")
_CLEAR, _PLAIN, _INSIDE = 3.0, 2.0, 1.0  # tiers of a mention; a score below 1 is a cosine


@dataclass(frozen=True)
class Mention:
    """A name at the characters start:end of a question. score: its tier; within a tier longer names score higher."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Linked:
    """An entity that a question may mean. name, type: as in the knowledge base; nodes: all with both, and those of the
    name whose type is not known. start, end: the place of the name in the question; 0, 0 if it is only near a phrase.

    score: from 3: the name occurs, in several words or with a capital or digit; from 2: one plain word; from 1: inside
    a longer name; below 1: the cosine of name and phrase. Longer names score higher.
    """

    name: str
    type: str
    nodes: tuple[int, ...]
    score: float
    start: int = 0
    end: int = 0


def mentions(text: str, known: Callable[[str], bool]) -> list[Mention]:
    """The runs of at most MAX_WORDS words of `text` that are known names, best first, ties to the earlier.

    `known` is called with a run as written, then without a final possessive 's. Names of only stop words or of a single
    character never count.
    """
    words = [match.span() for match in _WORD.finditer(text)]
    runs = [(first, last) for i, (first, _) in enumerate(words) for _, last in words[i : i + MAX_WORDS]]
    spans = [(first, end) for first, last in runs if (end := _known_end(text, first, last, known))]
    ranked = [Mention(start, end, _tier(text, start, end, spans)) for start, end in spans]
    return sorted(ranked, key=lambda m: (-m.score, m.start))


def _known_end(text: str, first: int, last: int, known: Callable[[str], bool]) -> int:
    """The end of the name that begins at `first`: at `last`, or before a possessive 's there; 0 for neither."""
    run = text[first:last]
    for name in dict.fromkeys((run, _POSSESSIVE.sub("", run))):
        says_something = len(name) > 1 and any(word.casefold() not in STOP_WORDS for word in _WORD.findall(name))
        if says_something and known(name):
            return first + len(name)
    return 0


def _tier(text: str, start: int, end: int, spans: Sequence[tuple[int, int]]) -> float:
    length = (end - start) / (end - start + 1000)  # below 1, growing with the length
    if any(a <= start and end <= b and (a, b) != (start, end) for a, b in spans):
        return _INSIDE + length
    name = text[start:end]
    clear = " " in name or any(char.isdigit() for char in name) or (start > 0 and name != name.lower())
    return (_CLEAR if clear else _PLAIN) + length


def masked(text: str, start: int, end: int, word: str) -> str:
    """The question with a mention replaced by a word for its type, which shows what is asked about the entity."""
    return " ".join(f"{text[:start]} {word} {text[end:]}".split())


# --- steps ------------------------------------------------------------------------------------------


def node_names(index: Index, type: str | None = None, source: int | None = None) -> tuple[np.ndarray, NearestRows]:
    """(nodes i64 ascending, their names prepared for search): nodes that may be of a type, those of a source, or
    all."""

    def load(index: Index) -> tuple[np.ndarray, NearestRows]:
        kb = kb_of(index)
        rows, vectors = np.arange(kb.n), kb.vectors("kb_name_vectors")
        if type is not None:
            rows = kb.nodes_of_type(type, UNTYPED)
        elif source is not None:
            rows = np.flatnonzero(kb.node_sources[:, source])
        whole = len(rows) == kb.n  # no copy needed
        chosen = vectors if whole else vectors[torch.from_numpy(rows).to(vectors.device)]
        return rows, NearestRows(chosen, index.threads)

    return index.loaded(f"names of nodes {type!r} {source}", load)


@batched(TEXT, name="kb_named")
def named(index: Index, queries: list[tuple[str, str | None]]) -> list[tuple[int, ...]]:
    """All nodes with a name or alias, of a type (None: any); ascending, at most MAX_HOMONYMS."""
    kb = kb_of(index)
    return [tuple(kb.named(name, type)[:MAX_HOMONYMS]) for name, type in queries]


@batched(TEXT, name="kb_mentioned")
def mentioned(index: Index, queries: list[str], k: int) -> list[list[tuple[Mention, tuple[int, ...]]]]:
    """The k best mentions in each text, with the nodes of the name."""
    kb = kb_of(index)
    return [
        [(m, tuple(kb.named(text[m.start : m.end])[:MAX_HOMONYMS])) for m in mentions_in(kb, text)[:k]]
        for text in queries
    ]


@batched(GRAPH, name="kb_near_names")
def near_names(index: Index, queries: list[tuple[str | None, np.ndarray]], k: int, threshold: float) -> list[Ranking]:
    """The k nearest names of each type to its unit vector, of cosine >= threshold; one product per type."""
    result: list[Ranking] = [Ranking((), ())] * len(queries)
    for type in dict.fromkeys(type for type, _ in queries):
        places = [i for i, (wanted, _) in enumerate(queries) if wanted == type]
        rows, vectors = node_names(index, type)
        top = rankings(vectors.search(stacked([queries[i][1] for i in places], index.device), min(k, len(rows))))
        for i, nearest in zip(places, top):
            kept = [(int(rows[r]), s) for r, s in zip(nearest.rows, nearest.scores) if s >= threshold]
            result[i] = Ranking(tuple(r for r, _ in kept), tuple(s for _, s in kept))
    return result


def mentions_in(kb: KnowledgeBase, text: str) -> list[Mention]:
    """The node names that occur in a text, best first."""
    return mentions(text, lambda name: bool(kb.named(name)))


def unknown_names(text: str, alike: Sequence[str], kb: KnowledgeBase) -> tuple[str, ...]:
    """The names in a question that are not a node, type or relation. alike: names of nodes that it may mean; a name
    that has all words of one of them, or the other way round, is known."""
    known = [set(name_key(_POSSESSIVES.sub("", name)).split()) for name in alike]
    words = {name_key(word) for name in (*kb.type_names, *kb.relation_texts) for word in (name, *name.split())}
    unknown = []
    for name in written_names(text):
        own = set(name_key(name).split())
        is_other = not any(own <= other or other <= own for other in known)
        if is_other and text.find(name) > 0 and name_key(name) not in words and not kb.named(name):
            unknown.append(name)
    return tuple(unknown)


# --- of one question --------------------------------------------------------------------------------


async def match_names(kb: KnowledgeBase, name: str, type: str | None, threshold: float) -> tuple[int, ...]:
    """All nodes of a type (None: any) with this name or alias; else those of the nearest name.

    The match is exact under `name_key`; else by the cosine of the names, if it is at least `threshold`. All homonyms
    are kept, ascending; () if there is none.
    """
    nodes = await named((name, type))
    if nodes:
        return nodes
    vector = await embed_texts((name.replace("_", " "),))
    near = await near_names((type, vector[0]), 1, threshold)
    if not near.rows:
        return ()
    return await named((kb.node_names[near.rows[0]], type)) or near.rows


async def link_names(kb: KnowledgeBase, text: str, phrases: Sequence[str], k: int, threshold: float) -> list[Linked]:
    """At most k entities that a question may mean: names in it, then the names nearest to `phrases`.

    See `Linked` for the order. Nodes of one name and different types are different entities. Literal values count only
    if no other node has their name. A phrase whose nearest name has a cosine below `threshold` gives none.
    """
    entities = [entity for mention, nodes in await mentioned(text, k) for entity in linked(kb, nodes, mention)]
    if phrases:
        vectors = await embed_texts(tuple(phrases))
        near = await gather(*(near_names((None, vector), 1, threshold) for vector in vectors))
        pairs = [pair for ranking in near for pair in zip(ranking.rows, ranking.scores)]
        alike = await gather(*(named((kb.node_names[row], None)) for row, _ in pairs))
        for (row, score), nodes in zip(pairs, alike):
            entities += linked(kb, nodes or (row,), Mention(0, 0, min(score, 1.0 - 1e-6)))
    best: dict[tuple[str, str], Linked] = {}
    for entity in sorted(entities, key=lambda e: -e.score):
        best.setdefault((entity.name, entity.type), entity)
    return list(best.values())[:k]


def linked(kb: KnowledgeBase, nodes: Sequence[int], mention: Mention) -> list[Linked]:
    """The entities that a mention of a name with these nodes may mean, one of each type."""
    by_type: dict[str, list[int]] = {}
    for node in nodes:
        by_type.setdefault(kb.type_names[kb.node_type[node]], []).append(node)
    if len(by_type) > 1:
        by_type.pop(LITERAL, None)  # a literal with the name of another node is not meant
    untyped = by_type.pop(UNTYPED, []) if len(by_type) > 1 else []  # perhaps the same thing: nothing says otherwise
    place = (mention.score, mention.start, mention.end)
    return [
        Linked(kb.node_names[rows[0]], type, tuple(sorted(rows + untyped)), *place) for type, rows in by_type.items()
    ]
