"""Which types and relations a router is shown where a knowledge base has more than a prompt holds.

Relations: those that the question says, the earlier first, then by the cosine of their words and the question. Types:
those that the question says and those of the names in it, then what the relations join, in their order. A relation or
type is said where its words stand in the question, or those of the last part of its name ("directed by" of
"film.film.directed_by"). Lists that fit are whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.names import name_key
from gpu_rag.index.knowledge_base.words import relation_text
from gpu_rag.program.knowledge_base.link import mentions
from gpu_rag.program.knowledge_base.search import KbSearch, ranked_relations

MOST_HOMONYMS = 64  # nodes of one name that are looked at
_LAST_PART = re.compile(r"[^./#:]+$")


@dataclass(frozen=True)
class Shown:
    """Rows of types and of relations, the likeliest first."""

    types: tuple[int, ...]
    relations: tuple[int, ...]


class SaidNames:
    """Types and relations by the words that say them."""

    def __init__(self, kb: KnowledgeBase):
        self.types, self.relations = _by_words(kb.type_names), _by_words(kb.relation_names)

    def in_text(self, text: str) -> tuple[list[int], list[int]]:
        """(types, relations) that a question says, by their place in it, then by row."""
        return _said(text, self.types), _said(text, self.relations)


def _by_words(names: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each wording; one of a single character or of stop words is never looked up."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        last = _LAST_PART.search(name)
        for key in {name_key(relation_text(text)) for text in (name, last[0] if last else name)}:
            rows[key].append(row)
    return dict(rows)


def _said(text: str, rows: dict[str, list[int]]) -> list[int]:
    found = mentions(text, lambda words: name_key(words) in rows)
    places = sorted(found, key=lambda mention: (mention.start, -mention.end))
    return [row for m in places for row in rows[name_key(text[m.start : m.end])]]


def shown_names(
    index: Index, search: KbSearch, args: list[tuple[str, np.ndarray]], n_types: int, n_relations: int
) -> list[Shown]:
    """At most so many types and relations for each (question, its unit vector)."""
    kb = search.kb
    said = index.loaded("kb said names", lambda _: SaidNames(kb))
    near = ranked_relations(search, [((), vector) for _, vector in args], 1, kb.n_relations)
    found = []
    for (text, _), ranked in zip(args, near):
        types, relations = said.in_text(text)
        relations = list(dict.fromkeys((*relations, *ranked.rows)))
        joined = (type for relation in relations for pair in search.schema.pairs[relation] for type in pair)
        types = _first((*types, *_types_in(kb, text)), joined, range(kb.n_types), n=n_types)
        found.append(Shown(tuple(types), tuple(relations[:n_relations])))
    return found


def _types_in(kb: KnowledgeBase, text: str) -> list[int]:
    """The types of the nodes whose names stand in the question, best mentions first."""
    found = mentions(text, lambda name: bool(kb.named(name)))
    return [int(kb.node_type[node]) for m in found for node in kb.named(text[m.start : m.end])[:MOST_HOMONYMS]]


def _first(*rows: Iterable[int], n: int) -> list[int]:
    """The first n different ones."""
    found: dict[int, None] = {}
    for row in (row for some in rows for row in some):
        if len(found) == n:
            break
        found.setdefault(row)
    return list(found)
