"""Frontier steps and the edge ranking against loops over all pairs in whole numbers, ties included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_lists import ragged

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph.common.dots import GRID, on_grid
from gpu_rag.graph.frontier import FrontierQuery, HopEdges, described, frontier_topk, hop_edges, score_lists, top_edges
from gpu_rag.graph.frontier import edges as module
from gpu_rag.types import Ragged, TopK

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
BOTH = ("numba", "torch")
Pairs = list[tuple[float, int]]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDGE_TILE", 7)
    for place in ("numba_path", "torch_path"):
        monkeypatch.setattr(f"gpu_rag.graph.frontier.{place}.QUESTION_TILE", 3)


def sets(keywords: Ragged) -> list[set[int]]:
    return [set(keywords.values[a:b].tolist()) for a, b in zip(keywords.offsets[:-1], keywords.offsets[1:])]


@dataclass(frozen=True)
class World:
    """Questions and edges in plain Python: lists of sets, and vectors as whole numbers of 2^-24."""

    asked: FrontierQuery
    edges: HopEdges
    indptr: list[int]
    target: list[int]
    sim: np.ndarray  # f32[B, E]


def unit(r: np.random.Generator, n: int, dim: int) -> torch.Tensor:
    x = r.normal(size=(n, dim))
    vectors = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).float()
    return vectors[torch.from_numpy(r.integers(0, n, n))] if n else vectors  # some rows are equal


def words(r: np.random.Generator, n: int, most: int, vocabulary: int) -> list[list[int]]:
    return [sorted(set((r.integers(0, vocabulary, k) ** 2 // vocabulary).tolist())) for k in r.integers(0, most, n)]


def similarities(asked: FrontierQuery, vectors: torch.Tensor, keywords: Ragged) -> np.ndarray:
    """f32[B, N]: dot products in whole numbers of 2^-48, one division, one sum, one halving, one rounding."""
    whole = [(on_grid(v) * GRID).long().numpy() for v in (asked.vectors, vectors)]
    dots = (whole[0] @ whole[1].T).astype(np.float64) * 2.0**-48
    shares = [[len(a & b) / max(len(a | b), 1) for b in sets(keywords)] for a in sets(asked.keywords)]
    return ((np.array(shares).reshape(dots.shape) + dots) / 2).astype(np.float32)


def world(seed: int, n_questions: int = 5, n: int = 6, n_edges: int = 25, vocabulary: int = 8, dim: int = 3) -> World:
    r = np.random.default_rng(seed)
    n_vectors = 1 + n_edges // 2
    vectors = unit(r, n_vectors, dim)
    vectors = vectors.half() if seed % 3 == 0 else vectors
    sources = np.sort(r.integers(0, n, n_edges))
    indptr = np.searchsorted(sources, np.arange(n + 1)).tolist()
    target, vector_of = r.integers(0, n, n_edges), r.integers(0, n_vectors, n_edges)
    listed = ragged(words(r, n_edges, 5, vocabulary), torch.int32)
    held = (torch.from_numpy(target).int(), torch.from_numpy(vector_of).int())
    edges = hop_edges(torch.tensor(indptr), *held, vectors, listed, vocabulary)
    asked = FrontierQuery(unit(r, n_questions, dim), ragged(words(r, n_questions, 6, vocabulary + 3)))
    return World(asked, edges, indptr, target.tolist(), similarities(asked, vectors[held[1].long()].float(), listed))


def frontier_of(r: np.random.Generator, w: World) -> list[list[int]]:
    n = len(w.indptr) - 1
    return [r.integers(0, n, k).tolist() for k in r.integers(0, 5, len(w.sim))]


# --- what the spec says, as loops --------------------------------------------------------------------


def walked(w: World, k: int) -> list[Pairs]:
    """Down each question's ranking of edges until k distinct end vertices are found."""
    found = []
    for row in w.sim:
        ranking = sorted(range(len(row)), key=lambda e: (-row[e], e))
        met: set[int] = set()
        kept: Pairs = []
        for e in ranking:
            if w.target[e] not in met and len(met) < k:
                met.add(w.target[e])
                kept.append((float(row[e]), e))
        found.append(kept)
    return found


