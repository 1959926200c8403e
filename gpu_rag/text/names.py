"""The names in a text: what named entity recognition without a model finds."""

from __future__ import annotations

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction.entities import find_mentions_in
from gpu_rag.text.rules.extraction.mentions import passage_words
from gpu_rag.text.rules.extraction.tokens import tokenise
from gpu_rag.text.sentences import split_sentences
from gpu_rag.text.tokens import STOP_WORDS


def names(text: str) -> frozenset[str]:
    """Names, quoted titles, dates, amounts and numbers of `text` as whole phrases, under `normalise_name`.

    The part of `gpu_rag.text.keywords` that is no single content word. Deterministic, linear; may be empty.

    >>> sorted(names("Which river crosses Port Maru since 3 May 1904?"))
    ['3 may 1904', 'port maru']
    """
    sentences = [tokenise(text, start, end) for start, end in split_sentences(text)]
    words = passage_words("", [], sentences)
    found = {normalise_name(m.name) for tokens in sentences for m in find_mentions_in(text, tokens, words)}
    return frozenset(found - {""} - STOP_WORDS)
