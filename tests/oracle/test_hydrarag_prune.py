"""The pruning scores of HydraRAG by hand and against plain loops; the support product against pairs."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_index import run

from gpu_rag.errors import UsageError
from gpu_rag.methods.hydrarag import program
from gpu_rag.methods.hydrarag.batched import prune as hydra_prune
from gpu_rag.methods.hydrarag.batched.prune import Candidates, Pruned, prune_paths
from gpu_rag.methods.hydrarag.state import KINDS, FoundPath, Params, Scores


@dataclass(frozen=True)
class Pruning:
    """Parameters of one pruning, of which w2 and gamma are constants of the method."""

    w1: int = 100
    w2: int = 20
    w_max: int = 3
    gamma: float = 0.8
    verified: bool = True


def unit(*values: float) -> np.ndarray:
    row = np.array(values, np.float32)
    return row / np.float32(np.linalg.norm(row))


def candidates(
    query: np.ndarray,
    vectors: np.ndarray,
    kinds: Sequence[tuple[str, ...]],
    entities: Sequence[tuple[int, ...]],
    topics: tuple[tuple[int, ...], ...],
    known: Sequence[float],
) -> Candidates:
    """Paths named by their number."""
    columns = enumerate(zip(kinds, entities, known))
    paths = (FoundPath(str(i), k[0], "", e, (), also=k[1:], known=share) for i, (k, e, share) in columns)
    return Candidates(query, vectors, tuple(paths), topics)


def pruned(params: Pruning, pools: Sequence[Candidates]) -> list[Pruned]:
    pruning: Any = "verified" if params.verified else "relevance"
    given = Params(w1=params.w1, w2=params.w2, w_max=params.w_max, gamma=params.gamma, pruning=pruning)
    found: list[Pruned] = run(prune_paths, None, pools, given)
    return found


def kept(found: Pruned) -> list[tuple[int, Scores]]:
    return [(int(path.text), path.scores) for path in found[1]]


def hand() -> Candidates:
    """Three paths on topic 1: a graph's, a document's that says the same, a web page's that says something else."""
    vectors = np.stack([unit(1, 0), unit(0.96, 0.28), unit(0, 1)])
    kinds = [(kind,) for kind in KINDS]
    return candidates(unit(1, 0), vectors, kinds, ((1, 2), (1, -1), (3, 4)), ((1,),), (1.0, 0.5, 0.0))


def pool_of(vectors: np.ndarray, kinds: Sequence[str], known: Sequence[float] | None = None) -> Candidates:
    """Paths of one kind each, all on topic 1 alone."""
    size = len(vectors)
    return candidates(unit(1, 0), vectors, [(kind,) for kind in kinds], [(1,)] * size, ((1,),), known or [1.0] * size)


def test_scores_by_hand() -> None:
    (found,) = pruned(Pruning(), [hand()])
    first, second, third = (scores for _, scores in sorted(kept(found), key=lambda pair: pair[0]))
    assert [path.text for path in found[0]] == ["0", "1", "2"]
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
    (found,) = pruned(Pruning(w_max=1), [pool])
    assert {row: scores.support for row, scores in kept(found)}[0] == ("document", "web")
    assert all(scores.f2 == 1.0 for _, scores in kept(found))
    (alone,) = pruned(Pruning(), [pool_of(vectors[:2], ("kg", "kg"))])
    assert all(scores.support == () for _, scores in kept(alone))


def test_support_comes_out_of_the_pool_alone() -> None:
    vectors = np.stack([unit(1, 0), unit(0.9, 0.3), unit(0.8, 0.6)])
    pool = pool_of(vectors, ("kg", "kg", "web"))
    (whole,), (cut,) = pruned(Pruning(gamma=0.8), [pool]), pruned(Pruning(gamma=0.8, w1=2), [pool])
    assert {row: scores.support for row, scores in kept(whole)}[0] == ("web",) and len(cut[0]) == 2
    assert all(scores.support == () for _, scores in kept(cut))


