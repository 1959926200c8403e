"""Names and keywords of a text, for comparing texts by topic: named entity recognition without a model."""

from __future__ import annotations

import re

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction.entities import Sentence, read_sentences
from gpu_rag.text.rules.extraction.lexicon import ADVERBS
from gpu_rag.text.rules.extraction.tokens import MARK, NUMBER
from gpu_rag.text.sentences import split_sentences
from gpu_rag.text.tokens import STOP_WORDS, one_form_of_dates

_SILENT = STOP_WORDS | ADVERBS
_MAX_WORD_CHARS = 64
_DATED = re.compile(r"\d{4}|^\d")


def names(text: str) -> frozenset[str]:
    """Names, quoted titles, dates (in one form), amounts and numbers of `text` as phrases, under `normalise_name`.

    This is `keywords` without single content words. Deterministic, linear; may be empty.

    >>> sorted(names("Which river crosses Port Maru since 3 May 1904?"))
    ['3 may 1904', 'port maru']
    """
    phrases = {
        normalise_name(mention.name) for _, mentions in _sentences(one_form_of_dates(text)) for mention in mentions
    }
    return frozenset(phrases - {""} - STOP_WORDS)


def written_names(text: str) -> list[str]:
    """The distinct names in `text` as written, in order, without dates and numbers.

    >>> written_names("Hugo Brandt founded the University of Loss in 1871.")
    ['Hugo Brandt', 'University of Loss']
    """
    written = (mention.name for _, mentions in _sentences(text) for mention in mentions)
    return list(dict.fromkeys(name for name in written if any(map(str.isupper, name)) and not _DATED.search(name)))


def keywords(text: str) -> frozenset[str]:
    """Names, quoted titles, dates, amounts and numbers of `text` as whole phrases, and its other content words.

    All are under `normalise_name`. A content word has 2 to 64 characters and is neither a stop word nor an adverb such
    as "formerly". The words of a whole phrase do not count again. Words keep their endings.

    text: a question or a passage, English. Returns a set; empty for a text without content. Deterministic, linear.

    >>> sorted(keywords("Which river crosses Port Maru since 3 May 1904?"))
    ['3 may 1904', 'crosses', 'port maru', 'river']
    """
    result: set[str] = set()
    for tokens, mentions in _sentences(one_form_of_dates(text)):
        covered: set[int] = set()
        for mention in mentions:
            covered.update(range(mention.first, mention.last))
            result.add(normalise_name(mention.name))
        for i, token in enumerate(tokens):
            if i in covered or token.kind == MARK or token.low in _SILENT:
                continue
            if token.kind == NUMBER or 2 <= len(token.text) <= _MAX_WORD_CHARS:
                result.add(normalise_name(token.text[:_MAX_WORD_CHARS]))
    return frozenset(result - {""} - _SILENT)


def _sentences(text: str) -> tuple[Sentence, ...]:
    """The tokens and mentions of each sentence."""
    return read_sentences(text, *split_sentences(text))
