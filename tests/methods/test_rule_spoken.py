"""A model that says what the rules would say changes nothing: who decides is no part of a program."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import gpu_rag
from gpu_rag.models.ask import Ask, Choose, Options, Taken
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.choose import NONE_LABEL, option_labels
from gpu_rag.program.decide import MODEL, RULE
from gpu_rag.program.run import Run
from gpu_rag.text.structs import json_of
from gpu_rag.types import Answer, Question, Request

QUESTIONS = [
    "Who taught the designer of the Halden Bridge?",
    "When was the University of Loss founded?",
    "the town on the river Ves",
]
METHODS = [
    "dense",
    "bm25",
    "hybrid",
    "ppr",
    "hoprag",
    "bubblerag",
    "higra-retriever",
    "dual-agent",
    "higra-agent",
    "fused",
]
DIALOGUE = ("clarify", "plan", "seeker/action")
DECIDED = {
    "hoprag": ("hop",),
    "bubblerag": ("enough", "keywords", "specialise", "relax", "groups", "expand"),
    "higra-retriever": ("seeds",),
    "dual-agent": DIALOGUE,
    "higra-agent": (*DIALOGUE, "seeds"),
}


@dataclass
class Spoken:
    """A decider whose model says the rule's reply to every decision. replies: by the seed of the request, which tells
    gathered siblings apart. wrong: say another option in place of the first."""

    wrong: bool = False
    replies: dict[int, str] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    asks_model: bool = False  # decisions that are no values yet stay with the rules

    def engine(self) -> ScriptedLLM:
        return ScriptedLLM(lambda request: self._said(request), context_tokens=1 << 20)

    def _said(self, request: Request) -> str:
        return self.replies.get(request.seed) or read(request)  # reading is no decision

    def _speaks(self, run: Run, name: str, text: str) -> None:
        self.asked[name] += 1
        self.replies[run.ctx.request_seed(run.ctx.slot)] = text

    async def reply(self, run: Run, ask: Ask[Any], fields: Mapping[str, Any]) -> Taken:
        taken = await RULE.reply(run, ask, fields)
        self._speaks(run, ask.name, taken.value if isinstance(taken.value, str) else json_of(taken.value))
        spoken = await MODEL.reply(run, ask, fields)
        assert spoken.by == "model", f"{ask.name}: the rule says what the reply cannot hold"
        assert spoken.value == taken.value
        return spoken

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Mapping[str, Any]) -> Taken:
        taken = await RULE.choice(run, choose, options, fields)
        labels = option_labels(len(options.texts))
        chosen = [labels[i] for i in taken.value] or ([labels[-1]] if self.wrong else [])
        if self.wrong and chosen[0] != labels[-1]:
            chosen[0] = labels[-1]
        one = chosen[0] if chosen else NONE_LABEL
        self._speaks(run, choose.name, one if options.k == 1 else json.dumps({"chosen": list(dict.fromkeys(chosen))}))
        return await MODEL.choice(run, choose, options, fields)


def read(request: Request) -> str:
    """What a reader says, by its request alone: the first name of the passages that the question does not hold."""
    passages, question = request.prompt.rsplit("\n\nQuestion: ", 1)
    names = re.findall(r"[A-Z][a-z]+(?: [A-Z][a-z]+)+", passages.split("\n\n", 1)[-1])
    answer = next((name for name in names if name not in question), "unknown")
    if request.constraint is None:
        return answer
    return json.dumps({"evidence": "it stands there", "answers": [answer], "passages": [1]})


def row(answer: Answer) -> Any:
    """All of an answer but its costs and its notes, which say who decided."""
    assert answer.error is None, answer.error
    return replace(answer, trace=(), usage=None, config_hash="")  # type: ignore[arg-type]


def answers(
    index: gpu_rag.Index, method: str, decider: Any, llm: ScriptedLLM, settings: Mapping[str, Any]
) -> list[Any]:
    engine = index.engine(settings, llm=llm)
    questions = [Question(f"q{i}", text) for i, text in enumerate(QUESTIONS)]
    found = engine.run(method, questions, decider=decider).answers
    return [row(answer) for answer in found]


@pytest.mark.parametrize("method", METHODS)
def test_a_spoken_rule_is_the_rule(
    build: Callable[..., gpu_rag.Index], facts: Any, fast: dict[str, Any], method: str
) -> None:
    index = build(facts, methods=[method, "bubblerag"] if method == "fused" else [method], named=True)
    spoken = Spoken()
    by_model = answers(index, method, spoken, spoken.engine(), fast)
    by_rule = answers(index, method, RULE, ScriptedLLM(read), fast)
    assert by_model == by_rule
    assert set(DECIDED.get(method, ())) <= spoken.asked.keys(), spoken.asked
    assert any(answer.status == "answered" for answer in by_rule)


def test_another_reply_is_another_row(build: Callable[..., gpu_rag.Index], facts: Any, fast: dict[str, Any]) -> None:
    """The comparison sees a reply that is not the rule's."""
    index, rows = build(facts, methods=["higra-retriever"], named=True), []
    for spoken in (Spoken(), Spoken(wrong=True)):
        rows.append(answers(index, "higra-retriever", spoken, spoken.engine(), fast))
    assert rows[0] != rows[1]


def test_a_dialogue_without_an_answer_closes_alike(build: Callable[..., gpu_rag.Index], facts: Any, fast: Any) -> None:
    """The Seeker asks once more, gives up, and speaks its last word; the Librarian finds nothing."""
    index, rows = build(facts, methods=["dual-agent"], named=True), []
    for spoken in (Spoken(), None):
        engine = spoken.engine() if spoken else ScriptedLLM(lambda _: "unknown")
        engine = ScriptedLLM(silent(engine))
        rows.append(answers(index, "dual-agent", spoken or RULE, engine, fast))
        assert spoken is None or {"seeker/action", "seeker/final"} <= spoken.asked.keys()
    assert rows[0] == rows[1] and all(answer.status == "unsupported" for answer in rows[0])


def silent(engine: ScriptedLLM) -> Callable[[Request], str]:
    """The engine's decisions; its reading finds nothing."""

    def reply(request: Request) -> str:
        if "Question: " in request.prompt and request.constraint is None:
            return "unknown"
        if request.constraint is not None and '"passages"' in getattr(request.constraint, "schema", ""):
            return json.dumps({"evidence": "nothing", "answers": [], "passages": []})
        return engine.complete([request])[0].text

    return reply
