"""Read the relations of one sentence from the words between its mentions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_rag.text.rules.extraction import lexicon
from gpu_rag.text.rules.extraction.tokens import AMOUNT, DATE, MARK, NAME, NAMED, NUMBER, WORD, Mention, Token

MAX_RELATION_WORDS = 8
MAX_GAP_TOKENS = 24
_MAX_CLASS_TOKENS = 6
_MAX_CLASSES = 6
_NO_CONTENT = lexicon.DETERMINERS | lexicon.ADVERBS | lexicon.RANKS
_CLAUSE_OPENERS = frozenset({"that", "when", "while", "where", "because", "although", "though", "if", "whereas"})
_SILENT = _NO_CONTENT | lexicon.CONJUNCTIONS
_NOT_SUBJECT = lexicon.DETERMINERS | lexicon.PRONOUNS | lexicon.CONJUNCTIONS | lexicon.RELATIVES | lexicon.ADVERBS
_NOT_CLASS = lexicon.PREPOSITIONS | lexicon.PRONOUNS | lexicon.RELATIVES | lexicon.CONJUNCTIONS
_MAX_LIST_TOKENS = 32
_LIST_WORDS = frozenset({"and", "or", "&", "nor"})
_MAX_SUBJECT_WORDS = 5
_LEADING = lexicon.PREPOSITIONS | lexicon.ADVERBS | lexicon.LEADING
_NO_NOUN = lexicon.PREPOSITIONS | lexicon.CONJUNCTIONS | lexicon.RELATIVES | lexicon.DETERMINERS
_ARTICLES = frozenset({"a", "an", "the", "one"})
Triple = tuple[str, str, str]

ALSO_CALLED = "also called"
MAX_SUBJECTS = 6
_MAX_DEPTH = 8
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")
_DASHES = frozenset({"-", "--", "–", "—"})


def sentence_triples(text: str, tokens: Sequence[Token], mentions: Sequence[Mention], title: str) -> list[Triple]:
    """(subject, relation, object) triples of one sentence, in text order; may repeat.

    text: the passage. mentions: mentions of `tokens`, left to right, with resolved names. title: the subject of
    sentences that begin with a pronoun or "The film", and of sentences whose subject is not a mention; "" for none.
    Linear in the tokens.
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
        if following is None or not is_adjective(tokens, mention):
            kept.append(mention)
            continue
        words = [t.low for t in tokens[mention.last : following.first]]
        noun = [w for w in words if w != "of"]
        within = bool(noun) and len(words) <= 4 and all(w.isalpha() and w not in _NO_NOUN for w in noun)
        if not within or lexicon.first_verb(["a", *words]) >= 0:
            kept.append(mention)
    return kept


def is_adjective(tokens: Sequence[Token], mention: Mention) -> bool:
    """Whether a mention is an adjective of origin ("German")."""
    token = tokens[mention.first]
    if mention.kind != NAMED or mention.last - mention.first > 1 or token.possessive:
        return False
    return token.low in lexicon.ORIGINS or (
        token.low.endswith(lexicon.ORIGIN_ENDINGS) and token.low not in lexicon.NOT_ORIGINS
    )


@dataclass
class Clause:
    """The state of a clause up to the current token.

    subjects: the clause's subjects; local: the last verb's subjects (for "who married ...", the name before it).
    verb: the last verb group. head: the noun before a name in subject position ("capital" in "the capital of").
    pending: (preposition, name) pairs before any subject. listed: (subjects, relation) for further items of a list.
    life: "born" or "died" inside a bracket with dates of life.
    """

    subjects: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    verb: str = ""
    head: str = ""
    pending: list[tuple[str, str]] = field(default_factory=list)
    listed: tuple[list[str], str] | None = None
    life: str = ""


