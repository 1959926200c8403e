"""Rules of BubbleRAG without a model: keywords, and groups of anchors.

Keywords: the names in the question, extended to entities of the graph whose names contain them, and also
- with `specialise` the sub-questions of the question's plan (`text.rules.decomposition`). One that needs no other
  answer is a BOUND keyword; one that needs another answer is OPEN. Without a plan, the question itself;
- without `specialise` the content words of the question, each on its own (CONCEPT).
Groups, by similarity:
- one group per keyword: the nearest entity of a NAME, the nearest relation of a BOUND keyword, the two nearest
  relations of an OPEN one, the nearest node of any other;
- groups that share more than half of the smaller one are merged;
- the weight of a group is the rarity of its first anchor, log(1 + passages / passages of it), scaled to at most 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from gpu_rag.index.index import Index
from gpu_rag.methods.bubblerag.graph import rarity
from gpu_rag.program.search import Ranking
from gpu_rag.text.keywords import keywords, names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.decomposition import plan_by_rules

NAME, BOUND, OPEN, CONCEPT = "name", "bound", "open", "concept"
MOST, MAX_CHARS = 12, 1000  # keywords, and characters per keyword
N_OPEN = 2  # anchors per open keyword
MAX_CANDIDATES, CONCEPT_CHARS = 10, 120  # limits per group
_REFERENCE = re.compile(r"#\d{1,3}(?!\w)")


@dataclass(frozen=True)
class Keyword:
    """A text to look for. kind: a NAME, a sub-question that is BOUND or OPEN, or any CONCEPT."""

    text: str
    kind: str = CONCEPT


@dataclass(frozen=True)
class Group:
    """Anchors for one concept. weight: 0 to 1 at first; the weights of all used groups sum to 1."""

    concept: str
    anchors: tuple[int, ...]
    weight: float


def keywords_by_rules(question: str, entities: Sequence[str], *, specialise: bool) -> list[Keyword]:
    """The keywords of a question, at most MOST. entities: the written names of entities that the question names.

    >>> [k.text for k in keywords_by_rules("Where was the director of Jaws born?", ["Jaws"], specialise=True)]
    ['Jaws', 'Who is the director of Jaws?', 'Where was born?']
    """
    listed = [Keyword(name, NAME) for name in _names(question, entities)]
    if specialise:
        for step in plan_by_rules(question).steps:
            text = " ".join(_REFERENCE.sub("", step.question).split())
            listed.append(Keyword(text[:MAX_CHARS], OPEN if step.depends_on else BOUND))
    else:
        named = {normalise_name(k.text) for k in listed}
        words = sorted(keywords(question), key=lambda word: (question.casefold().find(word), word))
        listed += [Keyword(word) for word in words if not any(word in name for name in named)]
    return once(listed) or [Keyword(question[:MAX_CHARS], BOUND)]


def _names(question: str, entities: Sequence[str]) -> list[str]:
    """The names, longest first, without names inside others. An entity whose name contains one replaces it."""
    spoken = names(question)
    written = {name: name for name in spoken}
    for entity in entities:
        key = normalise_name(entity)
        if any(name in key for name in spoken):
            written[key] = entity
    kept: list[str] = []
    for key in sorted(written, key=lambda key: (-len(key), key)):
        if not any(key in longer for longer in kept):
            kept.append(key)
    return [written[key] for key in kept]


def once(keywords: Iterable[Keyword]) -> list[Keyword]:
    """Distinct keywords, each text at its first place, at most MOST."""
    first: dict[str, Keyword] = {}
    for keyword in keywords:
        if keyword.text:
            first.setdefault(keyword.text, keyword)
    return list(first.values())[:MOST]


def anchors_of(index: Index, keyword: Keyword, pool: Ranking) -> tuple[int, ...]:
    """The anchors of a keyword by similarity."""
    if keyword.kind == CONCEPT:
        return pool.rows[:1]
    relation, n = keyword.kind in (BOUND, OPEN), index.n_entities
    fitting = tuple(v for v in pool.rows if (v >= n) == relation)
    return fitting[: N_OPEN if keyword.kind == OPEN else 1]


def groups_by_rules(index: Index, keywords: Sequence[Keyword], pools: Sequence[Ranking]) -> list[Group]:
    """The groups by similarity, at most one per keyword, in their order. pools: the candidates of each keyword."""
    merged: list[tuple[str, tuple[int, ...]]] = []
    for keyword, pool in zip(keywords, pools):
        anchors = anchors_of(index, keyword, pool)
        if not anchors:
            continue
        for i, (concept, earlier) in enumerate(merged):
            if 2 * len(set(earlier) & set(anchors)) > min(len(earlier), len(anchors)):
                merged[i] = (f"{concept} / {keyword.text}", tuple(dict.fromkeys(chain(earlier, anchors))))
                break
        else:
            merged.append((keyword.text, anchors))
    weights = [rarity(index, anchors[0]) for _, anchors in merged]
    scale = max(weights, default=0.0) or 1.0
    return [
        Group(concept[:CONCEPT_CHARS], anchors[:MAX_CANDIDATES], weight / scale)
        for (concept, anchors), weight in zip(merged, weights)
    ]
