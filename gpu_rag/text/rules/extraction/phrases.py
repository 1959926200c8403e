"""Turn the words between two mentions into the words of a relation."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import (
    ADVERBS,
    ANAPHORS,
    CONJUNCTIONS,
    DETERMINERS,
    PREPOSITIONS,
    PRONOUNS,
    RANKS,
    RELATIVES,
    SUBJECT_PRONOUNS,
)
from gpu_rag.text.rules.extraction.tokens import MARK, NAME, WORD, Token
from gpu_rag.text.rules.extraction.verbs import first_verb, is_verb

MAX_RELATION_WORDS = 8
MAX_GAP_TOKENS = 24
_MAX_CLASS_TOKENS = 6
_MAX_CLASSES = 6
_NO_CONTENT = DETERMINERS | ADVERBS | RANKS
_CLAUSE_OPENERS = frozenset({"that", "when", "while", "where", "because", "although", "though", "if", "whereas"})
_SILENT = _NO_CONTENT | CONJUNCTIONS
_NOT_SUBJECT = DETERMINERS | PRONOUNS | CONJUNCTIONS | RELATIVES | ADVERBS
_NOT_CLASS = PREPOSITIONS | PRONOUNS | RELATIVES | CONJUNCTIONS


def content_words(words: Sequence[str]) -> list[str]:
    """Words of a gap without marks, determiners, adverbs and ranks ("by President", then a name)."""
    return [w for w in words if w[0].isalnum() and w not in _NO_CONTENT]


def subject_words(words: Sequence[str]) -> list[str]:
    """The noun phrase before a verb, as the relation's first words: "mother" of "his mother was".

    At most its last three words; none for an anaphor ("the film was") and for a phrase that a preposition opens.
    """
    kept = [w for w in words if w[0].isalnum() and w not in _NOT_SUBJECT]
    if not kept or (len(kept) == 1 and kept[0] in ANAPHORS) or kept[0] in PREPOSITIONS:
        return []
    return kept[-3:]


def verb_group(words: Sequence[str], verb: int) -> str:
    """Auxiliaries and verbs from index `verb` on, without adverbs: "was born" of "was later born in"."""
    group, before = [words[verb]], words[verb]
    for low in words[verb + 1 : verb + 6]:
        if low in ADVERBS:
            continue
        if not is_verb(low, before):
            break
        group.append(low)
        before = low
    return " ".join(group)


def phrase(words: Sequence[str]) -> str:
    """The words of a gap that say something: no marks, determiners, conjunctions, adverbs; the last 8 of them."""
    return " ".join([w for w in words if w[0].isalnum() and w not in _SILENT][-MAX_RELATION_WORDS:])


def verb_phrase(head: Sequence[str], words: Sequence[str], group: str) -> str:
    """The relation of a gap that begins with a verb: `head` (its subject's noun), then the gap's words.

    More than 8 words are cut down to head, verb and closing preposition. "" when the gap is too long to relate.
    """
    if len(words) > MAX_GAP_TOKENS:
        return ""
    kept = [w for w in words if w[0].isalnum() and w not in DETERMINERS and w not in ADVERBS]
    if len(head) + len(kept) <= MAX_RELATION_WORDS:
        return " ".join([*head, *kept])
    last = [kept[-1]] if kept[-1] in PREPOSITIONS else []
    return short(" ".join([*head, group, *last]))


def short(relation: str) -> str:
    """The first 8 words."""
    return " ".join(relation.split()[:MAX_RELATION_WORDS])


def abbreviates(abbreviation: str, name: str) -> bool:
    """Whether `abbreviation` is made of the initials of the capitalised words of `name`."""
    letters = "".join(c for c in abbreviation if c.isalpha()).casefold()
    initials = "".join(w[0] for w in name.split() if w[0].isupper()).casefold()
    return len(letters) > 1 and letters == initials


def classes(text: str, tokens: Sequence[Token], copula: int) -> list[str]:
    """What "is a" says that the subject is: ["Dutch painter"] of "was a Dutch painter and poet from".

    copula: index of is/was/are/were in `tokens`. Only behind "a" or "an"; a class ends with a word in small letters and
    has 2 to 6 words (a single one, "city", is shared by too many to tell anything); at most 6 classes.
    """
    found: list[str] = []
    i = copula + 1
    while i < len(tokens) and tokens[i].low in ADVERBS:
        i += 1
    if i >= len(tokens) or tokens[i].low not in ("a", "an"):
        return found
    for _ in range(_MAX_CLASSES):
        i += 1
        last = _class_end(tokens, i)
        if last == i or tokens[last - 1].kind != WORD:
            break
        if last > i + 1:
            found.append(" ".join(text[tokens[i].start : tokens[last - 1].end].split()))
        i = last
        while i + 1 < len(tokens) and tokens[i].low in (",", "and", "or") and tokens[i + 1].low in (",", "and", "or"):
            i += 1
        if i >= len(tokens) or tokens[i].low not in (",", "and", "or"):
            break
        if i + 1 < len(tokens) and tokens[i + 1].low in ("a", "an"):
            i += 1
    return found


def _class_end(tokens: Sequence[Token], first: int) -> int:
    """One past the noun phrase that starts at `first`, which has no article; `first` when there is none."""
    before = "a"
    for i in range(first, min(len(tokens), first + _MAX_CLASS_TOKENS + 1)):
        token = tokens[i]
        following = tokens[i + 1] if i + 1 < len(tokens) else None
        if token.kind == MARK or token.low in _NOT_CLASS or token.low in DETERMINERS or token.possessive:
            return i
        adjective = following is not None and following.kind in (WORD, NAME) and following.low not in _NOT_CLASS
        if token.kind == WORD and is_verb(token.low, before) and not (adjective and token.low.endswith("ed")):
            return i
        before = token.low
    return first


def opens_clause(words: Sequence[str]) -> bool:
    """Whether the mention behind a gap begins a clause: "..., when", "... said that the"."""
    spoken = [w for w in words if w not in DETERMINERS or w == "that"]
    return bool(spoken) and spoken[-1] in _CLAUSE_OPENERS


def last_clause(words: Sequence[str]) -> int:
    """Where the last clause of a gap starts, as far as a pronoun with a verb behind it tells; else 0."""
    for i in range(len(words) - 2, 0, -1):
        if words[i] in SUBJECT_PRONOUNS and first_verb(words[i + 1 :]) >= 0:
            return i + 1
    return 0