class _Walk:
    """The state of reading one sentence: the current clause, the clauses around its bracket, and the triples so far."""

    def __init__(self, text: str, tokens: Sequence[Token], title: str):
        self.text, self.tokens = text, tokens
        self.missing = [title] if title else []
        self.triples: list[Triple] = []
        self.clause = Clause()
        self.stack: list[tuple[Clause, str]] = []
        self.left = ""
        self.main_begun = False

    # --- output ---

    def emit(self, subjects: Sequence[str], relation: str, name: str) -> None:
        if relation and name:
            self.triples.extend((s, relation, name) for s in subjects[:MAX_SUBJECTS] if s and s != name)

    def flush(self, verb: str) -> None:
        """Attach the phrases before the subject ("In 1990,") to the verb."""
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
        """Enter and leave brackets in tokens[start:end]: the start of the words after them, and whether one opens."""
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
        """Read the first mention after an opening bracket: a year, an abbreviation, or a name with a preposition."""
        relation = phrase(words)
        if not relation and mention.kind == DATE:
            relation = "in"
        elif not relation and abbreviates(mention.name, self.left):
            relation = ALSO_CALLED
        self.emit(self.clause.local, relation, mention.name)
        self.clause.listed = (self.clause.local, relation) if relation else None

    def life(self, words: list[str], mention: Mention, following: Mention | None) -> bool:
        """Whether a bracket opens with a date of birth or death; if so, emit it."""
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
        """Whether a dash and a second date come before the bracket closes; years count for the first name only."""
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
        """Whether ") was" or ") is" follows, so that the bracket belongs to the thing that the sentence defines."""
        tail = [t.low for t in self.tokens[date.last : date.last + 2]]
        return len(tail) == 2 and tail[0] in _CLOSE and tail[1] in lexicon.COPULAS

    def life_goes_on(self, words: list[str], mention: Mention) -> None:
        """Read further dates and places in a bracket with dates of life: "in Oslo", "– 3 May 1999"."""
        clause = self.clause
        if any(w in _DASHES for w in words):
            clause.life = clause.verb = "died"
        content = content_words(words)
        if mention.kind == DATE:
            self.emit(clause.local, clause.life, mention.name)
        elif content and content[-1] in lexicon.PREPOSITIONS:
            self.emit(clause.local, f"{clause.life} {content[-1]}", mention.name)
        elif words == [","]:
            self.emit([self.left], "in", mention.name)

    # --- from mention to mention ---

    def step(self, before: Mention | None, mention: Mention, following: Mention | None) -> None:
        """Process the words between two mentions, and the second mention."""
        start = before.last if before else 0
        self.left = before.name if before else ""
        start, opened = self.brackets(start, mention.first)
        words = [t.low for t in self.tokens[start : mention.first]]
        verb = lexicon.first_verb(words)
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
        """Process the words after the last mention."""
        start = last.last if last else 0
        self.left = last.name if last else ""
        start, _ = self.brackets(start, len(self.tokens))
        words = [t.low for t in self.tokens[start:]]
        verb = lexicon.first_verb(words)
        if verb < 0:
            return
        clause = self.clause
        if not clause.subjects:
            clause.subjects = clause.local = self.missing
        if words[verb] in lexicon.COPULAS and not any(w in lexicon.RELATIVES for w in words[:verb]):
            self.emit_classes(clause.subjects, start + verb)
        self.flush(verb_group(words, verb))

    # --- a sentence's beginning ---

    def _first(self, words: list[str], verb: int, mention: Mention, start: int) -> None:
        clause = self.clause
        if verb >= 0:
            clause.subjects = clause.local = self.missing
            if words[verb] in lexicon.COPULAS:
                self.emit_classes(clause.subjects, start + verb)
            self._emit_verb(clause.subjects, subject_words(words[:verb]), words[verb:], mention)
            return
        content = content_words(words)
        if not content or content[-1] not in lexicon.PREPOSITIONS:
            if mention.kind in (DATE, AMOUNT):
                return
            if content and any(w in lexicon.POSSESSIVES for w in words):
                self.emit(self.missing, phrase(words), mention.name)
            clause.subjects = clause.local = [mention.name]
        elif content[0] in _LEADING or mention.kind in (DATE, AMOUNT):
            clause.pending.append((content[0] if len(content) < 3 else content[-1], mention.name))
        else:
            clause.subjects = clause.local = [mention.name]
            clause.head = content[-2] if len(content) > 1 else ""

    def _before_subject(self, words: list[str], before: Mention, mention: Mention) -> None:
        """Read a further mention while the sentence has only an opening like "In 1990,"."""
        clause = self.clause
        content = content_words(words)
        literal = before.kind in (DATE, AMOUNT)
        if content and content[-1] in lexicon.PREPOSITIONS:
            if content[-1] == "of" and not literal:
                self.emit([before.name], phrase(words), mention.name)
            else:
                clause.pending.append((content[-1], mention.name))
        elif words == [","] and self.after(mention) == "," and not literal:
            self.emit([before.name], "in", mention.name)
        elif content and content[-1] in lexicon.CONJUNCTIONS and clause.pending:
            clause.pending.append((clause.pending[-1][0], mention.name))
        elif mention.kind not in (DATE, AMOUNT):
            clause.subjects = clause.local = [mention.name]

    # --- a verb between ---

    def _verb(self, words: list[str], mention: Mention, start: int) -> None:
        clause = self.clause
        cut = last_clause(words)
        pronoun = cut > 0 and words[cut - 1] in lexicon.SUBJECT_PRONOUNS
        verb = cut + lexicon.first_verb(words[cut:])
        lead = [w for w in words[cut:verb] if w not in lexicon.ADVERBS]
        joined = bool(lead) and lead[-1] in lexicon.CONJUNCTIONS
        nouns = subject_words(lead) if not joined else []
        if not clause.subjects and clause.pending and not lead and not cut:
            clause.subjects = clause.local = [clause.pending.pop()[1]]  # "After Ada Holm was ..."
        elif not clause.subjects:
            clause.subjects = clause.local = self.missing
        elif pronoun or joined:
            clause.local = clause.subjects
        elif any(w in lexicon.CLAUSE_PRONOUNS for w in words[: cut + 1]) or any(
            w in lexicon.CLAUSE_PRONOUNS for w in lead
        ):
            clause.local = self._antecedent(words)
        elif lead or not clause.verb:
            clause.local = clause.subjects
        elif words[verb] not in lexicon.AUXILIARIES:
            clause.local = [self.left]
        if words[verb] in lexicon.COPULAS:
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
        """Whether the mention after "When Otto died, his" is the subject of the main clause."""
        if "," not in words or self.tokens[0].low not in lexicon.SUBORDINATORS or self.main_begun:
            return False
        tail = words[len(words) - words[::-1].index(",") :]
        self.main_begun = True
        return len(tail) <= _MAX_SUBJECT_WORDS and not any(w in _LEADING or w in lexicon.CONJUNCTIONS for w in tail)

    def _flush_subordinate(self, words: list[str], mention: Mention) -> None:
        clause = self.clause
        self.flush(verb_group(words, 0))
        tail = words[len(words) - words[::-1].index(",") :]
        if any(w in lexicon.POSSESSIVES for w in tail):
            self.emit(clause.local, phrase(tail), mention.name)
        self._new_clause(mention)

    def _new_clause(self, mention: Mention) -> None:
        clause = self.clause
        clause.subjects = clause.local = [mention.name]
        clause.verb, clause.listed = "", None

    def _antecedent(self, words: list[str]) -> list[str]:
        """The name before who, which or that; but after a name, "that" without a comma means an earlier noun."""
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
        elif owner and not any(w in lexicon.PREPOSITIONS for w in content):
            self.emit([before.name], phrase(words) or "has", mention.name)
            self._same_place(before, mention)
        elif not any(w not in _LIST_WORDS for w in content) and words[:2] not in ([",", "a"], [",", "an"]):
            self._in_list(words, before, mention)
        elif content and content[-1] in lexicon.PREPOSITIONS:
            self._preposition(words, content, before, mention)
        elif len(words) > 1 and words[0] == "," and words[1] in _ARTICLES:
            self.emit([before.name], phrase(words) or "is", mention.name)
        else:
            self._same_place(before, mention)

    def _same_place(self, before: Mention, mention: Mention) -> None:
        """Give the mention the role of the one before it: both are subjects, or both are objects of one relation."""
        clause = self.clause
        if clause.listed is not None:
            self.emit(clause.listed[0], clause.listed[1], mention.name)
        elif before.name in clause.subjects and mention.kind not in (DATE, AMOUNT):
            clause.subjects = clause.local = [*clause.subjects, mention.name][-MAX_SUBJECTS:]

    def _in_list(self, words: list[str], before: Mention, mention: Mention) -> None:
        clause = self.clause
        place = clause.listed is not None and clause.listed[1].rsplit(" ", 1)[-1] in lexicon.PLACE_PREPOSITIONS
        plain = before.kind not in (DATE, AMOUNT) and mention.kind not in (DATE, AMOUNT)
        if words == [","] and plain and (place or self.after(mention) == ",") and not self._list_goes_on(mention):
            self.emit([before.name], "in", mention.name)
        self._same_place(before, mention)

    def _list_goes_on(self, mention: Mention) -> bool:
        """Whether only names, commas and articles come between `mention` and an "and" or "or" with a name after it."""
        joined = False
        for token in self.tokens[mention.last : mention.last + _MAX_LIST_TOKENS]:
            if token.kind in (NAME, NUMBER):
                if joined:
                    return True
            elif token.low in ("and", "or"):
                joined = True
            elif token.text != "," and token.low not in lexicon.DETERMINERS and token.low not in lexicon.INNER:
                return False
        return False

    def _preposition(self, words: list[str], content: list[str], before: Mention, mention: Mention) -> None:
        """Read a preposition directly before the mention: it belongs to the name before it, or to the verb."""
        clause = self.clause
        relation = phrase(words)
        apposition = words[0] == "," and len(words) > 2 and words[1] in _ARTICLES
        noun_of = content[-1] == "of" and (content[0] not in lexicon.PREPOSITIONS or len(content) == 1)
        if before.kind not in (DATE, AMOUNT) and (noun_of or apposition or not clause.verb):
            self.emit([before.name], relation, mention.name)
            clause.listed = ([before.name], relation)
            return
        relation = short(f"{clause.verb} {relation}".strip())
        self.emit(clause.local, relation, mention.name)
        clause.listed = (clause.local, relation)


