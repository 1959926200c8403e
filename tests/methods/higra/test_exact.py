"""The exact merge of HiGraAgent: against a brute-force union-find, hand-worked cases, wrong versions."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.index import tables
from gpu_rag.index.stages.entities import entities_stage
from gpu_rag.index.work import Sources
from gpu_rag.methods.higra.merges import REJECT, Edit, write_edits
from gpu_rag.methods.higra.stages.exact import careful_merge, exact_merge, exact_stage
from gpu_rag.methods.higra.tables import EXACT_ENTITIES, HIGRA_MERGES, HIGRA_RELATIONS

Key = tuple[str, frozenset[str], frozenset[str]]
Groups = list[list[int]]


def key(name: str, types: str = "", aliases: Iterable[str] = "") -> Key:
    """One letter a type, and an alias where they are given as one text."""
    return name, frozenset(types), frozenset(aliases) - {name}


def groups_of(labels: Sequence[int]) -> Groups:
    assert all(labels[label] == label <= row for row, label in enumerate(labels))  # the smallest row of the group
    return sorted([row for row, of in enumerate(labels) if of == label] for label in set(labels))


def brute_force(keys: Sequence[Key]) -> Groups:
    """The rule pair by pair: names meet and types meet (no types meet no types), until nothing changes."""
    group = list(range(len(keys)))

    def unite(a: int, b: int) -> None:
        old, new = group[b], group[a]
        group[:] = [new if g == old else g for g in group]

    names = [{name} | aliases for name, _, aliases in keys]
    for a, b in combinations(range(len(keys)), 2):
        types_meet = keys[a][1] & keys[b][1] or not (keys[a][1] or keys[b][1])
        if names[a] & names[b] and types_meet:
            unite(a, b)
    found = {g: [row for row in range(len(keys)) if group[row] == g] for g in set(group)}
    typed = {g for g, rows in found.items() if keys[rows[0]][1]}
    held = {g: set().union(*(names[row] for row in rows)) for g, rows in found.items()}
    for g in set(found) - typed:
        homes = [t for t in typed if held[t] & held[g]]
        if len(homes) == 1:
            unite(homes[0], g)
    return sorted(sorted(row for row in range(len(keys)) if group[row] == g) for g in set(group))


CASES: dict[str, tuple[list[Key], Groups]] = {
    "a name and a type": ([key("j", "il"), key("j", "l"), key("j", "x")], [[0, 1], [2]]),
    "by an alias": ([key("a", "p", "b"), key("b", "p"), key("c", "p", "d")], [[0, 1], [2]]),
    "two aliases": ([key("a", "p", "x"), key("b", "p", "x")], [[0, 1]]),
    "transitive": ([key("a", "p", "b"), key("c", "p"), key("b", "p", "c")], [[0, 1, 2]]),
    "transitive over types": ([key("a", "p"), key("a", "pq"), key("a", "q")], [[0, 1, 2]]),
    "the alias of another type": ([key("a", "p", "b"), key("b", "q")], [[0], [1]]),
    "without types": ([key("a"), key("a"), key("b")], [[0, 1], [2]]),
    "untyped into the only typed": ([key("a", "p"), key("a")], [[0, 1]]),
    "untyped between two": ([key("a", "p"), key("a", "q"), key("a")], [[0], [1], [2]]),
    "untyped by an alias of the typed": ([key("a", "p", "b"), key("b")], [[0, 1]]),
    "two untyped into one": ([key("a", "p", "b"), key("a"), key("b")], [[0, 1, 2]]),
    "an untyped component with two homes": ([key("a", "p"), key("b", "p"), key("c", "", "ab")], [[0], [1], [2]]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", CASES)
def test_hand_worked_cases(name: str) -> None:
    keys, expected = CASES[name]
    assert groups_of(exact_merge(keys)) == expected == brute_force(keys)


LETTERS = st.frozensets(st.sampled_from("abcd"), max_size=2)
KEYS = st.lists(
    st.builds(
        lambda n, t, a: (n, t, a - {n}), st.sampled_from("abcdef"), st.frozensets(st.sampled_from("pqr"), max_size=2),
        LETTERS,
    ),
    max_size=10,
)  # fmt: skip


@given(KEYS)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_against_union_find(keys: list[Key]) -> None:
    assert groups_of(exact_merge(keys)) == brute_force(keys)


def types_ignored(keys: Sequence[Key]) -> list[int]:
    return exact_merge([(name, frozenset(), aliases) for name, _, aliases in keys])


def aliases_ignored(keys: Sequence[Key]) -> list[int]:
    return exact_merge([(name, types, frozenset()) for name, types, _ in keys])


def untyped_alone(keys: Sequence[Key]) -> list[int]:
    return exact_merge([(name, types or frozenset("-"), aliases) for name, types, aliases in keys])


def all_types_equal(keys: Sequence[Key]) -> list[int]:
    return exact_merge([(name, frozenset(["".join(sorted(types))]), aliases) for name, types, aliases in keys])


@pytest.mark.parametrize("wrong", [types_ignored, aliases_ignored, untyped_alone, all_types_equal])
def test_the_cases_tell_wrong_merges_apart(wrong: Callable[[Sequence[Key]], list[int]]) -> None:
    assert any(groups_of(wrong(keys)) != expected for keys, expected in CASES.values())


def test_names_told_apart_do_not_merge_by_their_aliases() -> None:
    keys = [key("a", "p", "b"), key("b", "p"), key("c", "p", "ab"), key("d", "p", "e"), key("e", "p")]
    assert groups_of(exact_merge(keys)) == [[0, 1, 2], [3, 4]]
    apart = frozenset({frozenset("ab"), frozenset("ac"), frozenset("bc")})
    assert groups_of(exact_merge(keys, apart)) == [[0], [1], [2], [3, 4]]


CAREFUL: dict[str, tuple[list[Key], Groups]] = {
    "an alias of one": ([key("ann orlo", "", ["orlo"]), key("orlo")], [[0, 1]]),
    "an alias of two": ([key("ann orlo", "", ["orlo"]), key("bo orlo", "", ["orlo"]), key("orlo")], [[0], [1], [2]]),
    "a namesake without the alias": ([key("ann orlo", "", ["orlo"]), key("bo orlo"), key("orlo")], [[0], [1], [2]]),
    "no namesake: in the middle": ([key("ann orlo", "", ["orlo"]), key("orlo vale"), key("orlo")], [[0, 2], [1]]),
    "two of one already": (
        [key("mark twain", "", ["clemens", "samuel clemens"]), key("samuel clemens", "", ["clemens"]), key("clemens")],
        [[0, 1, 2]],
    ),
    "two of one by type": ([key("a", "p", ["x"]), key("b", "q", ["x"]), key("x", "p")], [[0, 2], [1]]),
    "two types, the third without": ([key("a", "p", ["x"]), key("b", "q", ["x"]), key("x")], [[0], [1], [2]]),
    "without a type it may be any": ([key("a", "p", ["x"]), key("b", "", ["x"]), key("x", "p")], [[0], [1], [2]]),
    "types that differ": ([key("a", "p", ["b"]), key("b", "q")], [[0], [1]]),
    "equal names": ([key("a", "p", ["x"]), key("a", "p", ["y"]), key("x", "p"), key("y", "p")], [[0, 1, 2, 3]]),
}


@pytest.mark.parametrize("name", CAREFUL)
def test_an_alias_merges_only_where_it_stands_for_one(name: str) -> None:
    keys, expected = CAREFUL[name]
    assert (groups_of(careful_merge(keys, 20)[0]), careful_merge(keys, 20)[1]) == (expected, [])


def test_the_paper_s_rule_is_another() -> None:
    other = [name for name, (keys, expected) in CAREFUL.items() if groups_of(exact_merge(keys)) != expected]
    assert other == ["an alias of two", "a namesake without the alias", "without a type it may be any"]


@given(KEYS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_careful_groups_are_parts_of_the_paper_s(keys: list[Key]) -> None:
    """And equal where all have types and each alias belongs to one name. A name and a type always merge."""
    careful, paper = careful_merge(keys, 99)[0], exact_merge(keys)
    owners: dict[str, set[str]] = {}
    for name, _, aliases in keys:
        for alias in aliases:
            owners.setdefault(alias, set()).add(name)
    if all(types for _, types, _ in keys):
        assert len({(a, b) for a, b in zip(careful, paper)}) == len(set(careful))
        if all(len(found) == 1 for found in owners.values()):
            assert careful == paper
    for (a, one), (b, other) in combinations(enumerate(keys), 2):
        assert careful[a] == careful[b] or one[0] != other[0] or not one[1] & other[1]


def test_a_component_of_too_many_names_is_set_aside() -> None:
    chain = [key(f"n{i}", "p", [f"n{i + 1}"]) for i in range(6)]
    keys = [*chain, key("a", "p", ["b"]), key("b", "p")]
    assert careful_merge(keys, 6)[0] == [0] * 6 + [6, 6]
    group, aside = careful_merge(keys, 5)
    assert group == [0, 1, 2, 3, 4, 5, 6, 6] and aside == [[f"n{i}" for i in range(6)]]


def profile(name: str, types: Sequence[str] = (), aliases: Sequence[str] = (), description: str = "") -> dict[str, Any]:
    return {"name": name, "aliases": list(aliases), "types": list(types), "description": description}


Passage = tuple[list[dict[str, Any]], list[tuple[str, str, str]]]


def run_layer(bench: Any, passages: Sequence[Passage], sources: Sources | None = None) -> dict[str, dict[str, Any]]:
    """The entities by id; the other tables and counts stay in the bench."""
    bench.put_extractions([([p["name"] for p in found], triples) for found, triples in passages])
    rows = [{"passage": i, **p} for i, (found, _) in enumerate(passages) for p in found]
    kept = [row for row in rows if row["aliases"] or row["types"] or row["description"]]
    tables.write_rows(bench.folder("extraction") / "profiles.parquet", tables.PROFILES, kept)
    bench.run(entities_stage)
    bench.run(exact_stage, sources=sources)
    found = read(bench, "higra_exact_entities", EXACT_ENTITIES)
    assert [row["id"] for row in found] == sorted({row["id"] for row in found})
    return {row["id"]: row for row in found}


def read(bench: Any, file: str, schema: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tables.read_table(bench.folder("higra_exact") / f"{file}.parquet", schema).to_pylist()
    return rows


def relations(bench: Any, entities: dict[str, Any]) -> dict[tuple[str, str, str], list[int]]:
    ids = list(entities)
    rows = read(bench, "higra_exact_relations", HIGRA_RELATIONS)
    assert all(row["origin"] == "extraction" and row["confidence"] == 1 for row in rows)
    return {(ids[row["subject"]], row["label"], ids[row["object"]]): row["passages"] for row in rows}


TINY: list[Passage] = [
    ([profile("Java", ["Island"], [], "an island"), profile("Jakarta", ["city"])], [("Jakarta", "lies on", "Java")]),
    ([profile("Java", ["language"], ["JDK"]), profile("Sun", ["company"])], [("JDK", "made by", "Sun")]),
    ([profile("JAVA", ["island"], [], "in Indonesia")], [("JAVA", "has", "Merapi"), ("java", "near", "Jakarta")]),
    ([profile("jakarta")], [("jakarta", "lies on", "Java")]),
]


def test_a_tiny_corpus_worked_by_hand(bench: Any) -> None:
    entities = run_layer(bench, TINY)
    island, language = entities["java  [island]"], entities["java  [language]"]
    assert set(entities) == {"java  [island]", "java  [language]", "java  []", "jakarta", "merapi", "sun"}
    # "Java" in passages 0 and 3, "JAVA" and "java" in 2: those of passage 3 have no type and two homes
    assert (island["name"], island["aliases"], island["types"]) == ("JAVA", ["Java", "java"], ["island"])
    assert island["descriptions"] == ["an island", "in Indonesia"] and island["passages"] == [0, 2]
    assert (language["aliases"], language["passages"]) == (["JDK"], [1])
    assert entities["jakarta"]["passages"] == [0, 2, 3]  # without a type, but one city has the name
    names = [row["id"] for row in bench.rows("entities")]
    assert [names[row] for row in island["members"]] == ["java"] == [names[row] for row in language["members"]]
    assert relations(bench, entities) == {
        ("jakarta", "lies on", "java  [island]"): [0],
        ("java  [language]", "made by", "sun"): [1],  # an alias of the passage is its entity
        ("java  [island]", "has", "merapi"): [2],
        ("java  [island]", "near", "jakarta"): [2],
        ("jakarta", "lies on", "java  []"): [3],
    }
    assert bench.counts["higra_exact_entities"] == 6 and bench.counts["higra_exact_merges"] == 0


def test_merges_by_alias_are_logged_and_can_be_rejected(bench: Any, tmp_path: Any) -> None:
    corpus: list[Passage] = [
        ([profile("Mark Twain", ["person"], ["Samuel Clemens"])], []),
        ([profile("Samuel Clemens", ["person"])], [("Samuel Clemens", "wrote", "Huck")]),
    ]
    entities = run_layer(bench, corpus)
    (merge,) = read(bench, "higra_exact_merges", HIGRA_MERGES)
    assert (merge["why"], merge["members"], merge["entity"]) == (
        "exact",
        ["mark twain", "samuel clemens"],
        "samuel clemens",  # written twice, "Mark Twain" once
    )
    assert set(entities) == {"samuel clemens", "huck"}
    write_edits(tmp_path / "merges.jsonl", (Edit(merge["id"], REJECT, tuple(merge["members"])),))
    entities = run_layer(bench, corpus, Sources(edits=tmp_path))
    assert set(entities) == {"mark twain", "samuel clemens", "huck"}
    assert read(bench, "higra_exact_merges", HIGRA_MERGES) == []


def test_without_profiles_it_is_the_entity_table(bench: Any) -> None:
    corpus: list[Passage] = [
        ([profile("New  York"), profile("...")], [("new york", "IS", "a city")]),
        ([profile("NEW YORK")], [("x" * 301, "is", "NEW YORK")]),
    ]
    entities = run_layer(bench, corpus)
    plain = bench.rows("entities")
    assert list(entities) == [row["id"] for row in plain]
    for row, other in zip(entities.values(), plain):
        assert (row["name"], row["aliases"], len(row["passages"])) == (
            other["name"],
            other["aliases"],
            other["n_passages"],
        )
    assert bench.counts["higra_dropped_names"] == 2
