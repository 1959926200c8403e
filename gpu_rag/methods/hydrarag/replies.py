"""The replies to HydraRAG's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from gpu_rag.methods.hydrarag.state import ANSWER, MAX_TOPICS, Chain

MAX_STEPS = 9  # entities in a chain
NAME_CHARS, SENTENCE_CHARS, ANSWER_CHARS = 200, 500, 500
MAX_PREDICTIONS = 3
MAX_PATHS, MAX_HOPS = 12, 3  # paths per reply about texts, and hops per path

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS)]
Relation = Annotated[str, Meta(min_length=1, max_length=120)]
Sentence = Annotated[str, Meta(min_length=1, max_length=SENTENCE_CHARS)]
Entities = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_STEPS)]
Relations = Annotated[tuple[Relation, ...], Meta(min_length=0, max_length=MAX_STEPS - 1)]


class Topics(Struct, frozen=True):
    """The names of things that a question mentions."""

    topics: Annotated[tuple[Name, ...], Meta(min_length=0, max_length=MAX_TOPICS)]


class Analysed(Struct, frozen=True):
    """Sub-questions, and the chain of topics and answer: entities, and the relation between each two neighbours."""

    subquestions: Annotated[tuple[Sentence, ...], Meta(min_length=0, max_length=MAX_TOPICS)]
    entities: Entities
    relations: Relations


class FollowUp(Struct, frozen=True):
    """A question that asks for the missing facts, and its chain."""

    question: Sentence
    entities: Entities
    relations: Relations


class Prediction(Struct, frozen=True):
    """A likely answer, and a chain in which ANSWER stands for it."""

    answer: Name
    entities: Entities
    relations: Relations


class Predicted(Struct, frozen=True):
    """Likely answers, the likeliest first."""

    predictions: Annotated[tuple[Prediction, ...], Meta(min_length=0, max_length=MAX_PREDICTIONS)]


class Step(Struct, frozen=True):
    """One fact that a sentence states."""

    subject: Name
    relation: Relation
    object: Name


class TextPath(Struct, frozen=True):
    """A chain of facts, and the number of the sentence that states it, from 1."""

    sentence: Annotated[int, Meta(ge=1)]
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=MAX_HOPS)]


class TextPaths(Struct, frozen=True):
    """Paths that sentences state."""

    paths: Annotated[tuple[TextPath, ...], Meta(min_length=0, max_length=MAX_PATHS)]


class Answered(Struct, frozen=True):
    """Whether the paths settle each sub-question and the whole question, and the answer ("" for none)."""

    reason: Annotated[str, Meta(max_length=600)]
    settled: Annotated[tuple[bool, ...], Meta(min_length=0, max_length=MAX_STEPS)]
    sufficient: bool
    answer: Annotated[str, Meta(max_length=ANSWER_CHARS)]


NOT_ANSWERED = Answered("", (), False, "")


def in_words(step: Step) -> str:
    """One fact in words."""
    return f"{step.subject} - {step.relation} -> {step.object}"


def folded(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


def chain_of(entities: Sequence[str], relations: Sequence[str], topics: Sequence[str]) -> Chain | None:
    """The chain of a reply, with the topics spelled as given. None unless it has the answer exactly once and one
    relation between each two neighbours."""
    known = {topic.casefold(): topic for topic in reversed(topics)}
    entities = tuple(_entity(folded(entity), known) for entity in entities)
    if entities.count(ANSWER) != 1 or len(relations) != len(entities) - 1:
        return None
    return Chain(entities, tuple(map(folded, relations)))


def _entity(name: str, topics: dict[str, str]) -> str:
    if name == ANSWER:
        return ANSWER
    return topics.get(name.casefold(), ANSWER if name.upper() == ANSWER else name)
