"""HiGraAgent's entity-passage links: against a regex oracle, at the limits, and wrong versions of the two tests."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.index import tables
from gpu_rag.methods.higra.stages.links import common_words, mentions_stage
from gpu_rag.methods.higra.tables import HIGRA_ENTITIES, HIGRA_LINKS, HIGRA_SOURCES

Link = tuple[int, int, int, int, str]
Names = Sequence[tuple[str, Sequence[str]]]


def by_regex(
    names: Names, texts: Sequence[str], extracted: set[tuple[int, int]], *, theta: int, top_words: int,
    name_tested: Callable[[str, Sequence[str]], Iterable[str]] = lambda name, aliases: [name],
) -> list[Link]:  # fmt: skip
    """The spec for plain ASCII: whole words, any case; both limits are tested on the name."""
    words = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    common = {word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:top_words]}

    def places(way: str) -> list[tuple[int, int, int]]:
        pattern = rf"(?<!\w){re.escape(way.lower())}(?!\w)"
        return [(p, m.start(), m.end()) for p, text in enumerate(texts) for m in re.finditer(pattern, text.lower())]

    found: set[Link] = set()
    for entity, (name, aliases) in enumerate(names):
        tested = list(name_tested(name, aliases))
        says_something = all(len(places(way)) < theta and way.lower() not in common for way in tested)
        hits = {hit for way in (name, *aliases) for hit in places(way)}
        for passage, start, end in hits:
            if (entity, passage) in extracted:
                found.add((passage, start, entity, end, "extraction"))
            elif says_something:
                found.add((passage, start, entity, end, "search"))
        located = {passage for passage, _, _ in hits}
        found |= {(p, -1, e, -1, "extraction") for e, p in extracted if e == entity and p not in located}
    return sorted(found)


WORDS = st.sampled_from(["Ann", "ann", "Bo", "the", "Cy", "Annex", "bo-cy", "5", ",", "of"])
TEXTS = st.lists(st.lists(WORDS, max_size=8).map(" ".join), min_size=1, max_size=6)
WAYS = ["Ann", "Bo", "Cy", "the", "Ann Bo", "bo-cy", "5"]
NAMES = st.lists(
    st.tuples(st.sampled_from(WAYS), st.lists(st.sampled_from(WAYS), max_size=2)), max_size=4, unique_by=lambda n: n[0]
)


def by_stage(
    bench: Any, names: Names, texts: Sequence[str], extracted: Iterable[tuple[int, int]], **limits: Any
) -> list[Link]:
    """The links that the stage writes, and its counts checked against them."""
    bench.put_passages(texts)
    rows = [
        {"id": name, "name": name, "aliases": list(aliases), "types": [], "descriptions": [], "members": [row]}
        for row, (name, aliases) in enumerate(names)
    ]
    folder, extracted = bench.folder("higra_merge"), sorted(extracted)
    of = [sum(e == row for e, _ in extracted) for row in range(len(names))]
    entities = [{**row, "n_passages": n} for row, n in zip(rows, of)]
    tables.write_rows(folder / "higra_entities.parquet", HIGRA_ENTITIES, entities)
    sources = [{"entity": e, "passage": p} for e, p in extracted]
    tables.write_rows(folder / "higra_sources.parquet", HIGRA_SOURCES, sources)
    counts = bench.run(mentions_stage, {"alignment": limits})
    found = tables.read_table(bench.folder("higra_mentions") / "higra_links.parquet", HIGRA_LINKS).to_pylist()
    linked = {(r["entity"], r["passage"]): r["origin"] for r in found}
    searched = list(linked.values()).count("search")
    expected = {"higra_mentions": len(found), "higra_links": len(linked), "higra_searched_links": searched}
    assert counts == expected
    return [(r["passage"], r["start"], r["entity"], r["end"], r["origin"]) for r in found]


@given(NAMES, TEXTS, st.integers(1, 4), st.integers(0, 4), st.data())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_regular_expressions(
    bench: Any, names: Any, texts: list[str], theta: int, top_words: int, data: Any
) -> None:
    pairs = [(e, p) for e in range(len(names)) for p in range(len(texts))]
    extracted = data.draw(st.sets(st.sampled_from(pairs), max_size=4)) if pairs else set()
    limits = {"theta": theta, "top_words": top_words}
    assert by_stage(bench, names, texts, extracted, **limits) == by_regex(names, texts, extracted, **limits)


TEXT = ["Ann of Orle, the Annex.", "the Orle", "ann and the the", "Nobody."]


def links(
    bench: Any, names: Names, extracted: Iterable[tuple[int, int]] = (), theta: int = 100, top_words: int = 0
) -> list[Link]:
    found = by_stage(bench, names, TEXT, extracted, theta=theta, top_words=top_words)
    assert found == by_regex(names, TEXT, set(extracted), theta=theta, top_words=top_words)
    return found


def test_by_hand(bench: Any) -> None:
    assert links(bench, [("Ann", ["Orle"])], [(0, 3), (0, 0)]) == [
        (0, 0, 0, 3, "extraction"),
        (0, 7, 0, 11, "extraction"),
        (1, 4, 0, 8, "search"),
        (2, 0, 0, 3, "search"),
        (3, -1, 0, -1, "extraction"),
    ]


def test_the_name_s_count_decides_at_theta_for_its_aliases_too(bench: Any) -> None:
    # Ann stands twice, Orle twice, the four times
    assert links(bench, [("Ann", ["the"])], theta=2) == []
    assert len(links(bench, [("Ann", ["the"])], theta=3)) == 6  # "the" stands more often, and is not asked
    assert links(bench, [("Orle", [])], [(0, 1)], theta=1) == [(1, 4, 0, 8, "extraction")]  # extraction always links


def test_a_common_word_as_a_name_is_not_searched(bench: Any) -> None:
    assert common_words([pa.array(TEXT[:1]), pa.array(TEXT[1:])], 1) == ["the"]
    assert common_words([pa.array(TEXT)], 3) == ["the", "ann", "orle"]  # ties by the alphabet
    assert links(bench, [("The", ["Annex"])], top_words=1) == []
    assert len(links(bench, [("Annex", ["the"])], top_words=1)) == 5
    assert common_words([pa.array(["Straße STRASSE", "a. (strasse)"])], 2) == ["strasse", "a"]


def aliases_tested_too(name: str, aliases: Sequence[str]) -> Iterable[str]:
    return [name, *aliases]


def nothing_tested(name: str, aliases: Sequence[str]) -> Iterable[str]:
    return []


def the_first_alias_tested(name: str, aliases: Sequence[str]) -> Iterable[str]:
    return list(aliases)[:1] or [name]


@pytest.mark.parametrize("wrong", [aliases_tested_too, nothing_tested, the_first_alias_tested])
@pytest.mark.parametrize("limits", [{"theta": 3, "top_words": 0}, {"theta": 9, "top_words": 1}])
def test_wrong_tests_are_told_apart(bench: Any, wrong: Any, limits: dict[str, int]) -> None:
    names = [("Ann", ["the"]), ("the", ["Annex"])]
    found = by_stage(bench, names, TEXT, set(), **limits)
    assert found == by_regex(names, TEXT, set(), **limits)
    assert found != by_regex(names, TEXT, set(), **limits, name_tested=wrong)


def test_without_refinement_only_extractions_link(bench: Any) -> None:
    found = by_stage(bench, [("Ann", ["Orle"])], TEXT, [(0, 0)], refine=False)
    assert {row[0] for row in found} == {0} and {row[4] for row in found} == {"extraction"}
