"""Clean text, sentences and chunks by hand, keywords; laws: tests/oracle/test_normalise.py and test_spans.py."""

import re
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.program.support import _points_back, _statements
from gpu_rag.text import dates, sentences
from gpu_rag.text import tokens as words
from gpu_rag.text.chunk import MAX_WORD_CHARS, chunk_spans
from gpu_rag.text.dates import full_dates, plain_dates
from gpu_rag.text.keywords import keywords
from gpu_rag.text.normalise import clean_text, normalise_name
from gpu_rag.text.rules.extraction import tokens
from gpu_rag.text.sentences import front_matter, split_sentences
from gpu_rag.text.tokens import tokenize

SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)


@SETTINGS
@given(st.text())
def test_clean_text_is_stable_and_printable(s: str) -> None:
    once = clean_text(s)
    assert clean_text(once) == once
    once.encode("utf-8")
    assert "\n\n\n" not in once and "\r" not in once and "\x00" not in once


_LOG = sentences.LOG_LINE
WHOLE_STOP = re.compile(
    r"""(?<![.!?…؟۔।॥])[.!?…؟۔।॥]++["'”’»)\]]*+(?=\s)|[。！？]+[」』”’）]*|\n(?:[^\S\n]*+\n)++|\n(?=\S[^\n\t]*+\t)|\n(?="""
    + _LOG
    + r""")|\n(?=[ ]{0,3}(?P<item>\d{1,2})[.)][^\S\n]++[^\sa-z])|\n(?=[ ]{0,3}\#{1,6}[^\S\n])
    |^[ ]{0,3}\#{1,6}[^\S\n][^\n]*+\n|\n[ ]{0,3}(?:={2,}+|-{2,}+)[^\S\n]*+\n""",
    re.VERBOSE | re.MULTILINE,
)
ALL_TOKENS = re.compile(tokens._TOKEN.pattern.partition("|")[2], re.VERBOSE)  # without the fast alternative
PIECES = [
    *".!?…。#=-/'’\"”)1٣²_ \t\n",
    "\n\n",
    "\n## A",
    "\n1. A",
    "\n12:00:01 ",
    "\n---\n",
    "U.S. ",
    "St. ",
    "O'Neil's ",
]
PIECES += ["café", "3-5 April 2025", "30 May to 2 June 2025", "May 3 to 5, 2025", "3/25/2025", "2025年3月5日", " May 5"]


@settings(SETTINGS, max_examples=400)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_fast_searches_find_what_whole_patterns_find(text: str) -> None:
    every, low = re.compile(""), text.casefold()
    with patch.multiple(sentences, _STOP=WHOLE_STOP, _STOP_OR_HEADING=WHOLE_STOP):
        stops = split_sentences(text)
    with patch.multiple(dates, _HAS_NUMERIC=every, _HAS_RANGE=every):
        dated = plain_dates(text)
    assert split_sentences(text) == stops and plain_dates(text) == dated
    assert [m.span() for m in tokens._TOKEN.finditer(text)] == [m.span() for m in ALL_TOKENS.finditer(text)]
    if text.isascii():
        assert words._ASCII_WORD.findall(low) == words._word_pattern().findall(low)
        assert normalise_name(text) == normalise_name(f"‐{text}‐")  # not ASCII, and the same without its ends


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
    ("It fell to\n3) and then rose.", ["It fell to\n3) and then rose."]),
    ("He was born in\n12. March 1903", ["He was born in\n12.", "March 1903"]),
    ("They were\n1) Bob\n   1) Ann\n   2) Ida\n2) Cid.", ["They were", "1) Bob", "1) Ann", "2) Ida", "2) Cid."]),
    ("Am Montag, den 2. April kam er. Er blieb.", ["Am Montag, den 2. April kam er.", "Er blieb."]),
    ("Tools\nlathe\tK1\nsaw\tK3\n\nThe\nend.", ["Tools", "lathe\tK1", "saw\tK3", "The\nend."]),
    ("They\nmet at\nnoon, 12:01:02.", ["They\nmet at\nnoon, 12:01:02."]),
    ("Give vitamin E. The body needs it. B. The end.", ["Give vitamin E.", "The body needs it.", "B.", "The end."]),
    ("Ute (b. 1970, c. Ulm) led Ulm e. V. in area e. So", ["Ute (b. 1970, c. Ulm) led Ulm e. V. in area e.", "So"]),
    ("D. Smith met C. Roe e.V. at B. Hall", ["D. Smith met C. Roe e.V. at B. Hall"]),
    ("They said no. The vote failed.", ["They said no.", "The vote failed."]),
    ("山がある。川もある。", ["山がある。", "川もある。"]),
    ("यह पुल है। नदी भी है॥ हाँ", ["यह पुल है।", "नदी भी है॥", "हाँ"]),
    ("هذا جسر. هل هو قديم؟ نعم.", ["هذا جسر.", "هل هو قديم؟", "نعم."]),
    ("یہ پل ہے۔ کیا؟ ہاں۔", ["یہ پل ہے۔", "کیا؟", "ہاں۔"]),
    ("", []),
    (" \n ", []),
    ("no end", ["no end"]),
]


