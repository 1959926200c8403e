"""Normal forms, sentence spans and keywords."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text.keywords import keywords
from gpu_rag.text.normalise import clean_text, normalise_name
from gpu_rag.text.sentences import split_sentences

SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)
SAME_NAMES = [
    ("Ada Holm", "  ada\u00a0 HOLM "),
    ("O'Hara", "O’HARA"),
    ("Bras-Loup", "bras–loup"),
    ("“The Loft”", "the loft,"),
    ("Straße", "STRASSE"),
    ("\ufb01eld", "Field"),
    ("Ｏrle", "orle"),
    ("e\u0301cole", "école"),
    ("(Orle)", "orle"),
]
NORMAL_FORMS = [
    ("Java (island)", "java (island)"),
    ("Java (island).", "java (island)"),
    ("(New) Orle (Town)", "(new) orle (town)"),
    ("C#", "c#"),
    ("AT&T", "at&t"),
    ("100%", "100%"),
    ("$40", "$40"),
    ("...", ""),
    ("", ""),
    ("\t \n", ""),
    ("Ély", "ély"),
]


def check_names(normalise: Callable[[str], str]) -> None:
    for a, b in SAME_NAMES:
        assert normalise(a) == normalise(b), (a, b)
    for given_name, expected in NORMAL_FORMS:
        assert normalise(given_name) == expected


def test_names_that_are_the_same() -> None:
    check_names(normalise_name)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.strip().lower(),
        lambda s: " ".join(unicodedata.normalize("NFKC", s).lower().split()).strip(".,\"'“”()"),
        lambda s: re.sub(r"[^\w ]", "", unicodedata.normalize("NFKC", s).casefold()).strip(),
    ],
    ids=["lower", "no casefold", "all punctuation out"],
)
def test_wrong_normal_forms_are_caught(wrong: Callable[[str], str]) -> None:
    with pytest.raises(AssertionError):
        check_names(wrong)


@SETTINGS
@given(st.text())
def test_normal_form_is_stable(s: str) -> None:
    once = normalise_name(s)
    assert normalise_name(once) == once
    assert once == once.strip()
    assert "  " not in once


@SETTINGS
@given(st.text())
def test_clean_text_is_stable_and_printable(s: str) -> None:
    once = clean_text(s)
    assert clean_text(once) == once
    once.encode("utf-8")
    assert "\n\n\n" not in once and "\r" not in once and "\x00" not in once


def test_clean_text_keeps_words_and_paragraphs() -> None:
    assert clean_text("\ufeffa\u00a0\u00adb \r\n \r\n\r\n\r\n c\ud800\x07d ") == "a b\n\nc\ufffdd"


SENTENCES = [
    ("Dr. Ude met J. Roe. They left.", ["Dr. Ude met J. Roe.", "They left."]),
    ("Lund is in the U.S. The town is small.", ["Lund is in the U.S.", "The town is small."]),
    ("He joined Orle Inc. in May. It grew!", ["He joined Orle Inc. in May.", "It grew!"]),
    ('She said "Go." Then she left.', ['She said "Go."', "Then she left."]),
    ("It cost 3.5 million. See p. 7 for more.", ["It cost 3.5 million.", "See p. 7 for more."]),
    ("A mean of . 763 was seen. Why? No one knows…", ["A mean of . 763 was seen.", "Why?", "No one knows…"]),
    ("Heading\n\nFirst line\nsecond line.", ["Heading", "First line\nsecond line."]),
    ("They said no. The vote failed.", ["They said no.", "The vote failed."]),
    ("山がある。川もある。", ["山がある。", "川もある。"]),
    ("", []),
    (" \n ", []),
    ("no end", ["no end"]),
]


def check_sentences(split: Callable[[str], list[tuple[int, int]]]) -> None:
    for text, expected in SENTENCES:
        assert [text[a:b] for a, b in split(text)] == expected


def test_sentences_by_hand() -> None:
    check_sentences(split_sentences)


def test_naive_splitting_is_caught() -> None:
    def naive(text: str) -> list[tuple[int, int]]:
        return [m.span() for m in re.finditer(r"[^\s.][^.]*\.?", text)]

    with pytest.raises(AssertionError):
        check_sentences(naive)


@SETTINGS
@given(st.text(alphabet="aB .!?…\n\"')(3é。\u00a0\x1c"))
def test_sentences_cover_all_text(text: str) -> None:
    spans = split_sentences(text)
    last = 0
    for start, end in spans:
        assert last <= start < end
        assert text[last:start].strip() == ""
        assert text[start:end] == text[start:end].strip() != ""
        last = end
    assert text[last:].strip() == ""


@pytest.mark.parametrize("unit", [". ", ".", ".'", "A. ", "\n", " ", "\n ", "a", "( "])
def test_time_is_linear(unit: str, takes_linear_time: Callable[..., None]) -> None:
    def work(n: int) -> None:
        text = unit * (n // len(unit)) + "a"
        normalise_name(text)
        clean_text(text)
        split_sentences(text)

    takes_linear_time(work, 100_000)


KEYWORDS = [
    ("What is the capital of the land where Ada Holm was born?", {"capital", "land", "ada holm", "born"}),
    ("Who founded Orle & Sons in 1873, with over 40 ships?", {"founded", "orle & sons", "1873", "40", "ships"}),
    ('Did "The Glass Harbour" open on 3 May 1904?', {"the glass harbour", "open", "3 may 1904"}),
    ("Of the and who?", set()),
    ("", set()),
]


def check_keywords(find: Callable[[str], frozenset[str]]) -> None:
    for text, expected in KEYWORDS:
        assert find(text) == expected


def test_keywords_by_hand() -> None:
    check_keywords(keywords)
    with pytest.raises(AssertionError):
        check_keywords(lambda text: frozenset(re.findall(r"\w+", text.casefold())))


@SETTINGS
@given(st.text())
def test_keywords_are_normal_forms(text: str) -> None:
    for word in keywords(text):
        assert word and word == normalise_name(word)
