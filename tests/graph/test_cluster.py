"""Radius clustering against DBSCAN by the book and scikit-learn's; groups by shared keys by brute force."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import caught, refusals

from gpu_rag.graph import cluster as module
from gpu_rag.graph.cluster import clusters_by_numba, exact_groups, radius_clusters
from gpu_rag.graph.common import dots, low_precision
from gpu_rag.graph.common.dots import exact_dots, on_grid
from gpu_rag.types import Ragged

Cluster = Callable[[torch.Tensor, float, int], torch.Tensor]
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def by_filter(dtype: torch.dtype) -> Cluster:
    return lambda v, eps, m: clusters_by_numba(v, 1 - eps, m, module.TILE, dtype)


CLUSTERS: dict[str, Cluster] = {
    "auto": radius_clusters,
    "torch": lambda v, eps, m: radius_clusters(v, eps, m, implementation="torch"),
    "numba f32": by_filter(torch.float32),
    "numba bf16": by_filter(torch.bfloat16),
}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE", 7)
    monkeypatch.setattr(module, "SETTLE_AT", 3)


def unit(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).float()


def by_the_book(vectors: torch.Tensor, eps: float, min_samples: int) -> list[int]:
    """DBSCAN as its paper grows clusters, one seed after the other; dot products in whole numbers."""
    grid = (on_grid(vectors) * dots.GRID).long()
    near = (grid @ grid.T).double() * 2.0**-48 >= 1 - eps
    near.fill_diagonal_(True)
    around = [set(row.nonzero()[:, 0].tolist()) for row in near]
    cluster = [-1] * len(around)
    for seed in range(len(around)):
        if cluster[seed] >= 0 or len(around[seed]) < min_samples:
            continue
        cluster[seed], queue = seed, [seed]
        while queue:
            i = queue.pop()
            for j in around[i] if len(around[i]) >= min_samples else ():
                if cluster[j] < 0:
                    cluster[j] = seed
                    queue.append(j)
    smallest = {c: cluster.index(c) for c in set(cluster)}
    return [-1 if c < 0 else smallest[c] for c in cluster]


def check(cluster: Cluster, vectors: torch.Tensor, eps: float, min_samples: int) -> None:
    found = cluster(vectors, eps, min_samples)
    assert found.dtype == torch.int64
    assert found.tolist() == by_the_book(vectors, eps, min_samples)


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(1, 4), st.sampled_from([0.0, 0.05, 0.3, 1.2, 2.0]))
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", CLUSTERS)
def test_small_sets(name: str, seed: int, n: int, min_samples: int, eps: float) -> None:
    r = np.random.default_rng(seed)
    vectors = unit(r.normal(size=(n, 2 + seed % 3)))
    if n:
        vectors = vectors[torch.from_numpy(r.integers(0, n, n))]  # some rows are equal
    check(CLUSTERS[name], vectors.half() if seed % 2 else vectors, eps, min_samples)


def clumps(n: int, dim: int, seed: int) -> torch.Tensor:
    r = np.random.default_rng(seed)
    return unit(unit(r.normal(size=(n // 6, dim))).numpy()[r.integers(0, n // 6, n)] + r.normal(size=(n, dim)) * 0.03)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("min_samples", [2, 5])
def test_equals_scikit_learn(name: str, min_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.cluster import DBSCAN

    monkeypatch.setattr(module, "TILE", 200)
    vectors = clumps(900, 64, min_samples)
    theirs = DBSCAN(eps=0.06, min_samples=min_samples, metric="cosine").fit(vectors.numpy()).labels_
    ours = CLUSTERS[name](vectors, 0.06, min_samples).numpy()
    first = {c: int(np.flatnonzero(theirs == c)[0]) for c in set(theirs) if c >= 0}
    assert ours.tolist() == [first.get(c, -1) for c in theirs]
    assert 20 < len(first) < 300 and (ours < 0).any()


def degrees(*angles: float) -> torch.Tensor:
    turn = np.radians(angles)
    return unit(np.stack([np.cos(turn), np.sin(turn)], 1))


@pytest.mark.parametrize("name", CLUSTERS)
def test_all_alike_leaves_few_pairs_waiting(name: str) -> None:
    """Far more neighbours than there is room for waiting pairs."""
    alike = clumps(6, 16, 0)[:1].expand(300, 16).contiguous()
    assert CLUSTERS[name](alike, 0.1, 4).tolist() == [0] * 300


def neighbours(vectors: torch.Tensor, eps: float) -> torch.Tensor:
    return ((on_grid(vectors) @ on_grid(vectors).T) >= 1 - eps).fill_diagonal_(True)


def spread(near: torch.Tensor) -> torch.Tensor:
    """The smallest row that each row can reach."""
    reach = near.clone()
    for _ in range(len(near)):
        reach = (reach.float() @ near.float()) > 0
    return reach.int().argmax(1)


def chains_through_borders(vectors: torch.Tensor, eps: float, min_samples: int) -> torch.Tensor:
    near = neighbours(vectors, eps)
    return torch.where(near.sum(1) > 1, spread(near), -1)


def does_not_count_itself(vectors: torch.Tensor, eps: float, min_samples: int) -> torch.Tensor:
    return radius_clusters(vectors, eps, min_samples + 1)


def borders_go_last(vectors: torch.Tensor, eps: float, min_samples: int) -> torch.Tensor:
    near = neighbours(vectors, eps)
    core = near.sum(1) >= min_samples
    root = torch.where(core, spread(near & core & core[:, None]), -1)
    return torch.stack([root[row & core].max() if (row & core).any() else torch.tensor(-1) for row in near])


def euclidean(vectors: torch.Tensor, eps: float, min_samples: int) -> torch.Tensor:
    return radius_clusters(vectors, eps * eps / 2, min_samples)


@pytest.mark.parametrize("wrong", [chains_through_borders, does_not_count_itself, borders_go_last, euclidean])
def test_checks_catch(wrong: Cluster) -> None:
    rows = degrees(20, 29, 30, 31, 11, 10, 9, 100)
    with pytest.raises(AssertionError):
        check(wrong, rows, 1 - np.cos(np.radians(9.5)), 4)


def test_a_slack_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clumps(600, 64, 1)
    eps = float(1 - exact_dots(vectors, torch.arange(300), vectors, torch.arange(300, 600)).max())
    monkeypatch.setattr(low_precision, "slack_of", lambda left, right: np.zeros(len(left.length)))
    monkeypatch.setattr(low_precision, "rounding_of", lambda dtype: 0.0)
    with pytest.raises(AssertionError):
        for shift in np.linspace(0, 0.05, 20):
            check(lambda v, e, m: clusters_by_numba(v, 1 - e, m, 512, torch.bfloat16), vectors, eps + shift, 2)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    sizes: list[int] = []
    whole = torch.mm

    def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        sizes.append(left.shape[0] * right.shape[1])
        return whole(left, right, out=out)

    monkeypatch.setattr(torch, "mm", product)
    yield sizes


@pytest.mark.parametrize("name", CLUSTERS)
def test_never_more_than_a_tile_of_scores(name: str, products: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE", 50)
    CLUSTERS[name](clumps(220, 8, 0), 0.05, 2)
    assert max(products) <= 50 * 50 and sum(products) < 0.7 * 220 * 220, "each pair once"


@pytest.mark.parametrize("implementation", ["numba", "torch"])
def test_any_layout_and_gradients_do_no_harm(implementation: str) -> None:
    vectors = clumps(60, 8, 0)
    turned = vectors.T.contiguous().T.requires_grad_()
    assert torch.equal(radius_clusters(turned, 0.05, implementation=implementation), radius_clusters(vectors, 0.05))


test_bad_input_says_what = refusals(
    [
        ("vectors are not a matrix", lambda: radius_clusters(torch.ones(3, 0), 0.1)),
        ("not unit rows; given length 2 of row 1", lambda: radius_clusters(torch.tensor([[1.0], [2.0]]), 0.1)),
        ("not unit rows; given length nan", lambda: radius_clusters(torch.full((1, 2), torch.nan), 0.1)),
        ("offsets of keys are broken", lambda: exact_groups(Ragged(torch.tensor([1]), torch.tensor([0, 2])))),
    ]
)


Group = Callable[[Ragged], torch.Tensor]


def check_groups(group: Group, lists: list[list[int]], dtype: torch.dtype = torch.int64) -> None:
    label = list(range(len(lists)))
    for _ in lists:
        for i, a in enumerate(lists):
            for j, b in enumerate(lists):
                if set(a) & set(b):
                    label[i] = label[j] = min(label[i], label[j])
    found = group(ragged(lists, dtype))
    assert found.dtype == torch.int64
    assert found.tolist() == label


@QUICK
@given(st.lists(st.lists(st.integers(-3, 9), max_size=3), max_size=12), st.sampled_from([torch.int32, torch.int64]))
def test_groups(lists: list[list[int]], dtype: torch.dtype) -> None:
    check_groups(exact_groups, lists, dtype)


def test_long_chains_and_many_rows_of_a_key() -> None:
    order = [(i * 7) % 303 for i in range(303)]
    rows: list[list[int]] = [[] for _ in order]
    for key, (a, b) in enumerate(zip(order, order[1:], strict=False)):
        rows[a].append(10**12 + key)
        rows[b].append(10**12 + key)
    assert exact_groups(ragged(rows)).tolist() == [0] * 303
    assert exact_groups(ragged([[5]] * 500 + [[6], []])).tolist() == [0] * 500 + [500, 501]


def one_pass(keys: Ragged) -> torch.Tensor:
    first: dict[int, int] = {}
    label = []
    for i in range(keys.batch):
        row = keys.values[keys.offsets[i] : keys.offsets[i + 1]].tolist()
        label.append(min([first.get(k, i) for k in row], default=i))
        first.update({k: label[i] for k in row if k not in first})
    return torch.tensor(label)


test_group_checks_catch = caught(
    [one_pass, lambda keys: torch.zeros(keys.batch, dtype=torch.int64)],
    lambda wrong: check_groups(wrong, [[1], [2], [1, 2], [3], [2]]),
)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_keys_far_apart_and_close_together(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    check_groups(exact_groups, [[low, high], [5], [0, high], [5, 6], [7], []], dtype)
    check_groups(exact_groups, [[high], [high - 1], [high - 2, high], [high - 1], []], dtype)
    check_groups(exact_groups, [[low + 1], [low], [low + 1, low + 2], [low]], dtype)
