"""The entity layer: names merged by their normal form, the commonest way of writing, relations, a brute-force twin."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
