"""The entity layer: names merged by their normal form, the commonest way of writing, relations, a brute-force twin."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.index.stages import entities as stage
from gpu_rag.index.stages.entities import MAX_NAME_CHARS, entities_stage
from gpu_rag.text.normalise import normalise_name

Triple = tuple[str, str, str]
Found = Sequence[tuple[Sequence[str], Sequence[Triple]]]  # (names, triples) of passage 0, 1, ...
Tables = tuple[dict[str, tuple[str, list[str], int]], dict[Triple, list[int]], int]


def run_layer(bench: Any, found: Found) -> Tables:
    """{id: (name, aliases, n_passages)}, {(subject, label, object): passages}, dropped names."""
    bench.put_extractions(found)
    counts = bench.run(entities_stage)
    entities, relations = bench.rows("entities"), bench.rows("relations")
    ids = [row["id"] for row in entities]
    assert ids == sorted(set(ids))
    keys = [(ids[row["subject"]], row["label"], ids[row["object"]]) for row in relations]
    assert keys == sorted(set(keys))
    assert {row["origin"] for row in relations} <= {"extraction"}
    assert (counts["entities"], counts["relations"]) == (len(ids), len(keys))
    by_id = {row["id"]: (row["name"], row["aliases"], row["n_passages"]) for row in entities}
    return by_id, {key: row["passages"] for key, row in zip(keys, relations)}, counts["dropped_names"]


def brute_force(found: Found) -> Tables:
    """Every written name of every passage in one flat list, then plain counting."""
    flat = [
        (passage, name)
        for passage, (names, triples) in enumerate(found)
        for name in [*names, *(end for s, _, o in triples for end in (s, o))]
    ]
    good = [(p, normalise_name(n), " ".join(n.split())) for p, n in flat if 0 < len(normalise_name(n)) <= 300]
    entities = {}
    for key in {key for _, key, _ in good}:
        ways = Counter(way for _, k, way in good if k == key)
        ranked = sorted(ways, key=lambda way: (-ways[way], way))
        entities[key] = (ranked[0], ranked[1:], len({p for p, k, _ in good if k == key}))
    relations: dict[Triple, list[int]] = {}
    for passage, (_, triples) in enumerate(found):
        for s, r, o in triples:
            triple = (normalise_name(s), normalise_name(r), normalise_name(o))
            if triple[0] in entities and triple[2] in entities and passage not in relations.setdefault(triple, []):
                relations[triple].append(passage)
    return entities, relations, len(flat) - len(good)


def test_names_that_are_nothing_or_whole_sentences_are_dropped_and_counted(bench: Any) -> None:
    long = "x" * MAX_NAME_CHARS
    found = [(["...", " ", long, long + "y", "Ann"], [("Ann", "said", long + "y"), ("", "is", "Ann")])]
    entities, relations, dropped = run_layer(bench, found)
    assert set(entities) == {"ann", long}
    assert relations == {}  # an end that is dropped takes its triple along
    assert dropped == 5


NAMES = st.sampled_from(
    ["York", "york", " YORK ", "New  York", "new york.", "(York)", "", "..", "Orlo", "ORLO", "Ẏork"]
)
LABELS = st.sampled_from(["in", "In ", "near"])
FOUND = st.lists(
    st.tuples(st.lists(NAMES, max_size=4), st.lists(st.tuples(NAMES, LABELS, NAMES), max_size=4)), max_size=5
)


@given(FOUND)
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_brute_force(benches: Iterator[Any], found: Found) -> None:
    assert run_layer(next(benches), found) == brute_force(found)


def files_after(bench: Any, found: Found, before: Any = None) -> tuple[dict[str, bytes], dict[str, int]]:
    bench.put_extractions(found)
    counts = bench.run(entities_stage, before=before)
    return {path.name: path.read_bytes() for path in sorted(bench.folder("entities").iterdir())}, counts


@given(FOUND, FOUND, st.lists(st.booleans(), min_size=5, max_size=5))
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tables_of_an_earlier_run_are_brought_up_to_date(
    benches: Iterator[Any], old: list[Any], more: list[Any], stay: list[bool]
) -> None:
    """An earlier run leaves no trace in the files, whatever came and left."""
    new = [*more, *(row for row, stays in zip(old, stay) if stays)]
    before, bench, fresh = (next(benches) for _ in range(3))
    with patch.object(stage, "_MAX_CHANGED", 99):
        files_after(before, old)
        assert files_after(bench, new, before) == files_after(fresh, new)
    assert bench.report.reused == (Counter(map(repr, old)) & Counter(map(repr, new))).total()


X: Any = (["York", "Orlo"], [("York", "in", "Orlo")])
CHANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "copies": ([(["York"], []), X, X, (["Orlo"], [])], [(["Orlo"], []), X, (["York"], [])]),
    "triples": ([X, X], [X, (X[0], [("York", "near", "Orlo")])]),
    "others": ([X, X], [X, X, (["YORK"], [])]),
}


@pytest.mark.parametrize("wrong", CHANGES)
def test_wrong_updates_are_noticed(benches: Iterator[Any], wrong: str) -> None:
    before, bench, fresh = (next(benches) for _ in range(3))
    chosen, calls = stage._chosen, count()

    def first_match(before: np.ndarray, now: np.ndarray) -> np.ndarray:
        return np.array([[*now].index(one) if one in now else -1 for one in before])

    planted: dict[str, Any] = {
        "copies": ("_same_rows", first_match),
        "triples": ("_row_hashes", lambda table: np.array([hash(str(row)) for row in table["entities"].to_pylist()])),
        "others": ("_chosen", lambda table, mask: chosen(table, mask & (next(calls) < 2))),
    }
    old, new = CHANGES[wrong]
    with patch.object(stage, "_MAX_CHANGED", 99):
        files_after(before, old)
        expected = files_after(fresh, new)
        with patch.object(stage, *planted[wrong]):
            assert files_after(bench, new, before) != expected
        assert files_after(bench, new, before) == expected


@pytest.mark.parametrize(
    ("table", "column", "row"), [("extracted", "entity", 9), ("extracted", "passage", -1), ("relations", "object", 9)]
)
def test_an_earlier_table_that_points_outside_is_made_anew(
    benches: Iterator[Any], table: str, column: str, row: int
) -> None:
    before, bench, fresh = (next(benches) for _ in range(3))
    files_after(before, [X, X])
    before.put(table, [{**one, column: row} for one in before.rows(table)])
    with patch.object(stage, "_MAX_CHANGED", 99):
        assert files_after(bench, [X], before) == files_after(fresh, [X])
    assert not bench.report.reused
