"""The graph layer: the strongest of parallel edges, node numbers, both directions, an adjacency by dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.index import tables
from gpu_rag.index.stages.graph import graph_stage

Edge = tuple[int, int, float]


def by_dictionary(edges: list[Edge]) -> list[Edge]:
    best: dict[tuple[int, int], float] = {}
    for a, b, weight in edges:
        if a != b:
            key = (min(a, b), max(a, b))
            best[key] = max(best.get(key, -1.0), weight)
    return [(a, b, best[a, b]) for a, b in sorted(best)]


# --- the layer ---------------------------------------------------------------------------------------


def put(
    bench: Any,
    n_entities: int,
    n_passages: int,
    relations: list[tuple[int, int]],
    mentions: list[tuple[int, int]],
    synonyms: list[Edge],
) -> None:
    bench.put_entities([f"e{i:03d}" for i in range(n_entities)])
    bench.put_passages([f"text {i}" for i in range(n_passages)])
    bench.put(
        "relations",
        [
            {"id": f"r{i}", "subject": s, "label": "r", "object": o, "passages": [0], "origin": "extraction"}
            for i, (s, o) in enumerate(relations)
        ],
    )
    bench.put(
        "mentions",
        [{"entity": e, "passage": p, "start": 0, "end": 1, "origin": "search"} for e, p in mentions],
    )
    bench.put("synonyms", [{"left": a, "right": b, "score": score} for a, b, score in synonyms])


def adjacency(bench: Any) -> tuple[dict[tuple[int, int], float], dict[str, np.ndarray]]:
    arrays = tables.read_arrays(bench.folder("graph") / "graph.safetensors")
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
    assert arrays["ranges"].tolist() == [0, 3, 3, 6] and len(arrays["indptr"]) == 7
    assert counts == {"nodes": 6, "edges": 8}
    dtypes = {name: array.dtype for name, array in arrays.items()}
    assert dtypes == {"indptr": np.int64, "indices": np.int32, "weight": np.float32, "ranges": np.int64}


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
