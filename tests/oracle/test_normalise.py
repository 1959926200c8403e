"""normalise_name: hand-worked names, laws over all of Unicode, and wrong versions."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import Stemmer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.tokens import tokenize

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Normalise = Callable[[str], str]

HAND = {
    "": "",
    "   ": "",
    "!?...": "",
    "Rome": "rome",
    "  New \t York\n": "new york",
    '"The  Beatles,"': "the beatles",
    "(1984)": "1984",
    " “ Hamlet ” ": "hamlet",
    "- ' dashes ' -": "dashes",
    "rock 'n' roll": "rock 'n' roll",
    "Jean-Luc": "jean-luc",
    "Ｆｕｌｌ　Ｗｉｄｔｈ": "full width",
    "ﬁnance": "finance",
    "STRASSE": "strasse",
    "Straße": "strasse",
    "Ångström": "ångström",
    "A\u030angstro\u0308m": "ångström",
    "a\u00a0b": "a b",
    "U.S.": "u.s",
    "C#": "c#",
    "«AC/DC», (": "ac/dc",
    "¿Qué?": "qué",
}
ALPHABET = "aB ß.,'\"()-–“”\u00a0\t\u0301\u0345ŉİﬁＡ²½\u2003…¡;:漢"
STRINGS = st.one_of(st.text(ALPHABET, max_size=8), st.text(max_size=8))


@cache
def changing_characters() -> list[str]:
    """Every character that NFKC or casefold changes, or that is a space, a mark or punctuation."""
    every = (chr(i) for i in range(0x20000) if not 0xD800 <= i < 0xE000)
    hangul = range(0xAC00, 0xD7A4)
    return [
        c
        for c in every
        if ord(c) not in hangul
        and (unicodedata.category(c)[0] in "ZPM" or c.casefold() != c or unicodedata.normalize("NFKC", c) != c)
    ]


def dressed() -> Iterator[str]:
    """Each of those characters alone and in the places where a second pass could change something."""
    for c in changing_characters():
        yield from (c, f"{c}a{c}", f"a{c}\u0345")


def outer(text: str, kept: str = "") -> bool:
    """Space or punctuation at an end of `text`, other than characters of `kept`."""
    ends = (text[:1], text[-1:])
    return any(c.isspace() or (c not in kept and unicodedata.category(c)[0] == "P") for c in ends if c)


def check_hand_worked(normalise: Normalise) -> None:
    for given_, want in HAND.items():
        assert normalise(given_) == want, f"{given_!r} became {normalise(given_)!r}"


def assert_laws(normalise: Normalise, text: str) -> None:
    once = normalise(text)
    assert isinstance(once, str)
    assert normalise(once) == once, f"{text!r}: {once!r} became {normalise(once)!r} the second time"
    brackets = "".join(c for c in once if unicodedata.category(c) in ("Ps", "Pe"))
    assert not outer(once, "#%&@" + brackets), f"{text!r}: outer punctuation or space in {once!r}"
    assert not re.search(r"\s\s|[^\S ]", once), f"{text!r}: white space in {once!r}"
    composed = unicodedata.normalize("NFKC", once)  # some letters, like U+01F0, casefold to what NFKC joins again
    assert once in (composed, composed.casefold()), f"{text!r}: {once!r} is not NFKC"
    assert unicodedata.normalize("NFKC", once.casefold()) == composed, f"{text!r}: {once!r} is not casefolded"


def check_laws(normalise: Normalise) -> None:
    """Idempotent; NFKC; casefolded; single inner spaces; nothing to strip outside. For all of Unicode."""

    @QUICK
    @given(STRINGS)
    def holds(text: str) -> None:
        assert_laws(normalise, text)

    holds()
    for text in dressed():
        assert_laws(normalise, text)


def check_same_name(normalise: Normalise) -> None:
    """Case, composition, outer punctuation and spacing make no other name; letters and inner marks do."""

    @QUICK
    @given(st.lists(st.text("abcxyzßéÅ'-", min_size=1, max_size=5).map(lambda w: f"q{w}q"), min_size=1, max_size=3))
    def holds(words: list[str]) -> None:
        name = " ".join(words)
        want = normalise(name)
        same = [name.upper(), f' "{name}." ', "\n".join(words), f"({name})", name.title(), "\u3000".join(words)]
        same += [unicodedata.normalize("NFD", name), unicodedata.normalize("NFC", name)]
        assert all(normalise(s) == want for s in same), f"{name!r}: {[normalise(s) for s in same]}"
        assert normalise(name + "z") != want and normalise("b" + name) != want
        assert normalise(name.replace("q", "q'", 1)) != want, "inner punctuation counts"

    holds()


CHECKS = [check_hand_worked, check_laws, check_same_name]


def stripped(text: str) -> str:
    start, end = 0, len(text)
    while start < end and outer(text[start], "#%&@"):
        start += 1
    while end > start and outer(text[end - 1], "#%&@"):
        end -= 1
    return text[start:end]


def one_pass(text: str) -> str:
    return stripped(" ".join(unicodedata.normalize("NFKC", text).casefold().split()))


def fixpoint(text: str) -> str:
    while (after := one_pass(text)) != text:
        text = after
    return text


def casefold_first(text: str) -> str:
    """Wrong: NFKC turns letters that have no case, like U+210C, into capitals."""
    return stripped(" ".join(unicodedata.normalize("NFKC", text.casefold()).split()))


def lower_only(text: str) -> str:
    return stripped(" ".join(unicodedata.normalize("NFKC", text).lower().split()))


def composed_only(text: str) -> str:
    return stripped(" ".join(unicodedata.normalize("NFC", text).casefold().split()))


def inner_too(text: str) -> str:
    return fixpoint("".join(c for c in text if unicodedata.category(c)[0] != "P"))


def ascii_only(text: str) -> str:
    return fixpoint(unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode())


def strip_in_order(text: str) -> str:
    """Wrong: white space first, punctuation after, so the space inside quotation marks stays."""
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return text.strip("\"'.,;:!?()-“”–…¡¿")


WRONG = {
    "casefold before NFKC": (casefold_first, check_laws),
    "lower case": (lower_only, check_hand_worked),
    "lower case, laws": (lower_only, check_laws),
    "NFC": (composed_only, check_hand_worked),
    "inner punctuation too": (inner_too, check_hand_worked),
    "inner punctuation too, same name": (inner_too, check_same_name),
    "ASCII only": (ascii_only, check_hand_worked),
    "stripped in the wrong order": (strip_in_order, check_hand_worked),
    "nothing but case": (str.casefold, check_same_name),
    "empty": (lambda text: "", check_same_name),
}


test_wrong_versions_are_caught = caught(WRONG)


test_normalise_name = passes([fixpoint, normalise_name], CHECKS)


def check_tokenize(tokens_of: Callable[[str], list[str]]) -> None:
    stem = Stemmer.Stemmer("english").stemWord
    words = ["Running", "QUICKLY", "ponies", "happiness", "Straße", "relational", "Émigrés", "generously", "1984"]
    for word in words:
        assert tokens_of(word) == [stem(word.casefold())], word
    assert tokens_of(" ".join(words)) == [stem(w.casefold()) for w in words]
    assert tokens_of("The cats, and the (dogs)!") == ["cat", "dog"]
    assert tokens_of("tiger tiger") == ["tiger", "tiger"], "repeats count"
    assert tokens_of("") == tokens_of(" .,;: ") == tokens_of("The OF and") == []


def simple_tokens(text: str, stop: bool = True, fold: Any = str.casefold, stem: bool = True, once: bool = False):
    words = ["".join(c for c in w if c.isalnum()) for w in fold(text).split()]
    kept = [w for w in words if w and not (stop and w in {"the", "of", "and"})]
    kept = list(dict.fromkeys(kept)) if once else kept
    return Stemmer.Stemmer("english").stemWords(kept) if stem else kept


WRONG_TOKENIZERS: list[Any] = [{"stop": False}, {"fold": str}, {"fold": str.lower}, {"stem": False}, {"once": True}]
WRONG_TOKENS = [partial(simple_tokens, **wrong) for wrong in WRONG_TOKENIZERS]
test_wrong_tokenizers_are_caught = caught(WRONG_TOKENS, check_tokenize)
test_tokenize = passes([simple_tokens, tokenize], [check_tokenize])
