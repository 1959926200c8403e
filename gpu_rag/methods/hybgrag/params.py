"""The parameters of HybGRAG."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.settings.ranges import COSINE, COUNT, NATURAL, Range, check_fields

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
