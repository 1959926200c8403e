"""Sentences that support an answer: labelled pairs, offsets, and wrong rules that the pairs must catch."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text import supporting as module
from gpu_rag.text.grounding import UNSUPPORTED, grounding
from gpu_rag.text.supporting import supporting

DATA = Path(__file__).parent / "data"
PAIRS = [json.loads(line) for line in (DATA / "support.jsonl").read_text("utf-8").splitlines()]


def spans_of(pair: dict) -> tuple:
    passages = [(title, text) for title, text in pair["evidence"]]
    path = [(subject, object_, passage) for subject, _, object_, passage in pair.get("path", ())]
    return supporting(pair["question"], pair["answer"], passages, [path])


def share(right: bool, *halves: str) -> float:
    pairs = [pair for pair in PAIRS if pair["right"] is right and pair["half"] in halves]
    return sum(bool(spans_of(pair)) for pair in pairs) / len(pairs)


def test_right_answers_are_supported_and_wrong_ones_are_not() -> None:
    assert share(False, "choose", "judge", "last") <= 0.03 and share(True, "choose", "judge", "last") >= 0.85


def test_few_wrong_answers_of_the_older_pairs_are_supported() -> None:
    lines = [line for n in (1, 2, 3, 4) for line in (DATA / f"grounding_{n}.jsonl").read_text("utf-8").splitlines()]
    wrong = [pair for pair in map(json.loads, lines) if not pair["held"]]
    mentioned = [p for p in wrong if grounding(p["question"], p["answer"], p["evidence"]) != UNSUPPORTED]
    marks = [supporting(p["question"], p["answer"], [("", text) for text in p["evidence"]]) for p in mentioned]
    assert len(wrong) == 400 and sum(map(bool, marks)) <= 4


def test_the_answer_has_its_own_offsets() -> None:
    text = "Ves is old. Marta Orlo (12 May 1890 – 3 June 1950) was born in Tamsin."
    (span,) = supporting("Where was Marta Orlo born?", "Tamsin", [("Marta Orlo", text)])
    assert text[span.start : span.end].startswith("Marta") and text[slice(*span.answer)] == "Tamsin"
    (span,) = supporting("When did Marta Orlo die?", "June 3, 1950", [("Marta Orlo", text)])
    assert text[slice(*span.answer)] == "3 June 1950"
    assert supporting("When did Marta Orlo die?", "12 May 1890", [("Marta Orlo", text)]) == ()


def test_a_path_needs_a_name_that_joins_its_sentences() -> None:
    passages = [("", "Corin Blythe was born in Hollin."), ("", "Hollin lies on the river Ouda.")]
    path = [("Corin Blythe", "Hollin", 0), ("Hollin", "Ouda", 1)]
    question = "On which river does the birthplace of Corin Blythe lie?"
    ouda, born = supporting(question, "Ouda", passages, [path])
    assert (ouda.passage, born.passage, born.answer) == (1, 0, None)
    assert supporting(question, "Ouda", passages) == ()
    assert supporting(question, "Ouda", [passages[0], ("", "Brask lies on the river Ouda.")], [path]) == ()


def test_a_name_in_the_middle_of_a_chain_is_no_answer() -> None:
    passages = [("", "The Halden Bridge was designed by Marta Orlo.")]
    assert supporting("Who designed the Halden Bridge?", "Marta Orlo", passages)
    assert not supporting("Where was the designer of the Halden Bridge born?", "Marta Orlo", passages)
    assert not supporting("Who was the mother of the designer of the Halden Bridge?", "Marta Orlo", passages)


def test_the_core_of_a_sentence_is_enough_but_another_name_in_it_is_not() -> None:
    passages = [("Corvo 12", "The Corvo 12 has a warranty of five years.")]
    question = "How long is the warranty of the Corvo 12?"
    assert supporting(question, "Its maker vouches for it five years long.", passages)
    assert not supporting(question, "The Kestrel's is five years.", passages)


@pytest.mark.parametrize(
    ("text", "question", "wrong", "right"),
    [
        ("The Corvo ran from 1949 until 1977.", "Until when did the Corvo run?", "1949", None),
        ("Its rent rises from 710 to 745 euros.", "How much does the rent rise to?", "710 euros", None),
        ("Some of the 48 casks arrived empty.", "How many casks arrived empty?", "48", None),
        ("I planted tulips beside the well on Sunday.", "Where were the tulips planted?", "On Sunday", "the well"),
        ("Ott was the teacher of Ilse Brandt.", "Who was the teacher of Ilse Brandt?", "Ilse Brandt", "Ott"),
        ("His rug belongs to his pupil Hana Ito.", "Who taught him?", "Hana Ito", None),
        ("Nur Ves is a 1931 German film directed by Ott.", "Who directed Nur Ves?", "1931 German", None),
        ("The red mine of Ott opened in 1802 and shut in 1949.", "When did the red mine of Ott shut?", "1802", "1949"),
        ("The mine of Ott opened in 1802, shut in 1949.", "When did the mine shut?", "It opened in 1802", "1949"),
        ("Old Ott House was built by Ito and burnt by Ves.", "Who burnt Old Ott House?", "Ito", "Ves"),
        ("Ott (born 2 May 1971) is a Danish poet.", "What is the birth date of Ott?", "Danish", "2 May 1971"),
    ],
)
def test_a_word_beside_the_answer_is_none(text: str, question: str, wrong: str, right: str | None) -> None:
    assert supporting(question, wrong, [("", text)]) == ()
    assert right is None or supporting(question, right, [("", text)])


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who bought Crane Mills?", "Harlow Pumps"),  # the wrong way round
        ("Who bought Harlow Pumps?", "Harlow Pumps was bought"),  # the question's words
        ("Who bought Harlow Pumps?", "1958"),  # another type
        ("When was Crane Mills founded?", "1958"),  # another event
        ("Did Crane Mills buy Harlow Pumps?", "yes"),  # words cannot tell
    ],
)
def test_what_is_no_support(question: str, answer: str) -> None:
    text = "Crane Mills bought Harlow Pumps in 1958."
    assert supporting("Who bought Harlow Pumps?", "Crane Mills", [("", text)])
    assert supporting(question, answer, [("", text)]) == ()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=40), st.text(max_size=20), st.text(max_size=80))
def test_any_text_is_taken_and_spans_lie_in_it(question: str, answer: str, text: str) -> None:
    for span in supporting(question, answer, [("", text)], [[("a", "b", 0)]]):
        assert 0 <= span.start <= span.answer[0] < span.answer[1] <= span.end <= len(text)


@pytest.mark.parametrize("name", ["has_names", "_fits"])
def test_wrong_rules_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, lambda *_: True)
    with pytest.raises(AssertionError):
        test_right_answers_are_supported_and_wrong_ones_are_not()