@pytest.mark.parametrize(("text", "expected"), SENTENCES)
def test_sentences_by_hand(text: str, expected: list[str]) -> None:
    assert [text[a:b] for a, b in split_sentences(text)] == expected


LOG_LINES = [
    "2026-11-27 12:00:01,123 INFO pump: started", "2026-11-27T12:00:02Z valve open", "Nov 27 12:00:03 mill kernel: up",
    "[Fri Nov 27 12:00:04 2026] [error] no water", '10.0.0.1 - - [27/Nov/2026:12:00:05 +0000] "GET / HTTP/1.1" 200',
    "12:00:06 valve shut", "[    7.123456] usb 1-1: new device", "ERROR mill: stopped", "[DEBUG] retry",
]  # fmt: skip


def test_each_line_of_a_log_is_a_sentence_with_the_lines_that_continue_it() -> None:
    events = [line + "\n    at Pump.run" * (i % 2) for i, line in enumerate(LOG_LINES)]
    text = "\n".join(events)
    assert [text[a:b] for a, b in split_sentences(text)] == [text[a:b] for a, b in _statements(text)] == events


LISTS = [
    (["## Said\n\n1. Bed and name", "2. Reason", "3. Allergies\n   of all kinds", "4. Next dose"], "\n"),
    (["1. Slipway\n\nThe slipway is closed.", "2. Fees\n\nThe fee is 3."], "\n\n"),
    (["Part: Nut\tLeft: 5", "Part: Bolt\tLeft: 7"], "\n"),
    (["# Handover (Orla)\n\nApproved in May.", "How many?\n\n7"], "\n\n3\n\n"),
    (
        ["12/03/2025 à 19:20 - Ida: It is\n5 o'clock", "12/03/2025, 19:22 - Orm: On time", "[13.3.25, 7:05] Ida: x"],
        "\n",
    ),
    (["#spring has come.", "# Rules\n\nThe bridge is old."], " \n\n"),
]


@pytest.mark.parametrize(("head", "is_matter"), [
    ("---\ndescription: Built in 1900. It has a Tower.\n---\n", True),
    ("\ufeff---\r\n# Mine\r\ntags: [\r\n  a,\r\n]\r\nby:\r\n- Ida. Or Orm.\r\n---\r\n", True),
    ("---\nThis is old.\nWarning: Do not touch.\n---\n", False),
    ("---\n# Old.\n---\n", False),
])  # fmt: skip
def test_front_matter_is_no_statement(head: str, is_matter: bool) -> None:
    text = head + "The bridge is old. It fell."
    statements = [text[a:b] for a, b in _statements(text)]
    assert (statements == ["The bridge is old.", "It fell."]) is is_matter and front_matter(text) == head * is_matter


@pytest.mark.parametrize(("parts", "gap"), LISTS)
def test_items_of_a_list_rows_of_a_table_and_messages_of_a_chat_are_statements(parts: list[str], gap: str) -> None:
    text = (
        "---\ntitle: Mine\n---\n" * parts[0].startswith("#")
        + "Part\tLeft\n" * parts[0].startswith("Part")
        + gap.join(parts)
    )
    assert [text[a:b] for a, b in _statements(text)] == parts


def test_the_last_two_headings_go_with_a_sentence_and_a_pronoun_points_back() -> None:
    text = "Towns\n\nUlm\n\nBridges\n\nWhere?\n\nIn Ulm is one. It's old.\n\nNotes"
    assert [text[a:b] for a, b in _statements(text)] == ["Bridges\n\nWhere?\n\nIn Ulm is one.", "It's old.", "Notes"]
    words = ["It's old.", "“It’s old.", "It fell.", "IT departments", "ESA fell.", "Its arch", "Ida fell.", "…"]
    assert [*map(_points_back, words)] == [True, True, True, False, False, True, False, False]


