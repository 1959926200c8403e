"""Give the mentions of a passage the names that they stand for: the title's, or a longer one used before."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import DIRECTIONS, GENERAL_LAST, HONORIFICS, INNER
from gpu_rag.text.rules.extraction.mentions import NAMED, TITLE, Mention

_MAX_PARTS = 5


def title_name(title: str, text: str) -> str:
    """The name that a document's title gives its subject.

    A final bracket is left out: "Java (island)" is Java. Of "Ely, Kent" the part before the comma counts when `text`
    begins with it and not with the whole title.
    """
    name = " ".join(title.split())
    if name.endswith(")") and " (" in name:
        name = name[: name.rindex(" (")].strip() or name
    short, comma, rest = name.partition(", ")
    begins = text[: len(name) + 1].casefold()
    place = comma and rest[:1].isupper() and begins.startswith(short.casefold())
    return short if place and not begins.startswith(name.casefold()) else name


def resolve_aliases(title: str, sentences: Sequence[Sequence[Mention]]) -> list[str]:
    """Rename mentions in place; returns the full names under which the text introduces the title, mostly none or one.

    - The passage's first mention, when it opens the text and contains the title's words or ends like the title
      ("Ada Maria Holm" under the title "Ada Holm"), is the title from there on, everywhere in the passage.
    - A single word is the last word of one longer name used before ("Holm"): that name, unless several end so.
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
    """Let the last word of `name` stand for it; a word that two names end with stands for neither."""
    parts = _parts(name)
    if not 2 <= len(parts) <= _MAX_PARTS or parts[0] in DIRECTIONS or "of" in parts or parts[0][0].isdigit():
        return
    last, target = parts[-1], stands_for or name
    if last in GENERAL_LAST or not last[0].isalpha() or len(last) < 3:
        return
    known = longer.get(last)
    longer[last] = target if known is None or known == target else ""


def _single(name: str) -> str:
    """The one word of `name`, without an honorific before it ("Mrs. Holm"); "" when there are more."""
    parts = _parts(name)
    if len(parts) == 2 and parts[0] in HONORIFICS:
        parts = parts[1:]
    return parts[0] if len(parts) == 1 else ""


def _parts(name: str) -> list[str]:
    return name.casefold().split()
