"""The pruning scores of HydraRAG by hand and against plain loops; the support product against pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.methods.hydrarag import scores as hydra_prune
from gpu_rag.methods.hydrarag.scores import KINDS, Judged, PathPool, Pruning, pruned


def unit(*values: float) -> np.ndarray:
    row = np.array(values, np.float32)
    return row / np.float32(np.linalg.norm(row))


def hand() -> PathPool:
    """Three paths on topic 1: a graph's, a document's that says the same, a web page's that says something else."""
    vectors = np.stack([unit(1, 0), unit(0.96, 0.28), unit(0, 1)])
    kinds = tuple((kind,) for kind in KINDS)
    return PathPool(unit(1, 0), vectors, kinds, ((1, 2), (1, -1), (3, 4)), ((1,),), (1.0, 0.5, 0.0))


def pool_of(vectors: np.ndarray, kinds: Sequence[str], known: tuple[float, ...] | None = None) -> PathPool:
    """Paths of one kind each, all on topic 1 alone."""
    size = len(vectors)
    one = tuple((kind,) for kind in kinds)
    return PathPool(unit(1, 0), vectors, one, ((1,),) * size, ((1,),), known or (1.0,) * size)


def test_scores_by_hand() -> None:
    (found,) = pruned(Pruning(), [hand()])
    first, second, third = (next(j for j in found.kept if j.row == row) for row in range(3))
    assert found.by_relevance == (0, 1, 2)
    assert first.rel == pytest.approx(0.7 + 0.3 / 2) and second.rel == pytest.approx(0.7 * 0.96 + 0.3 / 2)
    assert third.rel == pytest.approx(0.0, abs=1e-6)
    assert (first.f1, first.f2, first.f3) == (1.0, pytest.approx(1 / 3), 1.0) and first.support == ("document",)
    assert (second.f1, second.f2, second.f3) == (0.8, pytest.approx(1 / 3), 0.5) and second.support == ("kg",)
    assert (third.f1, third.f2, third.f3, third.support) == (0.7, 0.0, 0.0, ())
    for one in (first, second, third):
        assert one.ver == pytest.approx((one.f1 + one.f2 + one.f3) / 3)
        assert one.cross == pytest.approx(0.7 * one.rel + 0.3 * one.ver)


def test_paths_of_the_own_kind_are_no_support_and_kinds_count_once() -> None:
    vectors = np.stack([unit(1, 0)] * 5)
    pool = pool_of(vectors, ("kg", "kg", "web", "web", "document"))
    (found,) = pruned(Pruning(most=1), [pool])
    assert {j.row: j.support for j in found.kept}[0] == ("document", "web")
    assert all(j.f2 == 1.0 for j in found.kept)
    (alone,) = pruned(Pruning(), [pool_of(vectors[:2], ("kg", "kg"))])
    assert all(j.support == () for j in alone.kept)


def test_support_comes_out_of_the_pool_alone() -> None:
    vectors = np.stack([unit(1, 0), unit(0.9, 0.3), unit(0.8, 0.6)])
    pool = pool_of(vectors, ("kg", "kg", "web"))
    (whole,), (cut,) = pruned(Pruning(gamma=0.8), [pool]), pruned(Pruning(gamma=0.8, pool=2), [pool])
    assert {j.row: j.support for j in whole.kept}[0] == ("web",) and cut.by_relevance == (0, 1)
    assert all(j.support == () for j in cut.kept)


def test_verification_can_turn_the_order_and_relevance_alone_does_not() -> None:
    vectors = np.stack([unit(1, 0.05), unit(1, 0.3), unit(1, 0.3)])
    pool = pool_of(vectors, ("web", "kg", "document"), (0.0, 1.0, 1.0))
    (verified,), (relevance,) = pruned(Pruning(), [pool]), pruned(Pruning(verified=False), [pool])
    assert [j.row for j in verified.kept] == [1, 2, 0] and [j.row for j in relevance.kept] == [0, 1, 2]


# Paths where nodes 1, 2 and 3 share one name, which the question says, and 7 is its other topic.
HOMONYMS = ((1, 9), (1, 7, 9), (1, 2, 9), (9, 8), (2, 7), (1, 2, 3))


def by_node(topics: Sequence[Sequence[int]], paths: Sequence[Sequence[int]]) -> list[float]:
    """A wrong overlap: every homonym is a topic of its own."""
    nodes = {node for mention in topics for node in mention}
    return [len(nodes & set(path)) / len(nodes | set(path)) for path in paths]


@pytest.mark.parametrize("overlaps", [hydra_prune._overlaps, by_node])
def test_a_topic_with_homonyms_is_one_topic(overlaps: Callable[..., list[float]]) -> None:
    found = overlaps(((1, 2, 3), (7,)), HOMONYMS)
    # (1, 9): one of two topics among three things; with a second homonym, that is one more thing that is no topic
    expected = [1 / 3, 2 / 3, 1 / 4, 0.0, 1.0, 1 / 4]
    assert (found == pytest.approx(expected)) == (overlaps is hydra_prune._overlaps)
    assert overlaps((), [(1, 2)]) == [0.0]


def test_a_mention_counts_the_same_whichever_and_however_many_nodes_it_may_be() -> None:
    def rel(topics: tuple[tuple[int, ...], ...], entities: tuple[int, ...]) -> float:
        pool = PathPool(unit(1, 0), unit(1, 0)[None], (("kg",),), (entities,), topics, (1.0,))
        return pruned(Pruning(), [pool])[0].kept[0].rel

    assert rel(((1,),), (1, 9)) == rel(((1, 2, 3),), (1, 9)) == rel(((1, 2, 3),), (3, 9)) == pytest.approx(0.85)
    assert rel(((1,), (2,)), (1, 9)) == pytest.approx(0.7 + 0.3 / 3)  # two mentions, one of them served
    with pytest.raises(BadInput, match="a node belongs to two topics"):
        rel(((1, 2), (2, 3)), (1,))


