"""The data types of the CRAG variant: settings, classes of questions, actions, and feedback."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from gpu_rag.methods.hybgrag.state import History as Tries
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT, Range

PROMPTS = "gpu_rag.methods.hybgrag.prompts"
GRAPH, TEXT = "graph", "text"
INVALID = "invalid question"  # the answer to a false premise

TYPES = {
    "simple": "one plain fact",
    "simple_w_condition": "a fact under a condition, such as a day or a place",
    "set": "several things are the answer",
    "comparison": "things are compared",
    "aggregation": "a count or another figure out of several facts",
    "multi_hop": "a fact of a thing that another fact names",
    "post_processing": "something is to be reckoned out of what is found",
    "false_premise": "it takes something for granted that is not so",
}
DYNAMISMS = {
    "real-time": "the answer changes within a day",
    "fast-changing": "the answer changes within weeks",
    "slow-changing": "the answer changes within years",
    "static": "the answer does not change",
}
DOMAINS = {
    "finance": "companies, stock prices, dividends, market value, earnings",
    "music": "singers, bands, songs, albums, music awards",
    "movie": "films, actors, directors, film awards, box office",
    "sports": "teams, players, matches, championships, scores",
    "encyclopedia": "anything else: places, history, science, people, general knowledge",
}
RELATIONAL = ("simple", "simple_w_condition", "comparison", "aggregation", "multi_hop")  # by rule: the graph first


@dataclass(frozen=True)
class Params(Declared):
    """The loop, its two modules, and the validator's input."""

    iterations: Annotated[int, COUNT, "maximum number of iterations; 1: no critic"] = 4
    batch: Annotated[int, COUNT, "number of web pages in a batch"] = 5
    radius: Annotated[int, Range(1, 3), "maximum number of edges of a path from an entity"] = 2
    context: Annotated[bool, "whether the validator sees the reference"] = True

    n_paths: ClassVar[int] = 20  # paths in a reference of the graph
    n_pieces: ClassVar[int] = 3  # pieces per page in a reference of texts
    max_topics: ClassVar[int] = 4
    n_relations: ClassVar[int] = 3  # relations per entity, by rule
    n_shown: ClassVar[int] = 30  # names, and relations, shown to the router
    near: ClassVar[float] = 0.35  # by rule, minimum cosine of a relation the question asks for, or of its answer
    near_domain: ClassVar[float] = 0.25  # minimum cosine of a domain's words; else the domain is encyclopedia


class Fault(StrEnum):
    """The kinds of feedback."""

    TYPE = "wrong question type"
    DYNAMISM = "wrong dynamism"
    DOMAIN = "wrong domain"
    TOPICS = "wrong entity or relation"
    MODULE = "wrong source or batch"
    NOTHING = "nothing found"

    def text(self) -> str:
        """The feedback as the router reads it."""
        return FEEDBACK[self]


FEEDBACK = {
    Fault.TYPE: "The type of the question is wrong. Take another one.",
    Fault.DYNAMISM: "How fast the answer changes is wrong. Take another value.",
    Fault.DOMAIN: "The domain is wrong. Take another one.",
    Fault.TOPICS: "The entities and relations are not those that the question asks for. Take others.",
    Fault.MODULE: "This reference does not help. Take the other source, or the next batch of pages.",
    Fault.NOTHING: "No path leads from these entities along these relations. Take others, or the pages.",
}


class Topic(Struct, frozen=True):
    """A topic entity as the graph names it, and the relations that lead from it towards the answer."""

    entity: str = field(name="name")
    relations: Annotated[tuple[str, ...], Meta(min_length=1)]

    def text(self) -> str:
        """ "entity along relation, relation"."""
        return f"{self.entity} along {', '.join(self.relations)}"


@dataclass(frozen=True)
class Action:
    """One decision of the router. batch: number of a batch of pages, for the text module."""

    type: str
    dynamism: str
    domain: str
    module: str
    topics: tuple[Topic, ...] = ()
    batch: int = 0

    @property
    def retrieves(self) -> Hashable:
        """A key that is equal for actions with the same retrieval."""
        if self.module == TEXT:
            return self.batch
        return frozenset((topic.entity, frozenset(topic.relations)) for topic in self.topics)

    @property
    def key(self) -> Hashable:
        """A key that is equal for actions with the same answer."""
        return self.type, self.dynamism, self.domain, self.retrieves

    def lines(self) -> tuple[str, ...]:
        """The action in words."""
        source = f"pages, batch {self.batch + 1}" if self.module == TEXT else "graph"
        kind = f"type: {self.type}; dynamism: {self.dynamism}; domain: {self.domain}"
        return (kind, f"source: {source}", *(f"entity: {topic.text()}" for topic in self.topics))


@dataclass
class History(Tries):
    """The refinement path of one question, and the time it was asked."""

    query_time: str = ""

    @property
    def when(self) -> str:
        """The time of the question, for prompts."""
        return self.query_time or "not known"

    def text(self) -> str:
        """The earlier tries, for the router."""
        return "\n".join(self.tries()) if self.actions else "none"
