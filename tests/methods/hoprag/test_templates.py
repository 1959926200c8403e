"""Questions from triples: the words by the form of the relation, what asks nothing, and types of names."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.methods.hoprag.stages import templates as question_templates
from gpu_rag.methods.hoprag.stages.templates import answered_questions, raised_questions, type_words
from gpu_rag.text.normalise import normalise_name

CASES = {
    "is part of": ("What is A part of?", "What is part of B?"),
    "was": ("What was A?", "What was B?"),
    "was also born in": ("What was A also born in?", "What was also born in B?"),
    "located in": ("What is A located in?", "What is located in B?"),
    "in": ("What is A in?", "What is in B?"),
    "crosses": ("What does A cross?", "What crosses B?"),
    "serves as": ("What does A serve as?", "What serves as B?"),
    "has population of": ("What does A have population of?", "What has population of B?"),
    "carries": ("What does A carry?", "What carries B?"),
    "reaches": ("What does A reach?", "What reaches B?"),
    "won": ("What has A won?", "What won B?"),
    "date_of_birth": ("What is the date of birth of A?", "Whose date of birth is B?"),
    "occupation": ("What is the occupation of A?", "Whose occupation is B?"),
}


@pytest.mark.parametrize("relation", CASES)
def test_the_words_follow_the_relation(relation: str) -> None:
    assert answered_questions([("A", relation, "B")]) == list(CASES[relation])


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(question_templates).failed == 0


def test_each_question_comes_once_and_in_order() -> None:
    triples = [("Ann", "won", "Cup"), ("Ann", "won", "Medal"), ("Bo", "won", "Cup")]
    assert answered_questions(triples) == [
        "What has Ann won?", "What won Cup?", "What won Medal?", "What has Bo won?"
    ]  # fmt: skip


@pytest.mark.parametrize("triple", [("", "won", "Cup"), ("Ann", " - ", "Cup"), ("Ann", "won", "x" * 301)])
def test_broken_triples_give_none(triple: tuple[str, str, str]) -> None:
    assert answered_questions([triple]) == []


def test_out_questions_are_about_names_that_are_no_subject() -> None:
    triples = [("Halden Bridge", "crosses", "Ves"), ("KERLING", "lies on", "Ves")]
    names = ["Halden Bridge", "Ves", "ves ", "Kerling", "Marta  Orlo"]
    assert raised_questions(names, triples, {"marta orlo": "engineer"}) == [
        "What is known about Ves?", "What is known about Marta Orlo, the engineer?"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["1931", "3 May 1904", "May 1904", "-", "", "37:35", "the", "y" * 301])
def test_dates_numbers_and_nothing_ask_nothing(name: str) -> None:
    assert raised_questions([name], [], {}) == []


def test_a_name_that_is_a_type_asks_nothing() -> None:
    assert raised_questions(["rapper", "Brian May"], [], {}, {"rapper"}) == ["What is known about Brian May?"]


@pytest.mark.parametrize(
    ("object_", "kind"),
    [
        ("a small town on the river Ves", "small town"),
        ("former radio station licensed to Kerling", "former radio station"),
        ("deep dark cold lake", "deep dark cold"),
        ("Kerling", ""),
        ("1931", ""),
        ("one of the best", ""),
        ("British politician", ""),
        ("member of a club", ""),
    ],
)
def test_types_are_the_first_common_words(object_: str, kind: str) -> None:
    found = type_words([("Aa", "is", object_)])
    assert found == ({"aa": kind} if kind else {})


def test_the_commonest_type_counts_and_ties_go_by_alphabet() -> None:
    triples = [("Ves", "is a", "stream"), ("ves", "is a", "river"), ("Ves", "crosses", "plain")]
    assert type_words(triples) == {"ves": "river"}
    assert type_words(triples, [("VES", "Stream")]) == {"ves": "stream"}


TEXT = st.text(alphabet="AaBb 1-_?of", max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=5), st.lists(TEXT, max_size=5))
def test_any_text_gives_distinct_questions(triples: list[tuple[str, str, str]], names: list[str]) -> None:
    """No name is asked about twice, and none that is a subject; every question is one line that ends with a ?."""
    answered = answered_questions(triples)
    raised = raised_questions(names, triples, type_words(triples))
    for questions in (answered, raised):
        assert len(set(questions)) == len(questions)
        assert all(q.endswith("?") and " ".join(q.split()) == q for q in questions)
    subjects = {normalise_name(subject) for subject, _, _ in triples}
    asked = {normalise_name(name) for name in names} - subjects - {""}
    assert len(raised) <= len(asked)
