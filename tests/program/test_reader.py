"""The shared reader: what of an answer may be handed on while its reply comes."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_rag.program.reader import AnswerText, begun_answer, clean_answer, is_answer
from gpu_rag.text.lenient import Read, read_reply
from gpu_rag.types import Reply

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
