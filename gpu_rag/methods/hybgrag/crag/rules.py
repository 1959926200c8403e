"""The router of the CRAG variant without a language model: cues for type and dynamism, cosine for the domain, names of
the graph that occur in the question, and relations near them by cosine.

First action: the graph, if the type is relational, a name occurs in the question and a relation is near; else pages.
Next action: depending on the critic's feedback, the first of these that was not taken before:
  type, dynamism, domain   the next-ranked value
  entity or relation       the next-ranked relation of all entities, or each entity alone
  anything else            the other source, the next batch of pages
If all of these were taken: the same actions in another order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_rag.methods.hybgrag.crag.pages import MAX_WALKS, PageGraph
from gpu_rag.methods.hybgrag.crag.references import Material
from gpu_rag.methods.hybgrag.crag.state import (
    DOMAINS,
    DYNAMISMS,
    GRAPH,
    RELATIONAL,
    TEXT,
    TYPES,
    Action,
    Fault,
    History,
    Params,
    Topic,
)
from gpu_rag.program.embed import embed
from gpu_rag.program.knowledge_base.names import masked, mentions
from gpu_rag.program.steps import similarity
from gpu_rag.text.bm25 import Bm25
from gpu_rag.text.normalise import normalise_name

MAX_RELATIONS = 200  # compared with a question: those of the most names
LEAST = 2.0  # minimum score of a name in the question, see `names.Linked`
_MORE = "more|less|fewer|greater|larger|bigger|smaller|higher|lower|older|younger|longer|shorter|faster|earlier|later"
_MOST = "first|last|best|worst|largest|smallest|highest|lowest|longest|shortest|oldest|youngest|most|least"
_MONTH = "january|february|march|april|may|june|july|august|september|october|november|december"
_TYPES = {
    "comparison": rf"\b(?:{_MORE})\b.* (?:than|or)\b|^(?:which|who|what|is|are|was|were)\b.* or\b|\bcompared\b",
    "post_processing": r"\bhow (?:long|old|much more)\b|\bhow many (?:days|weeks|months|years)\b|\bdifference\b|"
    r"\bin (?:feet|miles|kilometres|dollars|euros)\b|\bpercentage of\b",
    "aggregation": r"\bhow (?:many|often)\b|\bnumber of\b|\btotal\b|\baverage\b|\bcount\b",
    "set": r"^(?:name|list)\b|^(?:what|who) are\b|^which \w+s (?:have|are|were|did|do)\b",
    "multi_hop": rf"\bthe \w+(?: \w+)? (?:who|that|which) \w+|\b(?:{_MOST})\b.* (?:of|in|to|by)\b|"
    r"'s \w+'s\b|\bof the \w+ of\b",
    "simple_w_condition": rf"\b(?:in|on|during|since|before|after) (?:\d{{4}}|{_MONTH})\b|\bas of\b",
}
_DYNAMISMS = {
    "real-time": r"\b(?:today|tonight|right now|yesterday|this (?:morning|afternoon|evening)|now|"
    r"(?:stock|share|closing|opening) price|market cap\w*|trading (?:at|volume))\b",
    "fast-changing": r"\b(?:this|last|next) (?:week|month|season|game|match|monday|tuesday|wednesday|thursday|friday|"
    r"saturday|sunday)\b|\b(?:latest|newest|upcoming|recent(?:ly)?|so far)\b",
    "slow-changing": r"\b(?:current(?:ly)?|still|ever|how many times|this year|last year|richest|population|record)\b",
}


@dataclass(frozen=True)
class Classes:
    """The values of each class of a question, the likeliest first."""

    type: tuple[str, ...]
    dynamism: tuple[str, ...]
    domain: tuple[str, ...]


def by_cues(question: str, cues: Mapping[str, str], values: Sequence[str]) -> tuple[str, ...]:
    """The values whose cue occurs in a question, in the order of the cues; then the others.

    >>> by_cues("Is the Ves longer than the Orl?", _TYPES, ["simple", "comparison"])
    ('comparison', 'simple')
    """
    named = [value for value, cue in cues.items() if re.search(cue, question, re.IGNORECASE) and value in values]
    return tuple(dict.fromkeys((*named, *values)))


async def classes_of(question: str) -> Classes:
    """The classes of a question by rule. A false premise never comes first."""
    cosines = await similarity((question, tuple(f"{name}: {words}" for name, words in DOMAINS.items())))
    domains = [list(DOMAINS)[i] for i in np.argsort(-np.asarray(cosines), kind="stable")]
    if max(cosines) < Params.near_domain:
        domains = list(dict.fromkeys(("encyclopedia", *domains)))
    still = ["static", *(value for value in DYNAMISMS if value != "static")]
    return Classes(by_cues(question, _TYPES, list(TYPES)), by_cues(question, _DYNAMISMS, still), tuple(domains))


@dataclass(frozen=True)
class Candidate:
    """A name of the graph.

    relations: within `radius` edges of it, nearest to the question first, with their cosines; own: those at the name
    itself, in that order; is_asked: whether the name occurs in the question.
    """

    name: str
    relations: tuple[tuple[str, float], ...]
    own: tuple[str, ...]
    is_asked: bool

    def topics(self, size: int) -> list[Topic]:
        """The name along `size` relations, once for each relation at the name itself: that one and the nearest
        others."""
        names = [relation for relation, _ in self.relations]
        return [Topic(self.name, (own, *[other for other in names if other != own][: size - 1])) for own in self.own]


async def candidates(question: str, material: Material, params: Params) -> list[Candidate]:
    """The names that a question may mean: those that occur in it, longer ones first, then those that share words with
    it."""
    graph = material.graph
    if not graph.names:
        return []
    spans: list[tuple[int, int]] = []
    rows: dict[int, bool] = {}
    for mention in mentions(question, lambda name: normalise_name(name) in graph.rows):
        if mention.score >= LEAST and not any(mention.start < end and start < mention.end for start, end in spans):
            spans.append((mention.start, mention.end))
            rows.setdefault(graph.rows[normalise_name(question[mention.start : mention.end])], True)
    ids, scores = Bm25.build(graph.names).search([question], min(params.n_shown, len(graph.names)))
    for row, score in zip(ids[0].tolist(), scores[0].tolist()):
        if row >= 0 and score > 0:
            rows.setdefault(row, False)
    kept = list(rows)[: params.n_shown]
    near = [_relations_near(graph, row, params.radius) for row in kept]
    own = [_relations_near(graph, row, 1) for row in kept]
    counts = Counter(relation for names in (*own, *near) for relation in names)
    known = [relation for relation, _ in counts.most_common(MAX_RELATIONS)]
    text = question
    for start, end in sorted(spans, reverse=True):
        text = masked(text, start, end, "")
    vectors = await embed([text or question, *known])
    cosine = dict(zip(known, (vectors[1:] @ vectors[0]).tolist()))
    listed = []
    for row, names, first in zip(kept, near, own):
        ranked = tuple(sorted(((r, cosine[r]) for r in names if r in cosine), key=lambda pair: -pair[1]))
        at_name = tuple(relation for relation, _ in ranked if relation in first)
        listed.append(Candidate(graph.names[row], ranked, at_name, rows[row]))
    return listed


def _relations_near(graph: PageGraph, node: int, radius: int) -> list[str]:
    """The relations within `radius` edges of a node, by distance. At most MAX_WALKS facts are visited."""
    relations: dict[str, None] = {}
    reached, edge, n = {node}, [node], 0
    for _ in range(radius):
        next_edge = []
        for end in edge:
            for step in graph.steps[end][: MAX_WALKS - n]:
                n += 1
                relations.setdefault(graph.facts[step[0]].relation)
                if graph.end(step) not in reached:
                    reached.add(graph.end(step))
                    next_edge.append(graph.end(step))
        edge = next_edge
    return list(relations)


def first_action(classes: Classes, ranked: Sequence[Candidate], params: Params) -> Action:
    """The action before any feedback."""
    kind = (classes.type[0], classes.dynamism[0], classes.domain[0])
    named = [candidate for candidate in ranked if candidate.is_asked and candidate.own][: params.max_topics]
    near = max((dict(candidate.relations)[candidate.own[0]] for candidate in named), default=-1.0)
    if classes.type[0] in RELATIONAL and near >= params.near:
        return Action(*kind, GRAPH, tuple(candidate.topics(params.n_relations)[0] for candidate in named))
    return Action(*kind, TEXT)


def next_action(
    history: History, classes: Classes, ranked: Sequence[Candidate], n_batches: int, params: Params
) -> Action | None:
    """The action after the last feedback; None if every action was taken."""
    proposed = _proposals(history, classes, ranked, n_batches, params)
    return next((action for action in proposed if not history.seen(action)), None)


def _proposals(
    history: History, classes: Classes, ranked: Sequence[Candidate], n_batches: int, params: Params
) -> Iterator[Action]:
    last, fault = history.actions[-1], history.feedback[-1]
    if fault in (Fault.TYPE, Fault.DYNAMISM, Fault.DOMAIN):
        name = {Fault.TYPE: "type", Fault.DYNAMISM: "dynamism", Fault.DOMAIN: "domain"}[fault]
        used = {getattr(action, name) for action in history.actions}
        for value in getattr(classes, name):
            if value not in used:
                yield replace(last, **{name: value})
    taken_so_far = {action.retrieves for action in history.actions}
    graph = (action for action in _of_graph(last, ranked, params) if action.retrieves not in taken_so_far)
    texts = (replace(last, module=TEXT, topics=(), batch=batch) for batch in range(n_batches))
    pages = (action for action in texts if action.retrieves not in taken_so_far)
    graph_first = fault == Fault.TOPICS if last.module == GRAPH else False
    yield from (*graph, *pages) if graph_first else (*pages, *graph)


def _of_graph(last: Action, ranked: Sequence[Candidate], params: Params) -> Iterator[Action]:
    """The graph along the next relations of all names in the question, then along those of each name alone."""
    usable = [candidate for candidate in ranked if candidate.own]
    named = [candidate.topics(params.n_relations) for candidate in usable if candidate.is_asked][: params.max_topics]
    for turn in range(max(map(len, named), default=0)):
        yield replace(last, module=GRAPH, topics=tuple(topics[min(turn, len(topics) - 1)] for topics in named), batch=0)
    for candidate in usable:
        yield replace(last, module=GRAPH, topics=(candidate.topics(params.n_relations)[0],), batch=0)
