"""Closed word classes and small word lists of English that the patterns rest on. All entries are lower case."""

from __future__ import annotations


def _set(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


DETERMINERS = _set(
    "a an the this that these those its his her their our my your some any each every no another other several",
    "many most both all such what",
)
PRONOUNS = _set(
    "he she it they we i you him them us me himself herself itself themselves there one",
)
SUBJECT_PRONOUNS = _set(
    "he she it they",
)
POSSESSIVES = _set(
    "his her its their",
)
PREPOSITIONS = _set(
    "of in on at by for from with to into onto upon over under between among amongst against through throughout",
    "during before after since until till within without near across along around behind beside besides above",
    "below toward towards via per as like off about inside outside despite than opposite past beyond alongside",
    "amid up down out",
)
PLACE_PREPOSITIONS = _set(
    "in at near from to outside inside around into",
)
AUXILIARIES = _set(
    "is are was were be been being am has have had having do does did will would can could may might shall should",
    "must",
)
COPULAS = _set(
    "is are was were",
)
CONJUNCTIONS = _set(
    "and or but nor yet plus &",
)
RELATIVES = _set(
    "who whom which whose that where when while whereas because although though if since",
)
CLAUSE_PRONOUNS = _set(
    "who whom which whose that where",
)
ADVERBS = _set(
    "not also then now later only just still even ever never always often usually generally again already soon",
    "once twice thus hence therefore however moreover furthermore meanwhile instead together too very quite",
    "rather almost nearly approximately first last both either neither respectively originally",
    "formerly currently subsequently eventually finally initially previously primarily mainly mostly largely",
    "partly ago early late formally officially commonly widely well more most less least further thereby here",
    "there today yesterday perhaps indeed otherwise elsewhere afterwards afterward nowadays presently",
)
# Words that open a clause before the main one, and those that open a phrase before it without being prepositions.
SUBORDINATORS = _set("when while after before although though as if because since until once whereas")
LEADING = _set("according due following owing prior thanks based unlike regarding")
# Words that, opening a sentence, are never part of a name.
OPENERS = (
    DETERMINERS
    | PRONOUNS
    | PREPOSITIONS
    | AUXILIARIES
    | CONJUNCTIONS
    | RELATIVES
    | ADVERBS
    | _set(
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
COMMON = _set(
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
MONTHS = _set(
    "january february march april may june july august september october november december jan feb mar apr jun",
    "jul aug sept sep oct nov dec",
)
SCALES = _set(
    "hundred thousand million billion trillion crore lakh",
)
UNITS = _set(
    "km kilometres kilometers kilometre kilometer m metres meters metre meter cm mm miles mile mi feet foot ft",
    "inches inch yards yard acres acre hectares hectare ha kg kilograms kilogram g grams gram tonnes tonne tons",
    "ton pounds pound lb lbs oz ounces litres liters litre liter gallons gallon mph kmh km/h knots hp kw mw gw",
    "kwh hz khz mhz ghz volts watts °c °f k mb gb tb km2 sq square people inhabitants residents percent dollars",
    "euros yen rupees votes students copies viewers seats employees soldiers households",
)
ERAS = _set(
    "bc bce ad ce",
)
# Small words inside a name: between capitals they belong to it.
INNER = _set(
    "of de del della dello degli di da do dos das du des van von der den ter ten zu zur zum la le les los las el",
    "al bin ibn ben bint y af av upon und et st het 't op san d' aan e",
)
# "for", "on", "and", "in" belong to a name only behind such heads ("Department for Culture", "Council on Energy").
HEADS = _set(
    "department ministry minister secretary institute institution center centre society association foundation",
    "council fund committee subcommittee commission campaign conference convention office museum academy college",
    "school faculty bureau board agency authority union federation organization organisation court administration",
    "alliance coalition league movement party prize award laboratory university program programme initiative",
    "network journal bank act treaty declaration agreement front army bishop diocese archdiocese chamber",
)
DATED_HEADS = _set(
    "war treaty act revolution battle constitution class panic siege crisis flood fire great",
)
# Possessives that stay inside a name before a capital.
JOINED_POSSESSIVES = _set(
    "women's men's people's children's king's queen's valentine's mother's father's new year's lloyd's fool's",
    "boy's girl's ladies' christ's lord's hobson's murphy's trinity's farmers' workers' writers' veterans'",
)
SUFFIXES = _set(
    "jr jr. sr sr. inc inc. ltd ltd. llc corp. co. plc esq. ph.d. m.d.",
)
DIRECTIONS = _set(
    "north south east west new old central northern southern eastern western upper lower great greater",
)
# Last words too general to stand for a longer name.
GENERAL_LAST = _set(
    "i ii iii iv v vi vii viii ix x xi xii jr jr. sr sr. inc inc. ltd ltd. city town county island islands river",
    "state states university college school street road park lake mountain church award awards prize cup league",
    "series war album film song band day party house center centre museum museums festival company association",
    "society council district province airport station division language people empire republic kingdom union",
    "army force navy",
)
# What an anaphor like "The film" names: the thing that the document is about.
ANAPHORS = _set(
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
RANKS = _set(
    "captain colonel lieutenant sergeant corporal commander admiral brigadier president senator congressman",
    "congresswoman governor judge justice professor doctor dr dr. mr mr. mrs mrs. ms ms. prof prof. capt. col.",
    "lt. sgt. maj. gen. sen. gov. rep. rev. reverend chancellor ambassador director producer actor actress author",
    "singer",
)
HONORIFICS = _set(
    "mr mr. mrs mrs. ms ms. dr dr. sir lady lord dame saint st.",
)
# Heads of names in which "and" joins two fields ("Ministry of Trade and Energy").
FIELD_HEADS = _set(
    "department ministry minister secretary museum school college faculty institute academy bureau office",
    "committee society journal conference division institution",
)
# Words that a number follows in a name, whatever comes next.
NUMBERED = _set(
    "route highway interstate flight chapter section article channel apollo boeing number volume part episode",
    "platform proclamation resolution formula area class type model windows level motorway autobahn radio studio",
    "pier gate",
)
# Countries named by two names, and what ends the name of a line between two places.
PAIRS = frozenset(
    pair
    for a, b in (
        ("trinidad", "tobago"),
        ("bosnia", "herzegovina"),
        ("antigua", "barbuda"),
        ("serbia", "montenegro"),
        ("newfoundland", "labrador"),
        ("saint kitts", "nevis"),
    )
    for pair in ((a.split()[-1], b),)
)
PAIR_ENDS = _set(
    "railway railroad canal line turnpike",
)
# Adjectives of origin.
ORIGINS = _set(
    "french dutch greek swiss czech thai welsh scots irish turkish jewish iraqi israeli pakistani bangladeshi",
    "saudi norse afghan german roman norman qatari kuwaiti yemeni omani punjabi bengali nepali finnish",
)
ORIGIN_ENDINGS = ("ian", "ean", "ish", "ese", "ican")
NOT_ORIGINS = _set(
    "adrian brian christian damian sebastian julian vivian ian sean jean parish vatican",
)
# What a single owner's place or day is called: with it, "Bernie's Diner" is one name.
OWNED = GENERAL_LAST | _set(
    "diner theatre theater hospital bar pub inn cathedral chapel abbey rock cave bay beach bridge castle creek",
    "falls farm garden gardens gate hill island landing library market point square tower union day eve cup own",
    "syndrome disease law theorem paradox constant equation comet triangle",
)
