"""Chunks: whole sentences, bounded words, an overlap, nothing lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import UsageError
from gpu_rag.text.chunk import MAX_WORD_CHARS, chunk_spans
from gpu_rag.text.sentences import split_sentences

SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)
Chunker = Callable[[str, int, int], list[tuple[int, int]]]
TEXT = "One two three. Four five. Six seven eight. Nine ten. Eleven twelve thirteen fourteen."


def pieces(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[a:b] for a, b in spans]


def check_chunks(chunk: Chunker) -> None:
    """Hand-worked cases that a chunker must pass."""
    assert pieces(TEXT, chunk(TEXT, 5, 2)) == [
        "One two three. Four five.",
        "Four five. Six seven eight.",
        "Nine ten.",
        "Eleven twelve thirteen fourteen.",
    ]
    assert pieces(TEXT, chunk(TEXT, 5, 0)) == [
        "One two three. Four five.",
        "Six seven eight. Nine ten.",
        "Eleven twelve thirteen fourteen.",
    ]
    assert pieces(TEXT, chunk(TEXT, 14, 5)) == [TEXT]
    assert pieces(f" {TEXT}\n", chunk(f" {TEXT}\n", 300, 50)) == [TEXT]
    assert pieces("a b c d e f g", chunk("a b c d e f g", 4, 2)) == ["a b c d", "c d e f", "e f g"]
    assert chunk("", 5, 2) == chunk(" \n ", 5, 2) == []


def test_by_hand() -> None:
    check_chunks(chunk_spans)


def fixed_windows(text: str, max_words: int, overlap_words: int) -> list[tuple[int, int]]:
    """Wrong: blind to sentences."""
    words = text.split(" ")
    starts = [sum(len(w) + 1 for w in words[:i]) for i in range(len(words))]
    step = max_words - overlap_words
    return [
        (starts[i], starts[min(i + max_words, len(words)) - 1] + len(words[min(i + max_words, len(words)) - 1]))
        for i in range(0, len(words), step)
        if text.strip()
    ]


def no_overlap(text: str, max_words: int, overlap_words: int) -> list[tuple[int, int]]:
    """Wrong: forgets the overlap."""
    return chunk_spans(text, max_words, 0)


def one_a_sentence(text: str, max_words: int, overlap_words: int) -> list[tuple[int, int]]:
    """Wrong: never packs and never cuts."""
    return split_sentences(text)


@pytest.mark.parametrize("wrong", [fixed_windows, no_overlap, one_a_sentence])
def test_wrong_chunkers_are_caught(wrong: Chunker) -> None:
    with pytest.raises(AssertionError):
        check_chunks(wrong)


WORDS = st.lists(st.sampled_from(["ab", "cde.", "Fg", "h!", "I.", "jk\n\n", "x" * 70]), max_size=60)


@SETTINGS
@given(WORDS, st.integers(1, 12), st.integers(0, 11))
def test_bounded_covering_and_moving_on(words: list[str], max_words: int, overlap: int) -> None:
    overlap = min(overlap, max_words - 1)
    text = " ".join(words)
    spans = chunk_spans(text, max_words, overlap)
    covered = [False] * len(text)
    for i, (start, end) in enumerate(spans):
        assert text[start:end] == text[start:end].strip() != ""
        assert sum(-(-len(word) // MAX_WORD_CHARS) for word in text[start:end].split()) <= max_words
        covered[start:end] = [True] * (end - start)
        if i:
            assert spans[i - 1][0] < start and spans[i - 1][1] < end
            repeated = text[start : spans[i - 1][1]].split() if start < spans[i - 1][1] else []
            assert len(repeated) <= overlap
    assert all(seen or char.isspace() for seen, char in zip(covered, text, strict=True))


@SETTINGS
@given(WORDS)
def test_a_short_text_is_one_span(words: list[str]) -> None:
    text = " ".join(words)
    expected = [(len(text) - len(text.lstrip()), len(text.rstrip()))] if text.strip() else []
    assert chunk_spans(text, 200, 50) == expected


def test_a_run_without_spaces_is_cut() -> None:
    spans = chunk_spans("語" * 1000, 4, 1)
    assert max(b - a for a, b in spans) == 4 * MAX_WORD_CHARS
    assert spans[0][0] == 0 and spans[-1][1] == 1000


@pytest.mark.parametrize(("max_words", "overlap"), [(0, 0), (5, 5), (5, -1), (-3, 0)])
def test_bad_sizes(max_words: int, overlap: int) -> None:
    with pytest.raises(UsageError, match=r"given .*_words="):
        chunk_spans(TEXT, max_words, overlap)


@pytest.mark.parametrize("unit", [". ", "a ", "a", "A. ", "\n"])
def test_time_is_linear(unit: str, takes_linear_time: Callable[..., None]) -> None:
    takes_linear_time(lambda n: chunk_spans(unit * (n // len(unit))), 200_000)
