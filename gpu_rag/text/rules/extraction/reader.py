"""What is kept while a sentence is read from left to right, and how brackets in it are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_rag.text.rules.extraction.lexicon import COPULAS, PREPOSITIONS
from gpu_rag.text.rules.extraction.mentions import DATE, Mention
from gpu_rag.text.rules.extraction.phrases import abbreviates, classes, content_words, phrase
from gpu_rag.text.rules.extraction.tokens import MARK, Token

Triple = tuple[str, str, str]

ALSO_CALLED = "also called"
MAX_SUBJECTS = 6
_MAX_DEPTH = 8
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")
_DASHES = frozenset({"-", "--", "–", "—"})


@dataclass
class Clause:
    """What has been read of a clause.

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
