"""Scores of paths against the formula in fractions, beams against sorting, and the search with a beam."""

from collections.abc import Callable
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import refusals

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.paths import Ends, PathSet, Window, path_graph, score_paths, search_paths
from gpu_rag.graph.paths import scores as module
from gpu_rag.types import Ragged

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
IMPLEMENTATIONS = ("numba", "torch")
Score = Callable[..., tuple[PathSet, torch.Tensor]]


def units(n: int, dims: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = torch.randn(n, dims, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows).to(dtype)


def path_set(rows: list[tuple[int, int, list[int], list[int]]]) -> PathSet:
    """A path set of (group, question, nodes, edges), padded."""
    width = max([len(row[3]) for row in rows], default=0)
    nodes = [row[2] + [-1] * (width + 1 - len(row[2])) for row in rows]
    edges = [row[3] + [-1] * (width - len(row[3])) for row in rows]
    group, question = (torch.tensor([row[i] for row in rows], dtype=torch.int64) for i in (0, 1))
    shape = (len(rows), width)
    return PathSet(
        group, question, torch.tensor(nodes, dtype=torch.int32).reshape(shape[0], width + 1),
        torch.tensor(edges, dtype=torch.int32).reshape(shape),
    )  # fmt: skip


def on_grid(row: torch.Tensor) -> list[Fraction]:
    return [Fraction(round(Fraction(x) * 2**22), 2**22) for x in row.double().tolist()]


def relevance(paths: PathSet, row: int, queries: torch.Tensor, vectors: torch.Tensor, topics: list[list[int]]) -> float:
    """The formula, in exact fractions up to the last square root and division."""
    b = int(paths.question[row])
    edges, nodes = ([x for x in part[row].tolist() if x >= 0] for part in (paths.edges, paths.nodes))
    query = on_grid(queries[b])
    mean = [sum(column, Fraction(0)) for column in zip(*(on_grid(vectors[e]) for e in edges))]
    dot, square = sum(map(Fraction.__mul__, query, mean)), sum(x * x for x in mean) * sum(x * x for x in query)
    cosine = float(dot) / sqrt(square) if square else 0.0
    union = set(topics[b]) | set(nodes)
    return 0.7 * cosine + 0.3 * len(set(topics[b]) & set(nodes)) / len(union)


def check(score: Score, paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: list[list[int]]) -> None:
    found, scores = score(paths, queries, vectors, ragged(topics))
    assert scores.dtype == torch.float64 and torch.equal(found.nodes, paths.nodes)
    wanted = [relevance(paths, row, queries, vectors, topics) for row in range(paths.size)]
    assert scores.tolist() == pytest.approx(wanted, abs=1e-12)


def some_paths(seed: int, n: int, batch: int, n_edges: int) -> tuple[PathSet, list[list[int]]]:
    r = np.random.default_rng(seed)
    rows = []
    for group in sorted(r.integers(0, 2 * batch, n).tolist()):
        hops = int(r.integers(0, 6))
        rows.append((group, group // 2, r.permutation(20)[: hops + 1].tolist(), r.integers(0, n_edges, hops).tolist()))
    return path_set(rows), [r.permutation(20)[: r.integers(1, 5)].tolist() for _ in range(batch)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_is_the_formula(implementation: str, dtype: torch.dtype) -> None:
    paths, topics = some_paths(0, 40, 5, 30)
    queries, vectors = units(5, 12, 1), units(30, 12, 2, dtype)
    queries[2], vectors[7] = 0.0, 0.0
    check(lambda *a: score_paths(*a, implementation=implementation), paths, queries, vectors, topics)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_same_bits_by_numba_torch_threads_and_batch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, topics = some_paths(1, 500, 9, 200)
    queries, vectors = units(9, 384, 3), units(200, 384, 4, dtype)
    _, scores = score_paths(paths, queries, vectors, ragged(topics), implementation="torch")
    monkeypatch.setattr(module, "_PATHS", 37)
    monkeypatch.setattr(module, "_PART", 5000)
    for implementation, threads in (("numba", 1), ("numba", 3), ("torch", 1)):
        again = score_paths(
            paths, queries, vectors, ragged(topics), implementation=implementation, threads=threads
        )[1]  # fmt: skip
        assert torch.equal(again, scores)
    for b in (0, 4, 8):
        mine = paths.rows(paths.question == b)
        alone = PathSet(mine.group, torch.zeros_like(mine.question), mine.nodes, mine.edges)
        one = score_paths(alone, queries[b : b + 1], vectors, ragged(topics[b : b + 1]))[1]
        assert torch.equal(one, scores[paths.question == b])


def test_the_longest_paths_are_exact() -> None:
    """22 equal vectors: the squared length of their sum is 484, the most that fits."""
    vectors = units(3, 384, 5)[:1].repeat(30, 1)
    nodes = list(range(23))
    paths = path_set([(0, 0, nodes, list(range(22))), (0, 0, nodes[:2], [0])])
    scores = {}
    for i in IMPLEMENTATIONS:
        scores[i] = score_paths(paths, vectors[:1], vectors, ragged([nodes[:1]]), weights=(1, 0), implementation=i)[1]
        assert scores[i].tolist() == pytest.approx([1.0, 1.0], abs=1e-15)
    assert torch.equal(scores["numba"], scores["torch"])


@QUICK
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20), st.integers(1, 4))
def test_best_of_groups(rows: list[tuple[int, int]], beam: int) -> None:
    rows.sort(key=lambda row: row[0])
    group, scores = torch.tensor([g for g, _ in rows]).long(), torch.tensor([float(s) for _, s in rows]).double()
    kept = module.best_of_groups(group, scores, beam)
    mask = kept.tolist()
    assert [i for i in range(len(rows)) if mask[i]] == module._best_by_numba(group, scores, beam).tolist()
    for g in range(4):
        mine = [i for i, row in enumerate(rows) if row[0] == g]
        best = sorted(sorted(mine, key=lambda i: (-rows[i][1], i))[:beam])
        assert [i for i in mine if mask[i]] == best


def test_best_of_large_groups() -> None:
    """Many ties, beams as large as a group and larger, groups that are smaller than the beam."""
    r = np.random.default_rng(0)
    group = torch.from_numpy(np.repeat(np.arange(30), r.integers(0, 300, 30)))
    for scores in (torch.from_numpy(r.integers(-9, 9, len(group)) / 8), torch.from_numpy(r.normal(size=len(group)))):
        for beam in (1, 2, 7, 100, 150, 1000):
            kept = module.best_of_groups(group, scores, beam)
            again = module._best_by_numba(group, scores, beam)
            assert torch.equal(kept.nonzero()[:, 0], again)


def test_a_beam_keeps_the_order_and_breaks_ties_by_nodes() -> None:
    paths = path_set([(0, 0, [0, 1], [0]), (0, 0, [0, 2], [1]), (0, 0, [0, 3], [0]), (1, 0, [5, 1], [1])])
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for query, kept in (([1.0, 0.0], [[0, 1], [0, 3], [5, 1]]), ([0.0, 1.0], [[0, 1], [0, 2], [5, 1]])):
        for implementation in IMPLEMENTATIONS:
            found, scores = score_paths(
                paths, torch.tensor([query]), vectors, ragged([[0, 5]]), beam=2, implementation=implementation
            )
            assert found.nodes.tolist() == kept and scores.shape == (3,)


def searched(beam: int | None, implementation: str) -> tuple[PathSet, list[int]]:
    r = np.random.default_rng(3)
    ends = torch.from_numpy(r.integers(0, 60, (2, 300)))
    graph = path_graph(csr_from_edges(ends[0], ends[1], 60))
    topics = ragged([[1, 5], [7], [30, 2, 8]])
    queries, vectors = units(3, 16, 6), units(int(graph.edge.max()) + 1, 16, 7)
    sizes: list[int] = []

    def prune(paths: PathSet) -> PathSet:
        kept, _ = score_paths(paths, queries, vectors, topics, beam=beam, implementation=implementation)
        sizes.append(int(torch.unique(kept.group, return_counts=True)[1].max()) if kept.size else 0)
        return kept

    off, on = torch.zeros(3).bool(), torch.ones(3).bool()
    window = Window(torch.zeros(3).long(), torch.full((3,), 6))
    return search_paths(graph, topics, 2, Ends(off, on), window, prune, implementation=implementation), sizes


def test_search_with_a_beam() -> None:
    whole, _ = searched(None, "numba")
    every = {tuple(row) for row in whole.nodes.tolist()}
    found, sizes = searched(25, "numba")
    again, _ = searched(25, "torch")
    assert torch.equal(found.nodes, again.nodes) and torch.equal(found.edges, again.edges)
    assert max(sizes) == 25 and 0 < found.size <= 75 < whole.size
    assert {tuple(row) for row in found.nodes.tolist()} <= every


def mean_of_cosines(paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: Ragged) -> Any:
    dots = (vectors.float()[paths.edges.long()] * queries[paths.question][:, None]).sum(2) * (paths.edges >= 0)
    mean = dots.sum(1) / paths.lengths.clamp_min(1)
    return paths, 0.7 * mean.double() + score_paths(paths, queries, vectors, topics, weights=(0.0, 0.3))[1]


def share_of_topics(paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: Ragged) -> Any:
    known = [set(topics.values[a:b].tolist()) for a, b in zip(topics.offsets[:-1], topics.offsets[1:])]
    share = [len(known[b] & set(row)) / len(known[b]) for b, row in zip(paths.question.tolist(), paths.nodes.tolist())]
    cosine = score_paths(paths, queries, vectors, topics, weights=(0.7, 0.0))[1]
    return paths, cosine + 0.3 * torch.tensor(share).double()


def first_question(paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: Ragged) -> Any:
    return score_paths(paths, queries[:1].expand_as(queries), vectors, topics)


def last_edge(paths: PathSet, queries: torch.Tensor, vectors: torch.Tensor, topics: Ragged) -> Any:
    last = paths.edges.gather(1, (paths.lengths - 1).clamp_min(0)[:, None])
    one = PathSet(paths.group, paths.question, paths.nodes[:, :2], last)
    cosine = score_paths(one, queries, vectors, topics, weights=(0.7, 0.0))[1]
    return paths, cosine + score_paths(paths, queries, vectors, topics, weights=(0.0, 0.3))[1]


@pytest.mark.parametrize("wrong", [mean_of_cosines, share_of_topics, first_question, last_edge])
def test_checks_catch(wrong: Score) -> None:
    paths, topics = some_paths(2, 30, 4, 20)
    case = paths, units(4, 8, 8), units(20, 8, 9), topics
    check(score_paths, *case)
    with pytest.raises(AssertionError):
        check(wrong, *case)


ONE = path_set([(0, 0, [0, 1], [0])])
Q, V, T = units(1, 4, 0), units(2, 4, 1), ragged([[0]])


test_bad_input_says_what = refusals(
    [
        ("differ", lambda: score_paths(ONE, Q, units(2, 5, 0), T)),
        ("an edge has no vector; given edge 0, 0 vectors", lambda: score_paths(ONE, Q, V[:0], T)),
        ("vectors are not unit rows", lambda: score_paths(ONE, Q, V * float("nan"), T)),
        ("no question", lambda: score_paths(path_set([(0, 1, [0], [])]), Q, V, T)),
        ("too long", lambda: score_paths(path_set([(0, 0, list(range(24)), [0] * 23)]), Q, V, T)),
    ]
)