# --- words of a gap -------------------------------------------------------------------------------------


def content_words(words: Sequence[str]) -> list[str]:
    """Words of a gap without marks, determiners, adverbs and ranks ("by President", then a name)."""
    return [w for w in words if w[0].isalnum() and w not in _NO_CONTENT]


def subject_words(words: Sequence[str]) -> list[str]:
    """The noun phrase before a verb, as first words of the relation: "mother" in "his mother was".

    At most its last three words; none for an anaphor ("the film was") or a phrase that begins with a preposition.
    """
    kept = [w for w in words if w[0].isalnum() and w not in _NOT_SUBJECT]
    if not kept or (len(kept) == 1 and kept[0] in lexicon.ANAPHORS) or kept[0] in lexicon.PREPOSITIONS:
        return []
    return kept[-3:]


def verb_group(words: Sequence[str], verb: int) -> str:
    """Auxiliaries and verbs from index `verb` on, without adverbs: "was born" in "was later born in"."""
    group, before = [words[verb]], words[verb]
    for low in words[verb + 1 : verb + 6]:
        if low in lexicon.ADVERBS:
            continue
        if not lexicon.is_verb(low, before):
            break
        group.append(low)
        before = low
    return " ".join(group)


def phrase(words: Sequence[str]) -> str:
    """The content of a gap: its last 8 words without marks, determiners, conjunctions and adverbs."""
    return " ".join([w for w in words if w[0].isalnum() and w not in _SILENT][-MAX_RELATION_WORDS:])


