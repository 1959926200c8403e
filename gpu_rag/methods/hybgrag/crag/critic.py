"""The generator and the critic of the CRAG variant: an answer from a reference, its validation, and its fault.

By rule an answer is right if the reference is near the question and contains the answer's words. The rule blames the
entities and relations at first, and then the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.methods.hybgrag.crag.asks import ANSWER, COMMENT, VALIDATE
from gpu_rag.methods.hybgrag.crag.references import Item, Material, blocks
from gpu_rag.methods.hybgrag.crag.state import GRAPH, INVALID, Action, Fault, History, Params
from gpu_rag.program.decide import decide
from gpu_rag.program.reader import is_answer
from gpu_rag.program.run import Run
from gpu_rag.text.grounding import UNSUPPORTED, grounding

_WORDS = {
    Fault.TYPE: "the type of the question",
    Fault.DYNAMISM: "how fast the answer changes",
    Fault.DOMAIN: "the domain",
    Fault.TOPICS: "the entities or relations",
    Fault.MODULE: "the source: it does not hold the answer",
}


async def answer(run: Run, history: History, action: Action, items: Sequence[Item], material: Material) -> str | None:
    """The generator: the answer that a reference gives, or None."""
    if not items:
        return None
    shown = blocks(items, material)
    reply = await decide(run, ANSWER, run=run, history=history, action=action, items=items, blocks=shown)
    text = " ".join(reply.answer.split())
    if text.casefold().strip(" .") == INVALID:
        return INVALID
    return text if is_answer(text) else None


async def holds(
    run: Run, params: Params, history: History, prediction: str | None, items: Sequence[Item], material: Material
) -> bool:
    """The validator: whether a prediction answers the question, judged by its reference; None does not."""
    if prediction is None:
        return False
    shown = blocks(items, material)
    clean = items[0].score >= params.near and grounding(history.question, prediction, shown) != UNSUPPORTED
    (place,) = await decide(
        run,
        VALIDATE,
        history=history,
        blocks=shown if params.context else (),
        prediction=prediction,
        options=["it holds", "it does not hold"],
        query=history.question,
        scores=[float(clean), float(not clean)],
    )
    return place == 0


async def comment(run: Run, history: History, action: Action, items: Sequence[Item], prediction: str | None) -> Fault:
    """The commentor: the most likely fault of a rejected action."""
    if action.module == GRAPH and not items:
        return Fault.NOTHING
    faults = [fault for fault in _WORDS if fault != Fault.TOPICS or action.module == GRAPH]
    first = action.module == GRAPH and not any(earlier.module == GRAPH for earlier in history.actions[:-1])
    likely = Fault.TOPICS if first else Fault.MODULE
    (place,) = await decide(
        run,
        COMMENT,
        history=history,
        action=action,
        prediction=prediction,
        options=[_WORDS[fault] for fault in faults],
        query=history.question,
        scores=[float(fault == likely) for fault in faults],
    )
    return faults[place]
