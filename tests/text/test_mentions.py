"""Mentions: offsets into the original, blocks of texts, names in questions; see also tests/oracle/test_mentions.py."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index.names import SortedRows
from gpu_rag.text.mentions import MentionFinder, Mentions, mentioned_names
from gpu_rag.text.normalise import normalise_name


def rows(found: Mentions):
    columns = (found.text, found.start, found.end, found.name)
    assert all(column.dtype == np.int32 for column in columns)
    return list(zip(*(column.tolist() for column in columns)))


def found_texts(names, text):
    return [(names[n], text[start:end]) for _, start, end, n in rows(MentionFinder(names).find([text]))]


def test_names_without_a_letter_or_digit_have_no_mention():
    assert rows(MentionFinder(["", " ", "-", "?!", "_", "\u0301"]).find(["- ?! _ a\u0301"])) == []
    for names, texts in (([], ["a"]), (["a"], []), (["a"], [""])):
        assert rows(MentionFinder(names).find(texts)) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("istanbul", "I\u0307stanbul", None),
        ("café", "Le cafe\u0301.", "cafe\u0301"),
        ("cafe", "Le cafe\u0301.", None),
        ("cafe\u0301", "LE CAFÉ!", "CAFÉ"),
        ("new york", "In New\u00a0\n  York.", "New\u00a0\n  York"),
        ("New \t York", "in new york", "new york"),
        ("office", "the o\ufb03ce door", "o\ufb03ce"),
        ("vell", "ｖｅｌｌ… Orn", "ｖｅｌｌ"),
        ("2", "half: ½", None),
        ("1", "½", None),
        ("orn", "𝒪𝓇𝓃 and 🌊Orn🌊", "𝒪𝓇𝓃"),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
        ("東京", "東京都", "東京"),
        ("x", "\ud800 x", "x"),
    ],
)
def test_offsets_into_the_original(name, text, expected):
    found = found_texts([name], text)
    assert [surface for _, surface in found[:1]] == ([] if expected is None else [expected])


def fold(text):
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.text(max_size=40),
    st.sampled_from(["Vell", "Straße 9", "İzmir", "cafe\u0301", "ﬁn", "Орн"]),
    st.text(max_size=40),
)
def test_a_name_put_between_any_texts_is_found_where_it_is(before, name, after):
    text = f"{before}. {name} .{after}"
    at = len(before) + 2
    found = rows(MentionFinder([name]).find(["", text]))
    assert (1, at, at + len(name), 0) in found
    for _, start, end, _ in found:
        assert fold(text[start:end]) == fold(name)


def test_a_finder_gives_the_same_for_any_split_of_the_texts():
    texts = [f"Vell {i} and the river Orn " * (i % 5) for i in range(40)]
    names = ["vell", "orn", "the river", "7"]
    whole = rows(MentionFinder(names).find(texts))
    finder = MentionFinder(names)
    parts = [(t + i, *rest) for i, text in enumerate(texts) for t, *rest in rows(finder.find([text]))]
    assert whole == parts and whole


def test_texts_longer_than_one_block():
    text = "x" * 700_000 + " Vell "
    found = rows(MentionFinder(["vell"]).find([text, "Vell", text, text + "é²"]))
    assert found == [(0, 700_001, 700_005, 0), (1, 0, 4, 0), (2, 700_001, 700_005, 0), (3, 700_001, 700_005, 0)]


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


def linked(text: str, known: dict[str, int]) -> list[int]:
    """The values of the names that `mentioned_names` gives."""
    names = sorted(known)
    rows = SortedRows(pa.chunked_array([pa.array(names, pa.large_string())]))
    return sorted({known[names[place]] for place in mentioned_names(text, rows)})


def test_hand_worked_questions() -> None:
    assert linked("Who taught Marta Orlo?", KNOWN) == [0]  # the longer name hides the shorter one inside it
    assert linked("Did Orlo cross the Halden Bridge?", KNOWN) == [1, 2]
    assert linked("What is Marta Orlo's father called?", KNOWN) == [0]
    assert linked("The port of 1902", KNOWN) == []  # stop words and bare numbers
    assert linked("Where is Kerling on the Ves?", KNOWN) == [6]
    assert linked("Vesalius", KNOWN) == []  # whole words only
    assert linked("", KNOWN) == []
    spoken = {"白石港": 0, "石港": 1, "港": 2, "マリソル": 3}
    assert linked("白石港的灯塔是谁建的?", spoken) == [0] and linked("マリソルは石港と港", spoken) == [1, 3]


def by_every_span(text: str, known: dict[str, int]) -> list[int]:
    """An oracle for texts of letters, digits and possessives: every span of words is looked up, the longest first."""
    words, rows, first = normalise_name(text).split(), set(), 0
    while first < len(words):
        spans = ((n, " ".join(words[first : first + n])) for n in range(min(8, len(words) - first), 0, -1))
        names = ((n, name) for n, span in spans for name in (span, span.removesuffix("'s")))
        step, name = next(((n, name) for n, name in names if name in known and tells(name)), (1, ""))
        rows |= {known[name]} if name else set()
        first += step
    return sorted(rows)


def tells(name: str) -> bool:
    parts = name.split()
    return (len(name) > 2 or len(parts) > 1) and not "".join(parts).isdigit() and any(part != "of" for part in parts)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(["Ann", "Ann's", "of", "Bo", "Annex", "12", "é"]), max_size=12).map(" ".join),
    st.lists(st.lists(st.sampled_from(["ann", "ann's", "of", "bo", "annex", "12", "é"]), min_size=1, max_size=4)),
)
def test_the_longest_names_are_those_of_every_span(text: str, names: list[list[str]]) -> None:
    known = {normalise_name(" ".join(name)): row for row, name in enumerate(names)}
    assert linked(text, known) == by_every_span(text, known)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.dictionaries(st.text(max_size=8).map(normalise_name), st.integers(0, 9), max_size=8))
def test_any_text_gives_known_rows_whose_names_stand_in_it(text: str, known: dict[str, int]) -> None:
    found = linked(text, known)
    flat = normalise_name(text)
    for row in found:
        assert any(name in flat for name, value in known.items() if value == row)
