"""Names in questions: words, the longest name, homonyms, aliases, capitals, titles; worked by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index import tables
from gpu_rag.index.name_table import NAMES as FILE
from gpu_rag.index.name_table import NameTable, of_one, words_of
from gpu_rag.index.stages.names import names_of_entities, names_of_titles
from gpu_rag.index.titles import MAX_PASSAGES
from gpu_rag.program.seeds import COMMON, Titles, entity_seeds, spread, title_seeds

NAMES = ["Harald Bluetooth", "the 12- Mile Reef", "Téllez- Girón", "Mile", "spouse", "1915", "12", "Who", "Orlo's Vale"]


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("Where did Harald Bluetooth's father die?", ["Harald Bluetooth"]),
        ("Is HARALD BLUETOOTH a king?", ["Harald Bluetooth"]),
        ("Who filmed The 12-Mile Reef in 1915?", ["the 12- Mile Reef", "1915"]),  # the longest, and not "Mile" in it
        ("How long is a Mile?", ["Mile"]),
        ("Who is Tellez–Giron?", ["Téllez- Girón"]),
        ("Who is the spouse of Orlo’S Vale?", ["spouse", "Orlo's Vale"]),
        ("Who is the 12 of them?", []),  # no number below 1000, and no stop words
    ],
)
def test_names_are_compared_word_by_word(question: str, named: list[str]) -> None:
    table = NameTable.of(pa.array(NAMES), np.arange(len(NAMES)))
    (names,) = table.names_in([words_of(question)])
    assert [[NAMES[row] for row in rows] for rows, _ in names] == [[name] for name in named]


def test_names_of_scripts_without_spaces_are_found() -> None:
    names = ["白石港", "石港", "港", "マリソル号", "Tolm"]
    table = NameTable.of(pa.array(names), np.arange(len(names)))
    asked = ["白石港的灯塔是谁建的?", "石港在哪里?", "マリソル号は何年に進水しましたか", "港", "Tolm站在哪里?"]
    named = [[names[row] for (row,), _ in found] for found in table.names_in([words_of(text) for text in asked])]
    assert named == [["白石港"], ["石港"], ["マリソル号"], [], ["Tolm"]]  # one character says too little


def test_a_name_without_a_capital_weighs_little_and_a_common_one_too() -> None:
    table = NameTable.of(pa.array(["spouse", "Jump for Glory", "jump for glory", "Paris"]), np.arange(4))
    asked = words_of("Who is the spouse of the director of Jump for Glory in Paris?")
    (found,) = entity_seeds(table, [asked], np.array([2, 1, 4, 5]))
    assert found == {0: COMMON / 2, 1: 0.5, 2: 0.125, 3: 0.2}  # two of one name share it
    (small,) = entity_seeds(table, [words_of("What is the spouse of paris?")], np.array([2, 1, 4, 5]))
    assert small == {0: 0.5, 3: 0.2}  # typed without capitals
    rows, weights = spread([{1: 3.0, 2: 1.0}, {}, {4: 0.5}])
    assert rows.tolist() == [[1, 2], [0, 0], [4, 4]] and weights.tolist() == [[0.75, 0.25], [0, 0], [1, 0]]


def test_an_alias_counts_where_one_entity_has_it() -> None:
    names = ["ann orlo", "bo orlo", "mark twain", "vale", "the vale (film)", "jaws (film)"]
    profiles = {"Ann Orlo": ["Orlo", "Annie"], "Bo Orlo": ["Orlo"], "Mark Twain": ["Clemens", "Vale"], "No": ["X1x"]}
    given = pa.table({"name": [*profiles], "aliases": [*profiles.values()]})
    table = names_of_entities(pa.chunked_array([names]), given)

    def named(text: str) -> list[tuple[int, ...]]:
        return [rows for rows, _ in table.names_in([words_of(text)])[0]]

    assert named("Is Annie or Clemens older?") == [(0,), (2,)]
    assert named("Is Orlo older than X1x?") == []  # two have it, and nobody
    assert named("Is The Vale older than Vale or Jaws?") == [(4,), (3,), (5,)]  # a name comes before an alias
    more = pa.array(["A b", "a B", "c", "C", "d"]), np.array([1, 1, 1, 2, 3])
    assert [part.tolist() for part in of_one(*more, pa.array(["d"], pa.large_string()))] == [["a b"], [1]]


TITLES = ["Whistle Stop (film)", "Whistle Stop (novel)", "Evidence", "Evidence (1915 film)", "River", "Ves", "Ves"]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who directed Whistle Stop (Film)?", {0: 1.0}),
        ("Who directed the film Whistle Stop?", {0: 1.0}),  # by the question's other words
        ("Who wrote the novel Whistle Stop?", {1: 1.0}),
        ("Who likes Whistle Stop?", {0: 0.5, 1: 0.5}),
        ("Who likes Evidence?", {2: 1.0}),  # no word for a bracket: the title without one
        ("Who shot Evidence in 1915 on film?", {3: 1.0}),
        ("Which river flows to Ves?", {5: 0.5, 6: 0.5}),  # "river" has no capital
        ("who likes the river?", {4: 1.0}),  # nothing has
        ("Who likes nothing?", {}),
        ("Is Many titled?", {}),
    ],
)
def test_passages_are_seeds_by_their_titles(question: str, expected: dict[int, float]) -> None:
    titles = [*TITLES, *["Many"] * (MAX_PASSAGES + 1)]
    table = names_of_titles(pa.chunked_array([titles]))
    assert title_seeds(Titles(table, titles), [words_of(question)]) == [expected]


def by_dictionary(names: list[tuple[str, int]], words: list[str]) -> list[tuple[int, ...]]:
    """At each word the longest name, by trying all."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for name, row in names:
        if row not in rows.setdefault(tuple(words_of(name).folded), []):
            rows[tuple(words_of(name).folded)].append(row)
    found, first = [], 0
    while first < len(words):
        lasts = (last for last in range(len(words), first, -1) if tuple(words[first:last]) in rows)
        last = next(lasts, 0)
        found += [tuple(rows[tuple(words[first:last])])] if last else []
        first = last or first + 1
    return found


WORDS = st.lists(st.sampled_from(["orlo", "vale", "mill", "çelik", "orlov", "ann"]), min_size=1, max_size=5)


@given(st.lists(st.tuples(WORDS.map(" ".join), st.integers(0, 9)), max_size=25), st.lists(WORDS, max_size=3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_longest_names_against_a_dictionary(names: list[tuple[str, int]], asked: list[list[str]]) -> None:
    texts = [words_of(" ".join(word for part in parts for word in part)) for parts in (asked, asked[:1], [], asked[1:])]
    given = pa.array([name for name, _ in names], pa.string()), np.array([row for _, row in names], np.int64)
    table = NameTable.of(*given)
    expected = [by_dictionary(names, text.folded) for text in texts]
    assert [[rows for rows, _ in found] for found in table.names_in(texts)] == expected


def test_a_table_that_is_mapped_finds_the_same(tmp_path: Path) -> None:
    table = NameTable.of(pa.array(NAMES), np.arange(len(NAMES)))
    tables.write_arrays(tmp_path / FILE, table.arrays)
    mapped = NameTable(tables.read_arrays(tmp_path / FILE))
    asked = [words_of("Is Harald Bluetooth a spouse of a Mile?")]
    assert mapped.names_in(asked) == table.names_in(asked) != [[]]
