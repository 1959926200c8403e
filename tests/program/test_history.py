"""A question that comes after others: what the rule does with it."""

import pytest

from gpu_rag.program.history import with_names

TURNS = [
    ("user", "Which town lay on the Ves?"),
    ("assistant", "Kerling"),
    ("user", "Who founded the University of Loss?"),
    ("assistant", "Hugo Brandt, in 1871."),
]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where was he born?", "Where was he born? (Hugo Brandt; University of Loss)"),
        ("Was his teacher Marta Orlo?", "Was his teacher Marta Orlo? (Hugo Brandt; University of Loss)"),
        ("And when?", "And when? (Hugo Brandt; University of Loss)"),
        ("Where did Marta Orlo spend her youth?", None),
        ("Who was mayor of Kerling?", None),
        ("What is the colour of the moon?", None),
    ],
)
def test_names_of_the_last_turns_stand_behind_what_speaks_of_them(question, expected):
    assert with_names(question, TURNS) == (expected or question)


def test_where_nothing_was_named_nothing_is_added():
    assert with_names("Where was he born?", [("user", "who is it?"), ("assistant", "")]) == "Where was he born?"
    assert with_names("And he?", TURNS[:2]) == "And he? (Kerling; Ves)"
