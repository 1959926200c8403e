"""The shared reader: what of an answer may be handed on while its reply comes."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.program.reader import AnswerText, Support, begun_answer, clean_answer, is_answer, retrieved
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.types import Evidence, Question, Reply

PARTS = [
    "Answer:", "Short answer:", "The answer is:", "The answer is", "<think>", "</think>", "unknown", "None",
    "no answer", "Tamsin", "St. Loss", ".",
]  # fmt: skip
PARTS += ["<data>", "</data>", "\n", " ", "```", "i don't know", "Ans", "U.S.", "\u2028"]


def whole_answer(text: str) -> str:
    """The answer that `read_blocks` makes of a reply, "" for none."""
    found = read_reply(Reply(text, "stop", 0, 0, 0), None)
    answer = clean_answer(found.value) if isinstance(found, Read) else ""
    return answer if is_answer(answer) else ""


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=8))
def test_what_was_handed_on_begins_the_answer(parts):
    text, said = "".join(parts), []
    hear = AnswerText(said.append)
    for n in range(1, len(text) + 1):
        hear(text[:n])
    # a thought that a template has opened is known at its end alone
    if "</think>" not in text:
        assert whole_answer(text).startswith("".join(said)), said


def test_pieces_come_as_soon_as_they_are_sure():
    said: list[str] = []
    hear = AnswerText(said.append)
    for text in (
        "Short",
        "Short answer: Hu",
        "Short answer: Hugo",
        "Short answer: Hugo Brandt.",
        "Short answer: Hugo B",
    ):
        hear(text)
    assert said == ["Hu", "go", " Brandt"]
    assert begun_answer("<think>Hugo Brandt") == begun_answer("Unk") == begun_answer("```\nHugo") == ""
    assert begun_answer("<think>who?</think>\nHugo") == "Hugo" and begun_answer("None of them") == "None of them"


def test_a_try_that_begins_anew_says_nothing_twice():
    said: list[str] = []
    hear = AnswerText(said.append)
    for text in ("Hugo Br", "H", "Hug", "Hugo Brandt", "Anna Stroud", "Hugo Brandt of Loss"):
        hear(text)
    assert said == ["Hugo Br", "andt", " of Loss"]


@dataclass
class Limited:
    limit: int


def passage(id: str, title: str, text: str, file: str = "corpus.jsonl") -> Evidence:
    return Evidence(id, title, text, 0, len(text), 1.0, "near", file)


@pytest.mark.parametrize(("k", "asked"), [(2, 2), (3, 2), (9, 1)])
def test_a_copy_takes_no_place_and_is_named(k: int, asked: int) -> None:
    ranked = [passage(f"{at}.txt", at[-1], "The key is green.", f"{at}.txt") for at in ("a", "c/b")]
    ranked += [passage("d", "Ada", "She was a poet."), passage("e", "Bea", "She was a poet.")]  # two facts
    limits: list[int] = []

    async def retrieve(question: Question, run: Any, params: Any) -> Support:
        limits.append(run.limit)
        return Support(tuple(ranked[: run.limit]))

    support = asyncio.run(retrieved(retrieve, Question("q", "Which key?"), Limited(k), None))
    assert [e.passage_id for e in support.evidence] == ["a.txt", "d", "e"][:k] and len(limits) == asked
    assert support.evidence[0].why == "near; the same text is in c/b.txt"
    limits.clear()
    ranked[1] = passage("c/b.txt", "b", "The key is blue.", "c/b.txt")
    support = asyncio.run(retrieved(retrieve, Question("q", "Which key?"), Limited(2), None))
    assert limits == [2] and [e.passage_id for e in support.evidence] == ["a.txt", "c/b.txt"]
