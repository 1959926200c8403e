"""What HydraRAG knows of one question: its topics, its analysis, the candidate paths and the outcome of each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_rag.methods.hydrarag.scores import Judged
from gpu_rag.methods.hydrarag.topics import Match
from gpu_rag.methods.hydrarag.wording import ShownPath
from gpu_rag.types import Pool

ANSWER = "ANSWER"  # where the answer stands in a chain


@dataclass(frozen=True)
class Mention:
    """A topic entity as the question names it, and the nodes that it may be, best first."""

    text: str
    matches: tuple[Match, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes."""
        return tuple(match.node for match in self.matches)


@dataclass(frozen=True)
class Chain:
    """The skyline indicator: entities in order, the answer among them, and the relation between each two.

    entities hold names of topics, ANSWER, and whatever stands between; len(relations) = len(entities) - 1.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]

    @property
    def text(self) -> str:
        """ "A - r - ANSWER - s - B"."""
        parts = [self.entities[0]] if self.entities else []
        for relation, entity in zip(self.relations, self.entities[1:]):
            parts += [relation, entity]
        return " - ".join(parts)

    def depth(self, topics: Sequence[str]) -> int:
        """D_predict: the greatest distance from the answer to a topic; 1 where either is missing."""
        if ANSWER not in self.entities:
            return 1
        at = self.entities.index(ANSWER)
        places = [i for i, entity in enumerate(self.entities) if entity in topics]
        return max([abs(i - at) for i in places] or [1])


@dataclass(frozen=True)
class Analysis:
    """Step I of one question. indicator: the text that paths are compared with; depth: D_predict.

    opens, closes: whether the answer stands before the first or behind the last topic of the order; predicted: the
    mention that is a predicted answer, where one is among the mentions.
    """

    question: str
    mentions: tuple[Mention, ...]
    subquestions: tuple[str, ...]
    indicator: str
    depth: int
    opens: bool
    closes: bool
    predicted: Mention | None = None

    @property
    def topics(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each topic may be."""
        return tuple(mention.nodes for mention in self.mentions)


@dataclass(frozen=True)
class Sources:
    """Which sources a question has: numbers of knowledge graphs with a topic; whether documents and the web join."""

    graphs: tuple[int, ...]
    documents: bool
    web: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds among "kg", "document", "web"."""
        had = (("kg", bool(self.graphs)), ("document", self.documents), ("web", self.web))
        return tuple(kind for kind, has in had if has)

    def only(self, kinds: Sequence[str]) -> Sources:
        """Those of some kinds."""
        graphs = self.graphs if "kg" in kinds else ()
        return Sources(graphs, self.documents and "document" in kinds, self.web and "web" in kinds)


@dataclass(frozen=True)
class Candidate:
    """A path that may hold the answer. entities: fused nodes, < 0 for names that no graph has; known: the share of
    entities in the evidence subgraph; answers: nodes where the answer stands, by the order that the path was found for;
    names: of text paths, whose entities the graphs may not have."""

    shown: ShownPath
    entities: tuple[int, ...]
    known: float
    answers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """A path that survived: with its scores, and the phase that found it."""

    candidate: Candidate
    judged: Judged
    phase: str


@dataclass
class Progress:
    """One question's run. candidates: what each phase found, paths of earlier phases first; chosen: what its pruning
    left; documents: passage rows that were read, with their cosines; pools: for `answer_on_path`."""

    candidates: list[Candidate] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    kept: list[Chosen] = field(default_factory=list)
    documents: dict[int, float] = field(default_factory=dict)
    pools: list[Pool] = field(default_factory=list)