def test_verification_can_turn_the_order_and_relevance_alone_does_not() -> None:
    vectors = np.stack([unit(1, 0.05), unit(1, 0.3), unit(1, 0.3)])
    pool = pool_of(vectors, ("web", "kg", "document"), (0.0, 1.0, 1.0))
    (verified,), (relevance,) = pruned(Pruning(), [pool]), pruned(Pruning(verified=False), [pool])
    assert [row for row, _ in kept(verified)] == [1, 2, 0] and [row for row, _ in kept(relevance)] == [0, 1, 2]


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
        pool = candidates(unit(1, 0), unit(1, 0)[None], (("kg",),), (entities,), topics, (1.0,))
        return pruned(Pruning(), [pool])[0][1][0].scores.rel

    assert rel(((1,),), (1, 9)) == rel(((1, 2, 3),), (1, 9)) == rel(((1, 2, 3),), (3, 9)) == pytest.approx(0.85)
    assert rel(((1,), (2,)), (1, 9)) == pytest.approx(0.7 + 0.3 / 3)  # two mentions, one of them served


def test_a_path_that_two_kinds_state_is_supported_by_the_other() -> None:
    vectors = np.stack([unit(1, 0), unit(0, 1), unit(0.1, 1)])
    kinds = (("kg", "document"), ("kg",), ("web",))
    pool = candidates(unit(1, 0), vectors, kinds, ((1,),) * 3, ((1,),), (1.0,) * 3)
    (found,) = pruned(Pruning(), [pool])
    support = {row: (one.f1, one.f2, one.support) for row, one in kept(found)}
    assert support[0] == (1.0, pytest.approx(1 / 3), ("document",))
    assert support[1] == (1.0, pytest.approx(1 / 3), ("web",)) and support[2][2] == ("kg",)
    two = candidates(unit(1, 0), vectors[:1].repeat(2, 0), kinds[::2], ((1,),) * 2, ((1,),), (1.0,) * 2)
    assert {row: scores.support for row, scores in kept(pruned(Pruning(), [two])[0])} == {
        0: ("document", "web"),
        1: ("kg", "document"),
    }


def random_pool(rng: random.Random, size: int) -> Candidates:
    vectors = np.array([[rng.gauss(0, 1) for _ in range(6)] for _ in range(size)], np.float32).reshape(size, 6)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    entities = tuple(tuple(rng.sample(range(9), rng.randint(1, 4))) for _ in range(size))
    kinds = tuple(tuple(rng.sample(KINDS, rng.choice((1, 1, 2, 3)))) for _ in range(size))
    known = tuple(rng.random() for _ in range(size))
    query = unit(*(rng.gauss(0, 1) for _ in range(6)))
    return candidates(query, vectors, kinds, entities, rng.choice((((1,), (2,)), ((1, 2, 3), (4,)), ())), known)


def overlap(topics: Sequence[Sequence[int]], entities: Sequence[int]) -> float:
    """The greatest Jaccard over all readings of the mentions, one node each."""
    on = set(entities)
    return max(len(set(one) & on) / max(len(set(one) | on), 1) for one in itertools.product(*topics))


def plainly(params: Pruning, pool: Candidates) -> list[tuple[int, float, tuple[str, ...]]]:
    """(row, cross, support) of the W2 best, in loops."""
    size = len(pool.vectors)
    vectors, query, paths = pool.vectors.astype(np.float64), pool.query.astype(np.float64), pool.paths
    rel = [0.7 * float(vectors[i] @ query) + 0.3 * overlap(pool.topics, p.nodes) for i, p in enumerate(paths)]
    rows = sorted(range(size), key=lambda i: (-rel[i], i))[: params.w1]
    found = []
    for i in rows:
        like = [j for j in rows if j == i or float(vectors[i] @ vectors[j]) >= params.gamma]
        near = {kind for j in like for kind in paths[j].kinds} - {paths[i].kind}
        f1 = Params().reliability(paths[i].kind, paths[i].sources)
        ver = (f1 + min(len(near), params.w_max) / params.w_max + paths[i].known) / 3
        found.append((i, 0.7 * rel[i] + 0.3 * ver, tuple(k for k in KINDS if k in near)))
    return sorted(found, key=lambda row: (-row[1], row[0]))[: params.w2]