def verb_phrase(head: Sequence[str], words: Sequence[str], group: str) -> str:
    """The relation of a gap that begins with a verb: `head` (the noun of its subject), then the words of the gap.

    More than 8 words are reduced to head, verb and final preposition. "" if the gap is too long.
    """
    if len(words) > MAX_GAP_TOKENS:
        return ""
    kept = [w for w in words if w[0].isalnum() and w not in lexicon.DETERMINERS and w not in lexicon.ADVERBS]
    if len(head) + len(kept) <= MAX_RELATION_WORDS:
        return " ".join([*head, *kept])
    last = [kept[-1]] if kept[-1] in lexicon.PREPOSITIONS else []
    return short(" ".join([*head, group, *last]))


def short(relation: str) -> str:
    """The first 8 words."""
    return " ".join(relation.split()[:MAX_RELATION_WORDS])


def abbreviates(abbreviation: str, name: str) -> bool:
    """Whether `abbreviation` consists of the initials of the capitalised words of `name`."""
    letters = "".join(c for c in abbreviation if c.isalpha()).casefold()
    initials = "".join(w[0] for w in name.split() if w[0].isupper()).casefold()
    return len(letters) > 1 and letters == initials


def classes(text: str, tokens: Sequence[Token], copula: int) -> list[str]:
    """The classes after "is a": ["Dutch painter"] in "was a Dutch painter and poet from".

    copula: index of is/was/are/were in `tokens`. Classes follow "a" or "an", end with a lower-case word, and have 2 to
    6 words (a single word, "city", is too common to be useful); at most 6 classes.
    """
    result: list[str] = []
    i = copula + 1
    while i < len(tokens) and tokens[i].low in lexicon.ADVERBS:
        i += 1
    if i >= len(tokens) or tokens[i].low not in ("a", "an"):
        return result
    for _ in range(_MAX_CLASSES):
        i += 1
        last = _class_end(tokens, i)
        if last == i or tokens[last - 1].kind != WORD:
            break
        if last > i + 1:
            result.append(" ".join(text[tokens[i].start : tokens[last - 1].end].split()))
        i = last
        while i + 1 < len(tokens) and tokens[i].low in (",", "and", "or") and tokens[i + 1].low in (",", "and", "or"):
            i += 1
        if i >= len(tokens) or tokens[i].low not in (",", "and", "or"):
            break
        if i + 1 < len(tokens) and tokens[i + 1].low in ("a", "an"):
            i += 1
    return result


