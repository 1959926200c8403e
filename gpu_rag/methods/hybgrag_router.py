"""HybGRAG's router: what the question speaks of, along which relations, and which retrieval module is to use it.

A capable model that decides makes both choices of an iteration, in two calls; any other leaves them to the rules of
`hybgrag_rules`. No action is taken twice: where the model repeats one, the rules answer the feedback in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_rag.methods.hybgrag_examples import read_examples
from gpu_rag.methods.hybgrag_params import Params
from gpu_rag.methods.hybgrag_rules import Candidate, candidates, first_action, next_action
from gpu_rag.methods.hybgrag_state import HYBRID, TEXT, Action, History, Topic
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema
from gpu_rag.types import Malformed
from gpu_rag.verbs.verbs import Verbs

PROMPTS = "gpu_rag.methods.prompts"
MAX_TOKENS = 512
_MODULE_TEXTS = {
    HYBRID: "knowledge graph: search among what these entities and relations lead to",
    TEXT: "text documents: search all documents by what they say",
}


def model_decides(verbs: Verbs) -> bool:
    """Whether routing is the model's: it is capable, and the decider is not similarity."""
    return verbs.settings.decides_by == "llm" and verbs.llm.capable


@dataclass
class Router:
    """The router of one question. vector: of the question; ranked: candidates of the rules, found when first needed."""

    verbs: Verbs
    params: Params
    vector: np.ndarray
    ranked: list[Candidate] | None = None

    async def route(self, history: History) -> Action | None:
        """The next action, one that was not taken before; None where the rules know none."""
        if model_decides(self.verbs):
            topics = await self._topics(history)
            action = None if topics is None else await self._module(topics, history)
            if action is not None and not history.seen(action):
                return action
            why = "the reply could not be read" if topics is None else "the model repeats an action"
            self.verbs.ctx.note("hybgrag_router/rules", 0, (why,))
        return await self._by_rules(history)

    async def _by_rules(self, history: History) -> Action | None:
        if self.ranked is None:
            self.ranked = await candidates(history.question, self.verbs, self.params)
            told = tuple(f"{c.linked.name} ({c.linked.type}) {c.linked.score:.2f}" for c in self.ranked)
            self.verbs.ctx.note("hybgrag_candidates", len(told), told)
        if history.actions:
            return next_action(history, self.ranked, self.params)
        return first_action(self.ranked, self.params)

    async def _topics(self, history: History) -> tuple[Topic, ...] | None:
        """The model's first call: entities with types and relations out of the knowledge base's own lists."""
        kb, schema = self.verbs.kb, self.verbs.kb_schema
        near = await self.verbs.near_relations((), self.vector, radius=1, k=self.params.n_shown)
        shown = sorted(near.rows)
        if not shown:
            return ()
        examples = read_examples(self.params.routes, "hybgrag_routes", False)
        reply = await self.verbs.ask(
            Prompt.read(PROMPTS, "hybgrag_route"),
            {
                "examples": "\n\n".join(example.route() for example in examples),
                "types": ", ".join(kb.type_names),
                "relations": "\n".join(f"- {schema.told(row)}" for row in shown),
                "history": history.told(),
                "question": history.question,
            },
            schema=topics_schema(kb.type_names, [kb.relation_names[row] for row in shown], self.params.max_topics),
            max_tokens=MAX_TOKENS,
            name="hybgrag_route",
        )
        return None if isinstance(reply, Malformed) else _read(reply)

    async def _module(self, topics: tuple[Topic, ...], history: History) -> Action | None:
        """The second call: which module; without entities it can only be text. None where both were taken."""
        if not topics:
            return Action(TEXT)
        actions = [action for action in (Action(HYBRID, topics), Action(TEXT, topics)) if not history.seen(action)]
        if not actions:
            return None
        chosen = await self.verbs.choose(
            Prompt.read(PROMPTS, "hybgrag_module"),
            {"topics": "\n".join(f"- {topic.told()}" for topic in topics), "question": history.question},
            [_MODULE_TEXTS[action.module] for action in actions],
            query=history.question,
            similarity=[float(action.module == HYBRID) for action in actions],
            name="hybgrag_module",
        )
        return actions[chosen[0]]


def topics_schema(types: Sequence[str], relations: Sequence[str], most: int) -> str:
    """The JSON Schema of the first call's reply."""
    entity = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 200},
            "type": {"enum": list(types)},
            "relations": {"type": "array", "items": {"enum": list(relations)}, "minItems": 1, "maxItems": 4},
        },
        "required": ["name", "type", "relations"],
        "additionalProperties": False,
    }
    return canonical_schema(
        {
            "type": "object",
            "properties": {"entities": {"type": "array", "items": entity, "maxItems": most}},
            "required": ["entities"],
            "additionalProperties": False,
        }
    )


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
