"""The shared reader: what it shows, how replies become answers, packing, and failures that stay with their question."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import RequestFailed
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.reader import clean_answer
from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Answer, Question, Reply, Request

QUESTION = "Who designed the Halden Bridge?"
Said = Callable[[Request], "str | Reply | RequestFailed"]


def ask(index: gpu_rag.Index, said: Said, settings: Any, text: str = QUESTION, **options: Any) -> tuple[Answer, Any]:
    context = options.pop("context_tokens", 8192)
    llm = ScriptedLLM(said, context_tokens=context)
    (answer,) = index.answer(text, method=options.pop("method", "dense"), settings=settings, llm=llm, **options)
    return answer, llm


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Marta Orlo", "Marta Orlo"),
        ("  Marta Orlo.\n", "Marta Orlo"),
        ("\n\n Marta Orlo \nShe was born in Tamsin.", "Marta Orlo"),
        ("Short answer: Marta Orlo", "Marta Orlo"),
        ("Answer: Marta Orlo.", "Marta Orlo"),
        ("Short answer: Answer: 1902.", "1902"),
        ("U.S.", "U.S."),
        ("Washington, D.C.", "Washington, D.C."),
        ("3.14", "3.14"),
        ("", ""),
        (" \n\t\n", ""),
    ],
)
def test_replies_become_answers(reply: str, answer: str) -> None:
    assert clean_answer(reply) == answer


@pytest.mark.parametrize("reply", ["unknown", "Unknown.", "Answer: UNKNOWN", "", "\n", "None", "I don't know."])
def test_a_reader_that_finds_nothing_leaves_the_question_unsupported(
    index: gpu_rag.Index, fast: Any, reply: str
) -> None:
    answer, _ = ask(index, lambda request: reply, fast)
    assert (answer.status, answer.text, answer.error) == ("unsupported", None, None)
    assert len(answer.evidence) == 5 and answer.usage.llm_calls == 1  # what it read stays visible


def test_an_answer_that_begins_like_unknown_is_an_answer(index: gpu_rag.Index, fast: Any) -> None:
    answer, _ = ask(index, lambda request: "Unknown Soldier", fast)
    assert (answer.status, answer.text) == ("answered", "Unknown Soldier")


def test_passages_are_shown_in_rank_order_as_many_as_the_reader_takes(index: gpu_rag.Index, fast: Any) -> None:
    settings = {**fast, "reader": {"passages": 3, "max_tokens": 17}}
    answer, llm = ask(index, lambda request: "Marta Orlo", settings, limit=5)
    (request,) = llm.calls
    prompt = Prompt.read("gpu_rag.program.prompts", "reader")
    blocks = [f"[{i}] {e.title}\n{e.text}" for i, e in enumerate(answer.evidence[:3], 1)]
    assert request.prompt == prompt.render(passages="\n\n".join(blocks), question=QUESTION)
    assert (request.system, request.max_tokens, request.constraint) == (prompt.system, 17, None)
    assert len(answer.evidence) == 5 and answer.usage.cut == 0
    assert answer.trace[-1].verb == "read" and answer.trace[-1].reply_hash


def test_nothing_found_asks_nobody(index: gpu_rag.Index, fast: Any) -> None:
    answer, llm = ask(index, lambda request: "Marta Orlo", fast, text="xyzzy", method="bm25")
    assert (answer.status, answer.text, answer.evidence) == ("unsupported", None, ())
    assert llm.calls == []


def test_costs_are_those_of_the_reply(index: gpu_rag.Index, fast: Any) -> None:
    answer, _ = ask(index, lambda request: Reply("Marta Orlo", "stop", 321, 200, 7), fast)
    usage = answer.usage
    assert (usage.llm_calls, usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (1, 321, 200, 7)


@pytest.mark.parametrize("short_by", [1, 40, 90])
def test_what_does_not_fit_is_cut_from_the_end_and_counted(index: gpu_rag.Index, fast: Any, short_by: int) -> None:
    whole, llm = ask(index, lambda request: "Marta Orlo", fast)
    count, system = llm.count_tokens, llm.calls[0].system
    full = llm.calls[0].prompt
    context = count(system) + count(full) + 48 - short_by
    answer, llm = ask(index, lambda request: "Marta Orlo", fast, context_tokens=context)
    shown = llm.calls[0].prompt
    assert answer.status == "answered" and answer.evidence == whole.evidence
    # the same texts from the start, a whole word at the end, the question untouched
    evidence, question = shown.split("\n\nQuestion: ")
    assert question == full.split("\n\nQuestion: ")[1]
    whole_evidence = full.split("\n\nQuestion: ")[0]
    assert whole_evidence.startswith(evidence) and evidence != whole_evidence
    assert not re.match(r"\w", whole_evidence[len(evidence) :])
    assert count(system) + count(shown) + 48 <= context
    lost = count(whole_evidence) - count(evidence)
    assert answer.usage.cut == pytest.approx(lost, abs=8)  # tokens of parts and of the whole differ by a few
    assert lost < short_by + 8  # and no more is cut than a word needs


def test_a_prompt_that_never_fits_is_that_question_s_failure(index: gpu_rag.Index, fast: Any) -> None:
    answer, llm = ask(index, lambda request: "Marta Orlo", fast, context_tokens=60)
    assert (answer.status, answer.text, llm.calls) == ("failed", None, [])
    assert answer.error is not None and answer.error["type"] == "ContextOverflow"
    assert "<= 60 together" in answer.error["message"]


@pytest.mark.parametrize("method", ["dense", "bm25", "hybrid", "ppr"])
def test_a_failed_request_disturbs_no_other_question(index: gpu_rag.Index, fast: Any, method: str) -> None:
    questions = [Question(f"q{i}", f"Who designed the Halden Bridge, {name}?") for i, name in enumerate("abcdef")]

    def said(request: Request) -> str:
        return f"answer {request.prompt.split('Bridge, ')[-1][0]}"

    def flaky(request: Request) -> str | RequestFailed:
        return RequestFailed("the server hung up") if ", c?" in request.prompt else said(request)

    sound = index.answer(questions, method=method, settings=fast, llm=ScriptedLLM(said))
    hurt = index.answer(questions, method=method, settings=fast, llm=ScriptedLLM(flaky))
    assert [a.status for a in hurt] == ["answered"] * 2 + ["failed"] + ["answered"] * 3
    assert hurt[2].error == {"type": "RequestFailed", "message": "the server hung up"}
    assert hurt[2].evidence == () and hurt[2].trace  # the trace says how far it came
    for a, b in zip(sound, hurt):
        if b.status != "failed":
            assert (a.text, a.evidence, a.paths) == (b.text, b.evidence, b.paths)
    assert len({a.text for a in sound}) == 6
