"""The decisions of HybGRAG: the route, its module, the reference that answers the question, and the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpu_rag.methods.hybgrag.examples import Experience, Validation, fenced
from gpu_rag.methods.hybgrag.gold import answers_question, proves
from gpu_rag.methods.hybgrag.state import WAYS, Action, Topic
from gpu_rag.models.ask import Ask, Choose, read_prompt
from gpu_rag.text.prompts import Prompt

PROMPTS = "gpu_rag.methods.hybgrag.prompts"
MOST_FAULTS = 4  # that the commentor names
_DIRECTIONS = {word: direction for direction, word in WAYS.items()}


class Entity(Struct, frozen=True):
    """A topic entity in a reply. ways: the direction of each relation where they are one chain, else ()."""

    name: str
    type: str
    relations: tuple[str, ...]
    ways: tuple[str, ...] = ()


class Route(Struct, frozen=True):
    """The entities that a question speaks of. sure: whether the question plainly says their relations."""

    entities: tuple[Entity, ...]
    sure: bool

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The entities as topics of an action."""
        return tuple(Topic(e.name, e.type, e.relations, tuple(_DIRECTIONS[w] for w in e.ways)) for e in self.entities)


def route_of(proposal: Action | None) -> Route:
    """The route of an action that the rules propose."""
    if proposal is None:
        return Route((), True)
    topics = proposal.topics
    entities = (Entity(t.entity, t.type, t.relations, tuple(WAYS[way] for way in t.ways)) for t in topics)
    return Route(tuple(entities), proposal.sure)


def merged(reply: Route) -> Route:
    """The reply with one entity for each name and type: its relations once each, or one chain where each has a way."""
    kept: dict[tuple[str, str], Entity] = {}
    for entity in reply.entities:
        name = " ".join(entity.name.split())
        key = name.casefold(), entity.type
        if key not in kept and len(entity.ways) == len(entity.relations):
            kept[key] = Entity(name, entity.type, entity.relations, entity.ways)
            continue
        earlier = kept.get(key, Entity(name, entity.type, ()))
        relations = tuple(dict.fromkeys((*earlier.relations, *entity.relations)))
        kept[key] = Entity(earlier.name, entity.type, relations)
    return Route(tuple(entity for entity in kept.values() if entity.name), reply.sure)


ROUTE = Ask(
    "hybgrag_route",
    Route,
    rule=route_of,
    prompt=lambda shown: shown.prompt,
    show=lambda shown: shown.slots,
    check=merged,
    schema=lambda shown: shown.schema,
)

MODULE = Choose(
    "hybgrag_module",
    f"{PROMPTS}:module",
    show=lambda question, topics: {"question": question, "topics": "\n".join(f"- {topic.text()}" for topic in topics)},
    plans=True,
)


def _validation_prompt(examples: Sequence[Validation]) -> Prompt:
    prompt = read_prompt(f"{PROMPTS}:validate")
    return fenced(prompt) if examples else prompt


def _judged(question: str, references: Sequence[str], examples: Sequence[Validation]) -> Mapping[str, str]:
    slots = {"question": question, "references": "\n\n".join(references)}
    return {**slots, "examples": "\n\n".join(example.text() for example in examples)} if examples else slots


VALIDATE = Choose("hybgrag_validator", _validation_prompt, _judged, helps=answers_question)


def _comment_prompt(collected: bool) -> Prompt:
    prompt = read_prompt(f"{PROMPTS}:comment")
    return fenced(prompt) if collected else prompt


def _commented(question: str, action: Action, examples: Sequence[Experience]) -> Mapping[str, str]:
    shown = "\n\n".join(example.comment() for example in examples)
    return {"question": question, "action": "\n".join(action.lines()), "examples": shown}


COMMENT = Choose("hybgrag_commentor", _comment_prompt, _commented, none=True, threshold=0.5, helps=proves)
