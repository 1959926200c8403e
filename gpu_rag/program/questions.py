"""A question before it is answered: clarified, and taken apart into a plan of sub-questions.

By the model where it decides (`Models.model_decides`), with the linguistic features of the question in the prompt;
else, or where its plan cannot be used, by the rules of `text.rules.decomposition`.
"""

from __future__ import annotations

import re
from typing import Any

from gpu_rag.program.ask import ask
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.decomposition import MAX_STEPS, Plan, PlanStep, features, plan_by_rules, references
from gpu_rag.text.rules.decomposition.phrases import AUX, QUESTION_WORDS
from gpu_rag.text.rules.extraction.lexicon import PREPOSITIONS
from gpu_rag.types import Malformed

_LETTERS = re.compile(r"[^\W\d_]+")  # "what's" is "what" and "s"
MAX_TOKENS_QUESTION, MAX_TOKENS_PLAN = 128, 512
QUESTION_SCHEMA = canonical_schema(object_of({"question": {"type": "string", "minLength": 3, "maxLength": 1000}}))
_STEP = object_of(
    {
        "id": {"type": "integer", "minimum": 1, "maximum": 99},
        "subquestion": {"type": "string", "minLength": 3, "maxLength": 500},
        "depends_on": {"type": "array", "items": {"type": "integer"}, "maxItems": MAX_STEPS},
    }
)
PLAN_SCHEMA = canonical_schema(
    object_of(
        {
            "subject": {"type": "string", "maxLength": 200},
            "plan": {"type": "array", "minItems": 1, "maxItems": MAX_STEPS, "items": _STEP},
        }
    )
)


def is_question(text: str) -> bool:
    """Whether a text begins like a question: a question word, also behind a preposition, or an auxiliary."""
    words = _LETTERS.findall(text.casefold())[:2]
    if not words:
        return False
    return words[0] in QUESTION_WORDS | AUX or (words[0] in PREPOSITIONS and words[-1] in QUESTION_WORDS)


async def clarified(run: Run, question: str) -> str:
    """The question; rewritten by the model that decides, where it does not begin like one."""
    if is_question(question) or not run.models.model_decides:
        return question
    prompt = Prompt.read("gpu_rag.program.prompts", "clarify")
    fields = {"question": question}
    reply = await ask(run, prompt, fields, schema=QUESTION_SCHEMA, max_tokens=MAX_TOKENS_QUESTION, name="clarify")
    if isinstance(reply, Malformed):
        return question
    assert isinstance(reply, dict)
    text = " ".join(reply["question"].split())
    run.note("clarified", 0, (text,))
    return text


async def planned(run: Run, question: str) -> Plan:
    """The plan of a question, noted in the trace with who made it."""
    made = await _by_model(run, question) if run.models.model_decides else None
    plan, by = (plan_by_rules(question), "rules") if made is None else (made, "model")
    steps = (f"#{step.id} {step.question}{_after(step)}" for step in plan.steps)
    run.note(f"plan/{by}", 0, (f"subject: {plan.subject or 'not known'}", *steps))
    return plan


def _after(step: PlanStep) -> str:
    return f"   (after {', '.join(f'#{k}' for k in step.depends_on)})" if step.depends_on else ""


async def _by_model(run: Run, question: str) -> Plan | None:
    prompt = Prompt.read("gpu_rag.program.prompts", "decompose")
    fields = {"question": question, "features": "; ".join(features(question)) or "none"}
    reply = await ask(run, prompt, fields, schema=PLAN_SCHEMA, max_tokens=MAX_TOKENS_PLAN, name="decompose")
    if isinstance(reply, Malformed):
        return None
    assert isinstance(reply, dict)
    plan = read_plan(reply)
    if plan is None:
        run.note("plan/refused", 0, ("an id stands twice, or a step depends on none before it",))
    return plan


def read_plan(reply: dict[str, Any]) -> Plan | None:
    """The plan of a reply under PLAN_SCHEMA; None unless ids differ and each step depends on earlier ones alone."""
    steps: list[PlanStep] = []
    for item in reply["plan"]:
        text = " ".join(item["subquestion"].split())
        needs = tuple(sorted({*item["depends_on"], *references(text)}))
        known = {step.id for step in steps}
        if item["id"] in known or not known.issuperset(needs):
            return None
        steps.append(PlanStep(item["id"], text, needs))
    return Plan(" ".join(reply["subject"].split()), tuple(steps))
