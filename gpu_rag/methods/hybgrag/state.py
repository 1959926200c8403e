"""The data types of HybGRAG: settings, actions of the router, results, and the feedback of the critic."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Struct

from gpu_rag.program.knowledge_base.query import ALL, Operations, Query, Topic
from gpu_rag.program.search import Ranking
from gpu_rag.settings.check import Declared
from gpu_rag.settings.ranges import COUNT, NATURAL, Range

HYBRID, TEXT = "hybrid", "text"
MODULES = (HYBRID, TEXT)


@dataclass(frozen=True)
class Params(Declared):
    """The loop, the hybrid module, and the critic's input."""

    iterations: Annotated[int, COUNT, "maximum number of iterations; 1: no critic"] = 4
    n_nodes: Annotated[int, COUNT, "number of ranked nodes in an answer; up to 100 if the graph answers exactly"] = 20
    radius: Annotated[int, Range(1, 3), "maximum number of edges from an entity"] = 2
    order: Annotated[
        Literal["distance", "cosine"],
        "distance: first nodes where all relations that were named for an entity lead, each once, then nearer ones, "
        "and by cosine among these; cosine: by cosine alone",
    ] = "distance"
    n_relations: Annotated[int, COUNT, "without a model: maximum number of relations per entity"] = 2
    paths: Annotated[bool, "whether the validator sees reasoning paths"] = True
    validator: Annotated[
        Literal["choice", "yes_no"],
        "choice: says which of the first nodes answers the question; yes_no: whether they do",
    ] = "choice"
    chains: Annotated[
        bool,
        "whether negations, alternatives, counts and comparisons are executed, and graph and documents are fused where "
        "the relations are unsure; false: the paper's choice",
    ] = True
    feedback: Annotated[
        Literal["corrective", "simple"], "corrective: says what was wrong; simple: says only that the result was wrong"
    ] = "corrective"
    examples: Annotated[Literal["nearest", "random"], "selection of the experiences that the commentor sees"] = (
        "nearest"
    )
    n_examples: Annotated[int, NATURAL, "number of experiences that the commentor sees"] = 30
    experiences: Annotated[str | None, "file of experiences; empty: the packaged ones"] = None
    routes: Annotated[str | None, "file of example routes; empty: the packaged ones"] = None

    name_threshold: ClassVar[float] = 0.85  # minimum cosine to the nearest name, for an unknown name
    max_topics: ClassVar[int] = 4  # entities per action
    n_types: ClassVar[int] = 100  # types shown to the router: named ones first, then by similarity
    n_shown: ClassVar[int] = 100  # relations shown, in the same order
    n_references: ClassVar[int] = 3  # ranked nodes shown to the validator

    @property
    def files(self) -> tuple[str, ...]:
        """The files whose content the answers depend on."""
        return tuple(file for file in (self.experiences, self.routes) if file)


class Fault(StrEnum):
    """The kinds of feedback."""

    INCORRECT = "incorrect"
    MISSING = "missing entity"
    NO_ENTITY = "no entity"
    NO_INTERSECTION = "no intersection"
    WRONG_INTERSECTION = "incorrect intersection"
    WRONG_MODULE = "wrong module"
    REJECTED = "rejected"  # simple feedback: only that it was wrong


@dataclass(frozen=True)
class Action:
    """One decision of the router: the relational part of the question, and the module. sure, operations, types: as in
    `Query`."""

    module: str
    topics: tuple[Topic, ...] = ()
    sure: bool = True
    operations: Operations = ALL
    types: tuple[str, ...] = ()

    @property
    def query(self) -> Query:
        """The relational part."""
        return Query(self.topics, self.sure, self.operations, self.types)

    @property
    def key(self) -> Hashable:
        """A key that is equal for actions with the same retrieval. The text module ignores topics."""
        return TEXT if self.module == TEXT else (frozenset(topic.key for topic in self.topics), self.operations)

    def lines(self) -> tuple[str, ...]:
        """The module, then the topics and the operations."""
        topics = (f"entity: {topic.text()}" for topic in self.topics)
        return (f"module: {self.module}", *topics, *(f"operation: {line}" for line in self.operations.lines()))


class Feedback(Struct, frozen=True):
    """The critic's feedback to a rejected action. entities: wrong names.

    relations: wrong (entity, relation) pairs, of entities that are right.
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
class Retrieved(Ranking):
    """The result of an action: nodes, best first, with their cosines.

    starts: for each topic of the action the nodes of its name. chains (hybrid module): for each node and each topic
    with nodes the first chain of relations that leads there, () if none does; met: whether all such topics reach them,
    or only some do; sure: as in the action; barred: nodes that a negation rules out; n_answers: number of exact answers
    of the query, -1 for a plain one.
    """

    starts: tuple[tuple[int, ...], ...] = ()
    chains: tuple[tuple[tuple[int, ...], ...], ...] = ()
    met: bool = True
    sure: bool = True
    barred: tuple[int, ...] = ()
    n_answers: int = -1

    def without(self, barred: Collection[int]) -> Retrieved:
        """The result without some nodes."""
        return self.ordered([place for place, row in enumerate(self.rows) if row not in barred])

    def promoted(self, place: int) -> Retrieved:
        """The result with the node at a position moved to the front; scores do not change."""
        return self.ordered([place, *(i for i in range(len(self.rows)) if i != place)])

    def ordered(self, order: Sequence[int]) -> Retrieved:
        """The result with the nodes at these positions alone, in this order."""
        rows, scores = tuple(self.rows[i] for i in order), tuple(self.scores[i] for i in order)
        return replace(self, rows=rows, scores=scores, chains=tuple(self.chains[i] for i in order if self.chains))


@dataclass
class History:
    """The refinement path of one question: actions in order, and the feedback to each except the last."""

    question: str
    actions: list[Any] = dataclasses.field(default_factory=list)
    feedback: list[Any] = dataclasses.field(default_factory=list)

    def seen(self, action: Any) -> bool:
        """Whether an equivalent action was taken before."""
        return action.key in {earlier.key for earlier in self.actions}

    def tries(self) -> list[str]:
        """The earlier actions and the critic's feedback to them, one per line."""
        pairs = enumerate(zip(self.actions, self.feedback), 1)
        lines = ((f"{i}. {'; '.join(action.lines())}", f"   {feedback.text()}") for i, (action, feedback) in pairs)
        return ["Tries so far, all of them wrong", *(line for pair in lines for line in pair)]

    def text(self) -> str:
        """The earlier tries, for the router."""
        return "\n".join((*self.tries(), "Do not repeat one of them.", "")) if self.actions else ""
