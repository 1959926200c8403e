"""topk_rows against brute force: exact ties, padding, NaN, bit equality; wrong versions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes, refusals

from gpu_rag.graph.nearest import topk_rows
from gpu_rag.graph.nearest.best import BLOCK
from gpu_rag.types import TopK

QUICK = settings(max_examples=35, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Fn = Callable[..., TopK]
# few values, so that most rows hold exact ties; -0.0 == 0.0 must tie too
SCORES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3e38, 1e-40, -np.inf, np.inf])


def by_rank(scores: np.ndarray, k: int, lo: int = 0, key: Any = lambda s, i: (-s, i)) -> TopK:
    """The meaning: sort what is above -inf in every row by (-score, id), keep k, pad with -1 / -inf."""
    ids, best = np.full((len(scores), k), -1, np.int32), np.full((len(scores), k), -np.inf, np.float32)
    for b, row in enumerate(scores.tolist()):
        order = sorted((i for i, s in enumerate(row) if s > -np.inf), key=lambda i: key(row[i], i))[:k]
        ids[b, : len(order)], best[b, : len(order)] = np.array(order, dtype=int) + lo, [row[i] for i in order]
    return TopK(torch.tensor(ids), torch.tensor(best))


def assert_same(got: TopK, want: TopK) -> None:
    assert got.ids.dtype == torch.int32 and got.scores.dtype == torch.float32
    assert got.ids.tolist() == want.ids.tolist()
    assert got.scores.tolist() == want.scores.tolist()


def check_topk(topk: Fn) -> None:
    @QUICK
    @given(st.integers(0, 4), st.integers(0, 12), st.integers(0, 15), st.integers(0, 1000), st.data())
    def holds(b: int, n: int, k: int, lo: int, data: Any) -> None:
        rows = data.draw(st.lists(st.lists(SCORES, min_size=n, max_size=n), min_size=b, max_size=b))
        scores = torch.tensor(rows, dtype=torch.float32).reshape(b, n)
        assert_same(topk(scores, k, lo=lo), by_rank(scores.numpy(), k, lo))

    holds()


def check_many_ties(topk: Fn) -> None:
    """Rows long enough for a partial selection to scramble ties."""
    rng = np.random.default_rng(0)
    for n, levels, k in ((5000, 3, 20), (5000, 1, 100), (3000, 400, 50), (257, 2, 257)):
        scores = torch.tensor(rng.integers(0, levels, (3, n)) / 4, dtype=torch.float32)
        kept = scores.clone()
        assert_same(topk(scores, k), by_rank(scores.numpy(), k))
        assert torch.equal(scores, kept), "the scores were written to"
    half = torch.tensor(rng.integers(0, 9, (4, 600)) / 4, dtype=torch.float32)
    assert_same(topk(half[:, ::2], 30), by_rank(half[:, ::2].numpy(), 30))


def check_blocks(topk: Fn) -> None:
    """Long rows, that are searched by the peaks of their blocks."""
    for values in (3, 50, 10**6):
        scores = np.random.default_rng(values).integers(0, values, (5, 1037)).astype(np.float32)
        scores[4] = -np.inf
        scores[4, 1036] = 1.0
        scores[3] = 7.0
        scores[2] = 0.0
        scores[2, [2 * BLOCK, 5 * BLOCK]] = 2.0, 3.0  # the peaks fall in another order than the blocks
        scores[2, [2 * BLOCK + 1, 5 * BLOCK + 1]] = 1.0
        for k in (1, 2, 7):
            assert scores.shape[1] >= 4 * BLOCK * k
            assert_same(topk(torch.from_numpy(scores), k, lo=100), by_rank(scores, k, 100))


def check_topk_alone(topk: Fn) -> None:
    scores = torch.randn(130, 300, generator=torch.Generator().manual_seed(1))
    whole = topk(scores, 10)
    for i in (0, 64, 129):
        assert torch.equal(topk(scores[i : i + 1], 10).ids[0], whole.ids[i])
        assert torch.equal(topk(scores[i : i + 1], 10).scores[0], whole.scores[i])


def topk_by_rank(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    return by_rank(scores.numpy(), k, lo)


def late_ties(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    return by_rank(scores.numpy(), k, lo, key=lambda s, i: (-s, -i))


def signed_zeros(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    """Wrong: keys made from the bits of the float put -0.0 below 0.0."""
    return by_rank(scores.numpy(), k, lo, key=lambda s, i: (-s, np.signbit(s), i))


def unstable(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    """Wrong: torch.topk leaves ties unspecified; -1 / -inf where the row is shorter."""
    wide = torch.nn.functional.pad(scores, (0, max(0, k - scores.shape[1])), value=-torch.inf)
    best, ids = wide.topk(k)
    return TopK(torch.where(best == -torch.inf, -1, ids + lo).int(), best)


def ignores_lo(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    return by_rank(scores.numpy(), k)


def cuts_k(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    return by_rank(scores.numpy(), min(k, scores.shape[1]), lo)


def returns_what_is_no_candidate(scores: torch.Tensor, k: int, *, lo: int = 0) -> TopK:
    best = topk_rows(scores.clamp(min=-1e30), k, lo=lo)
    return TopK(best.ids, torch.where(best.scores < -1e29, -torch.inf, best.scores))


WRONG_TOPK = [
    (late_ties, check_topk),
    (late_ties, check_many_ties),
    (signed_zeros, check_topk),
    (unstable, check_many_ties),
    (ignores_lo, check_topk),
    (cuts_k, check_topk),
    (returns_what_is_no_candidate, check_topk),
    (ignores_lo, check_blocks),
]


test_wrong_topk_is_caught = caught(WRONG_TOPK)


test_topk_rows = passes([topk_by_rank, topk_rows], [check_topk, check_many_ties, check_blocks, check_topk_alone])


NAN = float("nan")
test_scores_that_cannot_be_ranked_are_refused = refusals(
    [
        ("NaN in row 1", lambda: topk_rows(torch.tensor([[1.0, 2.0], [0.0, NAN]]), 1)),
        ("NaN in row 1", lambda: topk_rows(torch.tensor([[1.0] * 4, [1.0, NAN, 2.0, 3.0]]), 1)),
        ("not a matrix", lambda: topk_rows(torch.zeros(3), 1)),
        ("out of range", lambda: topk_rows(torch.zeros(1, 3), -1)),
    ]
)
