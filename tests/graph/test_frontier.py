"""Frontier steps against loops over all pairs in whole numbers, ties included."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hybrid_pairs import Pairs, all_scores, best_out_edges, check_top, sets, unit_rows, words
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged
from refusals import refusals

from gpu_rag.graph.common.dots import on_grid
from gpu_rag.graph.frontier import FrontierQuery, HopEdges, described, frontier_topk, hop_edges, score_lists
from gpu_rag.types import Ragged

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
BOTH = ("numba", "torch")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.graph.frontier.numba_path.QUESTION_TILE", 3)


@dataclass(frozen=True)
class World:
    """Questions and edges in plain Python: lists of sets, and vectors as whole numbers of 2^-24."""

    asked: FrontierQuery
    edges: HopEdges
    indptr: list[int]
    target: list[int]
    sim: np.ndarray  # f32[B, E]


def word_sets(r: np.random.Generator, n: int, most: int, vocabulary: int) -> list[list[int]]:
    return [sorted(set(row)) for row in words(r, n, most, vocabulary)]


def similarities(asked: FrontierQuery, vectors: torch.Tensor, keywords: Ragged) -> np.ndarray:
    """f32[B, N]"""
    return all_scores(asked.vectors, asked.keywords, vectors, keywords).astype(np.float32)


def world(seed: int, n_questions: int = 5, n: int = 6, n_edges: int = 25, vocabulary: int = 8, dim: int = 3) -> World:
    r = np.random.default_rng(seed)
    n_vectors = 1 + n_edges // 2
    vectors = unit_rows(r, n_vectors, dim)
    vectors = vectors.half() if seed % 3 == 0 else vectors
    sources = np.sort(r.integers(0, n, n_edges))
    indptr = np.searchsorted(sources, np.arange(n + 1)).tolist()
    target, vector_of = r.integers(0, n, n_edges), r.integers(0, n_vectors, n_edges)
    listed = ragged(word_sets(r, n_edges, 5, vocabulary), torch.int32)
    held = (torch.from_numpy(target).int(), torch.from_numpy(vector_of).int())
    edges = hop_edges(torch.tensor(indptr), *held, vectors, listed, vocabulary)
    asked = FrontierQuery(unit_rows(r, n_questions, dim), ragged(word_sets(r, n_questions, 6, vocabulary + 3)))
    return World(asked, edges, indptr, target.tolist(), similarities(asked, vectors[held[1].long()].float(), listed))


def frontier_of(r: np.random.Generator, w: World) -> list[list[int]]:
    n = len(w.indptr) - 1
    return [r.integers(0, n, k).tolist() for k in r.integers(0, 5, len(w.sim))]


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(0, 8), st.integers(0, 40), st.integers(1, 9))
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("implementation", BOTH)
def test_small_worlds(implementation: str, seed: int, n_questions: int, n_edges: int, k: int) -> None:
    w = world(seed, n_questions, 6, n_edges, dim=1 + seed % 4)
    frontier = frontier_of(np.random.default_rng(seed), w)
    top = frontier_topk(w.asked, w.edges, ragged(frontier), k, implementation=implementation)
    check_top(top, best_out_edges(w.sim, w.indptr, frontier, k), k)


@pytest.mark.parametrize("implementation", BOTH)
def test_larger_worlds(implementation: str) -> None:
    w = world(1, 70, 200, 3000, vocabulary=60, dim=48)
    frontier = [list(range(b, b + 20)) for b in range(70)]
    check_top(frontier_topk(w.asked, w.edges, ragged(frontier), 3, implementation=implementation),
          best_out_edges(w.sim, w.indptr, frontier, 3), 3)  # fmt: skip


@QUICK
@given(st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("implementation", BOTH)
def test_lists_are_scored_in_their_order(implementation: str, seed: int) -> None:
    r = np.random.default_rng(seed)
    asked = FrontierQuery(unit_rows(r, 4, 3), ragged(word_sets(r, 4, 6, 10)))
    vectors, keywords = unit_rows(r, 9, 3), ragged(word_sets(r, 9, 5, 8))
    lists = [r.integers(0, 9, k).tolist() for k in r.integers(0, 6, 4)]
    found = score_lists(asked, described(vectors, keywords, 8), ragged(lists), implementation=implementation)
    sim = all_scores(asked.vectors, asked.keywords, vectors, keywords)
    assert torch.equal(found, torch.tensor([sim[b][x] for b, row in enumerate(lists) for x in row]).double())


def tiny() -> HopEdges:
    """0 -> 1 twice ([1, 0] with {3}; [.6, .8] with {1}), 1 -> 2 with [0, 1] and no word; 2 has no out-edge."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    held = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 1, 2]).int(), torch.tensor([0, 1, 2]).int()
    return hop_edges(*held, vectors, ragged([[3], [1], []]), 4)


