"""Exact dot products and the best of ragged lists by every implementation, and HopRAG's step that is built on them.

The reference runs everywhere; Triton interpreted on the CPU (scripts/test_triton.sh), or on a GPU.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from gpu_rag_kernels.frontier import gather_dots, ragged_gather_dot_topk, reference
from hybrid_pairs import all_scores, best_out_edges, check_top
from kernel_device import BOTH, DEVICE, NEEDS_TRITON, ragged, unit_rows
from ragged_lists import listed

from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.frontier import FrontierQuery, HopEdges, described, frontier_topk, hop_edges, score_lists
from gpu_rag.graph.frontier import torch_path as frontier_torch
from gpu_rag.types import Ragged, TopK

OPS = pytest.mark.parametrize("implementation", ["torch", pytest.param("triton", marks=NEEDS_TRITON)])
Find = Callable[..., TopK]


@pytest.fixture(autouse=True)
def small_tiles(lowered: Callable[..., None]) -> None:
    lowered("frontier", CANDIDATES=8, DIMS=8, PLACES=8)


def dot(query: torch.Tensor, row: torch.Tensor) -> Fraction:
    whole = [np.rint(v.double().cpu().numpy() * 2**24).astype(np.int64) for v in (query, row)]
    return Fraction(sum(int(x) * int(y) for x, y in zip(*whole)), 2**48)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dots_are_exact(implementation: str, dtype: torch.dtype) -> None:
    r = np.random.default_rng(0)
    queries, vectors = unit_rows(r, 5, 21, torch.float32), unit_rows(r, 9, 21, dtype, 2)
    i, j = (torch.from_numpy(r.integers(0, n, 30)).to(DEVICE) for n in (5, 9))
    found = gather_dots(queries, i, vectors, j.int(), implementation=implementation)
    expected = [float(dot(queries[a], vectors[b])) for a, b in zip(i, j)]
    assert found.dtype == torch.float64 and found.tolist() == expected
    assert torch.equal(exact_dots(queries, i, vectors, j), found)
    assert gather_dots(queries, i[:0], vectors, j[:0], implementation=implementation).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_torch_and_the_compiled_loop_give_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    r = np.random.default_rng(1)
    queries, vectors = unit_rows(r, 5, 21, torch.float32), unit_rows(r, 9, 21, dtype, 2)
    i, j = (torch.from_numpy(r.integers(0, n, 30)) for n in (5, 9))
    compiled = gather_dots(queries, i, vectors, j, implementation="reference")
    monkeypatch.setattr(reference, "installed", lambda module: False)
    assert torch.equal(gather_dots(queries, i, vectors, j, implementation="reference"), compiled)


@BOTH
def test_components_are_rounded_to_the_grid(implementation: str) -> None:
    """Halves of a step go to the even one; large components lie on it; rows of one component show each alone."""
    step = 2.0**-24
    halves = [0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.499, -0.501]
    wanted = [*halves, 2**23 - 0.5, 2**23, 2**23 + 1, -(2**23) - 1, 2**24, -(2**24)]
    rows = (torch.tensor(wanted, dtype=torch.float64) * step).float()[:, None].to(DEVICE)
    one, place = torch.ones(1, 1, device=DEVICE), torch.arange(len(wanted), device=DEVICE)
    found = gather_dots(one, torch.zeros_like(place), rows, place, implementation=implementation)
    assert (found / step).tolist() == np.rint(rows[:, 0].double().cpu().numpy() / step).tolist()
    assert (found / step).tolist()[1:7] == [0, 2, 2, 0, -2, -2]


@BOTH
@pytest.mark.parametrize("strange", [torch.nan, torch.inf, 1e30, 300.0])
def test_rows_that_are_no_unit_rows_do_not_look_like_some(implementation: str, strange: float) -> None:
    vectors = torch.tensor([[0.5, strange], [0.5, 0.0]], device=DEVICE)
    queries, place = torch.tensor([[1.0, 0.5]], device=DEVICE), torch.arange(2, device=DEVICE)
    found = gather_dots(queries, torch.zeros_like(place), vectors, place, implementation=implementation)
    assert not abs(float(found[0])) <= 1.03 and float(found[1]) == 0.5


def check(find: Find, dtype: torch.dtype, k: int, alike: int) -> None:
    r = np.random.default_rng(k + 10 * alike)
    dims = int(r.integers(1, 20))
    queries, vectors = unit_rows(r, 3, dims, torch.float32), unit_rows(r, 40, dims, dtype, alike)
    lists = [r.integers(0, 40, size).tolist() for size in (0, 1, 3, 40, 8, 17, 0)]
    owner = torch.from_numpy(r.integers(0, 3, len(lists))).to(DEVICE)
    share = r.integers(0, 3, sum(map(len, lists))) / 3
    found = find(queries, vectors, ragged(lists, torch.int32), k, owner=owner, bias=torch.from_numpy(share).to(DEVICE))
    ids, scores, at = [], [], 0
    for query, row in zip(queries[owner], lists):
        own = [np.float32(share[at + p] + float(dot(query, vectors[v]))) for p, v in enumerate(row)]
        order = sorted(range(len(row)), key=lambda p, s=own: (-s[p], p))[:k]
        ids.append(order + [-1] * (k - len(order)))
        scores.append([own[p] for p in order] + [-np.inf] * (k - len(order)))
        at += len(row)
    assert (found.ids.dtype, found.scores.dtype) == (torch.int32, torch.float32)
    assert torch.equal(found.ids.cpu(), torch.tensor(ids, dtype=torch.int32).reshape(len(lists), k))
    assert torch.equal(found.scores.cpu(), torch.tensor(np.array(scores, np.float32)).reshape(len(lists), k))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("alike", [0, 1, 2])
@pytest.mark.parametrize("k", [0, 5, 45])
def test_topk_is_the_best_of_each_list(implementation: str, dtype: torch.dtype, k: int, alike: int) -> None:
    check(lambda *a, **o: ragged_gather_dot_topk(*a, **o, implementation=implementation), dtype, k, alike)


@BOTH
@pytest.mark.parametrize("below", [-0.0, -1e-60])  # the latter becomes -0.0 when it is rounded to f32
def test_zeros_of_both_signs_tie(implementation: str, below: float) -> None:
    queries, vectors = torch.tensor([[-1.0]]).to(DEVICE), torch.tensor([[0.0], [-0.0], [1.0]]).to(DEVICE)
    bias = torch.tensor([below, 0.0, 0.0], dtype=torch.float64, device=DEVICE)
    found = ragged_gather_dot_topk(
        queries, vectors, ragged([[0, 1, 2]], torch.int32), 3, bias=bias, implementation=implementation
    )
    assert found.ids.tolist() == [[0, 1, 2]] and found.scores.tolist() == [[0.0, 0.0, -1.0]]


def in_f32(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, **options: Any) -> TopK:
    """A wrong version: products in f32, as if their error could not change an order. (Its zeros: no exact dots.)"""
    zeros = torch.zeros_like(vectors)
    of_list = torch.repeat_interleave(options["owner"], lists.offsets.diff())
    near = (queries[of_list] * vectors[lists.values.long()].float()).sum(1).double()
    return ragged_gather_dot_topk(queries, zeros, lists, k, **{**options, "bias": options["bias"] + near})


def last_of_ties(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, **options: Any) -> TopK:
    """A wrong version: of equal scores the last place comes first."""
    ends = lists.offsets[1:]
    sizes = lists.offsets.diff()
    back = torch.repeat_interleave(ends + lists.offsets[:-1] - 1, sizes) - torch.arange(int(ends[-1]), device=DEVICE)
    turned = Ragged(lists.values[back], lists.offsets)
    found = ragged_gather_dot_topk(queries, vectors, turned, k, **{**options, "bias": options["bias"][back]})
    return TopK(torch.where(found.ids < 0, -1, sizes[:, None] - 1 - found.ids).int(), found.scores)


def by_the_first_query(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, **options: Any) -> TopK:
    return ragged_gather_dot_topk(queries, vectors, lists, k, **{**options, "owner": 0 * options["owner"]})


def without_the_bias(queries: torch.Tensor, vectors: torch.Tensor, lists: Ragged, k: int, **options: Any) -> TopK:
    return ragged_gather_dot_topk(queries, vectors, lists, k, **{**options, "bias": None})


WRONG = [in_f32, last_of_ties, by_the_first_query, without_the_bias]


@pytest.mark.parametrize("wrong", WRONG)
def test_checks_catch(wrong: Find) -> None:
    with pytest.raises(AssertionError):
        for alike in (1, 2):
            for k in (1, 5, 45):
                check(wrong, torch.float32, k, alike)


def world(seed: int) -> tuple[FrontierQuery, HopEdges, Ragged]:
    """Questions, edges of which many carry equal or nearly equal vectors, and frontiers."""
    r = np.random.default_rng(seed)
    n, n_edges, dims = 6, int(r.integers(0, 60)), int(r.integers(1, 12))
    vectors = unit_rows(r, 1 + n_edges // 2, dims, torch.float16 if seed % 3 == 0 else torch.float32, seed % 3)
    sources = np.sort(r.integers(0, n, n_edges))
    held = (torch.from_numpy(r.integers(0, high, n_edges)).int().to(DEVICE) for high in (n, len(vectors)))
    words = [sorted(set(r.integers(0, 4, size).tolist())) for size in r.integers(0, 3, n_edges)]
    indptr = torch.from_numpy(np.searchsorted(sources, np.arange(n + 1))).to(DEVICE)
    edges = hop_edges(indptr, *held, vectors, ragged(words, torch.int32), 4)
    asked_words = [sorted(set(r.integers(0, 6, size).tolist())) for size in r.integers(0, 4, 4)]
    asked = FrontierQuery(unit_rows(r, 4, dims, torch.float32), ragged(asked_words, torch.int32))
    return asked, edges, ragged([r.integers(0, n, size).tolist() for size in r.integers(0, 5, 4)])


def check_step(implementation: str, seed: int, k: int) -> None:
    """Against whole numbers: shares and products are exact, one rounding each of share, sum and score."""
    asked, edges, frontier = world(seed)
    found = frontier_topk(asked, edges, frontier, k, implementation=implementation)
    rows = edges.vectors[edges.vector_of.long()]
    sim = all_scores(asked.vectors, asked.keywords, rows, edges.keywords).astype(np.float32)
    check_top(found, best_out_edges(sim, edges.indptr.tolist(), listed(frontier), k), k)


@OPS
def test_a_step_is_the_best_of_all_edges(implementation: str) -> None:
    for seed in range(12 if implementation == "triton" else 40):
        check_step(implementation, seed, 1 + seed % 4)


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_steps_are_caught(wrong: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_torch, "ragged_gather_dot_topk", wrong)
    with pytest.raises(AssertionError):
        for seed in range(40):
            check_step("torch", seed, 1 + seed % 4)


@pytest.mark.parametrize("other", [pytest.param("triton", marks=NEEDS_TRITON)])
def test_both_kernels_give_the_same_bits_and_a_question_alone_too(other: str) -> None:
    asked, edges, frontier = world(7)
    one, two = (frontier_topk(asked, edges, frontier, 3, implementation=i) for i in ("torch", other))
    assert torch.equal(one.ids, two.ids) and torch.equal(one.scores, two.scores)
    first, last = frontier.offsets[2:4].tolist()
    low, high = asked.keywords.offsets[2:4].tolist()
    alone = FrontierQuery(
        asked.vectors[2:3], Ragged(asked.keywords.values[low:high], asked.keywords.offsets[2:4] - low)
    )
    step = frontier_topk(alone, edges, Ragged(frontier.values[first:last], frontier.offsets[2:4] - first), 3,
                         implementation="triton")  # fmt: skip
    assert torch.equal(step.ids, one.ids[first:last]) and torch.equal(step.scores, one.scores[first:last])
    things = described(edges.vectors, ragged([[1]] * edges.vectors.shape[0], torch.int32), 4)
    lists = ragged([[0, 1, 0], [], [2], [1]])
    scores = [score_lists(asked, things, lists, implementation=i) for i in ("torch", "triton")]
    assert torch.equal(*scores)
