"""Find the mentions of a sentence: names, quoted titles, dates, amounts, and the document's own title."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from gpu_rag.text.rules.extraction import lexicon
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
    opens,
    passage_words,
    tokenise,
)

MAX_NAME_TOKENS = 12
MAX_NAME_CHARS = 120
_ARTICLES = frozenset({"the", "a", "an"})
_OPENING = {'"': '"', "“": "”", "``": "''", "«": "»", "„": "“"}
YEAR = re.compile(r"(?:1\d|20)\d\d(?:s|[-/]\d{2,4})?")
ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DAY = re.compile(r"(?:[12]?\d|3[01])(?:st|nd|rd|th)?")
_SHORT_YEAR = re.compile(r"\d\d")
_RANGE_DASHES = frozenset({"-", "--", "–", "—", "/"})
_JOINING_DASHES = frozenset("–—‑‐-")
_AFTER_NAME = lexicon.PREPOSITIONS | lexicon.CONJUNCTIONS | lexicon.RELATIVES | lexicon.ADVERBS
_COMMON_ENDINGS = ("ly", "ing", "ed", "ment", "ments", "tion", "tions", "ness", "ity", "ities")

Sentence = tuple[tuple[Token, ...], tuple[Mention, ...]]  # tokens and mentions


@lru_cache(maxsize=8)  # a question is read several times
def read_sentences(text: str, *spans: tuple[int, int]) -> tuple[Sentence, ...]:
    """The tokens and the mentions of each sentence text[start:end]."""
    sentences = [tokenise(text, start, end) for start, end in spans]
    words = passage_words("", [], sentences)
    return tuple((tuple(tokens), tuple(find_mentions_in(text, tokens, words))) for tokens in sentences)


def find_mentions_in(text: str, tokens: Sequence[Token], words: PassageWords) -> list[Mention]:
    """The mentions of one sentence, left to right, not overlapping.

    text: the passage of the tokens' offsets. Time linear in the number of tokens.
    """
    mentions: list[Mention] = []
    quotes = _quotes(tokens)
    i, n = 0, len(tokens)
    while i < n:
        kind = tokens[i].kind
        is_plain = (kind == WORD and not words.title) or (kind == MARK and i not in quotes)  # most tokens of a question
        mention = None if is_plain else _mention_at(text, tokens, i, words, quotes)
        if mention is None:
            i += 1
            continue
        i = mention.last
        if mention.name:
            mentions.append(mention)
    return mentions


def _mention_at(
    text: str, tokens: Sequence[Token], i: int, words: PassageWords, quotes: dict[int, int]
) -> Mention | None:
    kind = tokens[i].kind
    if kind == MARK:
        return _quoted(text, tokens, i, quotes[i])
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
    """A mention with its surface text as its name; the name is "" if it is too long."""
    start, end = tokens[first].start, tokens[last - 1].end
    if end - start > MAX_NAME_CHARS or last - first > MAX_NAME_TOKENS:
        return Mention(first, last, "", kind)
    name = " ".join(text[start:end].split())
    if kind == NAMED and last - first > 1 and len(tokens[last - 1].text) == 2 and name.endswith("."):
        name = name[:-1]  # "vitamin C." at the end of a sentence
    return Mention(first, last, name, kind)


def _quotes(tokens: Sequence[Token]) -> dict[int, int]:
    """The position of the closing quote for each opening double quote of the sentence."""
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
    if last == first + 1 and tokens[first].low in lexicon.OPENERS:
        return None
    inner = _mention(text, tokens, first, last, QUOTED)
    return Mention(i, closer + 1, inner.name, QUOTED)


def _title_end(tokens: Sequence[Token], i: int, words: PassageWords) -> int:
    """The end of the document's title, in any case, if it begins at token i; else 0. A single word needs a capital."""
    title = words.title
    if not title or tokens[i].low != title[0] or (len(title) == 1 and tokens[i].kind == WORD):
        return 0
    last = i + len(title)
    if last > len(tokens) or any(tokens[i + k].low != low for k, low in enumerate(title)):
        return 0
    return last


def _number(text: str, tokens: Sequence[Token], i: int, words: PassageWords) -> Mention | None:
    """Money, an amount with a unit, a grouped number, or an ordinal that begins a name; never a percentage."""
    token, n = tokens[i], len(tokens)
    last = i + 1
    while last < n and (tokens[last].low in lexicon.SCALES or tokens[last].low in lexicon.UNITS) and last - i < 4:
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


# --- spans of dates and names: capitalised words, with small words and numbers inside ---


