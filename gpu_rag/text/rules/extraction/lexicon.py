"""Closed word classes and word lists of English, all in lower case, and which words they make verbs."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_rag.text.sentences import word_set

DETERMINERS = word_set(
    "a an the this that these those its his her their our my your some any each every no another other several",
    "many most both all such what",
)
PRONOUNS = word_set("he she it they we i you him them us me himself herself itself themselves there one")
SUBJECT_PRONOUNS = word_set("he she it they")
POSSESSIVES = word_set("his her its their")
PREPOSITIONS = word_set(
    "of in on at by for from with to into onto upon over under between among amongst against through throughout",
    "during before after since until till within without near across along around behind beside besides above",
    "below toward towards via per as like off about inside outside despite than opposite past beyond alongside",
    "amid up down out",
)
PLACE_PREPOSITIONS = word_set("in at near from to outside inside around into")
AUXILIARIES = word_set(
    "is are was were be been being am has have had having do does did will would can could may might shall should",
    "must",
)
COPULAS = word_set("is are was were")
CONJUNCTIONS = word_set("and or but nor yet plus &")
RELATIVES = word_set("who whom which whose that where when while whereas because although though if since")
CLAUSE_PRONOUNS = word_set("who whom which whose that where")
ADVERBS = word_set(
    "not also then now later only just still even ever never always often usually generally again already soon",
    "once twice thus hence therefore however moreover furthermore meanwhile instead together too very quite",
    "rather almost nearly approximately first last both either neither respectively originally",
    "formerly currently subsequently eventually finally initially previously primarily mainly mostly largely",
    "partly ago early late formally officially commonly widely well more most less least further thereby here",
    "there today yesterday perhaps indeed otherwise elsewhere afterwards afterward nowadays presently",
)
# Words that open a clause before the main one, and those that open a phrase before it without being prepositions.
SUBORDINATORS = word_set("when while after before although though as if because since until once whereas")
LEADING = word_set("according due following owing prior thanks based unlike regarding")
# Words that, opening a sentence, are never part of a name.
OPENERS = (
    DETERMINERS
    | PRONOUNS
    | PREPOSITIONS
    | AUXILIARIES
    | CONJUNCTIONS
    | RELATIVES
    | ADVERBS
    | word_set(
        "following according due based born located situated founded known named called released published written",
        "directed produced established built given having being including using during unlike regarding concerning",
        "how why whether unless whenever wherever except few much none nothing something someone everyone anyone two",
        "three four five six seven eight nine ten eleven twelve twenty thirty hundreds thousands dozens half former",
        "fellow actor actress director author writer singer although notable various numerous certain different",
        "similar additional overall historically geographically typically traditionally politically economically",
        "internationally nationally locally recently apparently reportedly allegedly please let don't it's he's she's",
        "that's there's i'm isn't wasn't can't won't didn't doesn't",
    )
)
# Common words that may open a sentence alone; followed by a capital they may begin a name ("Sports Illustrated").
COMMON = word_set(
    "mother father son daughter brother sister wife husband spouse child man woman boy girl king queen prince",
    "princess president governor mayor minister chancellor senator judge leader member winner champion character",
    "producer director part place end way home body world date location position person star company border citizen",
    "officer general died married formed group line point list title name note page start beginning end side",
    "smooth white black red blue green yellow brown grey gray day night morning evening north south east west",
    "people men women children students members players teams fans critics scholars historians scientists",
    "researchers soldiers troops citizens residents visitors workers employees officials leaders politicians",
    "artists musicians writers authors actors viewers readers users companies businesses schools colleges",
    "universities countries nations cities towns villages states counties districts provinces regions areas",
    "places sites buildings houses homes streets roads bridges rivers lakes mountains islands forests trees",
    "plants animals birds fish insects species humans dogs cats horses cattle crops fruits seeds flowers leaves",
    "water air fire earth land soil rain snow wind climate weather temperatures temperature winters summers",
    "winter summer spring autumn fall population programs programmes exhibits events games matches sports music",
    "songs albums films movies books novels poems plays works stories articles reviews paintings episodes seasons",
    "series shows characters roles production filming recording construction development research education",
    "science history politics religion culture language languages economy trade industry agriculture tourism",
    "transport transportation government law laws elections voters parties war wars battles attacks casualties",
    "forces ships aircraft trains buses cars engines weapons tools materials metal gold silver iron copper steel",
    "coal oil gas energy power electricity heat light sound time times years months weeks days hours age life",
    "death birth marriage family families parents sons daughters brothers sisters wives husbands friends work",
    "jobs money income prices taxes sales profits costs results changes efforts attempts plans problems issues",
    "questions answers reasons causes effects examples types kinds forms parts sections groups numbers figures",
    "statistics estimates records evidence data information reports sources documents letters names words terms",
    "definitions theories ideas concepts methods techniques systems structures processes functions features",
    "details rumors rumours discussions negotiations talks relations conditions circumstances opinions views",
    "beliefs traditions customs festivals ceremonies celebrations holidays food foods drinks wine beer coffee tea",
    "sugar salt rice bread health medicine doctors patients diseases symptoms treatment surgery drugs blood cells",
    "genes proteins bacteria viruses computers software hardware networks websites programming access service",
    "services support training practice competition qualification attendance membership enrollment admission",
    "entry participation leading major minor large small big great good bad new old young high low long short",
    "wide deep strong weak rich poor free open public private local national international modern ancient early",
    "late recent popular famous important significant original final initial main central common rare single",
    "double special general military civil political social economic cultural religious scientific technical",
    "commercial industrial natural physical human domestic foreign royal annual daily weekly monthly critical",
    "contemporary legend tradition today tonight set written played sung founded built located situated used made",
    "seen found left right north south east west northern southern eastern western upper lower inside beneath",
    "next nearby success failure victory defeat peace revolution independence reception plot synopsis background",
    "overview introduction summary references gameplay ratings nominations awards honors honours graduates alumni",
    "faculty staff classes courses excluding counting considering depending speaking playing working living",
    "growing starting beginning returning adding combining leaving making taking seeing hearing feeling ending",
    "nominated raised educated trained inspired shot filmed recorded performed composed designed created",
    "developed introduced opened closed completed destroyed prior subsequent thanks upon yes ok note see compare",
    "contrast imagine consider suppose assume add use take get make go come give keep put say tell ask try turn",
    "start stop help show find think know want need love",
)
MONTHS = word_set(
    "january february march april may june july august september october november december jan feb mar apr jun",
    "jul aug sept sep oct nov dec",
)
SCALES = word_set("hundred thousand million billion trillion crore lakh")
UNITS = word_set(
    "km kilometres kilometers kilometre kilometer m metres meters metre meter cm mm miles mile mi feet foot ft",
    "inches inch yards yard acres acre hectares hectare ha kg kilograms kilogram g grams gram tonnes tonne tons",
    "ton pounds pound lb lbs oz ounces litres liters litre liter gallons gallon mph kmh km/h knots hp kw mw gw",
    "kwh hz khz mhz ghz volts watts °c °f k mb gb tb km2 sq square people inhabitants residents percent dollars",
    "euros yen rupees votes students copies viewers seats employees soldiers households",
)
ERAS = word_set("bc bce ad ce")
# Small words inside a name: between capitals they belong to it.
INNER = word_set(
    "of de del della dello degli di da do dos das du des van von der den ter ten zu zur zum la le les los las el",
    "al bin ibn ben bint y af av upon und et st het 't op san d' aan e",
)
# "for", "on", "and", "in" belong to a name only behind such heads ("Department for Culture", "Council on Energy").
HEADS = word_set(
    "department ministry minister secretary institute institution center centre society association foundation",
    "council fund committee subcommittee commission campaign conference convention office museum academy college",
    "school faculty bureau board agency authority union federation organization organisation court administration",
    "alliance coalition league movement party prize award laboratory university program programme initiative",
    "network journal bank act treaty declaration agreement front army bishop diocese archdiocese chamber",
)
DATED_HEADS = word_set("war treaty act revolution battle constitution class panic siege crisis flood fire great")
# Possessives that stay inside a name before a capital.
JOINED_POSSESSIVES = word_set(
    "women's men's people's children's king's queen's valentine's mother's father's new year's lloyd's fool's",
    "boy's girl's ladies' christ's lord's hobson's murphy's trinity's farmers' workers' writers' veterans'",
)
SUFFIXES = word_set("jr jr. sr sr. inc inc. ltd ltd. llc corp. co. plc esq. ph.d. m.d.")
DIRECTIONS = word_set(
    "north south east west new old central northern southern eastern western upper lower great greater"
)
# Last words too general to stand for a longer name.
GENERAL_LAST = word_set(
    "i ii iii iv v vi vii viii ix x xi xii jr jr. sr sr. inc inc. ltd ltd. city town county island islands river",
    "state states university college school street road park lake mountain church award awards prize cup league",
    "series war album film song band day party house center centre museum museums festival company association",
    "society council district province airport station division language people empire republic kingdom union",
    "army force navy",
)
# What an anaphor like "The film" names: the thing that the document is about.
ANAPHORS = word_set(
    "film movie picture documentary sequel series show sitcom programme program episode season album song single",
    "track record ep soundtrack book novel novella story poem play work magazine newspaper journal publication",
    "comic opera musical ballet painting game videogame band group duo trio ensemble orchestra singer actor",
    "actress author writer city town village municipality commune county district province region state country",
    "nation island area territory settlement community suburb neighborhood neighbourhood parish township borough",
    "capital river lake mountain building church cathedral temple castle palace house hotel museum library",
    "stadium arena airport station bridge school college university institute academy company firm corporation",
    "organization organisation agency association foundation club team party movement union league tournament",
    "competition event festival award prize war battle conflict treaty act law bill court kingdom empire republic",
    "dynasty tribe family species genus plant animal disease language ship vessel aircraft car engine software",
    "system project name title term",
)
# Ranks and callings before a name; the name goes without them elsewhere.
RANKS = word_set(
    "captain colonel lieutenant sergeant corporal commander admiral brigadier president senator congressman",
    "congresswoman governor judge justice professor doctor dr dr. mr mr. mrs mrs. ms ms. prof prof. capt. col.",
    "lt. sgt. maj. gen. sen. gov. rep. rev. reverend chancellor ambassador director producer actor actress author",
    "singer",
)
HONORIFICS = word_set("mr mr. mrs mrs. ms ms. dr dr. sir lady lord dame saint st.")
# Heads of names in which "and" joins two fields ("Ministry of Trade and Energy").
FIELD_HEADS = word_set(
    "department ministry minister secretary museum school college faculty institute academy bureau office",
    "committee society journal conference division institution",
)
# Words that a number follows in a name, whatever comes next.
NUMBERED = word_set(
    "route highway interstate flight chapter section article channel apollo boeing number volume part episode",
    "platform proclamation resolution formula area class type model windows level motorway autobahn radio studio",
    "pier gate",
)
# Countries named by two names, and what ends the name of a line between two places.
PAIRS = frozenset({("trinidad", "tobago"), ("bosnia", "herzegovina"), ("antigua", "barbuda"), ("kitts", "nevis")}) | {
    ("serbia", "montenegro"),
    ("newfoundland", "labrador"),
}
PAIR_ENDS = word_set("railway railroad canal line turnpike")
# Adjectives of origin.
ORIGINS = word_set(
    "french dutch greek swiss czech thai welsh scots irish turkish jewish iraqi israeli pakistani bangladeshi",
    "saudi norse afghan german roman norman qatari kuwaiti yemeni omani punjabi bengali nepali finnish",
)
ORIGIN_ENDINGS = ("ian", "ean", "ish", "ese", "ican")
NOT_ORIGINS = word_set("adrian brian christian damian sebastian julian vivian ian sean jean parish vatican")
# What a single owner's place or day is called: with it, "Bernie's Diner" is one name.
OWNED = GENERAL_LAST | word_set(
    "diner theatre theater hospital bar pub inn cathedral chapel abbey rock cave bay beach bridge castle creek",
    "falls farm garden gardens gate hill island landing library market point square tower union day eve cup own",
    "syndrome disease law theorem paradox constant equation comet triangle",
)


_IRREGULAR = word_set(
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
_PRESENT = word_set(
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
_NOT_ED = word_set(
    "bed breed creed deed embed exceed feed freed hundred hybrid indeed infrared kindred naked need proceed red",
    "reed rugged sacred seed shed shred sled speed succeed ted united weed wicked beloved biped aged blessed",
    "crooked armed unprecedented unlimited sophisticated",
)
_NOUN_ING = word_set(
    "building painting recording setting wedding meeting thing king ring spring string wing evening morning",
    "ceiling beijing clothing during ending feeling housing meaning offspring opening planning ruling shopping",
    "sibling sterling training writing boxing fishing mining nothing something anything everything lightning",
    "wrestling racing swimming cycling engineering computing marketing banking advertising broadcasting",
    "manufacturing programming shipping sing bring swing fling cling being outstanding remaining surviving",
    "existing leading neighboring neighbouring following according",
)
_BARE_AFTER = word_set("to will would can could may might shall should must did does do not")


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


_ADJECTIVE_BEFORE = word_set("very most more of newly highly")
_PHRASE_START = frozenset({"", ",", ";", "and", "or", "(", "-", "--", "–", "—", "while", "by", "then"})


def first_verb(lows: Sequence[str]) -> int:
    """Index of the first verb among the words `lows` (lower case), or -1."""
    before = ""
    for i, low in enumerate(lows):
        if is_verb(low, before):
            return i
        before = low
    return -1
