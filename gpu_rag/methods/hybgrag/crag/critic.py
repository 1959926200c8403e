"""The generator and the critic of the CRAG variant: an answer from a reference, whether it holds, and what was wrong.

Without a language model that decides, an answer holds where the reference is near the question and has the answer's
words; the fault is then the entities and relations at first, and the source after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.methods.hybgrag.crag.references import Item, Material, blocks
from gpu_rag.methods.hybgrag.crag.state import (
    DYNAMISMS,
    GRAPH,
    INVALID,
    PROMPTS,
    TYPES,
    Action,
    Fault,
    History,
    Params,
)
from gpu_rag.models.budget import reply_tokens
from gpu_rag.program.ask import ask, choose
from gpu_rag.program.reader import is_answer, read_blocks
from gpu_rag.program.run import Run
from gpu_rag.text.grounding import UNSTATED, grounding
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of

_REASON, _ANSWER = {"type": "string", "maxLength": 400}, {"type": "string", "maxLength": 300}
ANSWER_SCHEMA = canonical_schema(object_of({"reason": _REASON, "answer": _ANSWER}))
MOST_WORDS = 500  # of a reference that the validator is shown
_WORDS = {
    Fault.TYPE: "the type of the question",
    Fault.DYNAMISM: "how fast the answer changes",
    Fault.DOMAIN: "the domain",
    Fault.TOPICS: "the entities or relations",
    Fault.MODULE: "the source: it does not hold the answer",
}


@dataclass(frozen=True)
class Critic:
    """The generator, validator and commentor of one question."""

    run: Run
    params: Params
    material: Material

    async def answer(self, history: History, action: Action, items: Sequence[Item]) -> str | None:
        """The generator: the answer that a reference gives; None for none. Without a model the end of the best path, or
        the best piece: it stands in the trace alone."""
        if not items:
            return None
        if self.run.models.llm is None:
            return items[0].answer or items[0].text
        shown = blocks(items, self.material)
        if not self.run.model_decides:
            return await read_blocks(self.run, history.question, shown, final=False)
        fields = {
            "question": history.question,
            "query_time": history.when,
            "kind": f"{action.type} ({TYPES[action.type]}); {DYNAMISMS[action.dynamism]}; {action.domain}",
        }
        reply = await ask(
            self.run,
            Prompt.read(PROMPTS, "crag_answer"),
            fields,
            schema=ANSWER_SCHEMA,
            max_tokens=reply_tokens(self.run.models.language_model, ANSWER_SCHEMA),
            evidence=shown,
            slot="references",
            name="crag_answer",
        )
        said = " ".join(reply["answer"].split()) if isinstance(reply, dict) else ""
        if said.casefold().strip(" .") == INVALID:
            return INVALID
        return said if is_answer(said) else None

    async def holds(self, history: History, prediction: str | None, items: Sequence[Item]) -> bool:
        """The validator: whether a prediction answers the question, by its reference. None never does."""
        if prediction is None:
            return False
        shown = blocks(items, self.material)
        clean = items[0].score >= self.params.near and grounding(history.question, prediction, shown) != UNSTATED
        words = "\n\n".join(shown).split(" ")[:MOST_WORDS] if self.params.context else ["none"]
        fields = {
            "question": history.question,
            "query_time": history.when,
            "references": " ".join(words),
            "answer": prediction,
        }
        chosen = await choose(
            self.run,
            Prompt.read(PROMPTS, "crag_validate"),
            fields,
            ["it holds", "it does not hold"],
            query=history.question,
            scores=[float(clean), float(not clean)],
            name="crag_validator",
        )
        return chosen[0] == 0

    async def comment(self, history: History, action: Action, items: Sequence[Item], prediction: str | None) -> Fault:
        """The commentor: the fault that a rejected action has most likely."""
        if action.module == GRAPH and not items:
            return Fault.NOTHING
        faults = [fault for fault in _WORDS if fault != Fault.TOPICS or action.module == GRAPH]
        first = action.module == GRAPH and not any(earlier.module == GRAPH for earlier in history.actions[:-1])
        likely = Fault.TOPICS if first else Fault.MODULE
        chosen = await choose(
            self.run,
            Prompt.read(PROMPTS, "crag_comment"),
            {
                "question": history.question,
                "action": "\n".join((*action.lines(), f"answer: {prediction or 'none was found'}")),
            },
            [_WORDS[fault] for fault in faults],
            query=history.question,
            scores=[float(fault == likely) for fault in faults],
            name="crag_commentor",
        )
        return faults[chosen[0]]
