"""Guess which words of a phrase are verbs: no tagger, only lists of forms and the endings -ed and -ing."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.text.rules.extraction.lexicon import AUXILIARIES, DETERMINERS, PREPOSITIONS


def _set(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_IRREGULAR = _set(
    "died used arose ate beat became become began begun bent bet bit blew bore born borne bought bound broke broken",
    "awoke owed brought built came caught chose chosen clung cost crept cut dealt did done drank drawn drew driven",
    "drove dug fell fallen fed felt fought fled flew flown forbade forgot found founded froze gave given gone got",
    "gotten grew grown hung heard held hid hit hurt kept knew known laid lain lay led left lent lit lost made",
    "meant met mistook overcame overthrew paid proved proven put quit ran rang read rebuilt recast reset ridden",
    "risen rode rose sang sank sat saw seen sent set shone shook shot shown shrank shut slain slept sold sought",
    "spent split spoke spoken spread sprang stole stolen stood stuck strove struck sung sunk swam swept swore",
    "sworn swung taken taught thought threw thrown told took torn undertook understood underwent undergone upheld",
    "wed went withdrew withdrawn woke won wore worn wrote written",
)
# Present forms; words that are more often nouns or adjectives (state, play, house, run) only with -s or not at all.
_PRESENT = _set(
    "accepts achieves adds admits allows announces appears argues arrives attends attracts began becomes begins",
    "believes belongs borders brings broadcasts builds buys carries celebrates chooses claims closes comes",
    "commemorates compete competes comprise comprises concerns connects consist consists contain contains",
    "continues contributes controls covers creates crosses decides depicts derives describes describe designates",
    "develops dies discovers divides draws earns embraces employs encompasses encounters ends enjoys enters",
    "established exists explains explores extends faces falls features fights finds flows focuses follow follows",
    "forms gets gives goes governs grows happens has helps hosts hires holds houses includes include inhabits",
    "inspires intends involves joins keeps kills knows lacks leads learns leaves lies links lists lives loses",
    "loves maintains makes manages manufactures marks marries means meets moves narrates needs occupies occurs",
    "occur offers opens operates operate organizes originates owns participates performs plays portrays possesses",
    "prepares presides prevents produces produce promotes proves provides provide publishes reaches receives",
    "recounts refers refer reflects regulates releases remains represents represent requires resides returns",
    "reveals rises rules runs says seeks seems sells sends separates serves serve shares shows sits specializes",
    "specialises spans stands starred stars starts stays steals sponsors studies stretches succeeds suggests",
    "supplies supports surrounds takes teaches tells tends thinks tours translates travels treats tries turns",
    "adheres aims airs centers centres dates hails ranks revolves stems lasts touches drains wears uses visits",
    "votes wants wins works writes form become remain exist belong appear lie live",
)
_NOT_ED = _set(
    "bed breed creed deed embed exceed feed freed hundred hybrid indeed infrared kindred naked need proceed red",
    "reed rugged sacred seed shed shred sled speed succeed ted united weed wicked beloved biped aged blessed",
    "crooked armed unprecedented unlimited sophisticated",
)
_NOUN_ING = _set(
    "building painting recording setting wedding meeting thing king ring spring string wing evening morning",
    "ceiling beijing clothing during ending feeling housing meaning offspring opening planning ruling shopping",
    "sibling sterling training writing boxing fishing mining nothing something anything everything lightning",
    "wrestling racing swimming cycling engineering computing marketing banking advertising broadcasting",
    "manufacturing programming shipping sing bring swing fling cling being outstanding remaining surviving",
    "existing leading neighboring neighbouring following according",
)
_BARE_AFTER = _set(
    "to will would can could may might shall should must did does do not",
)


def is_verb(low: str, before: str) -> bool:
    """Whether the word `low` (lower case) is likely a verb, given the word `before` it ("" at a phrase's start).

    An -ed form behind a determiner ("the renovated hall") is an adjective; an -ing form counts only at a phrase's start
    or behind punctuation or a conjunction ("band, consisting of").
    """
    if low in AUXILIARIES:
        return True
    if before in DETERMINERS:
        return False
    if low in _IRREGULAR or low in _PRESENT:
        return True
    if len(low) > 4 and low.endswith("ed"):
        return low not in _NOT_ED and "-" not in low and before not in _ADJECTIVE_BEFORE
    if len(low) > 4 and low.endswith("ing"):
        return low not in _NOUN_ING and "-" not in low and (before in _PHRASE_START or before in AUXILIARIES)
    return before in _BARE_AFTER and low.isalpha() and low not in PREPOSITIONS and low not in DETERMINERS


_ADJECTIVE_BEFORE = _set(
    "very most more of newly highly",
)
_PHRASE_START = frozenset({"", ",", ";", "and", "or", "(", "-", "--", "–", "—", "while", "by", "then"})


def first_verb(lows: Sequence[str]) -> int:
    """Index of the first verb among the words `lows` (lower case), or -1."""
    before = ""
    for i, low in enumerate(lows):
        if is_verb(low, before):
            return i
        before = low
    return -1
