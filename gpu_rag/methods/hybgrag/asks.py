"""The decisions of HybGRAG: the route, its module, the reference that answers the question, and the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from gpu_rag.methods.hybgrag.examples import Experience, Validation, fenced
from gpu_rag.methods.hybgrag.gold import answers_question, proves
from gpu_rag.methods.hybgrag.route_prompt import Route
from gpu_rag.methods.hybgrag.state import Action, Topic
from gpu_rag.models.ask import Ask, Choose, read_prompt
from gpu_rag.text.prompts import Prompt

PROMPTS = "gpu_rag.methods.hybgrag.prompts"
MOST_FAULTS = 4  # maximum that the commentor may name


def route_of(proposal: Action | None) -> Route:
    """The route of the action that the rules propose."""
    return Route((), True) if proposal is None else Route(proposal.topics, proposal.sure)


def merged(reply: Route) -> Route:
    """The reply with one entity for each name and type. It keeps its chain, or the union of its relations."""
    kept: dict[tuple[str, str], Topic] = {}
    for entity in reply.entities:
        name = " ".join(entity.entity.split())
        key = name.casefold(), entity.type
        if key in kept or len(entity.ways) != len(entity.relations):
            name, earlier = (kept[key].entity, kept[key].relations) if key in kept else (name, ())
            entity = Topic(name, entity.type, tuple(dict.fromkeys((*earlier, *entity.relations))))
        kept[key] = structs.replace(entity, entity=name)
    return Route(tuple(entity for entity in kept.values() if entity.entity), reply.sure)


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
