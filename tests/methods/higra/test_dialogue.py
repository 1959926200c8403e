"""The dialogue of Seeker and Librarian, scripted: what is asked, in which order, what is sent back, how it ends."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from answer_notes import noted, role

import gpu_rag
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings import merge
from gpu_rag.types import Answer, Request

BORN = "Where was the designer of the Halden Bridge born?"
MEET = "Did the mayor of Kerling visit the founder of Loss?"
Replies = Mapping[str, Sequence[str]]


def sub_question(request: Request) -> str:
    """The question to the Librarian (or the reader)."""
    found = re.findall(r"^Question: (.*)$", request.prompt, re.MULTILINE)
    return str(found[-1])


class Script:
    """Replies by role: a list is used up in order, the last one stays. Librarians answer by their sub-question."""

    def __init__(self, knows: Replies, **roles: str | list[str]):
        self.knows, self.roles = knows, {k: [v] if isinstance(v, str) else list(v) for k, v in roles.items()}
        self.asked: list[str] = []
        self.seen: dict[str, list[str]] = {}

    def __call__(self, request: Request) -> str:
        name = {"decompose": "plan", "seeker_final": "final"}.get(found := role(request, "higra"), found)
        self.seen.setdefault(name, []).append(request.prompt)
        if name in ("librarian", "reader") and name not in self.roles:
            question = sub_question(request)
            self.asked.append(question)
            answers = list(self.knows.get(question, ()))
            if name == "reader":
                return answers[0] if answers else "unknown"
            return json.dumps({"answers": answers, "evidence": f"about {question}", "passages": [1]})
        replies = self.roles[name]
        return replies.pop(0) if len(replies) > 1 else replies[0]


def plan(subject: str, *steps: tuple[int, str, list[int]]) -> str:
    return json.dumps({"subject": subject, "plan": [{"id": i, "subquestion": q, "depends_on": d} for i, q, d in steps]})


def ask(*questions: str) -> str:
    return json.dumps({"action": "ask_librarian", "subquestions": list(questions), "answer": "", "evidence": []})


def done(text: str, *cited: int) -> str:
    return json.dumps({"action": "answer", "subquestions": [], "answer": text, "evidence": list(cited)})


def run(
    index: gpu_rag.Index,
    fast: Any,
    script: Callable[[Request], str],
    question: str = BORN,
    *,
    capable: bool = True,
    llm: ScriptedLLM | None = None,
    **params: Any,
) -> Answer:
    settings = merge(fast, {"method": {"dual-agent": params}})
    llm = llm or ScriptedLLM(script, capable=capable)
    (answer,) = index.answer(question, method="dual-agent", settings=settings, llm=llm)
    return answer


TWO_STEPS = plan("Halden Bridge", (1, "Who designed the Halden Bridge?", []), (2, "Where was #1 born?", [1]))


def test_a_dependent_step_is_asked_with_the_answer_in_it(index: gpu_rag.Index, fast: Any) -> None:
    script = Script(
        {"Who designed the Halden Bridge?": ["Marta Orlo"], "Where was Marta Orlo born?": ["Tamsin"]},
        plan=TWO_STEPS,
        seeker=[ask("Where was Marta Orlo born?"), done("Tamsin", 2)],
    )
    answer = run(index, fast, script)
    assert (answer.status, answer.text) == ("answered", "Tamsin")
    assert script.asked == ["Who designed the Halden Bridge?", "Where was Marta Orlo born?"]
    assert "of-phrase: the designer of the Halden Bridge" in script.seen["plan"][0]
    assert "answers: Marta Orlo" in script.seen["seeker"][0] and "[2]" not in script.seen["seeker"][0]
    assert noted(answer, "plan/model") == [
        ("subject: Halden Bridge", "#1 Who designed the Halden Bridge?", "#2 Where was #1 born?   (after #1)")
    ]
    assert noted(answer, "seeker/answer") == [("answer: Tamsin", "rests on: Where was Marta Orlo born?")]
    assert answer.evidence and answer.usage.malformed == 0


def test_parallel_steps_are_one_batch_and_several_answers_are_all_kept(index: gpu_rag.Index, fast: Any) -> None:
    first = ["Who designed the Halden Bridge?", "Who designed the Ves Bridge?"]
    then = ["Where was Marta Orlo born?", "Where was Piet Ruyven born?", "Where was Anna Stroud born?"]
    script = Script(
        {first[0]: ["Marta Orlo", "Piet Ruyven"], first[1]: ["Anna Stroud"], then[0]: ["Tamsin"], then[2]: ["Loss"]},
        plan=plan("bridges", (1, first[0], []), (2, first[1], []), (3, "Where were #1 and #2 born?", [1, 2])),
        seeker=[ask(*then), done("Tamsin; Loss", 3, 5)],
    )
    llm = ScriptedLLM(script)
    answer = run(index, fast, script, "Where were the designers of both bridges born?", llm=llm)
    assert llm.batches == [1, 2, 1, 3, 1]  # the plan; librarians and Seeker in turn
    assert script.asked == [*first, *then] and answer.text == "Tamsin; Loss"
    assert "answers: Marta Orlo; Piet Ruyven\n" in script.seen["seeker"][0]
    assert [line[1] for line in noted(answer, "librarian")[3:]] == ["answer: none", "answer: Loss"]


def test_references_are_sent_back_once_and_then_left_out(index: gpu_rag.Index, fast: Any) -> None:
    resolved = Script(
        {}, plan=TWO_STEPS, seeker=[ask("Where was #1 born?"), ask("Where was Marta Orlo born?"), done("Tamsin", 2)]
    )
    answer = run(index, fast, resolved)
    assert resolved.asked == ["Who designed the Halden Bridge?", "Where was Marta Orlo born?"]
    assert noted(answer, "seeker/sent_back") == [("Where was #1 born?",)]
    assert "was sent back: Where was #1 born?" in resolved.seen["seeker"][1]
    assert "was sent back" not in resolved.seen["seeker"][0] + resolved.seen["seeker"][2]
    assert answer.text == "Tamsin"
    partly = Script(
        {}, plan=TWO_STEPS, seeker=[ask("Where was #1 born?"), ask("Where was #1 born?", "Who is Orlo?"), done("x", 1)]
    )
    run(index, fast, partly)
    assert partly.asked[1:] == ["Who is Orlo?"]
    never = Script({}, plan=TWO_STEPS, seeker=ask("Where was #1 born?"), final='{"answer": "Loss", "evidence": [1]}')
    answer = run(index, fast, never)
    assert never.asked == ["Who designed the Halden Bridge?"] and len(never.seen["seeker"]) == 2
    assert answer.text == "Loss" and noted(answer, "seeker/forced_answer")


def test_an_empty_answer_is_asked_for_again_in_other_words(index: gpu_rag.Index, fast: Any) -> None:
    script = Script(
        {"Who built the Halden Bridge?": ["Marta Orlo"]},
        plan=TWO_STEPS,
        seeker=[ask("Who built the Halden Bridge?"), ask("Where was Marta Orlo born?"), done("Tamsin", 3)],
    )
    answer = run(index, fast, script)
    assert len(script.asked) == 3 and answer.text == "Tamsin"
    assert "answers: none" in script.seen["seeker"][0]
    assert noted(answer, "librarian")[0][1] == "answer: none"


def test_what_was_asked_is_not_asked_again(index: gpu_rag.Index, fast: Any) -> None:
    first, second = "Who designed the Halden Bridge?", "Where was Marta Orlo born?"
    stuck = Script({first: ["Marta Orlo"], second: ["Tamsin"]}, plan=TWO_STEPS, seeker=ask(first.upper()))
    answer = run(index, fast, stuck)
    assert stuck.asked == [first, second] and answer.text == "Tamsin"  # by the rules, which go on with the plan
    assert noted(answer, "seeker/action/fallback") and answer.usage.fallbacks["seeker/action/rule"] > 0
    partly = Script({}, plan=TWO_STEPS, seeker=[ask(first, "Who was she?"), done("x", 1)])
    run(index, fast, partly)
    assert partly.asked == [first, "Who was she?"]


def test_the_last_turn_ends_in_one_forced_answer(index: gpu_rag.Index, fast: Any) -> None:
    script = Script(
        {},
        plan=TWO_STEPS,
        seeker=[ask("Who was it?"), ask("Who was she?")],
        final='{"answer": "Tamsin", "evidence": [3, 99]}',
    )
    answer = run(index, fast, script, max_turns=3)
    assert script.asked == ["Who designed the Halden Bridge?", "Who was it?", "Who was she?"]
    assert len(script.seen["seeker"]) == 2 and len(script.seen["final"]) == 1
    assert answer.text == "Tamsin"
    assert noted(answer, "seeker/forced_answer") == [("answer: Tamsin", "rests on: Who was she?")]  # 99 is no finding
    silent = Script({}, plan=TWO_STEPS, seeker=ask("Who was it?"), final='{"answer": "unknown", "evidence": []}')
    answer = run(index, fast, silent, max_turns=1)
    assert (answer.status, answer.text) == ("unsupported", None) and "seeker" not in silent.seen and answer.evidence


def test_malformed_replies_fall_back_to_the_rules_and_are_counted(index: gpu_rag.Index, fast: Any) -> None:
    knows = {"Who is the designer of the Halden Bridge?": ["Marta Orlo"], "Where was Marta Orlo born?": ["Tamsin"]}
    answer = run(index, fast, Script(knows, plan="no JSON", seeker='{"action": "sing"}'))
    assert answer.text == "Tamsin"
    assert noted(answer, "plan/fallback") and len(noted(answer, "seeker/action/fallback")) == 2
    assert answer.usage.malformed == 6  # the plan and both actions, each with one repair
    empty = Script(knows, plan="[]", seeker=[ask(), done("unknown"), done("Tamsin", 2)])
    answer = run(index, fast, empty)
    assert answer.text == "Tamsin" and len(noted(answer, "seeker/action/fallback")) == 2
    deaf = Script({}, plan=TWO_STEPS, librarian="?", seeker=done("Tamsin", 1))
    answer = run(index, fast, deaf)
    assert noted(answer, "librarian")[0][1] == "answer: none" and answer.usage.malformed == 2


@pytest.mark.parametrize(
    "steps",
    [
        [(1, "Who?", []), (1, "Where?", [])],
        [(1, "Who is #2?", []), (2, "Where?", [])],
        [(1, "Who?", [1])],
        [(1, "Who?", []), (2, "Where is #7?", [1])],
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_followed_is_refused(index: gpu_rag.Index, fast: Any, steps: Any) -> None:
    answer = run(index, fast, Script({}, plan=plan("x", *steps), seeker=done("Tamsin")))
    assert noted(answer, "plan/fallback")


def test_only_what_does_not_begin_like_a_question_is_rewritten(index: gpu_rag.Index, fast: Any) -> None:
    script = Script({}, clarify='{"question": "Where was  Orlo born?"}', plan=TWO_STEPS, seeker=done("Tamsin"))
    answer = run(index, fast, script, "Marta Orlo's birthplace.")
    assert noted(answer, "clarify/model") == [("Where was Orlo born?",)]
    assert "Question: Where was Orlo born?" in script.seen["plan"][0]
    assert (answer.question, answer.text) == ("Marta Orlo's birthplace.", "Tamsin")
    for question in ("Where was she born?", "In which town was she born?", "Was she born?", "What's her town?"):
        asked = Script({}, plan=TWO_STEPS, seeker=done("x"))
        run(index, fast, asked, question)
        assert "clarify" not in asked.seen


def by_rules(index: gpu_rag.Index, fast: Any, knows: Replies, question: str = BORN, **options: Any) -> Any:
    script = Script(knows)
    return script, run(index, fast, script, question, capable=False, **options)


def test_rules_fill_in_what_was_found(index: gpu_rag.Index, fast: Any) -> None:
    knows = {
        "Who is the designer of the Halden Bridge?": ["The designer of the Halden Bridge was Marta Orlo"],
        "Where was Marta Orlo born?": ["Tamsin"],
    }
    script, answer = by_rules(index, fast, knows)
    assert script.asked == list(knows) and answer.text == "Tamsin"
    assert set(script.seen) == {"reader"}  # the small model writes short answers and nothing else
    assert answer.evidence[0].passage_id == "d1"  # where the answer's words stand


def test_rules_ask_what_is_independent_in_one_batch(index: gpu_rag.Index, fast: Any) -> None:
    script = Script(
        {
            "Who is the founder of Loss?": ["Hugo Brandt"],
            "Who is the mayor of Kerling?": ["Anna Stroud"],
            "Did Anna Stroud visit Hugo Brandt?": ["no"],
        }
    )
    llm = ScriptedLLM(script, capable=False)
    answer = run(index, fast, script, MEET, llm=llm)
    assert llm.batches == [2, 1] and answer.text == "no"


def test_rules_ask_once_more_then_by_description(index: gpu_rag.Index, fast: Any) -> None:
    retried = f"Who is the designer of the Halden Bridge? (asked for: {BORN})"
    script, answer = by_rules(index, fast, {retried: ["Marta Orlo"], "Where was Marta Orlo born?": ["Tamsin"]})
    assert script.asked == ["Who is the designer of the Halden Bridge?", retried, "Where was Marta Orlo born?"]
    assert answer.text == "Tamsin"
    script, answer = by_rules(index, fast, {BORN: ["Tamsin"]})
    assert script.asked == ["Who is the designer of the Halden Bridge?", retried, BORN]
    assert answer.text == "Tamsin"
    script, answer = by_rules(index, fast, {})
    assert script.asked[3:] == [f"{BORN} (asked for: {BORN})", BORN]  # its own retry, then the forced answer
    assert (answer.status, answer.text) == ("unsupported", None) and noted(answer, "seeker/forced_answer")


def test_rules_ask_for_each_of_several_answers(index: gpu_rag.Index, fast: Any) -> None:
    """With a capable Librarian and the decider similarity: the Seeker is by rules, answers are lists."""
    knows = {
        "Who is the designer of the Halden Bridge?": ["Marta Orlo", "Piet Ruyven", "Anna Stroud", "Hugo Brandt"],
        "Where was Marta Orlo born?": ["Tamsin"],
        "Where was Anna Stroud born?": ["Loss", "Tamsin"],
    }
    script = Script(knows)
    answer = run(index, merge(fast, {"models": {"decider": "rule"}}), script)
    where = [f"Where was {name} born?" for name in ("Marta Orlo", "Piet Ruyven", "Anna Stroud")]
    assert script.asked[:4] == ["Who is the designer of the Halden Bridge?", *where]  # three variants, not four
    assert answer.text == "Tamsin; Loss"
    assert len(noted(answer, "seeker/answer")[0]) == 3  # two findings had an answer


def test_rules_compare(index: gpu_rag.Index, fast: Any) -> None:
    question = "Which bridge was built first, Halden Bridge or Ves Bridge?"
    knows = {"When was Halden Bridge built?": ["in May 1931"], "When was Ves Bridge built?": ["1929"]}
    script, answer = by_rules(index, fast, knows, question)
    assert sorted(script.asked) == sorted(knows) and answer.text == "Ves Bridge"
    script, answer = by_rules(
        index, fast, {**knows, "When was Ves Bridge built?": ["later"], question: ["x"]}, question
    )
    assert answer.text == "x" and noted(answer, "seeker/forced_answer")  # no date: the model reads once more
