"""Names in questions: longest first, possessives, and names that say nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text.mentions import mentioned_names
from gpu_rag.text.normalise import normalise_name

KNOWN = {
    "marta orlo": 0,
    "orlo": 1,
    "halden bridge": 2,
    "the": 3,
    "1902": 4,
    "ves": 5,
    "kerling on the ves": 6,
    "of": 7,
}


def check_linking(link) -> None:
    assert link("Who taught Marta Orlo?", KNOWN) == [0]  # the longer name hides the shorter one inside it
    assert link("Did Orlo cross the Halden Bridge?", KNOWN) == [1, 2]
    assert link("What is Marta Orlo's father called?", KNOWN) == [0]
    assert link("The port of 1902", KNOWN) == []  # stop words and bare numbers
    assert link("Where is Kerling on the Ves?", KNOWN) == [6]
    assert link("Vesalius", KNOWN) == []  # whole words only
    assert link("", KNOWN) == []


def test_hand_worked_questions() -> None:
    check_linking(mentioned_names)


def by_substring(text, known):
    return sorted(row for name, row in known.items() if name in normalise_name(text))


def every_run(text, known):
    words = normalise_name(text.replace("?", "")).split()
    runs = {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return sorted(known[run] for run in runs & known.keys())


@pytest.mark.parametrize("wrong", [by_substring, every_run])
def test_a_plausible_wrong_version_is_caught(wrong) -> None:
    with pytest.raises(AssertionError):
        check_linking(wrong)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.dictionaries(st.text(max_size=8).map(normalise_name), st.integers(0, 9), max_size=8))
def test_any_text_gives_known_rows_whose_names_stand_in_it(text: str, known: dict[str, int]) -> None:
    found = mentioned_names(text, known)
    assert found == sorted(set(found))
    flat = normalise_name(text)
    for row in found:
        assert any(name in flat for name, value in known.items() if value == row)