def agrees(params: Pruning, pools: list[Candidates]) -> bool:
    for pool, found in zip(pools, pruned(params, pools)):
        expected = plainly(params, pool)
        if [(row, scores.support) for row, scores in kept(found)] != [(row, kinds) for row, _, kinds in expected]:
            return False
        if not np.allclose([scores.cross for _, scores in kept(found)], [cross for _, cross, _ in expected], atol=1e-5):
            return False
    return True


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_batches_agree_with_loops_and_with_each_alone(seed: int) -> None:
    rng = random.Random(seed)
    params = Pruning(rng.randint(1, 12), rng.randint(1, 6), rng.randint(1, 3), rng.uniform(0, 0.6))
    pools = [random_pool(rng, rng.randint(0, 15)) for _ in range(rng.randint(1, 19))]
    assert agrees(params, pools)
    assert [pruned(params, [pool])[0] for pool in pools] == pruned(params, pools)


def test_a_support_that_forgets_the_kinds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_near(pools: Any, chosen: Any, *_: Any) -> list[list[tuple[str, ...]]]:
        return [[tuple(k for k in KINDS if any(k in pool.paths[j].kinds for j in rows)) for _ in rows]
                for pool, rows in zip(pools, chosen)]  # fmt: skip

    pools = [random_pool(random.Random(3), 9)]
    assert agrees(Pruning(gamma=0.3), pools)
    monkeypatch.setattr(hydra_prune, "_support", all_near)
    assert not agrees(Pruning(gamma=0.3), pools)


def test_an_empty_pool_keeps_nothing() -> None:
    empty = candidates(unit(1, 0), np.zeros((0, 2), np.float32), (), (), ((1,),), ())
    found = pruned(Pruning(), [empty, hand()])
    assert found[0][1] == [] and len(found[1][1]) == 3


@pytest.mark.parametrize(
    ("trust", "kind", "sources", "expected"),
    [
        ("", "kg", "register", 1.0),
        ("", "document", "documents", 0.8),
        ("register=0.5", "kg", "register", 0.5),
        ("register=.5, web=0", "kg", "gazette", 1.0),
        ("register=.5, web=0", "web", "web", 0.0),
        ("register=.5,kg=0.9", "kg", "gazette+register", 0.5),
        ("kg=0.9", "kg", "gazette", 0.9),
    ],
)
def test_trust_is_in_a_source_or_else_its_kind(trust: str, kind: str, sources: str, expected: float) -> None:
    assert Params(trust=trust).reliability(kind, sources) == expected


@pytest.mark.parametrize("trust", ["register", "=0.5", "register=2", "register=-1", "register=nan", "kg=much"])
def test_trust_that_is_no_share_is_an_error(trust: str) -> None:
    with pytest.raises(UsageError, match="trust"):
        Params(trust=trust)


@pytest.mark.parametrize("trust", ["gazette=0.5", "a+b=0.5"])
def test_trust_in_a_source_that_no_path_names_is_an_error(monkeypatch: pytest.MonkeyPatch, trust: str) -> None:
    """A path joins the names of its sources by "+"."""
    index: Any = SimpleNamespace(sources=[SimpleNamespace(name=name, kind="kg") for name in ("register", "a+b")])
    monkeypatch.setattr(program, "kb_of", lambda kb: kb)
    program.check(index, Params(trust="register=0.5,web=0"))
    with pytest.raises(UsageError, match="trust"):
        program.check(index, Params(trust=trust))
