"""The decisions of the CRAG variant: the route, the answer, its validity, and the fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, structs

from gpu_rag.methods.hybgrag.crag.references import Item
from gpu_rag.methods.hybgrag.crag.state import DOMAINS, DYNAMISMS, GRAPH, PROMPTS, TEXT, TYPES, Action, History, Topic
from gpu_rag.models.ask import Ask, Choose, Packed
from gpu_rag.program.oracle import Known
from gpu_rag.program.reader import read_blocks
from gpu_rag.program.run import Run
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.structs import schema_with

MAX_RELATIONS = 4  # maximum relations per entity
MAX_WORDS = 500  # words of a reference shown to the validator
NONE = "none"  # instead of an empty list
AGAIN = "again"  # a source: the pages of the last try, read in another way


class Route(Struct, frozen=True):
    """The classes of a question, its entities, and the source to search for the answer."""

    type: str
    dynamism: str
    domain: str
    entities: tuple[Topic, ...]
    source: str

    def action(self, next_batch: int, last: Action | None) -> Action:
        """The action: over the graph, over the next batch of pages, or over the pages of the last action."""
        kind = self.type, self.dynamism, self.domain
        if self.source == GRAPH:
            return Action(*kind, GRAPH, self.entities)
        batch = last.batch if self.source == AGAIN and last is not None else next_batch
        return Action(*kind, TEXT, self.entities, batch)


class Answered(Struct, frozen=True):
    """An answer and its reason; "" or "unknown" if there is none."""

    reason: Annotated[str, Meta(max_length=400)]
    answer: Annotated[str, Meta(max_length=300)]


def route_of(proposal: Action, last: Action | None) -> Route:
    """The route of the action that the rules propose."""
    repeats = last is not None and (proposal.module, last.module) == (TEXT, TEXT) and proposal.batch == last.batch
    source = AGAIN if repeats else proposal.module
    return Route(proposal.type, proposal.dynamism, proposal.domain, proposal.topics, source)


def merged(reply: Route) -> Route:
    """The reply with one entity for each name and the union of its relations."""
    relations: dict[str, dict[str, None]] = {}
    for entity in reply.entities:
        relations.setdefault(entity.entity, {}).update(dict.fromkeys(entity.relations))
    return structs.replace(reply, entities=tuple(Topic(name, tuple(names)) for name, names in relations.items()))


def route_schema(names: Sequence[str], relations: Sequence[str], sources: Sequence[str], max_topics: int) -> str:
    """The JSON Schema of a route of at most `max_topics` entities."""
    options = {"name": names or [NONE], "relations": relations or [NONE], "source": sources}
    classes = {"type": list(TYPES), "dynamism": list(DYNAMISMS), "domain": list(DOMAINS)}
    sizes = {"entities": max_topics if relations else 0, "relations": MAX_RELATIONS}
    return schema_with(Route, {**options, **classes}, sizes)


ROUTE = Ask(
    "crag_route",
    Route,
    rule=route_of,
    prompt=f"{PROMPTS}:crag_route",
    show=lambda history, names, relations, sources: {
        "question": history.question,
        "query_time": history.when,
        "entities": "; ".join(names) or NONE,
        "relations": "; ".join(relations) or NONE,
        "history": history.text(),
        "sources": " or ".join(sources),
    },
    check=merged,
    schema=route_schema,
)


async def read_or_first(run: Run, history: History, items: Sequence[Item], blocks: Sequence[str]) -> Answered:
    """The reader's answer. Without a model, the end of the best path or the best piece, for the trace only."""
    if run.models.llm is None:
        return Answered("", items[0].answer or items[0].text)
    return Answered("", await read_blocks(run, history.question, blocks, final=False) or "")


ANSWER = Ask(
    "crag_answer",
    Answered,
    rule=read_or_first,
    prompt=f"{PROMPTS}:crag_answer",
    show=lambda history, action, blocks: {
        "question": history.question,
        "query_time": history.when,
        "kind": f"{action.type} ({TYPES[action.type]}); {DYNAMISMS[action.dynamism]}; {action.domain}",
        "references": Packed(blocks),
    },
    unread=lambda: Answered("", ""),
)


def _judged(history: History, blocks: Sequence[str], prediction: str) -> dict[str, str]:
    words = "\n\n".join(blocks).split(" ")[:MAX_WORDS]
    return {
        "question": history.question,
        "query_time": history.when,
        "references": " ".join(words) or NONE,
        "answer": prediction,
    }


def is_right(known: Known, position: int, prediction: str) -> bool:
    """Whether the verdict is right. Position 0 ("it holds") is right if the prediction is a gold answer."""
    return (normalise_name(prediction) in map(normalise_name, known.gold.answers)) == (position == 0)


VALIDATE = Choose("crag_validator", f"{PROMPTS}:crag_validate", show=_judged, helps=is_right)
COMMENT = Choose(
    "crag_commentor",
    f"{PROMPTS}:crag_comment",
    show=lambda history, action, prediction: {
        "question": history.question,
        "action": "\n".join((*action.lines(), f"answer: {prediction or 'none was found'}")),
    },
)
