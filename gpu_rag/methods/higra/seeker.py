"""The Seeker: its dialogue with the Librarian so far, and its next action, from question, plan and findings.

By the model where it is capable and decides; else by rules: ask every step whose references are known, once more in
other words where no answer came, and answer when all steps are through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, product, zip_longest
from typing import Any

from gpu_rag.methods.higra.librarian import Finding
from gpu_rag.models.budget import reply_tokens
from gpu_rag.program.ask import ask
from gpu_rag.program.reader import Support, is_answer, read
from gpu_rag.program.run import Run
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.rules.decomposition import Plan, PlanStep, fill, references
from gpu_rag.text.rules.decomposition.compare import decide
from gpu_rag.types import Evidence, Malformed, Path

PROMPTS = "gpu_rag.methods.higra.prompts"
MAX_ASKS = 6  # sub-questions of one call
MAX_VARIANTS = 3  # of one sub-question, when a reference has several answers
UNRESOLVED = (
    "\nYour last action was sent back: {questions}. The librarian does not know what #1 is. "
    "Replace every reference by the answer found.\n"
)
_EVIDENCE_CHARS = 600
_ANSWER = {"type": "string", "maxLength": 500}
_EVIDENCE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 20}
_QUESTION = {"type": "string", "minLength": 3, "maxLength": 500}
ACTION_SCHEMA = canonical_schema(
    object_of(
        {
            "action": {"enum": ["ask_librarian", "answer"]},
            "subquestions": {"type": "array", "items": _QUESTION, "maxItems": MAX_ASKS},
            "answer": _ANSWER,
            "evidence": _EVIDENCE,
        }
    )
)
FINAL_SCHEMA = canonical_schema(object_of({"answer": _ANSWER, "evidence": _EVIDENCE}))


Asks = tuple[PlanStep, ...]  # sub-questions to the Librarian at the same time; id 0: no step of the plan


@dataclass(frozen=True)
class Answered:
    """The Seeker answers. cited: numbers of findings, from 1."""

    text: str
    cited: tuple[int, ...]


@dataclass
class Dialogue:
    """One question's dialogue. findings: in the order of the asks; number i (from 1) is findings[i - 1]."""

    question: str
    plan: Plan
    findings: list[Finding] = field(default_factory=list)

    def of_step(self, step: int) -> list[int]:
        """The numbers of the findings for a step of the plan."""
        return [number for number, found in enumerate(self.findings, 1) if found.step == step]

    def answers_of(self, step: int) -> tuple[str, ...]:
        """All answers found for a step, each once, in order."""
        return tuple(dict.fromkeys(text for number in self.of_step(step) for text in self.findings[number - 1].answers))

    def evidence(self, cited: Sequence[int]) -> tuple[Evidence, ...]:
        """Passages, each once: those that the cited findings rest on, those of the others, then all else retrieved."""
        order = [*(self.findings[number - 1] for number in cited), *self.findings]
        return _once(chain(*(found.cited for found in order), *(found.retrieved.evidence for found in order)))

    def readable(self) -> tuple[Evidence, ...]:
        """Passages for one last reading: what findings rest on, then the first of each finding, the second of each."""
        turns = zip_longest(*(found.retrieved.evidence for found in self.findings))
        return _once(chain(*(found.cited for found in self.findings), *turns))

    def paths(self, cited: Sequence[int]) -> tuple[Path, ...]:
        """The relations that were read for the cited findings (all, where none is cited), each once."""
        chosen = [self.findings[number - 1] for number in cited] or self.findings
        return tuple({path.edges: path for found in chosen for path in found.retrieved.paths}.values())


def _once(evidence: Iterable[Evidence | None]) -> tuple[Evidence, ...]:
    """Each passage at its first place."""
    first: dict[str, Evidence] = {}
    for item in evidence:
        if item is not None:
            first.setdefault(item.passage_id, item)
    return tuple(first.values())


async def next_action(run: Run, dialogue: Dialogue) -> Asks | Answered | None:
    """The next action; None where neither a question nor an answer is left, so that the dialogue must close."""
    if run.model_decides:
        action = await _by_model(run, dialogue)
        if not isinstance(action, Malformed):
            return action
        run.note("seeker/rules", 0, (f"the model's action could not be used: {action.reason}",))
    return by_rules(dialogue)


async def last_answer(run: Run, dialogue: Dialogue) -> Answered | None:
    """The one forced answer that closes a dialogue; None where the findings do not tell."""
    if not run.model_decides:
        draft = await read(run, dialogue.question, Support(dialogue.readable()))
        return None if draft.text is None else Answered(draft.text, ())
    fields = {"question": dialogue.question}
    reply = await _say(run, dialogue, "seeker_final", fields, FINAL_SCHEMA, "seeker/final")
    return None if isinstance(reply, Malformed) else _answered(reply, dialogue)


# --- by the model ----------------------------------------------------------------------------------


