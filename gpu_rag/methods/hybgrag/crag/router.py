"""The router of the CRAG variant: type, dynamism and domain of the question, entities with relations, and the source.

A capable model that decides says all of it in one reply; any other leaves it to the rules of `rules`. No action is
taken twice: where the model repeats one, the rules answer the feedback in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_rag.methods.hybgrag.crag.references import Material
from gpu_rag.methods.hybgrag.crag.rules import Candidate, Classes, candidates, classes_of, first_action, next_action
from gpu_rag.methods.hybgrag.crag.state import (
    DOMAINS,
    DYNAMISMS,
    GRAPH,
    PROMPTS,
    TEXT,
    TYPES,
    Action,
    History,
    Params,
    Topic,
)
from gpu_rag.models.budget import reply_tokens
from gpu_rag.program.ask import ask
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Malformed

MOST_RELATIONS = 4  # of an entity
NONE = "none"  # in place of an empty list


def route_schema(names: Sequence[str], relations: Sequence[str], sources: Sequence[str], most: int) -> str:
    """The JSON Schema of the router's reply."""
    along = {"type": "array", "items": {"enum": list(relations)}, "minItems": 1, "maxItems": MOST_RELATIONS}
    entity = object_of({"name": {"enum": list(names)}, "relations": along})
    return canonical_schema(
        object_of(
            {
                "type": {"enum": list(TYPES)},
                "dynamism": {"enum": list(DYNAMISMS)},
                "domain": {"enum": list(DOMAINS)},
                "entities": {"type": "array", "items": entity, "maxItems": most},
                "source": {"enum": list(sources)},
            }
        )
    )


@dataclass
class Router:
    """The router of one question. ranked, classes: of the rules, found when they are first needed."""

    run: Run
    params: Params
    material: Material
    ranked: list[Candidate] | None = None
    classes: Classes | None = None

    async def route(self, history: History) -> Action | None:
        """The next action, one that was not taken before; None where the rules know none."""
        if self.ranked is None:
            self.ranked = await candidates(history.question, self.material, self.params)
            names = tuple(one.name for one in self.ranked if one.said)
            self.run.note("crag_candidates", len(self.ranked), names)
        if self.run.model_decides:
            action = await self._by_model(history, self.ranked)
            if action is not None and not history.seen(action):
                return action
            why = "the reply could not be read" if action is None else "the model repeats an action"
            self.run.note("crag_router/rules", 0, (why,))
        if self.classes is None:
            self.classes = await classes_of(history.question)
        if not history.actions:
            return first_action(self.classes, self.ranked, self.params)
        n_batches = self.material.n_batches(self.params)
        return next_action(history, self.classes, self.ranked, n_batches, self.params)

    async def _by_model(self, history: History, ranked: Sequence[Candidate]) -> Action | None:
        """The model's action; None where its reply cannot be read or there is nothing to choose from."""
        names = [one.name for one in ranked]
        cosine = {relation: score for one in ranked for relation, score in one.relations}
        relations = sorted(cosine, key=lambda relation: -cosine[relation])[: self.params.n_shown]
        taken = {action.batch for action in history.actions if action.module == TEXT}
        batch = next((i for i in range(self.material.n_batches(self.params)) if i not in taken), None)
        sources = [*([GRAPH] if relations else []), *([TEXT] if batch is not None else [])]
        if not sources:
            return None
        most = self.params.max_topics if relations else 0
        schema = route_schema(names or [NONE], relations or [NONE], sources, most)
        fields = {
            "question": history.question,
            "query_time": history.when,
            "entities": "; ".join(names) or NONE,
            "relations": "; ".join(relations) or NONE,
            "history": history.text(),
            "sources": " or ".join(sources),
        }
        room = reply_tokens(self.run.models.language_model, schema)
        prompt = Prompt.read(PROMPTS, "crag_route")
        reply = await ask(self.run, prompt, fields, schema=schema, max_tokens=room, name="crag_route")
        return None if isinstance(reply, Malformed) else _read(reply, batch or 0)


def _read(reply: Any, batch: int) -> Action:
    """The action of a reply; entities of one name are one, and without any the source is the pages."""
    merged: dict[str, tuple[str, ...]] = {}
    for entity in reply["entities"]:
        earlier = merged.get(entity["name"], ())
        merged[entity["name"]] = tuple(dict.fromkeys((*earlier, *entity["relations"])))
    kind = reply["type"], reply["dynamism"], reply["domain"]
    topics = tuple(Topic(name, relations) for name, relations in merged.items())
    return Action(*kind, GRAPH, topics) if reply["source"] == GRAPH else Action(*kind, TEXT, topics, batch)
