"""tokenize against the Snowball stemmer word by word; stop words; wrong versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import Stemmer

from gpu_rag.text.tokens import STOP_WORDS, tokenize


def check_tokenize(tokens_of: Callable[[str], list[str]]) -> None:
    stem = Stemmer.Stemmer("english").stemWord
    words = ["Running", "QUICKLY", "ponies", "happiness", "Straße", "relational", "Émigrés", "generously", "1984"]
    for word in words:
        assert tokens_of(word) == [stem(word.casefold())], word
    assert tokens_of(" ".join(words)) == [stem(w.casefold()) for w in words]
    assert tokens_of("The cats, and the (dogs)!") == ["cat", "dog"]
    assert tokens_of("tiger tiger") == ["tiger", "tiger"], "repeats count"
    assert tokens_of("") == tokens_of(" .,;: ") == tokens_of("The OF and") == []


def simple_tokens(text: str, stop: bool = True, fold: Any = str.casefold, stem: bool = True, once: bool = False):
    words = ["".join(c for c in w if c.isalnum()) for w in fold(text).split()]
    kept = [w for w in words if w and not (stop and w in {"the", "of", "and"})]
    kept = list(dict.fromkeys(kept)) if once else kept
    return Stemmer.Stemmer("english").stemWords(kept) if stem else kept


@pytest.mark.parametrize(
    "wrong", [{"stop": False}, {"fold": str}, {"fold": str.lower}, {"stem": False}, {"once": True}]
)
def test_wrong_tokenizers_are_caught(wrong: dict) -> None:
    with pytest.raises(AssertionError):
        check_tokenize(lambda text: simple_tokens(text, **wrong))


@pytest.mark.parametrize("tokens_of", [simple_tokens, tokenize])
def test_tokenize(tokens_of: Any) -> None:
    check_tokenize(tokens_of)


def test_stop_words() -> None:
    assert {"the", "of", "and", "a", "in", "is"} <= set(STOP_WORDS)
    assert all(w == w.casefold() and w.strip() == w and w for w in STOP_WORDS)
    assert not {"tiger", "film", "year", "king", "war"} & set(STOP_WORDS)
