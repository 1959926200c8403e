"""HybGRAG's router: what the question speaks of, along which relations, and which retrieval module is to use it.

A capable model that decides makes both choices of an iteration, in two calls; any other leaves them to the rules of
`rules`. No action is taken twice: where the model repeats one, the rules answer the feedback in its place.
Of a knowledge base with many types and relations the model is shown those that the question most likely needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from gpu_rag.methods.hybgrag.examples import Experience, fenced, own_examples, read_examples
from gpu_rag.methods.hybgrag.rules import Candidate, candidates, first_action, next_action
from gpu_rag.methods.hybgrag.state import HYBRID, TEXT, Action, History, Params, Topic
from gpu_rag.models.budget import reply_tokens
from gpu_rag.models.llm.interface import fits
from gpu_rag.program.ask import ask, choose
from gpu_rag.program.knowledge_base.relations import Shown, relations_of, shown_names
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.reason import reason_room
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Malformed

PROMPTS = "gpu_rag.methods.hybgrag.prompts"
MOST_RELATIONS = 4  # of an entity
_MODULE_TEXTS = {
    HYBRID: "knowledge graph: search among what these entities and relations lead to",
    TEXT: "text documents: search all documents by what they say",
}


@dataclass
class Router:
    """The router of one question. vector: of the question; ranked: candidates of the rules, found when first needed."""

    run: Run
    params: Params
    vector: np.ndarray
    ranked: list[Candidate] | None = None

    async def route(self, history: History) -> Action | None:
        """The next action, one that was not taken before; None where the rules know none."""
        if self.run.model_decides:
            topics = await self._topics(history)
            action = None if topics is None else await self._module(topics, history)
            if action is not None and not history.seen(action):
                return action
            why = "the reply could not be read" if topics is None else "the model repeats an action"
            self.run.note("hybgrag_router/rules", 0, (why,))
        return await self._by_rules(history)

    def sure(self, action: Action) -> bool:
        """Whether the question says every relation of an action; a model that decides is taken at its word."""
        if self.ranked is None:
            return True
        said = {candidate.first.key for candidate in self.ranked if candidate.sure}
        return action.module != TEXT and all(topic.key in said for topic in action.topics)

    async def _by_rules(self, history: History) -> Action | None:
        if self.ranked is None:
            self.ranked = await candidates(history.question, self.run, self.params)
            linked = tuple(f"{c.linked.name} ({c.linked.type}) {c.linked.score:.2f}" for c in self.ranked)
            self.run.note("hybgrag_candidates", len(linked), linked)
        if history.actions:
            return next_action(history, self.ranked, self.params)
        return first_action(self.ranked, self.params)

    async def _topics(self, history: History) -> tuple[Topic, ...] | None:
        """The model's first call: entities with types and relations out of the knowledge base's own lists."""
        kb, prompt = kb_of(self.run.index), Prompt.read(PROMPTS, "route")
        prompt = fenced(prompt) if self._own else prompt
        shown = await shown_names((history.question, self.vector), self.params.n_types, self.params.n_shown)
        if not shown.relations:
            return ()
        room = self._room(shown)
        shown = self._fitted(prompt, shown, history, room)
        types, relations = [kb.type_names[row] for row in shown.types], [kb.relation_names[r] for r in shown.relations]
        schema, fields = topics_schema(types, relations, self.params.max_topics), self._fields(shown, history)
        reply = await ask(self.run, prompt, fields, schema=schema, max_tokens=room, name="hybgrag_route")
        return None if isinstance(reply, Malformed) else _read(reply)

    @property
    def _own(self) -> tuple[Experience, ...]:
        """Routes that were collected for the index, where no file is named."""
        return () if self.params.routes else own_examples(self.run.index).routes

    def _room(self, shown: Shown) -> int:
        """Tokens for the reply, by the longest names that it may take."""
        kb = kb_of(self.run.index)
        type = max((kb.type_names[row] for row in shown.types), key=len)
        relation = max((kb.relation_names[row] for row in shown.relations), key=len)
        schema = topics_schema([type], [relation], self.params.max_topics)
        return reply_tokens(self.run.models.language_model, schema)

    def _fields(self, shown: Shown, history: History) -> dict[str, str]:
        """The slots of the prompt. A list that is not whole says so."""
        known = relations_of(self.run.index)
        kb = known.kb
        types = ", ".join(kb.type_names[row] for row in shown.types)
        relations = [f"- {known.text(row)}" for row in shown.relations]
        if len(shown.types) < kb.n_types:
            types += f" (of {kb.n_types} types those that the question most likely needs)"
        if len(relations) < kb.n_relations:
            relations.append(f"(of {kb.n_relations} relations those that the question most likely needs)")
        examples = self._own or read_examples(self.params.routes, "routes", False)
        return {
            "examples": "\n\n".join(example.route() for example in examples),
            "types": types,
            "relations": "\n".join(relations),
            "history": history.text(),
            "question": history.question,
        }

    def _fitted(self, prompt: Prompt, shown: Shown, history: History, room: int) -> Shown:
        """Equal shares of both lists, as much as the context takes, rows ascending, so that small changes keep the
        prompt. Noted where they are cut."""
        kb, longest = kb_of(self.run.index), max(len(shown.types), len(shown.relations))

        def part_of(share: int) -> Shown:
            parts = (rows[: ceil(len(rows) * share / longest)] for rows in (shown.types, shown.relations))
            return Shown(*(tuple(sorted(rows)) for rows in parts))

        def overflows(share: int) -> bool:
            text = prompt.render(**self._fields(part_of(share), history))
            return not fits(self.run.models.language_model, prompt.system, text, room + reason_room(self.run.models))

        fitting = max(1, bisect_left(range(1, longest), True, key=overflows)) if overflows(longest) else longest
        part = part_of(fitting)
        if len(part.types) < kb.n_types or len(part.relations) < kb.n_relations:
            counts = ("types", part.types, kb.n_types), ("relations", part.relations, kb.n_relations)
            lines = tuple(f"{what}: {len(rows)} of {n}" for what, rows, n in counts)
            self.run.note("hybgrag_shown", kb.n_types + kb.n_relations, lines)
        return part

    async def _module(self, topics: tuple[Topic, ...], history: History) -> Action | None:
        """The second call: which module; without entities it can only be text. None where both were taken."""
        if not topics:
            return Action(TEXT)
        actions = [action for action in (Action(HYBRID, topics), Action(TEXT, topics)) if not history.seen(action)]
        if not actions:
            return None
        chosen = await choose(
            self.run,
            Prompt.read(PROMPTS, "module"),
            {"topics": "\n".join(f"- {topic.text()}" for topic in topics), "question": history.question},
            [_MODULE_TEXTS[action.module] for action in actions],
            query=history.question,
            scores=[float(action.module == HYBRID) for action in actions],
            name="hybgrag_module",
        )
        return actions[chosen[0]]


def topics_schema(types: Sequence[str], relations: Sequence[str], most: int) -> str:
    """The JSON Schema of the first call's reply."""
    entity = object_of(
        {
            "name": {"type": "string", "minLength": 1, "maxLength": 200},
            "type": {"enum": list(types)},
            "relations": {
                "type": "array",
                "items": {"enum": list(relations)},
                "minItems": 1,
                "maxItems": MOST_RELATIONS,
            },
        }
    )
    return canonical_schema(object_of({"entities": {"type": "array", "items": entity, "maxItems": most}}))


def _read(reply: Any) -> tuple[Topic, ...]:
    """The topics of a reply; those of one name and type are one."""
    merged: dict[tuple[str, str], Topic] = {}
    for entity in reply["entities"]:
        name, type = " ".join(entity["name"].split()), entity["type"]
        earlier = merged.get((name.casefold(), type), Topic(name, type, ()))
        relations = tuple(dict.fromkeys((*earlier.relations, *entity["relations"])))
        if name:
            merged[name.casefold(), type] = Topic(earlier.entity, type, relations)
    return tuple(merged.values())