@pytest.mark.parametrize("implementation", BOTH)
def test_edges_that_f32_cannot_order(implementation: str) -> None:
    """300 vectors as near to each question as f32 can tell: a rough score says nothing, only the exact ones do."""
    r = np.random.default_rng(3)
    queries = unit_rows(r, 4, 64)
    near = queries.repeat_interleave(300, 0) + 2e-7 * torch.from_numpy(r.standard_normal((1200, 64))).float()
    vectors = torch.nn.functional.normalize(near, dim=1)
    numbers, ends = torch.arange(1200, dtype=torch.int32), torch.full((1201,), 1200)
    ends[0] = 0
    edges = hop_edges(ends, numbers, numbers, vectors, ragged([[]] * 1200), 1)
    asked = FrontierQuery(queries, ragged([[]] * 4))
    scores = ((on_grid(queries) @ on_grid(vectors).T) / 2).float()  # exact on the grid
    expected = scores.sort(dim=1, descending=True, stable=True)
    for k in (1, 3, 10):
        found = frontier_topk(asked, edges, ragged([[0]] * 4), k, implementation=implementation)
        assert torch.equal(found.ids, expected.indices[:, :k].int())
        assert torch.equal(found.scores, expected.values[:, :k])


def test_threads_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.graph.frontier.numba_path.QUESTION_TILE", 4)
    w = world(6, 30, 12, 200, dim=24)
    every = ragged([list(range(12))] * 30)
    one, three = (frontier_topk(w.asked, w.edges, every, 5, implementation="numba", threads=n) for n in (1, 3))
    assert torch.equal(one.ids, three.ids) and torch.equal(one.scores, three.scores)


def meaning_alone(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    dots = (w.asked.vectors.double() @ w.edges.vectors[w.edges.vector_of.long()].double().T / 2).float().numpy()
    ranked = best_out_edges(dots, w.indptr, frontier, k)
    owner = [b for b, vertices in enumerate(frontier) for _ in vertices]
    return [[(float(w.sim[b][e]), e) for _, e in row] for b, row in zip(owner, ranked)]


def unknown_words_forgotten(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    known = [[v for v in sorted(s) if v < w.edges.n_keywords] for s in sets(w.asked.keywords)]
    asked = FrontierQuery(w.asked.vectors, ragged(known))
    rows = w.edges.vectors[w.edges.vector_of.long()]
    return best_out_edges(similarities(asked, rows, w.edges.keywords), w.indptr, frontier, k)


def in_edges_instead(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    found = []
    for b, vertices in enumerate(frontier):
        for v in vertices:
            into = [e for e, t in enumerate(w.target) if t == v]
            found.append([(float(w.sim[b][e]), e) for e in sorted(into, key=lambda e: (-w.sim[b][e], e))[:k]])
    return found


def first_question_for_all(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    return best_out_edges(np.repeat(w.sim[:1], len(w.sim), 0), w.indptr, frontier, k)


@pytest.mark.parametrize("wrong", [in_edges_instead, first_question_for_all, meaning_alone, unknown_words_forgotten])
def test_wrong_steps_are_caught(wrong: Callable[..., list[Pairs]]) -> None:
    frontier = [[0, 1], [2, 3], [4], [5, 0], [1]]
    with pytest.raises(AssertionError):
        for w in map(world, range(10)):
            check_top(frontier_topk(w.asked, w.edges, ragged(frontier), 2), wrong(w, frontier, 2), 2)


EDGES = tiny()
ASKED = FrontierQuery(torch.tensor([[1.0, 0.0]]), ragged([[1, 2]]))
PARTS = EDGES.indptr, EDGES.target, EDGES.vector_of, EDGES.vectors, EDGES.keywords


def of(vectors: torch.Tensor = ASKED.vectors, keywords: Ragged = ASKED.keywords) -> Callable[[], object]:
    return lambda: frontier_topk(FrontierQuery(vectors, keywords), EDGES, ragged([[0]]), 1)


def with_part(place: int, part: object) -> Callable[[], object]:
    return lambda: hop_edges(*PARTS[:place], part, *PARTS[place + 1 :], 4)


test_bad_input_says_what = refusals(
    [
        ("one of the vertices", lambda: frontier_topk(ASKED, EDGES, ragged([[3]]), 1)),
        ("keywords are not in order", of(keywords=ragged([[2, 1]]))),
        ("one of the keywords is no keyword; given -1", of(keywords=ragged([[-1, 1]]))),
        ("questions are not unit rows", of(2 * ASKED.vectors)),
        ("one of the targets", with_part(1, PARTS[1] + 2)),
        ("the vector of an edge", with_part(2, PARTS[2] + 1)),
        ("offsets of targets are broken", with_part(0, torch.tensor([0, 2, 1, 3]))),
    ]
)  # fmt: skip