def stepped(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    """The k best out-edges of each frontier vertex."""
    found = []
    for b, vertices in enumerate(frontier):
        for v in vertices:
            out = range(w.indptr[v], w.indptr[v + 1])
            found.append([(float(w.sim[b][e]), e) for e in sorted(out, key=lambda e: (-w.sim[b][e], e))[:k]])
    return found


def check(top: TopK, expected: list[Pairs], k: int) -> None:
    assert top.ids.dtype == torch.int32 and top.scores.dtype == torch.float32
    assert top.ids.shape == top.scores.shape == (len(expected), k)
    ids = [[e for _, e in row] + [-1] * (k - len(row)) for row in expected]
    scores = [[s for s, _ in row] + [-np.inf] * (k - len(row)) for row in expected]
    assert torch.equal(top.ids, torch.tensor(ids, dtype=torch.int32).view(-1, k))
    assert torch.equal(top.scores, torch.tensor(scores, dtype=torch.float32).view(-1, k))


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(0, 8), st.integers(0, 40), st.integers(1, 9))
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("implementation", BOTH)
def test_small_worlds(implementation: str, seed: int, n_questions: int, n_edges: int, k: int) -> None:
    w = world(seed, n_questions, 6, n_edges, dim=1 + seed % 4)
    check(top_edges(w.asked, w.edges, k, implementation=implementation), walked(w, k), k)
    frontier = frontier_of(np.random.default_rng(seed), w)
    top = frontier_topk(w.asked, w.edges, ragged(frontier), k, implementation=implementation)
    check(top, stepped(w, frontier, k), k)


