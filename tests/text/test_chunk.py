"""Chunks with long words, and their time; wrong versions: tests/oracle/test_spans.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text.chunk import MAX_WORD_CHARS, chunk_spans

SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)
TEXT = "One two three. Four five. Six seven eight. Nine ten. Eleven twelve thirteen fourteen."


def pieces(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[a:b] for a, b in spans]


def test_by_hand() -> None:
    assert pieces(TEXT, chunk_spans(TEXT, 5, 2)) == [
        "One two three. Four five.",
        "Four five. Six seven eight.",
        "Nine ten.",
        "Eleven twelve thirteen fourteen.",
    ]
    assert pieces("a b c d e f g", chunk_spans("a b c d e f g", 4, 2)) == ["a b c d", "c d e f", "e f g"]


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


def test_a_run_without_spaces_is_cut() -> None:
    spans = chunk_spans("語" * 1000, 4, 1)
    assert max(b - a for a, b in spans) == 4 * MAX_WORD_CHARS
    assert spans[0][0] == 0 and spans[-1][1] == 1000


@pytest.mark.parametrize("unit", [". ", "a ", "a", "A. ", "\n"])
def test_time_is_linear(unit: str, takes_linear_time: Callable[..., None]) -> None:
    takes_linear_time(lambda n: chunk_spans(unit * (n // len(unit))), 200_000)
