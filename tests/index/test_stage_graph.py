"""The graph layer: the strongest of parallel edges, node numbers, both directions, an adjacency by dictionary."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput
from gpu_rag.graph.pagerank import prepare, prepared
from gpu_rag.index import tables
from gpu_rag.index.index import GRAPH
from gpu_rag.index.stages.graph import graph_stage, relation_graph_stage
from gpu_rag.index.titles import TITLE_WEIGHT
from gpu_rag.index.walk import relation_parts, stored, walk_of
from gpu_rag.types import CSR

Edge = tuple[int, int, float]


def by_dictionary(edges: list[Edge]) -> list[Edge]:
    best: dict[tuple[int, int], float] = {}
    for a, b, weight in edges:
        if a != b:
            key = (min(a, b), max(a, b))
            best[key] = max(best.get(key, -1.0), weight)
    return [(a, b, best[a, b]) for a, b in sorted(best)]


def put(
    bench: Any,
    n_entities: int,
    n_passages: int,
    relations: list[tuple[int, int]],
    mentions: list[tuple[int, int]],
    synonyms: list[Edge],
    titles: list[str] | None = None,
) -> None:
    bench.put_entities([f"e{i:03d}" for i in range(n_entities)])
    bench.put_passages([f"text {i}" for i in range(n_passages)], titles)
    bench.put(
        "relations",
        [{"subject": s, "label": "r", "object": o, "passages": [0], "origin": "extraction"} for s, o in relations],
    )
    bench.put("mentions", [{"entity": e, "passage": p, "start": 0, "end": 1, "origin": "search"} for e, p in mentions])
    bench.put("synonyms", [{"left": a, "right": b, "score": score} for a, b, score in synonyms])


def adjacency(bench: Any, stage: str = "graph") -> tuple[dict[tuple[int, int], float], dict[str, np.ndarray]]:
    arrays = walk_of(tables.read_arrays(bench.folder(stage) / GRAPH))
    indptr, indices, weight = arrays["indptr"], arrays["indices"], arrays["weight"]
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    entries = dict(zip(zip(rows.tolist(), indices.tolist()), weight.tolist()))
    assert len(entries) == len(indices)
    return entries, arrays


def expected(n_entities: int, relations: Any, mentions: Any, synonyms: Any) -> dict[tuple[int, int], float]:
    edges = [(s, o, 1.0) for s, o in relations] + [(e, n_entities + p, 1.0) for e, p in mentions]
    edges += [(a, b, float(np.float32(score))) for a, b, score in synonyms]
    best = by_dictionary(edges)
    return {**{(a, b): w for a, b, w in best}, **{(b, a): w for a, b, w in best}}


def test_nodes_are_entities_then_passages_and_edges_go_both_ways(bench: Any) -> None:
    relations, mentions = [(0, 1), (1, 0), (2, 2)], [(0, 0), (0, 0), (2, 1)]
    synonyms = [(0, 1, 0.85), (1, 2, 0.9)]
    put(bench, 3, 3, relations, mentions, synonyms)
    counts = bench.run(graph_stage)
    entries, arrays = adjacency(bench)
    assert entries == expected(3, relations, mentions, synonyms)
    assert entries[0, 1] == entries[1, 0] == 1.0  # a relation is stronger than a synonym
    assert entries[1, 2] == pytest.approx(0.9)
    assert entries[0, 3] == entries[3, 0] == 1.0 and entries[2, 4] == 1.0  # passage p is node 3 + p
    assert not any(5 in pair for pair in entries)  # passage 2 mentions nothing
    assert len(arrays["indptr"]) == 7
    assert counts == {"nodes": 6, "edges": 8}
    dtypes = {name: array.dtype for name, array in arrays.items()}
    assert dtypes == {"indptr": np.int64, "indices": np.int32, "weight": np.float32, "degree": np.float64}
    degree = [sum(weight for (a, _), weight in entries.items() if a == node) for node in range(6)]
    assert arrays["degree"].tolist() == pytest.approx(degree, abs=0)


def test_a_title_adds_its_weight_to_a_mention_or_makes_an_edge(bench: Any) -> None:
    put(bench, 3, 3, [(0, 1)], [(0, 0), (2, 1)], [(0, 1, 0.85)], ["E000 (film)", "e001", "nobody"])
    bench.run(graph_stage)
    entries, arrays = adjacency(bench)
    edges = {(0, 1): 1.0, (0, 3): 1.0 + TITLE_WEIGHT, (1, 4): TITLE_WEIGHT, (2, 4): 1.0}
    assert entries == edges | {(b, a): weight for (a, b), weight in edges.items()}
    assert arrays["degree"].tolist() == [17.0, 16.0, 1.0, 16.0, 16.0, 0.0]


def lists_of(offsets: np.ndarray, values: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, offsets[1:-1])]


def test_relations_are_nodes_between_entities_and_passages(bench: Any) -> None:
    """Entities 0 to 2, relations 3 and 4, of an entity with itself, both stated in passage 5, and passages 6 and 7.
    Entity 1 is the title of passage 6, which does not mention it."""
    put(bench, 3, 3, [(0, 1), (2, 2)], [(0, 0), (2, 1), (2, 1)], [(0, 1, 0.85)], ["E000 (film)", "e001", "nobody"])
    assert bench.run(relation_graph_stage) == {}
    entries, arrays = adjacency(bench, "relation_graph")
    inner = {(0, 3): 1.0, (1, 3): 1.0, (2, 4): 1.0}
    edges = inner | {(3, 5): 1.0, (4, 5): 1.0, (0, 5): 1.0 + TITLE_WEIGHT, (2, 6): 1.0, (1, 6): TITLE_WEIGHT}
    assert entries == edges | {(b, a): weight for (a, b), weight in edges.items()}
    assert arrays["degree"].tolist() == [17.0, 16.0, 2.0, 3.0, 2.0, 18.0, 16.0, 0.0]
    parts = relation_parts(arrays, 5)
    assert lists_of(parts["indptr"], parts["indices"]) == [[3], [3], [4], [0, 1], [2]]
    assert lists_of(parts["offsets"], parts["values"]) == [[0], [], [1], [0], [0]]
    types = {"indptr": np.int64, "indices": np.int32, "offsets": np.int64, "values": np.int32}
    assert {name: array.dtype for name, array in parts.items()} == types


@pytest.mark.parametrize("wrong", [None, "range", "degree"])
def test_a_stored_graph_is_the_one_that_is_prepared(bench: Any, wrong: str | None) -> None:
    put(bench, 3, 3, [(0, 1), (1, 2)], [(0, 0), (2, 1)], [(0, 2, 0.85)], ["e000", "", ""])
    bench.run(graph_stage)
    arrays = {name: torch.from_numpy(array.copy()) for name, array in adjacency(bench)[1].items()}
    csr, degree = CSR(arrays["indptr"], arrays["indices"], arrays["weight"]), arrays["degree"]
    if wrong is None:
        ours, theirs = prepared(csr, degree), prepare(csr)
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("scale", "dangling"))
        assert (ours.symmetric, ours.has_dangling) == (theirs.symmetric, theirs.has_dangling) == (True, True)
        return
    arrays["indices"][-1] = 6 if wrong == "range" else arrays["indices"][-1]
    with pytest.raises(BadInput):
        prepared(csr, -degree if wrong == "degree" else degree)


ROWS = st.lists(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([1, 1, 15, 16, 0.8, 0.999, 0.31])), max_size=5))


@given(ROWS, st.integers(1, 300))
@settings(deadline=None, derandomize=True)
def test_a_file_gives_the_graph_and_the_exact_sums_of_its_rows(rows: list[list[tuple[int, float]]], more: int) -> None:
    """Rows without entries, without weights, and with more entries than a byte counts."""
    rows = [*rows, [(column, 1.0) for column in range(more)], []]
    indptr, indices = np.cumsum([0, *map(len, rows)]), np.array([column for row in rows for column, _ in row], np.int32)
    weight = np.array([value for row in rows for _, value in row], np.float32)
    file = stored(indptr, indices, weight)
    assert file["gaps"].tolist() == np.diff(np.flatnonzero(weight != 1), prepend=0).tolist()
    assert file["counts"].dtype == (np.uint8 if more < 256 else np.uint16)
    walk = walk_of(file)
    assert all(np.array_equal(walk[name], array) for name, array in (("indptr", indptr), ("indices", indices)))
    assert np.array_equal(walk["weight"], weight) and walk["weight"].dtype == np.float32
    ends = zip(indptr.tolist(), indptr[1:].tolist())
    assert walk["degree"].tolist() == [math.fsum(weight[first:last].tolist()) for first, last in ends]
    assert walk["degree"].dtype == np.float64


NODE = st.integers(0, 4)
PASSAGE = st.integers(0, 3)


@given(
    st.lists(st.tuples(NODE, NODE), max_size=12),
    st.lists(st.tuples(NODE, PASSAGE), max_size=12),
    st.lists(st.tuples(NODE, NODE, st.sampled_from([0.8, 0.9, 0.999, 1.0, 1.0005])), max_size=6),
)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_a_dictionary(benches: Iterator[Any], relations: Any, mentions: Any, synonyms: Any) -> None:
    bench = next(benches)
    put(bench, 5, 4, relations, mentions, synonyms)
    counts = bench.run(graph_stage)
    entries, _ = adjacency(bench)
    assert entries == expected(5, relations, mentions, synonyms)
    assert counts == {"nodes": 9, "edges": len(entries)}
