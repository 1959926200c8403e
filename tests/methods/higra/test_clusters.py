"""Windows that show every near pair, small clusters of near names, and joining groups under forbidden pairs."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN

from gpu_rag.graph.nearest import pairs as close
from gpu_rag.graph.nearest.pairs import close_pairs
from gpu_rag.index.work import Silent
from gpu_rag.methods.higra.stages import windows as higra_windows
from gpu_rag.methods.higra.stages.merge import Joined
from gpu_rag.methods.higra.stages.windows import (
    SMALLEST_EPS,
    KeptPairs,
    covering,
    entity_windows,
    n_together,
    near_clusters,
    near_entities,
)
from gpu_rag.settings import make_settings

Clusters = list[list[int]]


def around(*angles: float) -> torch.Tensor:
    """Unit vectors at angles of a plane, in degrees."""
    radians = np.radians(angles)
    return torch.from_numpy(np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32))


def by_scikit_learn(vectors: torch.Tensor, eps: float, most: int, rows: list[int] | None = None) -> Clusters:
    """The spec once more, with scikit-learn's DBSCAN."""
    rows = list(range(len(vectors))) if rows is None else rows
    distance = np.clip(1 - vectors[rows].double().numpy() @ vectors[rows].double().numpy().T, 0, 2)
    label = DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit(distance).labels_
    found: Clusters = []
    for of in sorted(set(label.tolist()) - {-1}):
        part = [row for row, own in zip(rows, label.tolist()) if own == of]
        found += [part] if len(part) <= most else by_scikit_learn(vectors, eps / 2, most, part)
    return sorted(found)


@pytest.mark.parametrize("most", [2, 5, 100])
def test_against_scikit_learn(most: int) -> None:
    rng = np.random.default_rng(7)
    for seed in range(8):
        vectors = torch.from_numpy(rng.normal(size=(60, 3)).astype(np.float32))
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
        assert near_clusters(vectors, 0.1, 2, most) == by_scikit_learn(vectors, 0.1, most), seed


def work_of(**alignment: Any) -> Any:
    chosen = make_settings({"models": {"device": "cpu"}, "alignment": alignment})
    return SimpleNamespace(settings=chosen, progress=Silent(), partial=None)


def windows_of(work: Any, vectors: torch.Tensor, eps: float) -> tuple[list[list[int]], dict[str, int]]:
    """The windows, and the counts of a stage that shows them."""
    near = near_entities(work, vectors, eps)
    windows = entity_windows(work, vectors, eps, near)
    return windows, near.counts("link", windows)


def all_pairs(vectors: torch.Tensor, eps: float) -> list[tuple[int, int]]:
    """The pairs within the radius, one by one, on the grid on which dot products are exact."""
    rows = (vectors.double() * 2**24).round() / 2**24
    return [(a, b) for a, b in itertools.combinations(range(len(rows)), 2) if float(rows[a] @ rows[b]) >= 1 - eps]


def clouds(seed: int) -> torch.Tensor:
    """A large cloud, small ones, and rows by themselves."""
    rng = np.random.default_rng(seed)
    centres, sizes = rng.normal(size=(12, 8)), [90, 30, 9, 5, 3, 2, 2, 2, 1, 1, 1, 1]
    vectors = np.repeat(centres, sizes, 0) + rng.normal(size=(sum(sizes), 8)) * 0.45
    return torch.from_numpy((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))


@pytest.mark.parametrize(("eps", "most"), [(0.05, 20), (0.15, 20), (0.15, 2), (0.3, 7)])
def test_every_pair_within_the_radius_is_in_a_window(eps: float, most: int) -> None:
    vectors = clouds(int(100 * eps) + most)
    expected = all_pairs(vectors, eps)
    windows, counts = windows_of(work_of(max_cluster=most), vectors, eps)
    seen = {pair for window in windows for pair in itertools.combinations(window, 2)}
    assert expected and set(expected) <= seen
    assert counts["higra_link_pairs"] == counts["higra_link_pairs_together"] == len(expected)
    assert all(2 <= len(window) <= most and window == sorted(set(window)) for window in windows)
    assert len(windows) <= len(expected) and (most > 2 or len(windows) == len(expected))
    assert near_entities(work_of(), vectors, eps).pairs.tolist() == [list(pair) for pair in expected]


def test_near_pairs_of_kept_and_new_rows_are_those_of_all() -> None:
    vectors, eps = clouds(4), 0.15
    near = near_entities(work_of(), vectors, eps).pairs
    is_new = np.zeros(len(vectors), bool)
    is_new[[3, 40, 95, len(vectors) - 1]] = True
    kept = KeptPairs(near[~is_new[near].any(1)], is_new)
    assert 0 < len(kept.pairs) < len(near)
    assert near_entities(work_of(), vectors, eps, kept).pairs.tolist() == near.tolist()
    wrong = KeptPairs(kept.pairs, np.zeros(len(vectors), bool))
    assert len(near_entities(work_of(), vectors, eps, wrong).pairs) == len(kept.pairs)  # so nothing is searched again


