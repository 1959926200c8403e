"""A question as the units that its decomposition looks at: names as one unit, "#1", words, numbers and marks."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.text.rules.extraction.entities import find_mentions_in
from gpu_rag.text.rules.extraction.lexicon import is_verb, word_set
from gpu_rag.text.rules.extraction.tokens import MARK, NAME, NUMBER, Token, passage_words, tokenise

QUESTION_WORDS = word_set("who whom whose which what when where why how")
AUX = word_set("did does do was were is are has have had can could will would may might must should be been being")
COPULAS = word_set("is are was were")
RELATIVES = word_set("who whom whose which that where when")

FUNCTION_WORDS = word_set(
    "a an the this that these those of in on at by for from with to into onto upon over under between among",
    "against through during before after since until till within without near across along around behind beside",
    "above below toward towards via per as like off about inside outside than and or but nor if while because",
    "although both either it its he him his she her they them their there then not also",
)
# Nouns for a person without an agent's ending, and kin.
PEOPLE = word_set(
    "father mother parent son daughter child brother sister sibling husband wife spouse partner uncle aunt nephew",
    "niece cousin grandfather grandmother grandson granddaughter grandparent stepfather stepmother widow widower",
    "fiance fiancee friend man woman boy girl king queen prince princess emperor empress duke duchess earl count",
    "countess president chancellor premier pope bishop archbishop hero heroine chief head captain monarch",
    "sovereign pharaoh sultan tsar person people someone astronaut architect scientist chemist physicist novelist",
    "poet librettist pianist guitarist vocalist drummer bassist musician mathematician politician physician",
    "surgeon navigator midshipman engineer cantor teacher student pupil judge coach host mayor general colonel",
    "admiral spokesman chairman chairwoman businessman actress hostess knight heir successor predecessor star",
    "athlete individual explorer cosmonaut philosopher member representative guide priest monk nun rabbi imam",
    "witness",
)
# Other nouns whose "of X" or "X's" names one thing that another question must find first.
THINGS = word_set(
    "capital country birthplace hometown homeland nationality currency continent county state province city town",
    "village region district borough headquarters birthday birthdate team club label publisher network employer",
    "company university college school party religion language species genus river island ship band group studio",
    "mater church cathedral denomination diocese seat subsidiary owner brand manufacturer flag anthem mouth",
    "source tributary namesake sequel prequel successor predecessor deathplace residence workplace",
)
# "the city of Paris" is Paris: no relation.
APPOSITIVE = word_set(
    "city town village state province county kingdom republic island islands month year day country borough",
    "district region river continent empire school university college church group company species language party",
)
# Words that end like an agent and are none.
_NO_AGENTS = word_set(
    "river number order paper letter border center power tower chapter weather error color flavor interior",
    "exterior behavior factor vector mirror floor door labor humor honor terror minor major water winter summer",
    "matter theater cover layer cluster register quarter corner charter dinner finger computer harbor motor",
    "sector odor armor list mist twist wrist exist assist consist resist mater offer answer danger silver copper",
    "liver diameter perimeter meter liter disorder disaster gender fiber timber lumber chamber remainder reminder",
    "shelter counter superior inferior anterior posterior prior senior junior manor tenor favor rumor tumor vapor",
    "fervor monitor transistor reactor tractor sensor december september october november other another either",
    "neither whether rather never ever over under after later earlier better former latter poster business",
    "process access press address congress progress success newsletter newspaper flower barrier frontier atelier",
    "glacier carrier pier twitter trailer container freezer hair air chair stair affair pair year ear war bar car",
    "calendar sugar dollar altar pillar cellar collar",
)
_AGENT_ENDINGS = ("er", "or", "ist", "ian", "eur", "ant")
_NO_ANTS = word_set("plant restaurant elephant giant variant constant grant instant important distant")
PLURALS = word_set(
    "parents children brothers sisters siblings sons daughters directors writers founders authors men women"
)

BASE_VERBS = word_set(
    "die graduate study work live win open form become come found write teach attend marry move start begin",
    "receive play discover join command serve lead make create build design direct produce star sing perform",
    "release publish invent paint compose establish govern rule fight lose leave return go take give get have",
    "meet see visit travel sail fly drive fall rise end close break change grow run stand lie sit hold keep buy",
    "sell own use need want say tell speak call name mean refer belong border contain include cross flow share",
    "host premiere debut appear air broadcast record sign retire resign abdicate convert emigrate immigrate",
    "settle reside stay originate occur happen hand handle cover score beat defeat support oppose vote elect",
    "appoint hire train learn practise practice raise adopt bear kill murder assassinate bury invade conquer",
    "occupy annex gain declare refuse surrender arrive reach land launch sink crash explode enter exit relocate",
    "expand merge split acquire sponsor fund donate borrow translate influence inspire follow precede succeed",
    "replace represent coach manage captain first prepare formulate propose prove solve coin capture defend",
    "attack ally exist last cost weigh measure earn charge pay issue mint print draw fire shoot",
)
# Present forms and participles that stand after a noun and are missing in the lists of `patterns_verbs`.
LATE_VERBS = word_set(
    "is are was were be been has have had will would can could did does do died born located situated made",
    "produced directed written founded built designed owned named called known married buried signed featured",
    "starring bordering containing featuring leading releasing producing premiering comes came includes took went",
    "became",
)
REDUCED_AFTER = word_set(
    "by in on at for from with to as of after before near under during against into between through"
)
COMPOUND_TAIL = word_set("birth death origin citizenship residence burial employment")
COMPOUND_HEAD = word_set("place city town country date state county village cause")

_AGENT_EXCEPTIONS = _NO_AGENTS | _NO_ANTS


def is_person(noun: str) -> bool:
    """Whether a noun (lower case, singular) names a person: by a list, or by an agent's ending (-er, -or, -ist)."""
    if noun in PEOPLE or noun in PLURALS:
        return True
    return len(noun) > 4 and noun.endswith(_AGENT_ENDINGS) and noun not in _AGENT_EXCEPTIONS


