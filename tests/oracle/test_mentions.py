"""MentionFinder against a regular expression (ASCII) and brute force over every span (Unicode); wrong versions.

A mention is a span of the ORIGINAL text whose casefold is the casefold of the name, between word boundaries.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes

from gpu_rag.text.mentions import MentionFinder

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Find = Callable[[Sequence[str], Sequence[str]], Any]
Row = tuple[int, int, int, int]  # text, start, end, name: the sort order


def rows_of(found: Any) -> list[Row]:
    columns = [found.text, found.start, found.end, found.name]
    assert all(isinstance(c, np.ndarray) and c.dtype == np.int32 and c.ndim == 1 for c in columns)
    rows = list(zip(*(c.tolist() for c in columns)))
    assert rows == sorted(rows), "not sorted by (text, start, end, name)"
    assert len(rows) == len(set(rows)), "a mention twice"
    return rows


def wordish(c: str) -> bool:
    """Everything that somebody could call a part of a word: letters, digits, marks, the underscore."""
    return c.isalnum() or c == "_" or unicodedata.category(c)[0] == "M"


def surely_whole(text: str, s: int, e: int) -> bool:
    return not (s > 0 and wordish(text[s - 1])) and not (e < len(text) and wordish(text[e]))


def maybe_whole(text: str, s: int, e: int) -> bool:
    """False where letters or digits stand on both sides of an end of the span: no reading makes that a whole word.

    Chinese is written without spaces, so beside such a character a word may end anywhere.
    """
    inside = [c.isalnum() and not "\u4e00" <= c <= "\u9fff" for c in text]
    return not any(a >= 0 and b < len(text) and inside[a] and inside[b] for a, b in ((s - 1, s), (e - 1, e)))


def every_span(names: Sequence[str], texts: Sequence[str], whole: Any, fold: Any = str.casefold) -> list[Row]:
    want: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        want.setdefault(fold(name), []).append(i)
    return sorted(
        (t, s, e, i)
        for t, text in enumerate(texts)
        for s in range(len(text))
        for e in range(s + 1, len(text) + 1)
        for i in want.get(fold(text[s:e]), ())
        if whole(text, s, e)
    )


def compatible(text: str) -> str:
    """The widest reading of "the same letters": compatibility forms and compositions, too."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def overlaps_itself(row: Row, rows: list[Row]) -> bool:
    """Two mentions of the SAME name that overlap: whether both are kept is left open."""
    return any(o[0] == row[0] and o[3] == row[3] and o != row and o[1] < row[2] and row[1] < o[2] for o in rows)


ASCII_WORDS = ["ann", "Ann", "BO", "bo", "c3", "x", "anna"]


def check_regex(find: Find) -> None:
    """Plain words: (?<!\\w)name(?!\\w), ignoring case; names may overlap each other and repeat in the text."""

    @settings(QUICK, max_examples=200)
    @given(
        st.lists(st.lists(st.sampled_from(["ann", "bo", "c3", "x"]), min_size=1, max_size=3, unique=True), max_size=6),
        st.lists(st.lists(st.sampled_from(ASCII_WORDS), max_size=9), max_size=3),
        st.sampled_from([" ", " ", ", ", "-", "."]),
    )
    def holds(names: list[list[str]], texts: list[list[str]], gap: str) -> None:
        names_ = sorted({" ".join(n) for n in names})
        texts_ = [gap.join(t[:4]) + " " + " ".join(t[4:]) + "!" for t in texts]
        want = []
        for t, text in enumerate(texts_):
            for i, name in enumerate(names_):
                pattern = rf"(?<!\w)(?=({re.escape(name)})(?!\w))"
                want += [(t, *m.span(1), i) for m in re.finditer(pattern, text, re.IGNORECASE)]
        assert rows_of(find(names_, texts_)) == sorted(want), f"{names_} in {texts_}"

    holds()


