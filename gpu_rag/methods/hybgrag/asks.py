"""The decisions of HybGRAG: the route, its module, the reference that answers the question, and the faults."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from msgspec import structs

from gpu_rag.methods.hybgrag.examples import Experience, Validation, fenced
from gpu_rag.methods.hybgrag.gold import answers_question, holds_answer, proves, route
from gpu_rag.methods.hybgrag.state import Action
from gpu_rag.models.ask import Ask, Choose, read_prompt
from gpu_rag.program.knowledge_base.query import Query, Topic
from gpu_rag.text.prompts import Prompt

PROMPTS = "gpu_rag.methods.hybgrag.prompts"
MAX_FAULTS = 4  # maximum that the commentor may name


def route_of(proposal: Action | None) -> Query:
    """The route of the action that the rules propose."""
    return Query((), True) if proposal is None else proposal.query


def merged(reply: Query) -> Query:
    """The reply with one entity for each name and type, and whether it is negated. It keeps its chain, or the union of
    its relations. A sure reply may have several chains of one entity."""
    kept: dict[Hashable, Topic] = {}
    for entity in reply.entities:
        name = " ".join(entity.entity.split())
        chain = (entity.relations, entity.ways) if reply.sure and entity.ways else ()
        key = name.casefold(), entity.type, entity.negated, chain
        if key in kept or len(entity.ways) != len(entity.relations):
            name, earlier = (kept[key].entity, kept[key].relations) if key in kept else (name, ())
            relations = tuple(dict.fromkeys((*earlier, *entity.relations)))
            entity = Topic(name, entity.type, relations, negated=entity.negated)
        kept[key] = structs.replace(entity, entity=name)
    entities = tuple(entity for entity in kept.values() if entity.entity)
    return structs.replace(reply, entities=entities)


ROUTE = Ask(
    "hybgrag_route",
    Query,
    rule=route_of,
    prompt=lambda shown: shown.prompt,
    show=lambda shown: shown.slots,
    check=merged,
    schema=lambda shown: shown.schema,
    gold=route,
)

MODULE = Choose(
    "hybgrag_module",
    f"{PROMPTS}:module",
    show=lambda question, topics: {"question": question, "topics": "\n".join(f"- {topic.text()}" for topic in topics)},
    plans=True,
)


def _fenced_if(name: str, collected: object) -> Prompt:
    """The prompt; examples collected for the index are fenced as untrusted text."""
    prompt = read_prompt(name)
    return fenced(prompt) if collected else prompt


def _judged(question: str, references: Sequence[str], examples: Sequence[Validation]) -> Mapping[str, str]:
    slots = {"question": question, "references": "\n\n".join(references)}
    return {**slots, "examples": "\n\n".join(example.text() for example in examples)} if examples else slots


VALIDATE = Choose(
    "hybgrag_validator",
    lambda examples: _fenced_if(f"{PROMPTS}:validate", examples),
    _judged,
    helps=answers_question,
)


VALIDATE_ALL = Choose(
    "hybgrag_validator",
    lambda examples: _fenced_if(f"{PROMPTS}:validate_yes_no", examples),
    _judged,
    helps=holds_answer,
)


def _commented(question: str, action: Action, examples: Sequence[Experience]) -> Mapping[str, str]:
    shown = "\n\n".join(example.comment() for example in examples)
    return {"question": question, "action": "\n".join(action.lines()), "examples": shown}


COMMENT = Choose(
    "hybgrag_commentor",
    lambda collected: _fenced_if(f"{PROMPTS}:comment", [0] * collected),
    _commented,
    none=True,
    threshold=0.5,
    helps=proves,
)
