"""Comparisons of two things: the question for each, and how the two answers decide.

Three forms are read: "Which film came out first, A or B?", "Are A and B from the same country?" (also "both ... the
same"), and "Was A born in the same year as B?"; also with "different".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.decomposition.phrases import BASE_VERBS

LEAST, MOST, SAME, DIFFERENT = "least", "most", "same", "different"
_MAX_CHARS = 600


@dataclass(frozen=True)
class Compared:
    """Two things and a question for each. how: "least" or "most": that option wins; "same", "different": yes or no.

    options: the two things as written; questions: one for each; steps: the plan's steps that answer the questions.
    """

    how: str
    options: tuple[str, str]
    questions: tuple[str, str]
    steps: tuple[int, ...] = ()


_MOST = frozenset({"younger", "born later", "died later"})
_OUT = r"(?:came out|was released|was published|appeared|was launched|was founded|was built|opened|started|began)"
_WHEN = r"(?:first|earlier|later|last|more recently|most recently)"
_LATE = frozenset({"later", "last", "more recently", "most recently"})
_EITHER = re.compile(r"(?P<ask>[^,?]{3,200}?),\s*(?P<a>[^?]{1,200}?),?\s+or\s+(?P<b>[^?]{1,200})\?*", re.IGNORECASE)
_EVENT = re.compile(rf"(?:which|what|who)\b.{{0,80}}?\b(?P<what>{_OUT})\s+(?P<when>{_WHEN})", re.IGNORECASE)
_PERSON = re.compile(
    r"(?:which|what|who)\b.{0,60}?\b(?:is |was |were )?(?P<how>older|younger|(?:born|died) (?:first|earlier|later))",
    re.IGNORECASE,
)
_MAKER = re.compile(r"\b(?:has|have|had|whose|with)\b(?: the| a)? (?P<role>[a-z]{4,20})\b", re.IGNORECASE)
_BASE = "|".join(sorted(BASE_VERBS))
_VERB = rf"(?P<verb>{_BASE}|(?-i:[a-z]+ed|[a-z]+en)|born|built|taught|held|made|sung)"
_SHARED = r"(?P<how>the\s+same|(?:a\s+)?different)\s+"
_SAME = re.compile(
    r"(?P<aux>are|were|do|did|is|was|have|has)\s+(?:both\s+)?(?P<a>[^?]{1,200}?)\s+and\s+(?P<b>[^?]{1,300}?),?\s+"
    rf"(?:both\s+)?(?:{_VERB}\s+|originate\s+|come\s+)?(?:(?P<prep>in|from|of|on|at|by|share|have)\s+)?"
    rf"{_SHARED}(?P<noun>\w+)(?: of origin)?\W*",
    re.IGNORECASE,
)
_SAME_AS = re.compile(
    rf"(?P<aux>was|were|is|are|did|does)\s+(?P<a>[^?]{{1,200}}?)(?:\s+{_VERB})?\s+(?P<prep>in|from|at|on|by)\s+{_SHARED}"
    r"(?P<noun>\w+)\s+(?:as|from|than)\s+(?P<b>[^?]{1,200})\?*",
    re.IGNORECASE,
)
_KIND = re.compile(r"(?:the |both )?(?:films?|movies?|songs?|albums?|books?|bands?|magazines?)\s+", re.IGNORECASE)
_ROLES_OF = re.compile(r"the (?P<role>[a-z]+)s of\s+", re.IGNORECASE)
_HAVE_ROLE = re.compile(r"(?P<thing>.+?)\s+have (?:the )?(?P<role>[a-z]+)s", re.IGNORECASE)


def compared(question: str) -> Compared | None:
    """Read the comparison in a question; None if it has none of the three forms."""
    text = " ".join(question.split())
    return None if len(text) > _MAX_CHARS else _which(text) or _shared(text)


def _which(text: str) -> Compared | None:
    either = _EITHER.fullmatch(text)
    if either is None:
        return None
    ask, options = either["ask"], (either["a"].strip(), either["b"].strip())
    person, event = _PERSON.fullmatch(ask), _EVENT.fullmatch(ask)
    if person is not None:
        how = " ".join(person["how"].lower().split())
        maker = _MAKER.search(ask)
        things = [f"the {maker['role'].lower()} of {option}" if maker else option for option in options]
        questions = [f"When did {t} die?" if how.startswith("died") else f"When was {t} born?" for t in things]
        return Compared(MOST if how in _MOST else LEAST, options, (questions[0], questions[1]))
    if event is not None:
        how = MOST if " ".join(event["when"].lower().split()) in _LATE else LEAST
        questions = [_when(option, event["what"].lower()) for option in options]
        return Compared(how, options, (questions[0], questions[1]))
    return None


def _when(thing: str, what: str) -> str:
    if what.startswith("was "):
        return f"When was {thing} {what[4:]}?"
    base = {"came out": "come out", "appeared": "appear", "opened": "open", "started": "start", "began": "begin"}
    return f"When did {thing} {base[what]}?"


def _shared(text: str) -> Compared | None:
    same_as = _SAME_AS.fullmatch(text)
    match = same_as or _SAME.fullmatch(text)
    if match is None:
        return None
    first, second, maker = match["a"].strip(), match["b"].strip(" ,").removesuffix(" both"), ""
    noun, prep, verb = (match["noun"].lower(), (match["prep"] or "in").lower(), (match["verb"] or "").lower())
    if same_as is None:
        role, have = _ROLES_OF.match(first), _HAVE_ROLE.fullmatch(second)
        maker = (role or have or {"role": ""})["role"].lower()
        first, second = _bare(first[role.end() :] if role else first), _bare(have["thing"] if have else second)
    things = [f"the {maker} of {option}" if maker else option for option in (first, second)]
    if noun == "nationality":
        questions = [f"What is the nationality of {thing}?" for thing in things]
    elif verb or same_as:  # "In which county was A born?", "In which county does A lie?"
        aux = {"do": "does", "does": "does", "did": "did"}.get(match["aux"].lower(), "was" if verb else "is")
        questions = [f"{prep.capitalize()} which {noun} {aux} {f'{thing} {verb}'.strip()}?" for thing in things]
    elif prep == "from" or noun == "country":
        questions = [f"Which {noun} is {thing} from?" for thing in things]
    else:
        return None
    how = DIFFERENT if match["how"].lower().endswith("different") else SAME
    return Compared(how, (first, second), (questions[0], questions[1]))


def _bare(name: str) -> str:
    """A name without a leading "the films" and without a final "films"."""
    name = _KIND.sub("", name, count=1) if _KIND.match(name) else name
    return re.sub(r"\s+(?:films?|movies?|songs?|albums?)$", "", name, flags=re.IGNORECASE).strip(" ,")


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_YEAR = re.compile(r"(?<![\d,.])(\d{3,4})(?![\d]|[,.]\d)")
_DAY = re.compile(r"\b([1-9]|[12]\d|3[01])(?:st|nd|rd|th)?\b")


def decide(comparison: Compared, answers: Sequence[str]) -> str | None:
    """The answer that follows from both sides' answers; None if they do not decide (no date, or equal)."""
    first, second = answers
    if comparison.how in (SAME, DIFFERENT):
        return "yes" if (normalise_name(first) == normalise_name(second)) == (comparison.how == SAME) else "no"
    left, right = _moment(first), _moment(second)
    if left is None or right is None or left == right:
        return None
    smaller = left < right
    return comparison.options[0 if smaller == (comparison.how == LEAST) else 1]


def _moment(text: str) -> tuple[float, int, int] | None:
    """(year or number, month, day) of an answer with a date or a number; month and day are 0 if absent."""
    flat = text.casefold()
    year = _YEAR.search(flat)
    if year is None:
        number = _NUMBER.search(flat)
        return None if number is None else (float(number[0].replace(",", "")), 0, 0)
    month = next((i for i, name in enumerate(_MONTHS, 1) if re.search(rf"\b{name}\b", flat)), 0)
    day = _DAY.search(flat.replace(year[0], " ", 1))
    return float(year[1]), month, int(day[1]) if day and month else 0
