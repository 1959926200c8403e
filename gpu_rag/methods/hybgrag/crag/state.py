"""The nouns of the CRAG variant: its settings, classes of questions, actions, and the feedback to them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

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
    """The loop, its two modules, and what the validator is shown."""

    iterations: Annotated[int, COUNT, "of route, retrieve and answer at most; 1: no critic"] = 4
    batch: Annotated[int, COUNT, "web pages of a batch"] = 5
    radius: Annotated[int, Range(1, 3), "edges of a path from an entity"] = 2
    context: Annotated[bool, "whether the validator is shown the reference"] = True

    n_paths: ClassVar[int] = 20  # of a reference of the graph
    n_pieces: ClassVar[int] = 3  # of a page, in a reference of texts
    max_topics: ClassVar[int] = 4
    n_relations: ClassVar[int] = 3  # of an entity, by rule
    n_shown: ClassVar[int] = 30  # names, and relations, that the router is shown
    near: ClassVar[float] = 0.35  # least cosine, by rule: of a relation that the question asks for, of what answers it
    near_domain: ClassVar[float] = 0.25  # of the words for a domain; else it is the encyclopedia


class Fault(StrEnum):
    """The kinds of feedback."""

    TYPE = "wrong question type"
    DYNAMISM = "wrong dynamism"
    DOMAIN = "wrong domain"
    TOPICS = "wrong entity or relation"
    MODULE = "wrong source or batch"
    NOTHING = "nothing found"


FEEDBACK = {
    Fault.TYPE: "The type of the question is wrong. Take another one.",
    Fault.DYNAMISM: "How fast the answer changes is wrong. Take another value.",
    Fault.DOMAIN: "The domain is wrong. Take another one.",
    Fault.TOPICS: "The entities and relations are not those that the question asks for. Take others.",
    Fault.MODULE: "This reference does not help. Take the other source, or the next batch of pages.",
    Fault.NOTHING: "No path leads from these entities along these relations. Take others, or the pages.",
}


@dataclass(frozen=True)
class Topic:
    """A topic entity, as the graph names it, and the relations that lead from it towards the answer."""

    entity: str
    relations: tuple[str, ...]

    def text(self) -> str:
        """ "entity along relation, relation"."""
        return f"{self.entity} along {', '.join(self.relations)}"


@dataclass(frozen=True)
class Action:
    """One decision of the router. batch: of pages, from 0, for the module of texts."""

    type: str
    dynamism: str
    domain: str
    module: str
    topics: tuple[Topic, ...] = ()
    batch: int = 0

    @property
    def retrieves(self) -> Hashable:
        """Equal for actions that retrieve the same."""
        if self.module == TEXT:
            return self.batch
        return frozenset((topic.entity, frozenset(topic.relations)) for topic in self.topics)

    @property
    def key(self) -> Hashable:
        """Equal for actions that lead to the same answer."""
        return self.type, self.dynamism, self.domain, self.retrieves

    def lines(self) -> tuple[str, ...]:
        """The action in words."""
        source = f"pages, batch {self.batch + 1}" if self.module == TEXT else "graph"
        kind = f"type: {self.type}; dynamism: {self.dynamism}; domain: {self.domain}"
        return (kind, f"source: {source}", *(f"entity: {topic.text()}" for topic in self.topics))


@dataclass
class History:
    """The refinement path of one question: actions, in order, and the feedback to each but the last."""

    question: str
    query_time: str = ""
    actions: list[Action] = field(default_factory=list)
    feedback: list[Fault] = field(default_factory=list)

    @property
    def when(self) -> str:
        """When the question was put, as prompts say it."""
        return self.query_time or "not known"

    def seen(self, action: Action) -> bool:
        """Whether an action that leads to the same answer was taken before."""
        return action.key in {earlier.key for earlier in self.actions}

    def text(self) -> str:
        """All earlier actions and what the critic said, for the router."""
        lines = ["Tries so far, all of them wrong"] if self.actions else ["none"]
        for number, (action, fault) in enumerate(zip(self.actions, self.feedback), 1):
            lines += [f"{number}. {'; '.join(action.lines())}", f"   {FEEDBACK[fault]}"]
        return "\n".join(lines)