@pytest.mark.parametrize(
    "unit", ["\nA ", "\nA:", "\n1 1 ", "\n1. A", ". ", ".", "؟", "। ", ".'", "A. ", "\n", " ", "\n ", "a", "( "]
)
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


@pytest.mark.parametrize(("char", "word"), [("x", MAX_WORD_CHARS), ("語", 2), ("ค", 2)])
def test_a_run_without_spaces_is_cut(char: str, word: int) -> None:
    spans = chunk_spans(char * 1000, 4, 1)
    assert max(b - a for a, b in spans) == 4 * word
    assert spans[0][0] == 0 and spans[-1][1] == 1000


@pytest.mark.parametrize("unit", [". ", "a ", "a", "A. ", "\n"])
def test_chunks_in_linear_time(unit: str, takes_linear_time: Callable[..., None]) -> None:
    takes_linear_time(lambda n: chunk_spans(unit * (n // len(unit))), 200_000)


SAME_DAY = (
    *("2025-03-05", "2025/3/5", "05.03.2025", "5.3.2025", "5 March 2025", "05 Mar 2025", "05-Mar-2025"),
    *("the 5th of March, 2025", "March 5th, 2025", "Mar. 05 2025", "march 5, 2025"),
)


@pytest.mark.parametrize("date", SAME_DAY)
def test_dates_of_one_day_have_the_same_words_and_keywords(date: str) -> None:
    assert plain_dates(f"On {date}: rain").removeprefix("On ").removeprefix("the ") == "5 March 2025: rain"
    assert sorted(tokenize(date)) == ["2025", "5", "march"]
    assert "5 march 2025" in keywords(f"It rained on {date}.")


def test_dates_of_other_languages_share_the_day_and_month() -> None:
    for date in ("5. März 2025", "5 mars 2025", "5 de marzo de 2025", "5 março 2025", "5 marca 2025", "5 марта 2025"):
        assert {"5", "march", "2025"} < {*tokenize(date)}  # and its own month
    assert plain_dates("le 1er mai 1999") == "le 1 May 1999 mai"
    assert plain_dates("3/25/2025, 25/3/2025 and 4/4/2025") == "25 March 2025, 25 March 2025 and 4 April 2025"


RANGES = (
    *("3-5 March 2025", "3. bis 5. März 2025", "3rd to 5th Mar. 2025", "March 3–5, 2025", "3 March and\n5 March 2025"),
    *("BETWEEN 3 AND 5 MARCH 2025", "Between  the 3rd and 5th March 2025", "3 TO 5 MARCH 2025"),
)


@pytest.mark.parametrize("dates", RANGES)
def test_both_ends_of_a_range_are_full_dates(dates: str) -> None:
    assert full_dates(f"Fair (open {dates})") == {"3 March 2025", "5 March 2025"}
    assert full_dates("30 May to 2 June 2025") == {"30 May 2025", "2 June 2025"}
    assert full_dates("between the 2nd and 9th March 2025") == {"2 March 2025", "9 March 2025"}
    assert full_dates("group 2 and 9 March 2025, Gruppe 3 und 5. Mai 2025") == {"9 March 2025", "5 May 2025"}
    assert full_dates("5-3 March 2025, 3 to 5 miles 2025, v3 to 9 May 2025") == {"3 March 2025", "9 May 2025"}
    assert (
        tokenize("会议2025年3月5日在") == tokenize("会议2025년 3월 5일在") == ["会", "议", "5", "march", "2025", "在"]
    )


def test_other_figures_are_left_alone() -> None:
    other = (
        "3/4/2025 5/3/25 2025-13-05 1.2.3.2025 12.12.2012.1 2025-03-05x 0/0/2000 40 March, x5 May, 5 miles, May 2025"
        " version 1.2.2025, Release 1.2.2025, COVID-19 May 2025, 12:05.03.2025, 7,2025-03-05"
    )
    assert plain_dates(other) == other
    assert plain_dates("he may 3 times, 12-12-3456") == "he may 3 times, 12-12-3456"
    assert plain_dates("since:2025-03-05, log-2025-03-05") == "since:5 March 2025, log-5 March 2025"
    assert plain_dates("2025-02-31, 5 March 12 people") == "2025-02-31, 5 March 12 people"
    assert plain_dates("30 December to 2 January 2025") == "30 December 2024 to 2 January 2025"
    assert plain_dates("2025-03-05T10:11") == "5 March 2025 T10:11"