PIECES = ["ß", "ss", "SS", "İ", "i\u0307", "ı", "I", "ſ", "s", "K", "k", "ﬁ", "fi", "é", "e\u0301", "e", "Σ", "ς", "ŉ"]
PIECES += ["ΐ", "straße", "STRASSE", "İz", "漢", "字", "7", "_", "ǰ", "a"]
GAPS = st.sampled_from([" ", " ", "", ", ", "'", "-", ". ", "\n", "(", "—"])


@st.composite
def unicode_cases(draw: Any) -> tuple[list[str], list[str]]:
    word = st.lists(st.sampled_from(PIECES), min_size=1, max_size=2).map("".join)
    name = st.lists(word, min_size=1, max_size=2).map(" ".join)
    names = draw(st.lists(name, min_size=1, max_size=4, unique_by=str.casefold))
    shown = st.tuples(st.sampled_from(names), st.sampled_from([str, str.upper, str.lower, str.casefold, str.title]))
    part = st.tuples(st.one_of(shown.map(lambda x: x[1](x[0])), word), GAPS).map("".join)
    return names, draw(st.lists(st.lists(part, max_size=4).map("".join), min_size=1, max_size=2))


def check_unicode(find: Find) -> None:
    """All spans that are surely whole words, none that surely are not; offsets into the text as given."""

    @QUICK
    @given(unicode_cases())
    def holds(case: tuple[list[str], list[str]]) -> None:
        names, texts = case
        got = rows_of(find(names, texts))
        allowed = every_span(names, texts, maybe_whole, compatible)
        needed = [r for r in every_span(names, texts, surely_whole) if not overlaps_itself(r, allowed)]
        needed = [r for r in needed if any(map(str.isalnum, names[r[3]]))]
        assert set(needed) <= set(got), f"missing in {texts!r} of {names!r}: {set(needed) - set(got)}"
        assert set(got) <= set(allowed), f"too many in {texts!r} of {names!r}: {set(got) - set(allowed)}"

    holds()


HAND = [  # names, text, (start, end, name)
    (["Ann"], "Ann, ann; Anna ANN.", [(0, 3, 0), (5, 8, 0), (15, 18, 0)]),
    (["New York", "York", "York City"], "in New York City", [(3, 11, 0), (7, 11, 1), (7, 16, 2)]),
    (["Straße"], "die STRASSE hier, ß, straße", [(4, 11, 0), (21, 27, 0)]),
    (["strasse", "later"], "Straße ßß later", [(0, 6, 0), (10, 15, 1)]),
    (["later"], "İİİ ŉ ΐ later", [(8, 13, 0)]),
    (["İstanbul"], "İstanbul", [(0, 8, 0)]),
    (["s"], "ß", []),
    (["ann"], "joanna hann annx 7ann", []),
    (["ann"], "ann", [(0, 3, 0)]),
    (["x1"], '(x1) x1-x1 "X1" x1\'s', [(1, 3, 0), (5, 7, 0), (8, 10, 0), (12, 14, 0), (16, 18, 0)]),
    (["a b", "b c", "c d"], "a b c d", [(0, 3, 0), (2, 5, 1), (4, 7, 2)]),
    (["Zoë"], "zoë ZOË", [(0, 3, 0), (4, 7, 0)]),
    (["C++"], "in C++ too", [(3, 6, 0)]),
    (["nothing"], "", []),
]


def check_hand_worked(find: Find) -> None:
    for names, text, want in HAND:
        got = [(s, e, n) for _, s, e, n in rows_of(find(names, [text]))]
        assert got == want, f"{names} in {text!r}: {got}"
    assert rows_of(find(["bo", "ann"], ["ann bo", "", "bo"])) == [(0, 0, 3, 1), (0, 4, 6, 0), (2, 0, 2, 0)]
    assert rows_of(find([], ["ann"])) == rows_of(find(["ann"], [])) == []


def check_same_name_twice(find: Find) -> None:
    """Names that differ only in case are different names: each is found."""
    assert rows_of(find(["Rome", "ROME", "Bo"], ["in rome"])) == [(0, 3, 7, 0), (0, 3, 7, 1)]