def _class_end(tokens: Sequence[Token], first: int) -> int:
    """The end of the noun phrase without article that starts at `first`; `first` if there is none."""
    before = "a"
    for i in range(first, min(len(tokens), first + _MAX_CLASS_TOKENS + 1)):
        token = tokens[i]
        following = tokens[i + 1] if i + 1 < len(tokens) else None
        if token.kind == MARK or token.low in _NOT_CLASS or token.low in lexicon.DETERMINERS or token.possessive:
            return i
        adjective = following is not None and following.kind in (WORD, NAME) and following.low not in _NOT_CLASS
        if token.kind == WORD and lexicon.is_verb(token.low, before) and not (adjective and token.low.endswith("ed")):
            return i
        before = token.low
    return first


def opens_clause(words: Sequence[str]) -> bool:
    """Whether the mention after a gap begins a clause: "..., when", "... said that the"."""
    spoken = [w for w in words if w not in lexicon.DETERMINERS or w == "that"]
    return bool(spoken) and spoken[-1] in _CLAUSE_OPENERS


def last_clause(words: Sequence[str]) -> int:
    """The start of the last clause of a gap, if a pronoun followed by a verb shows it; else 0."""
    for i in range(len(words) - 2, 0, -1):
        if words[i] in lexicon.SUBJECT_PRONOUNS and lexicon.first_verb(words[i + 1 :]) >= 0:
            return i + 1
    return 0