def test_many_rows_give_most_pairs_by_candidates_and_the_share_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, eps = clouds(2), 0.15
    n = len(all_pairs(vectors, eps))
    assert "higra_link_sampled" not in windows_of(work_of(), vectors, eps)[1]
    monkeypatch.setattr(close, "EXACT_ROWS", 0)
    counts = windows_of(work_of(), vectors, eps)[1]
    assert counts["higra_link_sampled"] == n  # the sample holds every row
    found = counts["higra_link_sampled_and_found"]
    assert found == counts["higra_link_pairs"] == counts["higra_link_pairs_together"] >= 0.9 * n
    monkeypatch.setattr(close, "close_pairs", lambda *given: tuple(part[:9] for part in close_pairs(*given)))
    few = windows_of(work_of(), vectors, eps)[1]
    assert few["higra_link_sampled_and_found"] == 9 and few["higra_link_sampled"] == n


def test_clusters_of_the_paper_show_few_pairs_and_say_so() -> None:
    vectors, eps = clouds(1), 0.3
    windows, counts = windows_of(work_of(windows="clusters"), vectors, eps)
    assert windows == near_clusters(vectors, eps, 2, 20)
    seen = {pair for window in windows for pair in itertools.combinations(window, 2)}
    near = set(all_pairs(vectors, eps))
    shown = {"clusters": len(windows), "pairs": len(near), "pairs_together": len(near & seen)}
    assert len(near & seen) < len(near) / 2
    assert counts == {f"higra_link_{name}": number for name, number in shown.items()}


def test_windows_of_a_clique_are_few() -> None:
    pairs = np.array(list(itertools.combinations(range(60), 2)))
    windows = covering(pairs, 20)
    assert n_together(pairs, windows) == len(pairs)
    assert len(windows) <= 20  # ten could not hold 1,770 pairs; two rows a window would take 1,770
    assert covering(pairs[:0], 20) == [] and n_together(pairs[:0], []) == 0


def test_windows_are_made_on_the_device_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, asked = around(0, 1, 90, 91, 92), []
    monkeypatch.setattr(higra_windows, "pick_device", lambda device: asked.append(device) or "cpu")
    assert windows_of(work_of(), vectors, 0.1)[0] == [[0, 1], [2, 3, 4]] and asked == ["cpu"]
    monkeypatch.setattr(higra_windows, "pick_device", lambda device: "meta")
    with pytest.raises(RuntimeError, match="meta"):  # what holds no numbers: it did go there
        windows_of(work_of(), vectors, 0.1)


def never_split(vectors: torch.Tensor, eps: float, most: int) -> Clusters:
    return near_clusters(vectors, eps, 2, len(vectors))


def cut_at_the_limit(vectors: torch.Tensor, eps: float, most: int) -> Clusters:
    whole = never_split(vectors, eps, most)
    return [rows[i : i + most] for rows in whole for i in range(0, len(rows), most)]


def clustered_anew(vectors: torch.Tensor, eps: float, most: int) -> Clusters:
    """Halving eps for all clusters where one is too large."""
    found = near_clusters(vectors, eps, 2, len(vectors))
    return found if max(map(len, found)) <= most else clustered_anew(vectors, eps / 2, most)


@pytest.mark.parametrize("wrong", [never_split, cut_at_the_limit, clustered_anew])
def test_wrong_splits_are_told_apart(wrong: Callable[[torch.Tensor, float, int], Clusters]) -> None:
    # a chain of steps of 20 degrees with two close pairs in it, and far away a pair at 20 degrees
    vectors = around(0, 2, 22, 42, 44, 180, 200)
    expected = [[0, 1], [3, 4], [5, 6]]
    assert near_clusters(vectors, 0.07, 2, 2) == expected == by_scikit_learn(vectors, 0.07, 2)
    assert wrong(vectors, 0.07, 2) != expected


def test_equal_rows_are_cut_into_runs() -> None:
    vectors = around(*[0.0] * 7, 90.0)
    assert near_clusters(vectors, 0.15, 2, 3) == [[0, 1, 2], [3, 4, 5]]  # the seventh is left alone
    assert near_clusters(vectors, SMALLEST_EPS / 4, 2, 4) == [[0, 1, 2, 3], [4, 5, 6]]
    assert near_clusters(torch.zeros(0, 2), 0.15, 2, 3) == []


PAIRS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12)


@given(PAIRS, PAIRS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_joins_are_components_unless_forbidden(joins: list[tuple[int, int]], apart: list[tuple[int, int]]) -> None:
    free, bound = Joined(9), Joined(9, apart)
    graph = nx.empty_graph(9)
    graph.add_edges_from(joins)
    for a, b in joins:
        assert free.join(a, b)
    expected = {row: min(part) for part in nx.connected_components(graph) for row in part}
    assert free.groups() == [expected[row] for row in range(9)]

    groups = [{row} for row in range(9)]  # the rule written plainly: refuse what would hold a forbidden pair
    for a, b in joins:
        one, other = next(g for g in groups if a in g), next(g for g in groups if b in g)
        refused = one is not other and any(x != y and {x, y} <= one | other for x, y in apart)
        assert bound.join(a, b) is not refused
        if one is not other and not refused:
            groups = [g for g in groups if g is not one and g is not other] + [one | other]
    assert bound.groups() == [min(next(g for g in groups if row in g)) for row in range(9)]


def test_a_forbidden_pair_holds_through_others() -> None:
    for order in itertools.permutations([(0, 1), (1, 2), (2, 3)]):
        joined = Joined(4, [(0, 3)])
        done = [joined.join(a, b) for a, b in order]
        assert done == [True, True, False]  # whichever join would close the chain is refused
        assert joined.groups()[0] != joined.groups()[3]