@pytest.mark.parametrize("implementation", BOTH)
def test_larger_worlds_with_tiles_of_their_own_size(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDGE_TILE", 512)
    w = world(1, 70, 200, 3000, vocabulary=60, dim=48)
    check(top_edges(w.asked, w.edges, 20, implementation=implementation), walked(w, 20), 20)
    frontier = [list(range(b, b + 20)) for b in range(70)]
    check(frontier_topk(w.asked, w.edges, ragged(frontier), 3, implementation=implementation),
          stepped(w, frontier, 3), 3)  # fmt: skip


@QUICK
@given(st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("implementation", BOTH)
def test_lists_are_scored_in_their_order(implementation: str, seed: int) -> None:
    r = np.random.default_rng(seed)
    asked = FrontierQuery(unit(r, 4, 3), ragged(words(r, 4, 6, 10)))
    vectors, keywords = unit(r, 9, 3), ragged(words(r, 9, 5, 8))
    lists = [r.integers(0, 9, k).tolist() for k in r.integers(0, 6, 4)]
    found = score_lists(asked, described(vectors, keywords, 8), ragged(lists), implementation=implementation)
    sim = similarities(asked, vectors, keywords)
    assert torch.equal(found, torch.tensor([sim[b][x] for b, row in enumerate(lists) for x in row]).float())


# --- by hand -----------------------------------------------------------------------------------------


def tiny() -> HopEdges:
    """0 -> 1 twice ([1, 0] with {3}; [.6, .8] with {1}), 1 -> 2 with [0, 1] and no word; 2 has no out-edge."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    held = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 1, 2]).int(), torch.tensor([0, 1, 2]).int()
    return hop_edges(*held, vectors, ragged([[3], [1], []]), 4)


@pytest.mark.parametrize("implementation", BOTH)
def test_by_hand(implementation: str) -> None:
    asked = FrontierQuery(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), ragged([[1, 2], []]))
    # SIM(q0): (0 + 1) / 2, (1/2 + .6) / 2, 0; SIM(q1), no words on either side: 0, .4, (0 + 1) / 2
    top = top_edges(asked, tiny(), 3, implementation=implementation)
    assert top.ids.tolist() == [[1, 2, -1], [2, 1, -1]]  # edge 0 ends where edge 1 ended
    assert top.scores[:, :2].flatten().tolist() == pytest.approx([0.55, 0.0, 0.5, 0.4])
    step = frontier_topk(asked, tiny(), ragged([[0, 2], [0, 1]]), 1, implementation=implementation)
    assert step.ids.tolist() == [[1], [-1], [1], [2]]
    both = frontier_topk(asked, tiny(), ragged([[0], []]), 2, implementation=implementation)
    assert both.ids.tolist() == [[1, 0]] and both.scores[0].tolist() == pytest.approx([0.55, 0.5])
    words_of = described(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), ragged([[3], [1]]), 4)
    scores = score_lists(asked, words_of, ragged([[0, 1], []]), implementation=implementation)
    assert scores.tolist() == pytest.approx([0.5, 0.55])


@pytest.mark.parametrize("implementation", BOTH)
def test_equal_scores_go_to_the_lower_edge_and_nothing_fails_on_nothing(implementation: str) -> None:
    asked = FrontierQuery(torch.tensor([[1.0, 0.0]]), ragged([[]]))
    vectors = torch.tensor([[1.0, 0.0]])
    edges = hop_edges(
        torch.tensor([0, 3, 3]), torch.tensor([1, 0, 1]).int(), torch.zeros(3).int(), vectors, ragged([[], [], []]), 0
    )
    assert top_edges(asked, edges, 2, implementation=implementation).ids.tolist() == [[0, 1]]
    assert frontier_topk(asked, edges, ragged([[0]]), 2, implementation=implementation).ids.tolist() == [[0, 1]]
    none = hop_edges(torch.tensor([0, 0]), edges.target[:0], edges.vector_of[:0], vectors, ragged([]), 0)
    assert top_edges(asked, none, 2, implementation=implementation).ids.tolist() == [[-1, -1]]
    assert frontier_topk(asked, none, ragged([[0]]), 1, implementation=implementation).ids.tolist() == [[-1]]
    nobody = FrontierQuery(torch.zeros(0, 2), ragged([]))
    assert top_edges(nobody, edges, 2, implementation=implementation).ids.shape == (0, 2)


# --- the same bits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", BOTH)
def test_edges_that_f32_cannot_order(implementation: str) -> None:
    """300 vectors as near to each question as f32 can tell: a rough score says nothing, only the exact ones do."""
    r = np.random.default_rng(3)
    queries = unit(r, 4, 64)
    near = queries.repeat_interleave(300, 0) + 2e-7 * torch.from_numpy(r.standard_normal((1200, 64))).float()
    vectors = torch.nn.functional.normalize(near, dim=1)
    numbers, ends = torch.arange(1200, dtype=torch.int32), torch.full((1201,), 1200)
    ends[0] = 0
    edges = hop_edges(ends, numbers, numbers, vectors, ragged([[]] * 1200), 1)
    asked = FrontierQuery(queries, ragged([[]] * 4))
    scores = ((on_grid(queries) @ on_grid(vectors).T) / 2).float()  # exact on the grid
    expected = scores.sort(dim=1, descending=True, stable=True)
    for k in (1, 3, 10):
        found = top_edges(asked, edges, k, implementation=implementation)
        assert torch.equal(found.ids, expected.indices[:, :k].int())
        assert torch.equal(found.scores, expected.values[:, :k])


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.usefixtures("small_tiles")
def test_a_question_does_not_know_its_batch(implementation: str) -> None:
    w = world(5, 20, 12, 120, dim=24)
    frontier = frontier_of(np.random.default_rng(5), w)
    whole = top_edges(w.asked, w.edges, 4, implementation=implementation)
    steps = frontier_topk(w.asked, w.edges, ragged(frontier), 2, implementation=implementation)
    starts = np.cumsum([0] + [len(row) for row in frontier])
    for b in (0, 7, 19):
        alone = FrontierQuery(w.asked.vectors[b : b + 1], ragged([sorted(sets(w.asked.keywords)[b])]))
        top = top_edges(alone, w.edges, 4, implementation=implementation)
        assert torch.equal(top.ids[0], whole.ids[b]) and torch.equal(top.scores[0], whole.scores[b])
        step = frontier_topk(alone, w.edges, ragged([frontier[b]]), 2, implementation=implementation)
        assert torch.equal(step.ids, steps.ids[starts[b] : starts[b + 1]])
        assert torch.equal(step.scores, steps.scores[starts[b] : starts[b + 1]])


def test_threads_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.graph.frontier.numba_path.QUESTION_TILE", 4)
    w = world(6, 30, 12, 200, dim=24)
    one, three = (top_edges(w.asked, w.edges, 5, implementation="numba", threads=n) for n in (1, 3))
    assert torch.equal(one.ids, three.ids) and torch.equal(one.scores, three.scores)


@QUICK
@given(st.integers(0, 2**32 - 1))
def test_renumbered_vertices_and_keywords_keep_the_scores(seed: int) -> None:
    w = world(seed)
    r = np.random.default_rng(seed)
    rename = r.permutation(11)
    kw = [
        ragged([sorted(rename[v] for v in row) for row in map(sorted, sets(k))])
        for k in (w.asked.keywords, w.edges.keywords)
    ]
    to = torch.from_numpy(r.permutation(6)).int()
    edges = hop_edges(w.edges.indptr, to[w.edges.target.long()], w.edges.vector_of, w.edges.vectors, kw[1], 11)
    top, same = top_edges(w.asked, w.edges, 4), top_edges(FrontierQuery(w.asked.vectors, kw[0]), edges, 4)
    assert torch.equal(top.ids, same.ids) and torch.equal(top.scores, same.scores)


# --- plausible, and wrong ----------------------------------------------------------------------------

Search = Callable[[World, int], list[Pairs]]


def k_edges_then_distinct(w: World, k: int) -> list[Pairs]:
    """The k best edges, then without repeated targets: fewer than k vertices."""
    found = []
    for row in w.sim:
        kept: dict[int, tuple[float, int]] = {}
        for e in sorted(range(len(row)), key=lambda e: (-row[e], e))[:k]:
            kept.setdefault(w.target[e], (float(row[e]), e))
        found.append(list(kept.values()))
    return found


def last_edge_wins(w: World, k: int) -> list[Pairs]:
    flipped = World(w.asked, w.edges, w.indptr, w.target[::-1], w.sim[:, ::-1])
    n = len(w.target) - 1
    return [[(s, n - e) for s, e in row] for row in walked(flipped, k)]


def meaning_alone(w: World, k: int) -> list[Pairs]:
    dots = (w.asked.vectors.double() @ w.edges.vectors[w.edges.vector_of.long()].double().T / 2).float().numpy()
    ranked = walked(World(w.asked, w.edges, w.indptr, w.target, dots), k)
    return [[(float(w.sim[b][e]), e) for _, e in row] for b, row in enumerate(ranked)]


def unknown_words_forgotten(w: World, k: int) -> list[Pairs]:
    known = [[v for v in sorted(s) if v < w.edges.n_keywords] for s in sets(w.asked.keywords)]
    asked = FrontierQuery(w.asked.vectors, ragged(known))
    rows = w.edges.vectors[w.edges.vector_of.long()]
    return walked(World(asked, w.edges, w.indptr, w.target, similarities(asked, rows, w.edges.keywords)), k)


@pytest.mark.parametrize("wrong", [k_edges_then_distinct, last_edge_wins, meaning_alone, unknown_words_forgotten])
def test_wrong_searches_are_caught(wrong: Search) -> None:
    caught = 0
    for seed in range(10):
        w = world(seed)
        try:
            check(top_edges(w.asked, w.edges, 4), wrong(w, 4), 4)
        except AssertionError:
            caught += 1
    assert caught >= 5


def in_edges_instead(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    found = []
    for b, vertices in enumerate(frontier):
        for v in vertices:
            into = [e for e, t in enumerate(w.target) if t == v]
            found.append([(float(w.sim[b][e]), e) for e in sorted(into, key=lambda e: (-w.sim[b][e], e))[:k]])
    return found


def first_question_for_all(w: World, frontier: list[list[int]], k: int) -> list[Pairs]:
    return stepped(World(w.asked, w.edges, w.indptr, w.target, np.repeat(w.sim[:1], len(w.sim), 0)), frontier, k)


@pytest.mark.parametrize("wrong", [in_edges_instead, first_question_for_all])
def test_wrong_steps_are_caught(wrong: Callable[..., list[Pairs]]) -> None:
    w = world(2)
    frontier = [[0, 1], [2, 3], [4], [5, 0], [1]]
    with pytest.raises(AssertionError):
        check(frontier_topk(w.asked, w.edges, ragged(frontier), 2), wrong(w, frontier, 2), 2)


# --- bad input ---------------------------------------------------------------------------------------


def test_bad_input_is_named() -> None:
    edges = tiny()
    asked = FrontierQuery(torch.tensor([[1.0, 0.0]]), ragged([[1, 2]]))
    with pytest.raises(BadInput, match="k is out of range; given 0"):
        top_edges(asked, edges, 0)
    with pytest.raises(BadInput, match="one of the vertices"):
        frontier_topk(asked, edges, ragged([[3]]), 1)
    with pytest.raises(BadInput, match="vertices do not match the questions; given 2 lists for 1"):
        frontier_topk(asked, edges, ragged([[0], [1]]), 1)
    with pytest.raises(BadInput, match="keywords are not in order"):
        top_edges(FrontierQuery(asked.vectors, ragged([[2, 1]])), edges, 1)
    with pytest.raises(BadInput, match="one of the keywords is no keyword; given -1"):
        top_edges(FrontierQuery(asked.vectors, ragged([[-1, 1]])), edges, 1)
    with pytest.raises(BadInput, match="questions are not unit rows"):
        top_edges(FrontierQuery(2 * asked.vectors, asked.keywords), edges, 1)
    with pytest.raises(BadInput, match="differ in dimension"):
        top_edges(FrontierQuery(torch.ones(1, 1), asked.keywords), edges, 1)
    with pytest.raises(BadInput, match="questions are no f32 rows"):
        top_edges(FrontierQuery(asked.vectors.half(), asked.keywords), edges, 1)
    with pytest.raises(BadInput, match="threads is out of range"):
        top_edges(asked, edges, 1, threads=0)
    with pytest.raises(UsageError, match="no such implementation"):
        top_edges(asked, edges, 1, implementation="cupy")
    parts = edges.indptr, edges.target, edges.vector_of, edges.vectors, edges.keywords
    for broken, message in (
        ((parts[0], parts[1] + 2, *parts[2:]), "one of the targets"),
        ((*parts[:2], parts[2] + 1, *parts[3:]), "the vector of an edge"),
        ((*parts[:4], ragged([[3], [1]])), "edges do not match"),
        ((*parts[:4], ragged([[4], [1], []])), "one of the keywords"),
        ((torch.tensor([0, 2, 1, 3]), *parts[1:]), "offsets of targets are broken"),
        ((*parts[:3], parts[3] * torch.nan, parts[4]), "vectors are not unit rows"),
    ):
        with pytest.raises(BadInput, match=message):
            hop_edges(*broken, 4)
    with pytest.raises(BadInput, match="keywords do not match the vectors"):
        described(edges.vectors, ragged([[1]]), 4)