def date_end(tokens: Sequence[Token], i: int) -> int:
    """The end of a date that starts at token i, else 0: 3 May 1999, May 3, 1999, May 1999, 3 May, 1990s, 44 BC."""
    low, n = tokens[i].low, len(tokens)
    if tokens[i].kind == NUMBER:
        if i + 1 < n and tokens[i + 1].low in lexicon.MONTHS and tokens[i + 1].kind == NAME and _DAY.fullmatch(low):
            return _year_end(tokens, i + 2) or i + 2
        if i + 1 < n and tokens[i + 1].low in lexicon.ERAS and tokens[i + 1].text.isupper():
            return i + 2
        if i + 1 < n and tokens[i + 1].low in ("century", "centuries", "millennium") and ORDINAL.fullmatch(low):
            return i + 2
        if not _is_year(tokens, i):
            return 0
        season = i + 2 < n and tokens[i + 1].text in _RANGE_DASHES and _SHORT_YEAR.fullmatch(tokens[i + 2].low)
        return i + 3 if season else i + 1
    if low not in lexicon.MONTHS or i + 1 >= n:
        return 0
    if _DAY.fullmatch(tokens[i + 1].low):
        return _year_end(tokens, i + 2) or i + 2
    return _year_end(tokens, i + 1)


def _year_end(tokens: Sequence[Token], i: int) -> int:
    """The end of [of | ,] year if it begins at token i, else 0."""
    if i < len(tokens) and tokens[i].text in (",", "of"):
        i += 1
    return i + 1 if i < len(tokens) and YEAR.fullmatch(tokens[i].low) else 0


def _is_year(tokens: Sequence[Token], i: int) -> bool:
    if not YEAR.fullmatch(tokens[i].low):
        return False
    return i + 1 == len(tokens) or (tokens[i + 1].low not in lexicon.UNITS and tokens[i + 1].low not in lexicon.SCALES)


def name_span(tokens: Sequence[Token], i: int, words: PassageWords) -> tuple[int, int] | None:
    """(first, last) of the name that starts at token i; None if the word has a capital only because it begins a
    sentence.

    first is i, or i + 1 if a rank is left out.
    """
    token = tokens[i]
    if opens(tokens, i):
        if token.low in lexicon.OPENERS and not _is_the_of_name(tokens, i):
            return None
        last = _span_end(tokens, i)
        numbered = last == i + 2 and tokens[i + 1].kind == NUMBER
        if (last == i + 1 or numbered) and not _is_name_alone(tokens, i, words):
            return None
    else:
        begins = i + 1 < len(tokens) and tokens[i + 1].kind == NAME  # "Per Dahl", "The Larks"
        if token.text == "I" or (token.low in lexicon.OPENERS and not begins and token.text != "US"):
            return None
        last = _span_end(tokens, i)
    if token.low in lexicon.RANKS and last - i > 2 and tokens[i + 1].kind == NAME:
        i += 1  # "Captain Ada Holm" is Ada Holm elsewhere
    if _is_common(tokens, i, last):
        return None
    return i, last


