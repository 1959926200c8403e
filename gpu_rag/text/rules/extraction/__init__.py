"""Open information extraction from English prose by patterns: no model, thousands of passages a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction.entities import find_mentions_in
from gpu_rag.text.rules.extraction.lexicon import DIRECTIONS, GENERAL_LAST, HONORIFICS, INNER
from gpu_rag.text.rules.extraction.relations import ALSO_CALLED, Triple, sentence_triples
from gpu_rag.text.rules.extraction.tokens import NAMED, TITLE, Mention, Token, passage_words, tokenise
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Extraction

RELATED_TO = "related to"
MAX_TITLE_CHARS = 300
# A "sentence" with more tokens (a table, a word list) is read in pieces of this size.
MAX_SENTENCE_TOKENS = 400


def extract_patterns(title: str, text: str, *, connect: bool = True) -> Extraction:
    """Extract entities and (subject, relation, object) triples from one passage of encyclopedic English.

    Entities, in order of first mention after the title: the title (without a final bracket), names (capitalised words
    with small words and numbers inside: "House of Orle", "Apollo 11"), quoted titles, dates and years, amounts of money
    and amounts with units. A lone month, a percentage, a plain number and a capitalised common word ("the Company") are
    no entities. Entities with the same `normalise_name` are equal; the first spelling is kept. A last word stands for a
    longer name used before ("Holm" for "Ada Holm").

    Triples, in text order, each once: the words between two mentions of a sentence if a verb or a preposition is among
    them, at most 8, without articles. A list gives one triple for each item. "X, a town in Y" gives (X, town in, Y).
    "is a" gives classes of two words or more (X, is, Danish painter); these objects are not entities. Dates in a
    bracket give born and died. The full name gives (title, also called, full name). The title is the subject of
    sentences that begin with a pronoun or "The film", and of sentences whose subject is not a mention.

    title: "" for none; longer than 300 characters is ignored. text: any text; clean text works best.
    connect: also add (title, related to, entity) for each entity in no triple, so that a passage's triples form few
    components. (Measured on four multi-hop corpora, seeds by name, PageRank: recall at 5 moves by -1.0 to +1.4 points,
    because passages link their entities anyway. Methods that walk over triples alone reach more.)

    Limits: only capitals mark a name, so things without one ("photosynthesis") are found only as a title. A pronoun
    always means the title. Verbs are guessed from word lists and endings; so is the owner of a preposition. Negation is
    dropped with the other adverbs. Other languages give names and few relations. Deterministic; linear in len(text),
    for any text.

    >>> extract_patterns("Ada Holm", "Ada Holm was born in Oslo.").triples
    (('Ada Holm', 'was born in', 'Oslo'),)
    """
    name = title_name(title, text) if len(title) <= MAX_TITLE_CHARS else ""
    sentences = _sentences(text)
    words = passage_words(name, tokenise(name, 0, len(name)), sentences)
    mentions = [find_mentions_in(text, tokens, words) for tokens in sentences]
    full_names = resolve_aliases(name, mentions)
    normal = cache(normalise_name)
    spelling: dict[str, str] = {}  # normal form -> first spelling
    for entity in (name, *full_names, *(mention.name for group in mentions for mention in group)):
        if normal(entity):
            spelling.setdefault(normal(entity), entity)
    triples: list[Triple] = [(name, ALSO_CALLED, full) for full in full_names]
    for tokens, group in zip(sentences, mentions, strict=True):
        triples += sentence_triples(text, tokens, group, name)
    kept = _distinct(triples, normal, spelling)
    if connect and normal(name):
        linked = {normal(end) for triple in kept for end in (triple[0], triple[2])} | {normal(name)}
        subject = spelling[normal(name)]
        kept += [(subject, RELATED_TO, entity) for key, entity in spelling.items() if key not in linked]
    return Extraction(tuple(spelling.values()), tuple(kept))


def _sentences(text: str) -> list[Sequence[Token]]:
    """The tokens of each sentence; a long sentence is cut into pieces."""
    pieces: list[Sequence[Token]] = []
    for start, end in split_sentences(text):
        tokens = tokenise(text, start, end)
        pieces += [tokens[i : i + MAX_SENTENCE_TOKENS] for i in range(0, len(tokens), MAX_SENTENCE_TOKENS)]
    return pieces


def _distinct(triples: Iterable[Triple], normal: Callable[[str], str], spelling: Mapping[str, str]) -> list[Triple]:
    """Distinct triples, with entity spellings for their ends, without triples from a name to itself."""
    kept: dict[tuple[str, str, str], Triple] = {}
    for subject, relation, thing in triples:
        left, right = normal(subject), normal(thing)
        if left and right and left != right:
            triple = (spelling.get(left, subject), relation, spelling.get(right, thing))
            kept.setdefault((left, relation, right), triple)
    return list(kept.values())


_MAX_PARTS = 5


def title_name(title: str, text: str) -> str:
    """The name of a document's subject, from its title.

    A final bracket is removed: "Java (island)" is Java. "Ely, Kent" is Ely if `text` begins with that part and not with
    the whole title.
    """
    name = " ".join(title.split())
    if name.endswith(")") and " (" in name:
        name = name[: name.rindex(" (")].strip() or name
    short, comma, rest = name.partition(", ")
    begins = text[: len(name) + 1].casefold()
    place = comma and rest[:1].isupper() and begins.startswith(short.casefold())
    return short if place and not begins.startswith(name.casefold()) else name


def resolve_aliases(title: str, sentences: Sequence[Sequence[Mention]]) -> list[str]:
    """Rename mentions in place. Return the full names that introduce the title, mostly none or one.

    - The passage's first mention becomes the title, everywhere in the passage, if it opens the text and contains the
      title's words or ends like the title ("Ada Maria Holm" under the title "Ada Holm").
    - A single word becomes the one longer name used before that ends with it ("Holm"); with several such names it
      stays.
    """
    full = _introduced(title, sentences)
    of_title: dict[str, str] = {}
    for name in (title, *full):
        _learn(of_title, name, title)
    longer: dict[str, str] = {}
    for mentions in sentences:
        for mention in mentions:
            if mention.kind not in (NAMED, TITLE):
                continue
            if mention.name in full:
                mention.name = title
                continue
            word = _single(mention.name)
            if not word:
                _learn(longer, mention.name)
            else:
                mention.name = of_title.get(word) or longer.get(word) or mention.name
    return full


def _introduced(title: str, sentences: Sequence[Sequence[Mention]]) -> list[str]:
    if not title or not sentences or not sentences[0]:
        return []
    first = sentences[0][0]
    if first.kind != NAMED or first.first > 1 or first.name.casefold() == title.casefold():
        return []
    parts, wanted = _parts(first.name), _parts(title)
    if len(parts) < 2 or not wanted:
        return []
    same = set(wanted) <= set(parts) if len(wanted) > 1 else False
    ends_alike = parts[-1] == wanted[-1] and len(wanted) > 1 and not set(parts) & (INNER | GENERAL_LAST)
    return [first.name] if same or ends_alike else []


def _learn(longer: dict[str, str], name: str, stands_for: str = "") -> None:
    """Let the last word of `name` stand for the name; a word that ends two names stands for neither."""
    parts = _parts(name)
    if not 2 <= len(parts) <= _MAX_PARTS or parts[0] in DIRECTIONS or "of" in parts or parts[0][0].isdigit():
        return
    last, target = parts[-1], stands_for or name
    if last in GENERAL_LAST or not last[0].isalpha() or len(last) < 3:
        return
    known = longer.get(last)
    longer[last] = target if known is None or known == target else ""


def _single(name: str) -> str:
    """The only word of `name`, without an honorific before it ("Mrs. Holm"); "" if there are more words."""
    parts = _parts(name)
    if len(parts) == 2 and parts[0] in HONORIFICS:
        parts = parts[1:]
    return parts[0] if len(parts) == 1 else ""


def _parts(name: str) -> list[str]:
    return name.casefold().split()