async def _by_model(run: Run, dialogue: Dialogue) -> Asks | Answered | Malformed | None:
    action = await _action(run, dialogue, "")
    if isinstance(action, tuple) and (open_ := [one.question for one in action if references(one.question)]):
        run.note("seeker/sent_back", len(action), tuple(open_))
        action = await _action(run, dialogue, UNRESOLVED.format(questions="; ".join(open_)))
    if not isinstance(action, tuple):
        return action
    asks = tuple(one for one in action if not references(one.question))  # the others were sent back once
    before = {found.question.casefold() for found in dialogue.findings}  # to these the librarian would say the same
    new = tuple(one for one in asks if one.question.casefold() not in before)
    if asks and not new:
        return Malformed("it asks only what was asked before", "; ".join(one.question for one in asks))
    return new or None


async def _action(run: Run, dialogue: Dialogue, notice: str) -> Asks | Answered | Malformed:
    plan = "\n".join(f"#{step.id} {step.question}" for step in dialogue.plan.steps)
    fields = {"question": dialogue.question, "plan": plan, "notice": notice}
    reply = await _say(run, dialogue, "seeker", fields, ACTION_SCHEMA, "seeker/action")
    if isinstance(reply, Malformed):
        return reply
    if reply["action"] == "answer":
        return _answered(reply, dialogue) or Malformed("the answer is empty", str(reply))
    questions = dict.fromkeys(" ".join(question.split()) for question in reply["subquestions"])
    if not questions:
        return Malformed("no sub-question was given", str(reply))
    return tuple(PlanStep(0, question) for question in questions)


async def _say(
    run: Run, dialogue: Dialogue, prompt: str, fields: dict[str, str], schema: str, name: str
) -> dict[str, Any] | Malformed:
    """The model's reply to a prompt of the Seeker, with the findings so far as its history."""
    history = [
        f"[{number}] {found.question}\nanswers: {'; '.join(found.answers) or 'none'}\n"
        f"evidence: {found.evidence[:_EVIDENCE_CHARS]}"
        for number, found in enumerate(dialogue.findings, 1)
    ]
    room, template = reply_tokens(run.models.language_model, schema), Prompt.read(PROMPTS, prompt)
    reply = await ask(
        run, template, fields, schema=schema, max_tokens=room, evidence=history, slot="history", name=name
    )
    assert not isinstance(reply, str)
    return reply


def _answered(reply: dict[str, Any], dialogue: Dialogue) -> Answered | None:
    """The answer of a reply, with the findings that exist among those it cites; None where it says nothing."""
    cited = tuple(n for n in dict.fromkeys(reply["evidence"]) if n <= len(dialogue.findings))
    return Answered(" ".join(reply["answer"].split()), cited) if is_answer(reply["answer"]) else None


# --- by rules --------------------------------------------------------------------------------------


def by_rules(dialogue: Dialogue) -> Asks | Answered | None:
    """The next action without a model.

    A step can be asked when each step that it depends on has answers or was given up. "#k" is replaced by each answer
    of step k (at most MAX_VARIANTS sub-questions a step), or by the words that it stands for where k was given up. A
    step without an answer is asked once more with the whole question behind it, then given up.
    """
    asks: list[PlanStep] = []
    for step in dialogue.plan.steps:
        if all(_is_through(dialogue, k) for k in step.depends_on):
            asks.extend(_asks_for(dialogue, step))
    return tuple(asks[:MAX_ASKS]) or _answer(dialogue)


def _is_through(dialogue: Dialogue, step: int) -> bool:
    """Whether a step has answers or was given up: after two tries, or one where the step is the whole question."""
    tries = 1 if len(dialogue.plan.steps) == 1 else 2
    return bool(dialogue.answers_of(step)) or _n_tries(dialogue, step) >= tries


def _n_tries(dialogue: Dialogue, step: int) -> int:
    """Tries of a step; its variants of one call are one try."""
    questions = [dialogue.findings[number - 1].question for number in dialogue.of_step(step)]
    return bool(questions) + any(question.endswith(_again(dialogue)) for question in questions)


def _again(dialogue: Dialogue) -> str:
    return f" (asked for: {dialogue.question})"


def _asks_for(dialogue: Dialogue, step: PlanStep) -> list[PlanStep]:
    if _is_through(dialogue, step.id):
        return []
    again = _again(dialogue) if _n_tries(dialogue, step.id) else ""
    values = [dialogue.answers_of(k) or (_words_of(dialogue, k),) for k in step.depends_on]
    filled = (fill(step.question, dict(zip(step.depends_on, chosen))) for chosen in product(*values))
    return [PlanStep(step.id, question + again) for question in list(dict.fromkeys(filled))[:MAX_VARIANTS]]


def _words_of(dialogue: Dialogue, number: int) -> str:
    """The words for a step that was given up: its phrase, with the references in it replaced likewise."""
    step = next(step for step in dialogue.plan.steps if step.id == number)
    known = {k: next(iter(dialogue.answers_of(k)), "") or _words_of(dialogue, k) for k in step.depends_on}
    return fill(step.phrase or step.question.rstrip("?"), known)


def _answer(dialogue: Dialogue) -> Answered | None:
    compared = dialogue.plan.compared
    steps = (dialogue.plan.steps[-1].id,) if compared is None else compared.steps
    sides = [dialogue.answers_of(step) for step in steps]
    if not all(sides):
        return None
    text = "; ".join(sides[0]) if compared is None else decide(compared, [side[0] for side in sides])
    numbers = (number for step in steps for number in dialogue.of_step(step))
    cited = tuple(number for number in numbers if dialogue.findings[number - 1].answers)
    return None if text is None else Answered(text, cited)
