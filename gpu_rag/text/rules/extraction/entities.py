"""Find what a sentence speaks of: names, quoted titles, dates, amounts, and the document's own title."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import (
    OPENERS,
    SCALES,
    UNITS,
)
from gpu_rag.text.rules.extraction.names import ORDINAL, date_end, name_span
from gpu_rag.text.rules.extraction.tokens import (
    AMOUNT,
    DATE,
    MARK,
    NAME,
    NAMED,
    NUMBER,
    QUOTED,
    TITLE,
    WORD,
    Mention,
    PassageWords,
    Token,
)

MAX_NAME_TOKENS = 12
MAX_NAME_CHARS = 120
_ARTICLES = frozenset({"the", "a", "an"})
_OPENING = {'"': '"', "“": "”", "``": "''", "«": "»", "„": "“"}


def find_mentions_in(text: str, tokens: Sequence[Token], words: PassageWords) -> list[Mention]:
    """Mentions of one sentence, left to right, not overlapping.

    text: the passage that the tokens' offsets refer to. Time linear in the number of tokens.
    """
    mentions: list[Mention] = []
    quotes = _quotes(tokens)
    i, n = 0, len(tokens)
    while i < n:
        found = _mention_at(text, tokens, i, words, quotes)
        if found is None:
            i += 1
            continue
        i = found.last
        if found.name:
            mentions.append(found)
    return mentions


def _mention_at(
    text: str, tokens: Sequence[Token], i: int, words: PassageWords, quotes: dict[int, int]
) -> Mention | None:
    kind = tokens[i].kind
    if kind == MARK:
        return _quoted(text, tokens, i, quotes[i]) if i in quotes else None
    title = _title_end(tokens, i, words)
    if kind == WORD or (kind == NUMBER and title):
        return Mention(i, title, words.title_name, TITLE) if title else None
    last = date_end(tokens, i)
    if last == i + 1 and i > 0 and tokens[i - 1].low in _ARTICLES and last < len(tokens) and tokens[last].kind == NAME:
        edition = name_span(tokens, last, words)
        if edition is not None:  # "the 1924 Winter Games"
            return _mention(text, tokens, i, edition[1], NAMED)
    if last:
        return _mention(text, tokens, i, last, DATE)
    if kind == NUMBER:
        return _number(text, tokens, i, words)
    span = name_span(tokens, i, words)
    if title and (span is None or title >= span[1]):
        return Mention(i, title, words.title_name, TITLE)
    return _mention(text, tokens, *span, NAMED) if span else None


def _mention(text: str, tokens: Sequence[Token], first: int, last: int, kind: int) -> Mention:
    """A mention with its surface as name; the name is "" when it is too long to be one."""
    start, end = tokens[first].start, tokens[last - 1].end
    if end - start > MAX_NAME_CHARS or last - first > MAX_NAME_TOKENS:
        return Mention(first, last, "", kind)
    name = " ".join(text[start:end].split())
    if kind == NAMED and last - first > 1 and len(tokens[last - 1].text) == 2 and name.endswith("."):
        name = name[:-1]  # "vitamin C." at the end of a sentence
    return Mention(first, last, name, kind)


def _quotes(tokens: Sequence[Token]) -> dict[int, int]:
    """For each opening double quote of the sentence, where its partner is."""
    pairs: dict[int, int] = {}
    opener, closing = -1, ""
    for i, token in enumerate(tokens):
        if token.kind != MARK:
            continue
        if opener >= 0 and (token.text == closing or (closing == "''" and token.text == '"')):
            pairs[opener] = i
            opener = -1
        elif token.text in _OPENING and opener < 0:
            opener, closing = i, _OPENING[token.text]
    return pairs


def _quoted(text: str, tokens: Sequence[Token], i: int, closer: int) -> Mention | None:
    """A short quotation that begins with a capital or a digit: a title or a nickname."""
    first, last = i + 1, closer
    while last > first and tokens[last - 1].kind == MARK and tokens[last - 1].text in ",.;:":
        last -= 1
    if not 0 < last - first <= MAX_NAME_TOKENS or tokens[first].kind not in (NAME, NUMBER):
        return None
    if last == first + 1 and tokens[first].low in OPENERS:
        return None
    inner = _mention(text, tokens, first, last, QUOTED)
    return Mention(i, closer + 1, inner.name, QUOTED)


def _title_end(tokens: Sequence[Token], i: int, words: PassageWords) -> int:
    """The end of the document's title if it stands at token i, in any case; else 0. A single word needs a capital."""
    title = words.title
    if not title or tokens[i].low != title[0] or (len(title) == 1 and tokens[i].kind == WORD):
        return 0
    last = i + len(title)
    if last > len(tokens) or any(tokens[i + k].low != low for k, low in enumerate(title)):
        return 0
    return last


def _number(text: str, tokens: Sequence[Token], i: int, words: PassageWords) -> Mention | None:
    """An amount with its unit or of money, a grouped number, an ordinal that starts a name; no percentage."""
    token, n = tokens[i], len(tokens)
    last = i + 1
    while last < n and (tokens[last].low in SCALES or tokens[last].low in UNITS) and last - i < 4:
        last += 1
    if token.text[-1] == "%" or (last < n and tokens[last].text == "%"):
        return None
    if last > i + 1 or token.text[0] in "$€£¥" or "," in token.text:
        return _mention(text, tokens, i, last, AMOUNT)
    if last < n and tokens[last].kind == NAME and ORDINAL.fullmatch(token.low):
        span = name_span(tokens, last, words)
        if span is not None:
            return _mention(text, tokens, i, span[1], NAMED)
    return None
