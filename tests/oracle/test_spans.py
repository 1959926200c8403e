"""split_sentences and chunk_spans: cover, order, limits, alignment; hand-worked texts; wrong versions."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes

from gpu_rag.text.chunk import chunk_spans
from gpu_rag.text.sentences import split_sentences

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Spans = list[tuple[int, int]]
PARTS = ["One two.", "Who? ", "A.", "\n\n", "3.14 ", "\u00a0", " ", "Über", "Dr. No", "...", "!?", '"Yes."', "\t"]
PARTS += ["\n# Port Maru", "## 2. Dr. No\n", "   ###", "\n----\n", "=", "#", "e.g. x"]
PARTS += ["漢字。", "İ", "e\u0301", "word ", "Ann ", "(end.)", "U.S. ", "\u2028", "\u200b", "\x1c"]
TEXTS = st.one_of(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), st.text(max_size=40))


def assert_ordered(text: str, spans: Spans) -> None:
    assert isinstance(spans, list) and all(isinstance(x, int) for span in spans for x in span)
    assert all(0 <= s < e <= len(text) for s, e in spans), f"{spans} of {len(text)} characters"
    assert spans == sorted(spans)


def assert_covered(text: str, spans: Spans) -> None:
    inside = {i for s, e in spans for i in range(s, e)}
    missing = [i for i, c in enumerate(text) if not c.isspace() and i not in inside]
    assert not missing, f"{text!r}: characters {missing} in no span"


def check_sentences(split: Callable[[str], Spans]) -> None:
    @QUICK
    @given(TEXTS)
    def holds(text: str) -> None:
        spans = split(text)
        assert_ordered(text, spans)
        assert_covered(text, spans)
        assert all(e <= s for (_, e), (s, _) in pairwise(spans)), "sentences overlap"
        assert all(text[s:e].strip() for s, e in spans), "a sentence of white space"

    holds()
    assert split("") == split(" \n\t ") == []


SENTENCES = [
    ["Ann lives in Rome.", "Where is she?", "Gone!", "He knows."],
    ["The film was made in 1999.", "It won two prizes."],
    ["Pi is 3.14 and e is 2.71 today.", "Both are irrational."],
    ["No stop at the end"],
    ["A first line is a sentence.", "And the rest has no stop"],
]


def check_plain_sentences(split: Callable[[str], Spans]) -> None:
    """Sentences that nobody would cut elsewhere, with several kinds of space between them."""
    for want in SENTENCES:
        for gap in (" ", "  ", "\n", "\n\n"):
            text = gap.join(want)
            assert [text[s:e].strip() for s, e in split(text)] == want


HEADINGS = [  # sentences, and what stands between them
    (["# Ada Holm", "She was born in Oslo.", "## Works. Late ones", "Ada painted."], ["\n", "\n", "\n"]),
    (["Ada painted the sea", "### Rivers", "#### The Ves", "It is short"], ["\n   ", "\n", "\n"]),
    (["Rivers\n======", "The Ves is short", "Towns\n---", "Kerling"], ["\n", "\n\n", "\n"]),
    (["One line.", "# A", "Ada"], ["\n\n  ", "\r\n"]),
]
NO_HEADINGS = [
    "The language C\n#1 of all\nis old",
    "Ada wrote\n####### seven\nof them",
    "It has a sharp # and\n    # of four blanks",
    "One - two\n-\nthree = four\n=\nfive",
]


def check_headings(split: Callable[[str], Spans]) -> None:
    """A Markdown heading is a sentence, also directly below and above text."""
    for want, gaps in HEADINGS:
        text = "".join(part + gap for part, gap in zip(want, [*gaps, ""]))
        assert [text[s:e] for s, e in split(text)] == want
    for text in NO_HEADINGS:
        assert split(text) == [(0, len(text))]


def by_regex(text: str, pattern: str = r"\S.*?(?:[.?!](?=\s|$)|\s*$)") -> Spans:
    return [m.span() for m in re.finditer(pattern, text, re.DOTALL) if m.group().strip()]


WRONG_SPLITS = {
    "every full stop ends one": (lambda t: by_regex(t, r"[^.?!]+[.?!]*|[.?!]+"), check_plain_sentences),
    "the last one needs a stop": (lambda t: by_regex(t, r"\S.*?[.?!](?=\s|$)"), check_sentences),
    "one sentence": (lambda t: [(0, len(t))] if t.strip() else [], check_plain_sentences),
    "a line each": (lambda t: by_regex(t, r"[^\n]+"), check_plain_sentences),
    "a heading is the begin of a sentence": (by_regex, check_headings),
    "every line with # is a heading": (
        lambda t: by_regex(t, r"(?m:^[^\S\n]*#[^\n]*$)|[^\n]+(?:\n(?![^\S\n]*#|\n)[^\n]+)*"),
        check_headings,
    ),
    "overlap": (lambda t: [(max(s - 3, 0), e) for s, e in by_regex(t)], check_sentences),
    "strings found again": (
        lambda t: [(t.find(t[s:e]), t.find(t[s:e]) + e - s) for s, e in by_regex(t)],
        check_sentences,
    ),
}


test_wrong_splits_are_caught = caught(WRONG_SPLITS)


test_split_sentences = passes([by_regex, split_sentences], [check_sentences, check_plain_sentences])


def test_headings() -> None:
    check_headings(split_sentences)


Chunk = Callable[..., Spans]


# two Han or kana characters are a word, and so is a run of other characters without a space
WORD = re.compile("[\u3040-\u9fff]{1,2}|[^\\s\u3040-\u9fff]+")


def n_words(text: str, s: int, e: int) -> int:
    return len(WORD.findall(text[s:e]))


def assert_chunks(text: str, spans: Spans, max_words: int, overlap_words: int) -> None:
    assert_ordered(text, spans)
    assert_covered(text, spans)
    assert all(n_words(text, s, e) <= max_words for s, e in spans), "a chunk beyond max_words"
    for (s, e), (s2, e2) in pairwise(spans):
        assert s < s2 and e < e2, "a chunk inside another"
        assert n_words(text, s2, e) <= overlap_words if s2 < e else True, "more overlap than asked for"
    if text.strip() and n_words(text, 0, len(text)) <= max_words:
        assert len(spans) == 1, "a short text is one chunk"


def check_chunks(chunk: Chunk) -> None:
    """Any text, limits down to one word."""

    @QUICK
    @given(TEXTS, st.integers(1, 9), st.integers(0, 8))
    def holds(text: str, max_words: int, overlap: int) -> None:
        overlap = min(overlap, max_words - 1)
        assert_chunks(text, chunk(text, max_words=max_words, overlap_words=overlap), max_words, overlap)

    holds()


def sentences(n: int, words: int) -> tuple[str, list[int], list[int]]:
    """n sentences of `words` words; the text, where they start and where they end."""
    text, starts, ends = "", [], []
    for i in range(n):
        starts.append(len(text))
        text += " ".join([f"Word{i}", *["and"] * (words - 2), "more."])
        ends.append(len(text))
        text += " "
    return text.rstrip(), starts, ends


def check_alignment(chunk: Chunk) -> None:
    """Short sentences are never cut, chunks are well filled, and neighbours share what was asked for."""
    for n, words, max_words, overlap in ((40, 10, 50, 20), (100, 12, 300, 50), (9, 5, 10, 0), (30, 7, 60, 14)):
        text, starts, ends = sentences(n, words)
        spans = chunk(text, max_words=max_words, overlap_words=overlap)
        assert_chunks(text, spans, max_words, overlap)
        for s, e in spans:
            s, e = s + len(text[s:e]) - len(text[s:e].lstrip()), s + len(text[s:e].rstrip())
            assert s in starts and e in ends, "a short sentence is cut"
        assert all(n_words(text, s, e) > max_words - words for s, e in spans[:-1]), "chunks are not filled"
        shared = [n_words(text, s2, e) if s2 < e else 0 for (_, e), (s2, _) in pairwise(spans)]
        assert all(overlap - words < x <= overlap for x in shared), f"shared words {shared}, asked for {overlap}"


def check_huge_sentence(chunk: Chunk) -> None:
    """A sentence longer than a chunk is cut between words; its neighbours stay readable."""
    text = "Short one. " + " ".join(f"w{i}" for i in range(1000)) + ". And a last one."
    for max_words, overlap in ((100, 20), (7, 0), (300, 50)):
        spans = chunk(text, max_words=max_words, overlap_words=overlap)
        assert_chunks(text, spans, max_words, overlap)
        assert len(spans) <= 1.5 * 1006 / (max_words - overlap) + 3, "far too many chunks"
        for s, e in spans:
            assert s == 0 or text[s - 1].isspace() or text[s].isspace(), "a word is cut"
            assert e == len(text) or text[e].isspace() or text[e - 1].isspace(), "a word is cut"


def check_defaults(chunk: Chunk) -> None:
    text, _, _ = sentences(30, 10)
    assert len(chunk(text)) == 1
    text, _, _ = sentences(61, 10)
    assert_chunks(text, chunk(text), 300, 50)
    assert len(chunk(text)) == 3
    assert not any(text[s:e].strip() for text in ("", "  \n ") for s, e in chunk(text))


CHECKS = [check_chunks, check_alignment, check_huge_sentence, check_defaults]


def greedy(text: str, max_words: int = 300, overlap_words: int = 50, split: Any = by_regex, **wrong: Any) -> Spans:
    """Whole sentences while they fit; the next chunk starts with the last sentences that fit into the overlap."""
    units: Spans = []
    for s, e in split(text):
        words = [(s + m.start(), s + m.end()) for m in WORD.finditer(text[s:e])]
        words = [w for w in words if text[slice(*w)].split()]
        step = max_words if not wrong.get("never_cut") else len(words) or 1
        units += [(words[i][0], words[min(i + step, len(words)) - 1][1]) for i in range(0, len(words), step)]
    size = [n_words(text, s, e) for s, e in units]
    spans, first = [], 0
    while first < len(units):
        last = first + 1
        while last < len(units) and sum(size[first : last + 1]) <= max_words + wrong.get("slack", 0):
            last += 1
        spans.append((units[first][0], units[last - 1][1]))
        back = last
        while back > first + 1 and sum(size[back - 1 : last]) <= overlap_words and not wrong.get("no_overlap"):
            if last == len(units) or sum(size[back - 1 : last + 1]) > max_words:
                break
            back -= 1
        first = last if last == len(units) else back
    return spans[:-1] if wrong.get("drop_last") and len(spans) > 1 else spans


def windows(text: str, max_words: int = 300, overlap_words: int = 50) -> Spans:
    """Wrong: windows of words that know no sentence."""
    words = [m.span() for m in re.finditer(r"\S+", text)]
    starts = range(0, max(len(words) - overlap_words, 1), max_words - overlap_words) if words else []
    return [(words[i][0], words[min(i + max_words, len(words)) - 1][1]) for i in starts]


def tail(text: str, max_words: int = 300, overlap_words: int = 50) -> Spans:
    """Wrong: a last window that is part of the one before."""
    spans = greedy(text, max_words, overlap_words)
    return [*spans, (spans[-1][0] + 1, spans[-1][1])] if len(spans) > 1 else spans


WRONG_CHUNKS = {
    "a sentence too many": (lambda *a, **o: greedy(*a, **o, slack=9), check_chunks),
    "huge sentences stay whole": (lambda *a, **o: greedy(*a, **o, never_cut=True), check_huge_sentence),
    "no overlap": (lambda *a, **o: greedy(*a, **o, no_overlap=True), check_alignment),
    "the rest is lost": (lambda *a, **o: greedy(*a, **o, drop_last=True), check_chunks),
    "blind windows": (windows, check_alignment),
    "one chunk": (lambda text, *a, **o: [(0, len(text))] if text.strip() else [], check_huge_sentence),
    "a sentence each": (lambda text, *a, **o: by_regex(text), check_alignment),
    "a tail inside the last": (tail, check_alignment),
    "double overlap": (
        lambda t, max_words=300, overlap_words=50: greedy(t, max_words, 2 * overlap_words),
        check_alignment,
    ),
}


test_wrong_chunks_are_caught = caught(WRONG_CHUNKS)


test_chunk_spans = passes([greedy, chunk_spans], CHECKS)


def test_a_short_text_is_one_chunk_where_no_space_follows_a_sentence() -> None:
    text = "ab。One two."  # two sentences, and two words between spaces
    assert len(split_sentences(text)) == 2
    assert chunk_spans(text, max_words=2, overlap_words=0) == [(0, len(text))]
