"""Word lists by which questions are taken apart: relational nouns, question words, verbs in their base form."""

from __future__ import annotations


def _set(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


QUESTION_WORDS = _set("who whom whose which what when where why how")
AUX = _set(
    "did does do was were is are has have had can could will would may might must should be been being",
)
COPULAS = _set("is are was were")
RELATIVES = _set("who whom whose which that where when")

FUNCTION_WORDS = _set(
    "a an the this that these those of in on at by for from with to into onto upon over under between among",
    "against through during before after since until till within without near across along around behind beside",
    "above below toward towards via per as like off about inside outside than and or but nor if while because",
    "although both either it its he him his she her they them their there then not also",
)
# Nouns for a person without an agent's ending, and kin.
PEOPLE = _set(
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
THINGS = _set(
    "capital country birthplace hometown homeland nationality currency continent county state province city town",
    "village region district borough headquarters birthday birthdate team club label publisher network employer",
    "company university college school party religion language species genus river island ship band group studio",
    "mater church cathedral denomination diocese seat subsidiary owner brand manufacturer flag anthem mouth",
    "source tributary namesake sequel prequel successor predecessor deathplace residence workplace",
)
# "the city of Paris" is Paris: no relation.
APPOSITIVE = _set(
    "city town village state province county kingdom republic island islands month year day country borough",
    "district region river continent empire school university college church group company species language party",
)
# Words that end like an agent and are none.
_NO_AGENTS = _set(
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
_NO_ANTS = _set("plant restaurant elephant giant variant constant grant instant important distant")
PLURALS = _set(
    "parents children brothers sisters siblings sons daughters directors writers founders authors men women",
)

BASE_VERBS = _set(
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
LATE_VERBS = _set(
    "is are was were be been has have had will would can could did does do died born located situated made",
    "produced directed written founded built designed owned named called known married buried signed featured",
    "starring bordering containing featuring leading releasing producing premiering comes came includes took went",
    "became",
)
REDUCED_AFTER = _set(
    "by in on at for from with to as of after before near under during against into between through",
)
COMPOUND_TAIL = _set("birth death origin citizenship residence burial employment")
COMPOUND_HEAD = _set("place city town country date state county village cause")

_AGENT_EXCEPTIONS = _NO_AGENTS | _NO_ANTS


def is_person(noun: str) -> bool:
    """Whether a noun (lower case, singular) names a person: by a list, or by an agent's ending (-er, -or, -ist)."""
    if noun in PEOPLE or noun in PLURALS:
        return True
    return len(noun) > 4 and noun.endswith(_AGENT_ENDINGS) and noun not in _AGENT_EXCEPTIONS


def is_relational(noun: str) -> bool:
    """Whether "the NOUN of X" or "X's NOUN" names one thing or person that can be asked for."""
    return is_person(noun) or noun in THINGS