def test_a_path_that_two_kinds_state_is_supported_by_the_other() -> None:
    vectors = np.stack([unit(1, 0), unit(0, 1), unit(0.1, 1)])
    kinds = (("kg", "document"), ("kg",), ("web",))
    pool = PathPool(unit(1, 0), vectors, kinds, ((1,),) * 3, ((1,),), (1.0,) * 3)
    (found,) = pruned(Pruning(), [pool])
    support = {j.row: (j.f1, j.f2, j.support) for j in found.kept}
    assert support[0] == (1.0, pytest.approx(1 / 3), ("document",))
    assert support[1] == (1.0, pytest.approx(1 / 3), ("web",)) and support[2][2] == ("kg",)
    two = PathPool(unit(1, 0), vectors[:1].repeat(2, 0), kinds[::2], ((1,),) * 2, ((1,),), (1.0,) * 2)
    assert {j.row: j.support for j in pruned(Pruning(), [two])[0].kept} == {
        0: ("document", "web"),
        1: ("kg", "document"),
    }
    with pytest.raises(BadInput, match="a path is of no kind"):
        PathPool(unit(1, 0), vectors[:1], ((),), ((1,),), ((1,),), (1.0,))


def random_pool(rng: random.Random, size: int) -> PathPool:
    vectors = np.array([[rng.gauss(0, 1) for _ in range(6)] for _ in range(size)], np.float32).reshape(size, 6)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    entities = tuple(tuple(rng.sample(range(9), rng.randint(1, 4))) for _ in range(size))
    kinds = tuple(tuple(rng.sample(KINDS, rng.choice((1, 1, 2, 3)))) for _ in range(size))
    known = tuple(rng.random() for _ in range(size))
    query = unit(*(rng.gauss(0, 1) for _ in range(6)))
    return PathPool(query, vectors, kinds, entities, rng.choice((((1,), (2,)), ((1, 2, 3), (4,)), ())), known)


def overlap(topics: Sequence[Sequence[int]], entities: Sequence[int]) -> float:
    """The greatest Jaccard over all readings of the mentions, one node each."""
    on = set(entities)
    return max(len(set(one) & on) / max(len(set(one) | on), 1) for one in itertools.product(*topics))


def plainly(params: Pruning, pool: PathPool) -> list[tuple[int, float, tuple[str, ...]]]:
    """(row, cross, support) of the W2 best, in loops."""
    size = len(pool.vectors)
    held, query = pool.vectors.astype(np.float64), pool.query.astype(np.float64)
    rel = [0.7 * float(held[i] @ query) + 0.3 * overlap(pool.topics, e) for i, e in enumerate(pool.entities)]
    rows = sorted(range(size), key=lambda i: (-rel[i], i))[: params.pool]
    found = []
    for i in rows:
        like = [j for j in rows if j == i or float(held[i] @ held[j]) >= params.gamma]
        near = {kind for j in like for kind in pool.kinds[j]} - {pool.kinds[i][0]}
        f1 = params.rho[KINDS.index(pool.kinds[i][0])]
        ver = (f1 + min(len(near), params.most) / params.most + pool.known[i]) / 3
        found.append((i, 0.7 * rel[i] + 0.3 * ver, tuple(k for k in KINDS if k in near)))
    return sorted(found, key=lambda row: (-row[1], row[0]))[: params.kept]


def agrees(params: Pruning, pools: list[PathPool]) -> bool:
    for pool, found in zip(pools, pruned(params, pools)):
        expected = plainly(params, pool)
        if [j.row for j in found.kept] != [row for row, _, _ in expected]:
            return False
        if not np.allclose([j.cross for j in found.kept], [cross for _, cross, _ in expected], atol=1e-5):
            return False
        if [j.support for j in found.kept] != [kinds for _, _, kinds in expected]:
            return False
    return True


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_batches_agree_with_loops_and_with_each_alone(seed: int) -> None:
    rng = random.Random(seed)
    params = Pruning(pool=rng.randint(1, 12), kept=rng.randint(1, 6), most=rng.randint(1, 3), gamma=rng.uniform(0, 0.6))
    pools = [random_pool(rng, rng.randint(0, 15)) for _ in range(rng.randint(1, 19))]
    assert agrees(params, pools)
    assert [pruned(params, [pool])[0] for pool in pools] == pruned(params, pools)


def test_a_support_that_forgets_the_kinds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_near(params: Pruning, pools: Any, chosen: Any, device: torch.device) -> list[list[tuple[str, ...]]]:
        return [[tuple(k for k in KINDS if any(k in pool.kinds[j] for j in rows)) for _ in rows]
                for pool, rows in zip(pools, chosen)]  # fmt: skip

    pools = [random_pool(random.Random(3), 9)]
    assert agrees(Pruning(gamma=0.3), pools)
    monkeypatch.setattr(hydra_prune, "_support", all_near)
    assert not agrees(Pruning(gamma=0.3), pools)


@pytest.mark.parametrize("wrong", [{"pool": 0}, {"gamma": 2.0}, {"rho": (1.0, 0.8)}, {"cross": -0.1}])
def test_parameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Pruning(**wrong)


def test_an_empty_pool_keeps_nothing() -> None:
    empty = PathPool(unit(1, 0), np.zeros((0, 2), np.float32), (), (), ((1,),), ())
    found = pruned(Pruning(), [empty, hand()])
    assert found[0].kept == () and isinstance(found[1].kept[0], Judged)
