"""The synonym layer: numbers must agree, the threshold, each pair once, a brute-force twin in float64."""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.graph.nearest import pairs as close
from gpu_rag.index.stages import synonyms
from gpu_rag.index.stages.synonyms import synonyms_stage
from gpu_rag.settings import IndexSettings

Pairs = dict[tuple[str, str], float]
_MARGIN = 1e-5  # a cosine this close to the threshold may fall on either side


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def at_angle(cosine: float) -> list[float]:
    return [cosine, float(np.sqrt(1 - cosine * cosine))]


def run_layer(bench: Any, names: Sequence[str], vectors: np.ndarray, threshold: float = 0.8, k: int = 20) -> Pairs:
    """{(left, right): score}; names sorted, a vector each."""
    assert list(names) == sorted(set(names))
    bench.put_entities(names)
    bench.put_vectors("entity_vectors", vectors)
    with patch.object(IndexSettings, "synonym_k", k):
        counts = bench.run(synonyms_stage, {"index": {"synonym_threshold": threshold}})
    rows = bench.rows("synonyms")
    keys = [(row["left"], row["right"]) for row in rows]
    assert keys == sorted(set(keys)) and all(left < right for left, right in keys)  # each pair once, no self pair
    assert counts["synonyms"] == len(rows)
    return {(names[row["left"]], names[row["right"]]): row["score"] for row in rows}


def brute_force(
    names: Sequence[str], vectors: np.ndarray, threshold: float = 0.8, *, number: str = r"\d+", letters: int = 3
) -> Pairs:
    """All pairs, one by one."""
    held = vectors.astype(np.float16).astype(np.float64)
    pairs: Pairs = {}
    for i, left in enumerate(names):
        for j in range(i + 1, len(names)):
            right, score = names[j], float(held[i] @ held[j])
            if re.findall(number, left) != re.findall(number, right):
                continue
            if min(sum(map(str.isalpha, name)) for name in (left, right)) >= letters and score >= threshold:
                pairs[left, right] = score
    return pairs


def agree(found: Pairs, expected: Pairs, threshold: float = 0.8) -> bool:
    """Equal pairs and scores, apart from pairs that lie on the threshold."""
    both = found.keys() | expected.keys()
    sure = {p for p in both if abs((found.get(p) or expected[p]) - threshold) > _MARGIN}
    same = {p for p in sure if p in found and p in expected}
    return same == sure and all(abs(found[p] - expected[p]) < 1e-4 for p in found.keys() & expected.keys())


def test_the_threshold(bench: Any) -> None:
    vectors = np.asarray([[1, 0], at_angle(0.85), at_angle(0.7), at_angle(-0.9)])
    names = ["aaa", "bbb", "ccc", "ddd"]
    assert set(run_layer(bench, names, vectors, 0.8)) == {("aaa", "bbb"), ("bbb", "ccc")}
    assert set(run_layer(bench, names, vectors, 0.95)) == {("bbb", "ccc")}
    assert set(run_layer(bench, names, vectors, 0.98)) == set()
    found = run_layer(bench, names, vectors, 0.6)
    assert found["aaa", "ccc"] == pytest.approx(0.7, abs=1e-3)
    exact = run_layer(bench, ["aaa", "bbb"], np.asarray([[1.0, 0], at_angle(0.5)]), 0.5)
    assert set(exact) == {("aaa", "bbb")}  # a cosine equal to the threshold counts


def test_k_bounds_the_neighbours_but_a_pair_needs_only_one_side(bench: Any) -> None:
    """A hub near five names, each of which has only the hub near it: with k = 1 all five pairs are found."""
    spokes = np.eye(6)[1:] * 0.5
    spokes[:, 0] = np.sqrt(0.75)
    vectors = np.vstack([np.eye(6)[:1], spokes])
    names = ["hub", "saa", "sbb", "scc", "sdd", "see"]
    assert set(run_layer(bench, names, vectors, 0.8, k=1)) == {("hub", name) for name in names[1:]}
    equal = unit(np.ones((6, 3)))
    assert len(run_layer(bench, names, equal, 0.8, k=5)) == 15
    assert len(run_layer(bench, names, equal, 0.8, k=2)) < 15


def test_blocks_of_queries_do_not_show(benches: Iterator[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    vectors = unit(np.repeat(generator.normal(size=(10, 8)), 4, 0) + generator.normal(size=(40, 8)) * 0.1)
    names = [f"name{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(40)]
    whole = run_layer(next(benches), names, vectors)
    assert len(whole) > 30
    monkeypatch.setitem(close.TILE, "cpu", 7)
    monkeypatch.setattr(close, "PAIRS", 20)  # so that pairs are also thinned out on the way
    assert run_layer(next(benches), names, vectors) == whole


def test_candidates_above_a_size(benches: Iterator[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the exact pairs, the same k, and a count of what a sample of names misses."""
    generator = np.random.default_rng(5)
    vectors = unit(np.repeat(generator.normal(size=(60, 24)), 5, 0) + generator.normal(size=(300, 24)) * 0.3)
    names = sorted(f"name{chr(97 + i // 26)}{chr(97 + i % 26)}" + " 1" * (i % 7 == 0) for i in range(300))
    exact = run_layer(next(benches), names, vectors)
    for module in (close, synonyms):
        monkeypatch.setattr(module, "EXACT_ROWS", 100)
    bench = next(benches)
    found = run_layer(bench, names, vectors)
    assert found.items() <= exact.items() and len(found) >= 0.9 * len(exact) > 100
    sampled, held = (bench.counts[name] for name in ("synonyms_sampled", "synonyms_sampled_and_found"))
    assert 0.9 * sampled <= held <= sampled
    nearest = run_layer(next(benches), names, vectors, k=1)
    best = {name: max((score for pair, score in found.items() if name in pair), default=0.0) for name in names}
    assert all(score in (best[left], best[right]) for (left, right), score in nearest.items()) and nearest


WORD = st.sampled_from(["ann", "bo", "carl", "d", "ves", "ümit"])
NUMBER = st.sampled_from(["", " 1", " 2", " 1941", " 1 2"])
NAMES = st.lists(st.tuples(WORD, NUMBER, st.sampled_from(["", " x"])).map("".join), unique=True, max_size=18)


@given(NAMES.map(sorted), st.integers(0, 2**16), st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_brute_force(benches: Iterator[Any], names: list[str], seed: int, threshold: float) -> None:
    generator = np.random.default_rng(seed)
    vectors = unit(generator.normal(size=(len(names), 5)) * 0.5 + generator.integers(0, 2, (len(names), 1)) + 0.1)
    found = run_layer(next(benches), names, vectors, threshold)
    assert agree(found, brute_force(names, vectors, threshold), threshold)


WRONG = [{"number": "never"}, {"number": r"\b\d"}, {"letters": 1}]  # other rules of what may be a pair


@pytest.mark.parametrize("wrong", WRONG)
def test_brute_force_tells_wrong_pairs_apart(bench: Any, wrong: dict[str, Any]) -> None:
    names = ["ann 1", "ann 1 x", "ann 12", "bo 1", "carl"]
    vectors = unit(np.asarray([[1.0, 0.1], [1, 0.2], [1, 0.15], [1, 0.12], [1, 0]]))
    found, expected = run_layer(bench, names, vectors), brute_force(names, vectors)
    assert agree(found, expected) and not agree(found, brute_force(names, vectors, **wrong))
    assert not agree({pair: 1 - score for pair, score in found.items()}, expected)
