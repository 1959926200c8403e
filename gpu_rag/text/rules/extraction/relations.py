"""Read the relations of one sentence off the words between its mentions."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import (
    ADVERBS,
    AUXILIARIES,
    CLAUSE_PRONOUNS,
    CONJUNCTIONS,
    COPULAS,
    DETERMINERS,
    INNER,
    LEADING,
    NOT_ORIGINS,
    ORIGIN_ENDINGS,
    ORIGINS,
    PLACE_PREPOSITIONS,
    POSSESSIVES,
    PREPOSITIONS,
    RELATIVES,
    SUBJECT_PRONOUNS,
    SUBORDINATORS,
    first_verb,
)
from gpu_rag.text.rules.extraction.reader import (
    MAX_SUBJECTS,
    Reader,
    Triple,
    content_words,
    last_clause,
    opens_clause,
    phrase,
    short,
    subject_words,
    verb_group,
    verb_phrase,
)
from gpu_rag.text.rules.extraction.tokens import AMOUNT, DATE, NAME, NAMED, NUMBER, Mention, Token

_MAX_LIST_TOKENS = 32
_LIST_WORDS = frozenset({"and", "or", "&", "nor"})
_MAX_SUBJECT_WORDS = 5
_LEADING = PREPOSITIONS | ADVERBS | LEADING
_NO_NOUN = PREPOSITIONS | CONJUNCTIONS | RELATIVES | DETERMINERS
_ARTICLES = frozenset({"a", "an", "the", "one"})


def sentence_triples(text: str, tokens: Sequence[Token], mentions: Sequence[Mention], title: str) -> list[Triple]:
    """(subject, relation, object) of one sentence, in text order; may repeat.

    text: the passage. mentions: of `tokens`, left to right, with the names that they stand for. title: subject of
    sentences that begin with a pronoun or "The film", and of others whose subject is no mention; "" for none. Linear
    in the tokens.
    """
    walk = _Walk(text, tokens, title)
    mentions = spoken_of(tokens, mentions)
    for i, mention in enumerate(mentions):
        walk.step(mentions[i - 1] if i else None, mention, mentions[i + 1] if i + 1 < len(mentions) else None)
    walk.finish(mentions[-1] if mentions else None)
    return walk.triples


def spoken_of(tokens: Sequence[Token], mentions: Sequence[Mention]) -> list[Mention]:
    """`mentions` without adjectives of origin inside a larger noun phrase: "Danish" in "the Danish port of Ribe"."""
    kept: list[Mention] = []
    for i, mention in enumerate(mentions):
        following = mentions[i + 1] if i + 1 < len(mentions) else None
        if following is None or not _is_adjective(tokens, mention):
            kept.append(mention)
            continue
        words = [t.low for t in tokens[mention.last : following.first]]
        noun = [w for w in words if w != "of"]
        within = bool(noun) and len(words) <= 4 and all(w.isalpha() and w not in _NO_NOUN for w in noun)
        if not within or first_verb(["a", *words]) >= 0:
            kept.append(mention)
    return kept


def _is_adjective(tokens: Sequence[Token], mention: Mention) -> bool:
    token = tokens[mention.first]
    if mention.kind != NAMED or mention.last - mention.first > 1 or token.possessive:
        return False
    return token.low in ORIGINS or (token.low.endswith(ORIGIN_ENDINGS) and token.low not in NOT_ORIGINS)


class _Walk(Reader):
    """The state of reading one sentence from left to right."""

    def step(self, before: Mention | None, mention: Mention, following: Mention | None) -> None:
        """Take in the words between two mentions, and the second of them."""
        start = before.last if before else 0
        self.left = before.name if before else ""
        start, opened = self.brackets(start, mention.first)
        words = [t.low for t in self.tokens[start : mention.first]]
        verb = first_verb(words)
        if opened and self.life(words, mention, following):
            return
        if self.clause.life and verb < 0:
            self.life_goes_on(words, mention)
        elif opened and verb < 0:
            self.in_brackets(words, mention)
        elif before is None:
            self._first(words, verb, mention, start)
        elif verb >= 0:
            self._verb(words, mention, start)
        elif not self.clause.subjects:
            self._before_subject(words, before, mention)
        else:
            self._no_verb(words, before, mention)

    def finish(self, last: Mention | None) -> None:
        """Take in the words behind the last mention."""
        start = last.last if last else 0
        self.left = last.name if last else ""
        start, _ = self.brackets(start, len(self.tokens))
        words = [t.low for t in self.tokens[start:]]
        verb = first_verb(words)
        if verb < 0:
            return
        clause = self.clause
        if not clause.subjects:
            clause.subjects = clause.local = self.missing
        if words[verb] in COPULAS and not any(w in RELATIVES for w in words[:verb]):
            self.emit_classes(clause.subjects, start + verb)
        self.flush(verb_group(words, verb))

    # --- a sentence's beginning ---

    def _first(self, words: list[str], verb: int, mention: Mention, start: int) -> None:
        clause = self.clause
        if verb >= 0:
            clause.subjects = clause.local = self.missing
            if words[verb] in COPULAS:
                self.emit_classes(clause.subjects, start + verb)
            self._emit_verb(clause.subjects, subject_words(words[:verb]), words[verb:], mention)
            return
        content = content_words(words)
        if not content or content[-1] not in PREPOSITIONS:
            if mention.kind in (DATE, AMOUNT):
                return
            if content and any(w in POSSESSIVES for w in words):
                self.emit(self.missing, phrase(words), mention.name)
            clause.subjects = clause.local = [mention.name]
        elif content[0] in _LEADING or mention.kind in (DATE, AMOUNT):
            clause.pending.append((content[0] if len(content) < 3 else content[-1], mention.name))
        else:
            clause.subjects = clause.local = [mention.name]
            clause.head = content[-2] if len(content) > 1 else ""

    def _before_subject(self, words: list[str], before: Mention, mention: Mention) -> None:
        """A further mention while the sentence has had only "In 1990," and the like."""
        clause = self.clause
        content = content_words(words)
        literal = before.kind in (DATE, AMOUNT)
        if content and content[-1] in PREPOSITIONS:
            if content[-1] == "of" and not literal:
                self.emit([before.name], phrase(words), mention.name)
            else:
                clause.pending.append((content[-1], mention.name))
        elif words == [","] and self.after(mention) == "," and not literal:
            self.emit([before.name], "in", mention.name)
        elif content and content[-1] in CONJUNCTIONS and clause.pending:
            clause.pending.append((clause.pending[-1][0], mention.name))
        elif mention.kind not in (DATE, AMOUNT):
            clause.subjects = clause.local = [mention.name]

    # --- a verb between ---

    def _verb(self, words: list[str], mention: Mention, start: int) -> None:
        clause = self.clause
        cut = last_clause(words)
        pronoun = cut > 0 and words[cut - 1] in SUBJECT_PRONOUNS
        verb = cut + first_verb(words[cut:])
        lead = [w for w in words[cut:verb] if w not in ADVERBS]
        joined = bool(lead) and lead[-1] in CONJUNCTIONS
        nouns = subject_words(lead) if not joined else []
        if not clause.subjects and clause.pending and not lead and not cut:
            clause.subjects = clause.local = [clause.pending.pop()[1]]  # "After Ada Holm was ..."
        elif not clause.subjects:
            clause.subjects = clause.local = self.missing
        elif pronoun or joined:
            clause.local = clause.subjects
        elif any(w in CLAUSE_PRONOUNS for w in words[: cut + 1]) or any(w in CLAUSE_PRONOUNS for w in lead):
            clause.local = self._antecedent(words)
        elif lead or not clause.verb:
            clause.local = clause.subjects
        elif words[verb] not in AUXILIARIES:
            clause.local = [self.left]
        if words[verb] in COPULAS:
            self.emit_classes(clause.local, start + verb)
        head = nouns if self.left in clause.local or lead[:1] != nouns[:1] else []
        rest = words[verb:]
        if self._main_clause_begins(rest):
            self._flush_subordinate(rest, mention)
            return
        self._emit_verb(clause.local, head, rest, mention)
        if opens_clause(words):
            self._new_clause(mention)

    def _main_clause_begins(self, words: list[str]) -> bool:
        """Whether the mention behind "Otto died, his son" is the subject of what "When" left open."""
        if "," not in words or self.tokens[0].low not in SUBORDINATORS or self.main_begun:
            return False
        tail = words[len(words) - words[::-1].index(",") :]
        self.main_begun = True
        return len(tail) <= _MAX_SUBJECT_WORDS and not any(w in _LEADING or w in CONJUNCTIONS for w in tail)

    def _flush_subordinate(self, words: list[str], mention: Mention) -> None:
        clause = self.clause
        self.flush(verb_group(words, 0))
        tail = words[len(words) - words[::-1].index(",") :]
        if any(w in POSSESSIVES for w in tail):
            self.emit(clause.local, phrase(tail), mention.name)
        self._new_clause(mention)

    def _new_clause(self, mention: Mention) -> None:
        clause = self.clause
        clause.subjects = clause.local = [mention.name]
        clause.verb, clause.listed = "", None

    def _antecedent(self, words: list[str]) -> list[str]:
        """The antecedent of who, which or that: the name before it.

        A name takes no "that" or "which" without a comma, so there a noun before it is meant ("a game for Amiga that
        ..."), which tells of the clause's subject.
        """
        return self.clause.subjects if words[0] in ("that", "which") else [self.left]

    def _emit_verb(self, subjects: list[str], head: list[str], words: list[str], mention: Mention) -> None:
        clause = self.clause
        if clause.head and not head:
            head = [clause.head]
        clause.head = ""
        group = verb_group(words, 0)
        relation = verb_phrase(head, words, group)
        self.flush(group)
        self.emit(subjects, relation, mention.name)
        clause.local, clause.verb = subjects, " ".join([*head, group])
        clause.listed = (subjects, relation)

    # --- no verb between ---

    def _no_verb(self, words: list[str], before: Mention, mention: Mention) -> None:
        content = content_words(words)
        owner = self.tokens[before.last - 1].possessive
        if opens_clause(words):
            self._new_clause(mention)
        elif owner and not any(w in PREPOSITIONS for w in content):
            self.emit([before.name], phrase(words) or "has", mention.name)
            self._same_place(before, mention)
        elif not any(w not in _LIST_WORDS for w in content) and words[:2] not in ([",", "a"], [",", "an"]):
            self._in_list(words, before, mention)
        elif content and content[-1] in PREPOSITIONS:
            self._preposition(words, content, before, mention)
        elif len(words) > 1 and words[0] == "," and words[1] in _ARTICLES:
            self.emit([before.name], phrase(words) or "is", mention.name)
        else:
            self._same_place(before, mention)

    def _same_place(self, before: Mention, mention: Mention) -> None:
        """The mention plays the part of the one before it: both subjects, or both objects of one relation."""
        clause = self.clause
        if clause.listed is not None:
            self.emit(clause.listed[0], clause.listed[1], mention.name)
        elif before.name in clause.subjects and mention.kind not in (DATE, AMOUNT):
            clause.subjects = clause.local = [*clause.subjects, mention.name][-MAX_SUBJECTS:]

    def _in_list(self, words: list[str], before: Mention, mention: Mention) -> None:
        clause = self.clause
        place = clause.listed is not None and clause.listed[1].rsplit(" ", 1)[-1] in PLACE_PREPOSITIONS
        plain = before.kind not in (DATE, AMOUNT) and mention.kind not in (DATE, AMOUNT)
        if words == [","] and plain and (place or self.after(mention) == ",") and not self._list_goes_on(mention):
            self.emit([before.name], "in", mention.name)
        self._same_place(before, mention)

    def _list_goes_on(self, mention: Mention) -> bool:
        """Whether only names, commas and articles stand between `mention` and an "and" or "or" with a name behind."""
        joined = False
        for token in self.tokens[mention.last : mention.last + _MAX_LIST_TOKENS]:
            if token.kind in (NAME, NUMBER):
                if joined:
                    return True
            elif token.low in ("and", "or"):
                joined = True
            elif token.text != "," and token.low not in DETERMINERS and token.low not in INNER:
                return False
        return False

    def _preposition(self, words: list[str], content: list[str], before: Mention, mention: Mention) -> None:
        """A preposition right before the mention: it belongs to the name before it, or to the verb."""
        clause = self.clause
        relation = phrase(words)
        apposition = words[0] == "," and len(words) > 2 and words[1] in _ARTICLES
        noun_of = content[-1] == "of" and (content[0] not in PREPOSITIONS or len(content) == 1)
        if before.kind not in (DATE, AMOUNT) and (noun_of or apposition or not clause.verb):
            self.emit([before.name], relation, mention.name)
            clause.listed = ([before.name], relation)
            return
        relation = short(f"{clause.verb} {relation}".strip())
        self.emit(clause.local, relation, mention.name)
        clause.listed = (clause.local, relation)