def is_relational(noun: str) -> bool:
    """Whether "the NOUN of X" or "X's NOUN" names one thing or person that can be asked for."""
    return is_person(noun) or noun in THINGS


WORD_UNIT, NAME_UNIT, MARK_UNIT = range(3)
_MAX_PARENTHESIS = 8


@dataclass(frozen=True)
class Unit:
    """text[start:end] of the question. kind: a name (also "#1", a date, a quoted title), a mark, or a plain word.

    possessive: an 's follows. low: lower case.
    """

    low: str
    start: int
    end: int
    kind: int
    possessive: bool = False

    @property
    def is_name(self) -> bool:
        """A name, a date, or "#1"."""
        return self.kind == NAME_UNIT

    @property
    def is_word(self) -> bool:
        """A plain word that is no closed-class word."""
        return self.kind == WORD_UNIT and self.low not in FUNCTION_WORDS and self.low not in RELATIVES


def units_of(text: str) -> list[Unit]:
    """The units of a question, in order. Linear."""
    tokens = tokenise(text, 0, len(text))
    found = {m.first: m.last for m in find_mentions_in(text, tokens, passage_words("", [], [tokens]))}
    units: list[Unit] = []
    i = 0
    while i < len(tokens):
        last = _name_end(tokens, i, found)
        first, final = tokens[i], tokens[last - 1]
        kind = NAME_UNIT if last > i + 1 or i in found or first.kind == NAME else WORD_UNIT
        if kind == WORD_UNIT and first.kind == MARK:
            kind = MARK_UNIT
        if i == 0 and last == 1 and i not in found:  # a sentence opens with a capital
            kind = WORD_UNIT
        units.append(Unit(text[first.start : final.end].casefold(), first.start, final.end, kind, final.possessive))
        i = last
    return units


def _name_end(tokens: list[Token], i: int, found: dict[int, int]) -> int:
    if tokens[i].text == "#" and i + 1 < len(tokens) and tokens[i + 1].kind == NUMBER:
        return i + 2
    last = found.get(i, i + 1)
    if i > 0 and tokens[i].kind == NAME and tokens[i].low in FUNCTION_WORDS:  # a title: "On the Origin of Species"
        after = last + (last < len(tokens) and tokens[last].low in ("the", "a"))
        last = found.get(after, last)
    if last + 1 < len(tokens) and tokens[last].text in ("'", "\u2019") and tokens[last + 1].kind == NAME:
        last = found.get(last + 1, last + 2) if tokens[last].start == tokens[last - 1].end else last  # "de' Medici"
    return _behind_parenthesis(tokens, last) if i in found or tokens[i].kind == NAME else last


def _behind_parenthesis(tokens: list[Token], last: int) -> int:
    """Behind a short parenthesis that follows a name: "Jaws (1975 film)" is one name."""
    if last < len(tokens) and tokens[last].text == "(":
        for i in range(last + 1, min(len(tokens), last + _MAX_PARENTHESIS)):
            if tokens[i].text == ")":
                return i + 1
    return last


def is_aux(unit: Unit) -> bool:
    """Whether a unit is an auxiliary or a form of "to be"."""
    return unit.kind == WORD_UNIT and unit.low in AUX


def verb_at(units: list[Unit], i: int) -> bool:
    """Whether unit i is likely a verb, by lists of forms, the endings -ed and -ing, and the word before it."""
    unit = units[i]
    if unit.kind != WORD_UNIT:
        return False
    before = units[i - 1] if i else None
    plain = before is not None and before.kind == WORD_UNIT and before.low not in RELATIVES
    word_before = before.low if before is not None and plain else "x"
    return unit.low in LATE_VERBS or (unit.low not in FUNCTION_WORDS and is_verb(unit.low, word_before))


def base_verb_at(units: list[Unit], i: int) -> bool:
    """Whether unit i can be the verb that "did" waits for: a base form, not behind a determiner or preposition."""
    unit = units[i]
    if unit.kind != WORD_UNIT or unit.low not in BASE_VERBS or i == 0:
        return False
    before = units[i - 1]
    return before.is_name or before.kind == MARK_UNIT or before.low not in FUNCTION_WORDS
