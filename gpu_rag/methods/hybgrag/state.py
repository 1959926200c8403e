"""The nouns of HybGRAG: its settings, actions of the router, results, and the feedback of the critic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpu_rag.program.search import Ranking
from gpu_rag.settings.ranges import COSINE, COUNT, NATURAL, Range, check_fields

HYBRID, TEXT = "hybrid", "text"
MODULES = (HYBRID, TEXT)

FEEDBACKS = ("corrective", "simple")
EXAMPLES = ("nearest", "random")
ORDERS = ("distance", "cosine")
MOST_RADIUS = 3


@dataclass(frozen=True)
class Params:
    """iterations: of route and retrieve at most; 1 has no critic. n_nodes: ranked nodes that an answer has. radius:
    edges of a walk from a topic entity, at most. order: distance (nodes where all relations that were named for a topic
    lead, each once, then nearer ones, and by cosine among these) | cosine (alone). name_threshold: least cosine of a
    name that is not in the knowledge base and the nearest one that is. max_topics: topic entities of an action.
    n_relations: by rules, relations of a topic at most. n_types, n_shown: types and relations of the knowledge base
    that the router is shown at most: those that the question says, then by similarity. n_references: ranked nodes that
    the validator is shown. paths: whether it is shown reasoning paths. feedback: corrective | simple (that it was
    wrong, not what). examples: nearest | random, which experiences the commentor is shown; n_examples: how many.
    experiences, routes: files of examples, empty for the packaged ones."""

    iterations: int = 4
    n_nodes: int = 20
    radius: int = 2
    order: str = "distance"
    name_threshold: float = 0.85
    max_topics: int = 4
    n_relations: int = 2
    n_types: int = 100
    n_shown: int = 100
    n_references: int = 3
    paths: bool = True
    feedback: str = "corrective"
    examples: str = "nearest"
    n_examples: int = 30
    experiences: str | None = None
    routes: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The files whose content the answers depend on."""
        return tuple(file for file in (self.experiences, self.routes) if file)

    def __post_init__(self) -> None:
        check_fields(
            self, iterations=COUNT, n_nodes=COUNT, radius=Range(1, MOST_RADIUS), order=ORDERS, name_threshold=COSINE,
            max_topics=COUNT, n_relations=COUNT, n_types=COUNT, n_shown=COUNT, n_references=COUNT, feedback=FEEDBACKS,
            examples=EXAMPLES, n_examples=NATURAL,
        )  # fmt: skip


class Fault(StrEnum):
    """The kinds of feedback."""

    INCORRECT = "incorrect"
    MISSING = "missing entity"
    NO_ENTITY = "no entity"
    NO_INTERSECTION = "no intersection"
    WRONG_INTERSECTION = "incorrect intersection"
    WRONG_MODULE = "wrong module"
    REJECTED = "rejected"  # simple feedback: that it was wrong, not what


@dataclass(frozen=True)
class Topic:
    """A topic entity as the router names it, and the relations that lead from it towards the answer."""

    entity: str
    type: str
    relations: tuple[str, ...]

    def text(self) -> str:
        """ "entity (type) along relation, relation"."""
        return f"{self.entity} ({self.type}) along {', '.join(self.relations)}"

    @property
    def key(self) -> tuple[str, str, frozenset[str]]:
        """Equal for topics that retrieve the same."""
        return (self.entity.casefold(), self.type, frozenset(self.relations))


@dataclass(frozen=True)
class Action:
    """One decision of the router: the relational part of the question, and the module that uses it or does not."""

    module: str
    topics: tuple[Topic, ...] = ()

    @property
    def key(self) -> frozenset[tuple[str, str, frozenset[str]]] | str:
        """Equal for actions that retrieve the same: the text module does not look at topics."""
        return TEXT if self.module == TEXT else frozenset(topic.key for topic in self.topics)

    def lines(self) -> tuple[str, ...]:
        """The module, then the topics."""
        return (f"module: {self.module}", *(f"entity: {topic.text()}" for topic in self.topics))


@dataclass(frozen=True)
class Feedback:
    """The critic's words to a rejected action. entities: names that are wrong.

    relations: (entity, relation) pairs that are wrong, of entities that are not.
    """

    kind: Fault
    entities: tuple[str, ...] = ()
    relations: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The feedback as the router reads it."""
        if self.kind != Fault.INCORRECT:
            return _WORDS[self.kind]
        parts = [f'Wrong entity: "{name}". Leave it out or take another one.' for name in self.entities]
        parts += [
            f'Wrong relation: "{relation}" of "{entity}". Leave it out or take another one.'
            for entity, relation in self.relations
        ]
        return " ".join(parts)


_WORDS = {
    Fault.NO_ENTITY: "No entity of the knowledge graph was found. Name at least one entity and one relation.",
    Fault.NO_INTERSECTION: (
        "No node is reached from all of the entities. Leave out or replace one entity with its relations."
    ),
    Fault.MISSING: "There is only one entity, and the question speaks of more. Add one more entity and its relation.",
    Fault.WRONG_INTERSECTION: (
        "The entities lead to common nodes, but the answer is not among them. Leave out or replace one entity with its "
        "relations."
    ),
    Fault.WRONG_MODULE: "What was retrieved is wrong. The other source may narrow the search better.",
    Fault.REJECTED: "What was retrieved is wrong. Try again.",
}


@dataclass(frozen=True)
class Retrieved:
    """The result of an action. ranking: nodes, best first. found: for each topic of the action the nodes of its name.

    Of the hybrid module, chains: for each ranked node and each FOUND topic the relations that lead to it; met: whether
    the ranked nodes are reached by all found topics (else by some).
    """

    ranking: Ranking
    found: tuple[tuple[int, ...], ...] = ()
    chains: tuple[tuple[tuple[int, ...], ...], ...] = ()
    met: bool = True

    def n_found(self) -> int:
        """How many topics are nodes of the knowledge base."""
        return sum(bool(nodes) for nodes in self.found)


@dataclass
class History:
    """The refinement path of one question: actions, in order, and the feedback to each but the last."""

    question: str
    actions: list[Action] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)

    def seen(self, action: Action) -> bool:
        """Whether an action that retrieves the same was taken before."""
        return action.key in {earlier.key for earlier in self.actions}

    def text(self) -> str:
        """All earlier actions and what the critic said, for the router."""
        if not self.actions:
            return ""
        lines = ["Tries so far, all of them wrong"]
        for number, (action, feedback) in enumerate(zip(self.actions, self.feedback), 1):
            lines += [f"{number}. {'; '.join(action.lines())}", f"   {feedback.text()}"]
        return "\n".join((*lines, "Do not repeat one of them.", ""))