def check_capitals(find: Find) -> None:
    """Letters that have a small form of one character and a capital of two."""
    names = ["\u1e96amid", "\u01f0an", "\u1fd6s", "ßa", "ŉb"]
    texts = [name.upper() for name in names]
    want = [(i, 0, len(text), i) for i, text in enumerate(texts)]
    assert rows_of(find(names, texts)) == rows_of(find(texts, texts)) == want
    assert rows_of(find(texts, names)) == [(i, 0, len(name), i) for i, name in enumerate(names)]


CHECKS = [check_regex, check_unicode, check_hand_worked, check_same_name_twice, check_capitals]


def mentions(rows: list[Row]) -> Any:
    text, start, end, name = np.array(rows, dtype=np.int32).reshape(-1, 4).T
    return SimpleNamespace(text=text, start=start, end=end, name=name)


def plain(names: Sequence[str], texts: Sequence[str], *, whole: Any = surely_whole, fold: Any = str.casefold) -> Any:
    return mentions(every_span(names, texts, whole, fold))


def folded_offsets(names: Sequence[str], texts: Sequence[str]) -> Any:
    """Wrong: searches the folded text and keeps its offsets."""
    return plain(names, [t.casefold() for t in texts])


def lower_regex(names: Sequence[str], texts: Sequence[str]) -> Any:
    r"""Wrong: re.IGNORECASE with \b knows one-to-one case pairs only, and needs a letter at the end of a name."""
    found = [
        (t, *m.span(), i)
        for t, text in enumerate(texts)
        for i, name in enumerate(names)
        for m in re.finditer(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)
    ]
    return mentions(sorted(found))


def longest_only(names: Sequence[str], texts: Sequence[str]) -> Any:
    rows, kept, stop = rows_of(plain(names, texts)), [], (-1, 0)
    for row in sorted(rows, key=lambda r: (r[0], r[1], -r[2])):
        if row[0] != stop[0] or row[1] >= stop[1]:
            kept.append(row)
            stop = (row[0], row[2])
    return mentions(sorted(kept))


def first_only(names: Sequence[str], texts: Sequence[str]) -> Any:
    first: dict[tuple[int, int], Row] = {}
    for row in rows_of(plain(names, texts)):
        first.setdefault((row[0], row[3]), row)
    return mentions(sorted(first.values()))


def by_name(names: Sequence[str], texts: Sequence[str]) -> Any:
    return mentions(sorted(rows_of(plain(names, texts)), key=lambda r: (r[0], r[3], r[1])))


def last_of_equal_names(names: Sequence[str], texts: Sequence[str]) -> Any:
    last = {n.casefold(): i for i, n in enumerate(names)}
    return mentions([r for r in rows_of(plain(names, texts)) if last[names[r[3]].casefold()] == r[3]])


WRONG = {
    "no word boundary": (lambda n, t: plain(n, t, whole=lambda *_: True), check_regex),
    "no word boundary, Unicode": (lambda n, t: plain(n, t, whole=lambda *_: True), check_unicode),
    "boundary at the start only": (
        lambda n, t: plain(n, t, whole=lambda x, s, e: surely_whole(x[:e], s, e)),
        check_regex,
    ),
    "case matters": (lambda n, t: plain(n, t, fold=str), check_regex),
    "lower case instead of casefold": (lambda n, t: plain(n, t, fold=str.lower), check_unicode),
    "a regular expression": (lower_regex, check_unicode),
    "a regular expression, by hand": (lower_regex, check_hand_worked),
    "offsets of the folded text": (folded_offsets, check_unicode),
    "offsets of the folded text, by hand": (folded_offsets, check_hand_worked),
    "the longest match only": (longest_only, check_regex),
    "the first mention only": (first_only, check_regex),
    "sorted by name": (by_name, check_hand_worked),
    "lower case, capitals": (lambda n, t: plain(n, t, fold=str.lower), check_capitals),
    "one id for equal names": (last_of_equal_names, check_same_name_twice),
}


test_wrong_versions_are_caught = caught(WRONG)


test_mentions = passes([plain, lambda names, texts: MentionFinder(names).find(texts)], CHECKS)
