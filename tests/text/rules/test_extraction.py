"""Pattern extraction: hand-worked sentences, any text, wrong versions, time, and quality on real passages."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.extraction import RELATED_TO, extract_patterns, title_name
from gpu_rag.types import Extraction

SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)
Triple = tuple[str, str, str]

# title, text, triples that must be there
RELATIONS: list[tuple[str, str, list[Triple]]] = [
    ("Ada Holm", "Ada Holm was born in Ribe.", [("Ada Holm", "was born in", "Ribe")]),
    (
        "Ada Holm",
        "Ada Maria Holm (12 April 1801 – 14 November 1842) was a Danish painter and court poet. She studied in Lund.",
        [
            ("Ada Holm", "also called", "Ada Maria Holm"),
            ("Ada Holm", "born", "12 April 1801"),
            ("Ada Holm", "died", "14 November 1842"),
            ("Ada Holm", "was", "Danish painter"),
            ("Ada Holm", "was", "court poet"),
            ("Ada Holm", "studied in", "Lund"),
        ],
    ),
    (
        "Per Dahl",
        "Per Dahl (born 3 May 1950 in Halden, Norway – 1 June 2001 in Lund) was a singer.",
        [
            ("Per Dahl", "born", "3 May 1950"),
            ("Per Dahl", "born in", "Halden"),
            ("Halden", "in", "Norway"),
            ("Per Dahl", "died", "1 June 2001"),
            ("Per Dahl", "died in", "Lund"),
        ],
    ),
    (
        "Jon Tarr",
        "Tarr played for Kerling Rovers, Orle United and Tamsin Town.",
        [("Jon Tarr", "played for", club) for club in ("Kerling Rovers", "Orle United", "Tamsin Town")],
    ),
    (
        "Kerling",
        "Kerling, a town in Vessa, lies on the river Ves. Its mayor was Anna Stroud. The town has a port on Lake Orne.",
        [
            ("Kerling", "town in", "Vessa"),
            ("Kerling", "lies on river", "Ves"),
            ("Kerling", "mayor was", "Anna Stroud"),
            ("Kerling", "has port on", "Lake Orne"),
        ],
    ),
    (
        "The Glass Harbour",
        "The film was directed by Marta Orlo and written by Hugo Brandt. It won the Golden Sail in 1975.",
        [
            ("The Glass Harbour", "was directed by", "Marta Orlo"),
            ("The Glass Harbour", "written by", "Hugo Brandt"),
            ("The Glass Harbour", "won", "Golden Sail"),
            ("The Glass Harbour", "won in", "1975"),
        ],
    ),
    (
        "Halden Bridge",
        "Halden Bridge was designed by Marta Orlo, who was born in Tamsin.",
        [("Halden Bridge", "was designed by", "Marta Orlo"), ("Marta Orlo", "was born in", "Tamsin")],
    ),
    ("Java (island)", "In 1812 the fort was sold to the Orle Company.", [("Java", "was sold in", "1812")]),
    ("Vessa", "The capital of Vessa is Kerling.", [("Vessa", "capital is", "Kerling")]),
    ("X", "Anna Lund's father was Otto Lund.", [("Anna Lund", "father was", "Otto Lund")]),
    ("X", "Ville Orne founded the Orle Trade Union (OTU).", [("Orle Trade Union", "also called", "OTU")]),
    (
        "Orle",
        "After Hugo Brandt was elected mayor of Kerling, he closed the Ves Tunnel.",
        [("Hugo Brandt", "was elected mayor of", "Kerling"), ("Hugo Brandt", "closed", "Ves Tunnel")],
    ),
    (
        "Orle",
        "When Otto died, his son Karl inherited Port Maru.",
        [("Otto", "son", "Karl"), ("Karl", "inherited", "Port Maru")],
    ),
    ("X", "Siv Moen and Ole Berg met in Lund.", [("Siv Moen", "met in", "Lund"), ("Ole Berg", "met in", "Lund")]),
    ("X", "Ole Berg lived in the Danish port of Ribe.", [("Ole Berg", "lived in danish port of", "Ribe")]),
]

# text, entities in order (without a title)
ENTITIES: list[tuple[str, list[str]]] = [
    ("He visited the University of Loss with Louis XIV.", ["University of Loss", "Louis XIV"]),
    ("Programs are rare. They met on 27 September 1941 and in March 1987.", ["27 September 1941", "March 1987"]),
    ('She wrote “Night Ferry” and "Iron and Water".', ["Night Ferry", "Iron and Water"]),
    (
        "It sold 2.5 million records for $40 million; 12 people and 30% left.",
        ["2.5 million", "$40 million", "12 people"],
    ),
    ("Marta Orlo's house stood near St. Olaf's Church.", ["Marta Orlo", "St. Olaf's Church"]),
    ("The song by Ludwig van der Loo and Maria de la Cruz.", ["Ludwig van der Loo", "Maria de la Cruz"]),
    (
        "They saw Apollo 11, the 1924 Winter Games and the War of 1812.",
        ["Apollo 11", "1924 Winter Games", "War of 1812"],
    ),
    ("The Hull and Leeds Railway ran from Trinidad and Tobago.", ["Hull and Leeds Railway", "Trinidad and Tobago"]),
    ("He led the Ministry of Trade and Energy in the 1950s.", ["Ministry of Trade and Energy", "1950s"]),
    ("Later, Captain Ada Holm met J. R. Roe, Jr. in Tak-Yee.", ["Ada Holm", "J. R. Roe, Jr.", "Tak-Yee"]),
    ("Élodie Šimák lived in Åse, near Ōtsu.", ["Élodie Šimák", "Åse", "Ōtsu"]),
    ("However, most of them left. Nothing else happened. In winter it rained.", []),
    ("In May it rained. We may go.", []),
    ("She told the Company that The King had the River closed. WHO IS IT?", []),
    ("He saw The Who and The River King.", ["The Who", "The River King"]),
    ("The word “That” opens his song “Home”.", ["Home"]),
]


def triples_of(title: str, text: str) -> list[Triple]:
    return list(extract_patterns(title, text).triples)


def test_relations_by_hand() -> None:
    for title, text, expected in RELATIONS:
        found = triples_of(title, text)
        missing = [triple for triple in expected if triple not in found]
        assert not missing, (text, missing, found)


def test_entities_by_hand() -> None:
    for text, expected in ENTITIES:
        assert list(extract_patterns("", text).entities) == expected


def test_all_of_one_passage() -> None:
    found = extract_patterns("Orle (town)", "Orle is a market town in Vessa. It faces Lund and Ribe. It grew.")
    assert found.entities == ("Orle", "Vessa", "Lund", "Ribe")
    assert found.triples == (
        ("Orle", "is", "market town"),
        ("Orle", "is market town in", "Vessa"),
        ("Orle", "faces", "Lund"),
        ("Orle", "faces", "Ribe"),
    )


def test_entities_without_a_relation_hang_on_the_title() -> None:
    text = "Lund. Orle is old."
    assert extract_patterns("Orle", text).triples == (("Orle", RELATED_TO, "Lund"),)
    assert extract_patterns("Orle", text, connect=False).triples == ()
    assert extract_patterns("", text).triples == ()


def test_no_title() -> None:
    assert extract_patterns("", "") == Extraction((), ())
    assert extract_patterns("", "He was born in Lund.") == Extraction(("Lund",), ())
    assert extract_patterns("Ada Holm", "") == Extraction(("Ada Holm",), ())
    assert extract_patterns("A" * 301, "It lies in Lund.") == Extraction(("Lund",), ())


@pytest.mark.parametrize(
    ("title", "text", "name"),
    [
        ("Java (island)", "", "Java"),
        ("Ely, Kent", "Ely is a village.", "Ely"),
        ("Ely, Kent", "Ely, Kent is a village.", "Ely, Kent"),
        ("Good Evening, Vessa", "The film was shot in Lund.", "Good Evening, Vessa"),
        ("(Nothing)", "", "(Nothing)"),
        ("", "", ""),
    ],
)
def test_name_of_a_title(title: str, text: str, name: str) -> None:
    assert title_name(title, text) == name


@pytest.mark.parametrize("gap", ["\n", "\n\n", "\r\n", " \n  "])
def test_a_heading_is_no_part_of_a_name(gap: str) -> None:
    text = gap.join(["# Rivers of Orle", "Port Maru lies on the Ves", "## Ada Holm", "Piet Ruyven taught her."])
    found = extract_patterns("", text)
    assert set(found.entities) == {"Rivers of Orle", "Port Maru", "Ves", "Ada Holm", "Piet Ruyven"}
    assert found.triples[0] == ("Port Maru", "lies on", "Ves")


def test_last_words_stand_for_longer_names() -> None:
    text = "Hugo Brandt met Nils Orlo. Brandt left Lund. Orlo and Marta Orlo stayed. Orlo wrote."
    assert set(extract_patterns("", text).entities) == {"Hugo Brandt", "Nils Orlo", "Lund", "Marta Orlo", "Orlo"}
    assert ("Hugo Brandt", "left", "Lund") in triples_of("", text)


PIECES = ["Ada Holm", "Lund", "the", "of", "was born in", "who", "and", ",", "(", ")", '"', "3 May 1999", "–", "He"]
PIECES += ["The film", "is a", "painter", ".", "’s", "1990", "$5", "Šimák", "\n\n", "St.", "in", "when", "A"]
PIECES += ["``", "''"]
PROSE = st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join)


@SETTINGS
@given(st.one_of(PROSE, st.text()), st.sampled_from(["", "Ada Holm", "Lund, Vessa", "the film", "(", "1990"]))
def test_what_always_holds(text: str, title: str) -> None:
    found = extract_patterns(title, text)
    assert found == extract_patterns(title, text)
    names = [normalise_name(name) for name in found.entities]
    assert "" not in names and len(set(names)) == len(names)
    source = {normalise_name(title_name(title, text))}
    one_line = " ".join(text.split())
    assert all(name in one_line or normalise_name(name) in source for name in found.entities)
    assert len(set(found.triples)) == len(found.triples)
    for subject, relation, thing in found.triples:
        assert subject in found.entities
        assert thing in found.entities or relation in ("is", "was", "are", "were")
        assert normalise_name(subject) != normalise_name(thing)
        assert relation == " ".join(relation.split()) != ""
        assert len(relation.split()) <= 12
    if title_name(title, text) in found.entities:
        linked = {end for triple in found.triples for end in (triple[0], triple[2])}
        assert set(found.entities) - linked <= {title_name(title, text)}


RUNS = ["A", '"', "A ", "( ", "A. ", "Foo, ", "Foo and ", "Foo was born in ", "1990 ", '("Foo" ', "A's ", "A- ", "1,"]
RUNS += ["Foo (Bar) was ", "``", "$", ". ", "of ", "Foo of the ", "a.b.", "é", "語", "Foo – ", "by Foo in 1990, "]
RUNS += ["\n# ", "\n--"]


@pytest.mark.parametrize("unit", RUNS)
def test_time_is_linear(unit: str, takes_linear_time: Callable[..., None]) -> None:
    def work(n: int) -> None:
        text = unit * (n // len(unit))
        extract_patterns("Foo", text)
        extract_patterns(text[:290], text[:1000])

    takes_linear_time(work, 40_000)


@pytest.mark.shared
def test_quality_on_real_passages(shared_data: Path) -> None:
    folder = shared_data / "musique_100"
    rows = [json.loads(line) for line in (folder / "openie.jsonl").read_text("utf-8").splitlines()[:300]]
    lines = (folder / "corpus.jsonl").read_text("utf-8").splitlines()
    corpus = {row["id"]: row for row in map(json.loads, lines)}
    n_found = n_wanted = n_both = n_pairs = n_pairs_both = 0
    for row in rows:
        found = extract_patterns(corpus[row["id"]]["title"], corpus[row["id"]]["text"], connect=False)
        mine = {normalise_name(name) for name in found.entities}
        theirs = {normalise_name(name) for name in row["entities"]}
        n_found, n_wanted, n_both = n_found + len(mine), n_wanted + len(theirs), n_both + len(mine & theirs)
        pairs = {frozenset((normalise_name(s), normalise_name(o))) for s, _, o in row["triples"]}
        reachable = {pair for pair in pairs if pair <= mine}
        n_pairs += len(reachable)
        n_pairs_both += len(
            reachable & {frozenset((normalise_name(s), normalise_name(o))) for s, _, o in found.triples}
        )
    assert n_both / n_wanted > 0.79  # measured 0.811
    assert n_both / n_found > 0.70  # measured 0.724
    assert n_pairs_both / n_pairs > 0.64  # measured 0.673