def _is_common(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether a capitalised word alone names nothing ("the Team", "in March"): its normal form is the word."""
    token = tokens[first]
    if token.low == "the" and last == first + 2:
        return tokens[first + 1].low in lexicon.COMMON or tokens[first + 1].low in lexicon.ANAPHORS
    if last > first + 1:
        # At most four words, so that a page of capital A's is not read again from each of them.
        return (
            last <= first + 4
            and token.low != "the"
            and all(tokens[k].low in lexicon.OPENERS for k in range(first, last))
        )
    if len(token.text) < 2 or token.low in lexicon.MONTHS or token.low in lexicon.SUFFIXES:
        return True
    return token.text != "US" and (
        token.low in lexicon.OPENERS or token.low in lexicon.COMMON or token.low in lexicon.ANAPHORS
    )


def _is_the_of_name(tokens: Sequence[Token], i: int) -> bool:
    """Whether token i is a capital The inside a sentence, before a capital ("a member of The Larks")."""
    return tokens[i].low == "the" and i > 0 and i + 1 < len(tokens) and tokens[i + 1].kind == NAME


def _is_name_alone(tokens: Sequence[Token], i: int, words: PassageWords) -> bool:
    """Whether one capitalised word that opens a sentence is a name, by the passage's words and the word lists."""
    token, low = tokens[i], tokens[i].low
    if low in words.inside or token.text[1:] != token.text[1:].lower() or low in lexicon.ORIGINS:
        return True
    if low in lexicon.COMMON or low in words.small:
        return low in words.title and low not in words.small
    if lexicon.is_verb(low, "") or low.endswith(_COMMON_ENDINGS):
        return False
    after = tokens[i + 1] if i + 1 < len(tokens) else None
    noun_behind = (
        after is not None and after.kind == WORD and after.low not in _AFTER_NAME and not lexicon.is_verb(after.low, "")
    )
    return not noun_behind or low in words.title or low.endswith(lexicon.ORIGIN_ENDINGS)


def _span_end(tokens: Sequence[Token], i: int) -> int:
    """The end of the name that starts at token i: one past its last token."""
    n, last = len(tokens), i + 1
    while last < n:
        if tokens[last - 1].possessive and not _joins_possessive(tokens, i, last):
            break
        step = _extension(tokens, i, last)
        if step == 0:
            break
        last += step
    return last


def _joins_possessive(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether the possessive before token `last` stays inside a name ("St. Olaf's Church", "Women's League")."""
    owner = tokens[last - 1].low
    saint = last >= 2 and tokens[last - 2].low in ("st.", "st", "saint")
    if tokens[last].kind != NAME:
        return False
    alone = last == first + 1 and tokens[last].low in lexicon.OWNED
    return saint or alone or f"{owner}'s" in lexicon.JOINED_POSSESSIVES


def _extension(tokens: Sequence[Token], first: int, last: int) -> int:
    """The number of tokens from `last` on that continue the name tokens[first:last]; 0 if it ends."""
    token, n = tokens[last], len(tokens)
    if token.kind == NAME:
        return 0 if token.low in lexicon.MONTHS and date_end(tokens, last) else 1
    if token.kind == NUMBER:
        return 1 if _number_joins(tokens, last) else 0
    named = last + 1 < n and tokens[last + 1].kind == NAME
    if named and (token.text == "&" or (token.text == "," and tokens[last + 1].low in lexicon.SUFFIXES)):
        return 2
    if named and token.text in _JOINING_DASHES:
        touching = tokens[last - 1].end == token.start and token.end == tokens[last + 1].start
        return 2 if touching else 0
    if token.text == "," and tokens[last - 1].low in ("act", "treaty", "agreement", "convention"):
        return 2 if last + 1 < n and YEAR.fullmatch(tokens[last + 1].low) else 0
    if token.kind != WORD:
        return 0
    return _pair(tokens, first, last) or _inner_words(tokens, first, last)


def _pair(tokens: Sequence[Token], first: int, last: int) -> int:
    """The number of tokens that join two names into one ("and Tobago" after "Trinidad"), else 0."""
    n = len(tokens)
    if tokens[last].low != "and" or last + 1 >= n or tokens[last + 1].kind != NAME or tokens[last - 1].possessive:
        return 0
    if (tokens[last - 1].low, tokens[last + 1].low) in lexicon.PAIRS:
        return 2
    end = last + 2
    while end < n and end < last + 4 and tokens[end].kind == NAME and not tokens[end - 1].possessive:
        end += 1
    single = last == first + 1
    return end - last if single and end > last + 2 and tokens[end - 1].low in lexicon.PAIR_ENDS else 0


def _number_joins(tokens: Sequence[Token], last: int) -> bool:
    """Whether a number belongs to a name ("Apollo 11"); not a year, a day of a month or an amount."""
    token = tokens[last]
    if tokens[last - 1].low in lexicon.MONTHS or YEAR.fullmatch(token.low):
        return False
    if tokens[last - 1].low in lexicon.NUMBERED:
        return token.text.isalnum()
    after = tokens[last + 1] if last + 1 < len(tokens) else None
    if after is not None and after.kind == WORD and not lexicon.is_verb(after.low, "") and after.low not in _AFTER_NAME:
        return False
    return token.text.isalnum() and len(token.text) <= 5 and not ORDINAL.fullmatch(token.low)


def _inner_words(tokens: Sequence[Token], first: int, last: int) -> int:
    """The number of small words, and the capital after them, that continue a name; 0 if they do not."""
    n, low = len(tokens), tokens[last].low
    if low in ("for", "on"):
        if not any(tokens[k].low in lexicon.HEADS for k in range(first, last)):
            return 0
    elif low == "and":
        span = {tokens[k].low for k in range(first, last)}
        if not (span & lexicon.FIELD_HEADS and span & {"of", "for"}):
            return 0
    elif low not in lexicon.INNER:
        return 0
    k = last + 1
    while (
        k < n and k - last < 3 and tokens[k].kind == WORD and (tokens[k].low in lexicon.INNER or tokens[k].low == "the")
    ):
        k += 1
    if k >= n or (tokens[k - 1].low == "the" and low not in ("of", "for", "on", "upon")):
        return 0
    if tokens[k].kind == NAME and tokens[k].low not in lexicon.MONTHS:
        return k - last + 1
    dated = low == "of" and tokens[last - 1].low in lexicon.DATED_HEADS and tokens[k].kind == NUMBER
    return k - last + 1 if dated else 0
