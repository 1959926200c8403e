"""The state of reading a sentence, its brackets, and the words between two mentions made words of a relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_rag.text.rules.extraction.lexicon import (
    ADVERBS,
    ANAPHORS,
    CONJUNCTIONS,
    COPULAS,
    DETERMINERS,
    PREPOSITIONS,
    PRONOUNS,
    RANKS,
    RELATIVES,
    SUBJECT_PRONOUNS,
    first_verb,
    is_verb,
)
from gpu_rag.text.rules.extraction.tokens import DATE, MARK, NAME, WORD, Mention, Token

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
    """The classes that "is a" gives the subject: ["Dutch painter"] of "was a Dutch painter and poet from".

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
    """The start of the last clause of a gap, as far as a pronoun with a verb behind it tells; else 0."""
    for i in range(len(words) - 2, 0, -1):
        if words[i] in SUBJECT_PRONOUNS and first_verb(words[i + 1 :]) >= 0:
            return i + 1
    return 0


Triple = tuple[str, str, str]

ALSO_CALLED = "also called"
MAX_SUBJECTS = 6
_MAX_DEPTH = 8
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")
_DASHES = frozenset({"-", "--", "–", "—"})


@dataclass
class Clause:
    """A clause as far as it has been read.

    subjects: who the clause is about; local: who the last verb was about (of "who married ...", the name before it).
    verb: the last verb group. head: the noun before a name in subject position ("capital" of "the capital of").
    pending: (preposition, name) read before any subject. listed: what further items of a list attach to.
    life: "born" or "died" inside a bracket with dates of life.
    """

    subjects: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    verb: str = ""
    head: str = ""
    pending: list[tuple[str, str]] = field(default_factory=list)
    listed: tuple[list[str], str] | None = None
    life: str = ""


class Reader:
    """The state of reading one sentence: the clause at hand, those around its bracket, and the triples so far."""

    def __init__(self, text: str, tokens: Sequence[Token], title: str):
        self.text, self.tokens = text, tokens
        self.missing = [title] if title else []
        self.triples: list[Triple] = []
        self.clause = Clause()
        self.stack: list[tuple[Clause, str]] = []
        self.left = ""
        self.main_begun = False

    # --- writing down ---

    def emit(self, subjects: Sequence[str], relation: str, name: str) -> None:
        if relation and name:
            self.triples.extend((s, relation, name) for s in subjects[:MAX_SUBJECTS] if s and s != name)

    def flush(self, verb: str) -> None:
        """Attach what stood before the subject ("In 1990,") to the verb."""
        for preposition, name in self.clause.pending:
            self.emit(self.clause.subjects, f"{verb} {preposition}", name)
        self.clause.pending = []

    def emit_classes(self, subjects: Sequence[str], copula: int) -> None:
        for name in classes(self.text, self.tokens, copula):
            self.emit(subjects, self.tokens[copula].low, name)

    def after(self, mention: Mention) -> str:
        return self.tokens[mention.last].text if mention.last < len(self.tokens) else ""

    # --- brackets ---

    def brackets(self, start: int, end: int) -> tuple[int, bool]:
        """Enter and leave brackets in tokens[start:end]; where the words behind the last one start, and whether it
        opens."""
        opened = False
        for i in range(start, end):
            token = self.tokens[i]
            if token.kind != MARK or (token.text not in _OPEN and token.text not in _CLOSE):
                continue
            start = i + 1
            if token.text in _OPEN and len(self.stack) < _MAX_DEPTH:
                self.stack.append((self.clause, self.left))
                self.clause = Clause([self.left], [self.left]) if self.left else Clause()
                opened = True
            elif token.text in _CLOSE and self.stack:
                self.clause, self.left = self.stack.pop()
                opened = False
        return start, opened

    def in_brackets(self, words: list[str], mention: Mention) -> None:
        """The first mention behind a bracket: a year, an abbreviation, or what a preposition ties to the name."""
        relation = phrase(words)
        if not relation and mention.kind == DATE:
            relation = "in"
        elif not relation and abbreviates(mention.name, self.left):
            relation = ALSO_CALLED
        self.emit(self.clause.local, relation, mention.name)
        self.clause.listed = (self.clause.local, relation) if relation else None

    def life(self, words: list[str], mention: Mention, following: Mention | None) -> bool:
        """Whether a bracket opens with a date of birth or death; if so, write it down."""
        clause = self.clause
        if not self.left or (mention.kind != DATE and words != ["born"]):
            return False
        if words[:1] in (["born"], ["b"], ["*"]):
            clause.life = "born"
        elif words[:1] in (["died"], ["d"], ["†"]):
            clause.life = "died"
        elif self._spans_life(mention, following):
            clause.life = "born"
        else:
            return False
        clause.verb = clause.life
        self.emit(clause.local, clause.life if mention.kind == DATE else "born as", mention.name)
        return True

    def _spans_life(self, mention: Mention, following: Mention | None) -> bool:
        """A dash and a second date before the bracket closes; years alone count only for the sentence's first name."""
        if following is None:
            return False
        full = mention.last - mention.first > 1
        if not full and (mention.first > 12 or len(self.stack) > 1):
            return False
        for token in self.tokens[mention.last : mention.last + 16]:
            if token.text in _CLOSE:
                return False
            if token.text in _DASHES:
                return full or (following.kind == DATE and self._was_behind(following))
        return False

    def _was_behind(self, date: Mention) -> bool:
        """Whether ") was" or ") is" follows: the bracket belongs to what the sentence defines."""
        tail = [t.low for t in self.tokens[date.last : date.last + 2]]
        return len(tail) == 2 and tail[0] in _CLOSE and tail[1] in COPULAS

    def life_goes_on(self, words: list[str], mention: Mention) -> None:
        """Further dates and places in a bracket with dates of life: "in Oslo", "– 3 May 1999"."""
        clause = self.clause
        if any(w in _DASHES for w in words):
            clause.life = clause.verb = "died"
        content = content_words(words)
        if mention.kind == DATE:
            self.emit(clause.local, clause.life, mention.name)
        elif content and content[-1] in PREPOSITIONS:
            self.emit(clause.local, f"{clause.life} {content[-1]}", mention.name)
        elif words == [","]:
            self.emit([self.left], "in", mention.name)
