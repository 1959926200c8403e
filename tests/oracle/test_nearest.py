"""topk_rows and nearest against brute force: exact ties, padding, NaN, bit equality, memory; wrong versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.graph.nearest import nearest, topk_rows
from gpu_rag.types import TopK

QUICK = settings(max_examples=35, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Fn = Callable[..., TopK]
# few values, so that most rows hold exact ties; -0.0 == 0.0 must tie too
SCORES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3e38, 1e-40])


def by_rank(scores: np.ndarray, k: int, lo: int = 0, key: Any = lambda s, i: (-s, i)) -> TopK:
    """The meaning: sort every row by (-score, id), keep k, pad with -1 / -inf."""
    ids, best = np.full((len(scores), k), -1, np.int32), np.full((len(scores), k), -np.inf, np.float32)
    for b, row in enumerate(scores.tolist()):
        order = sorted(range(len(row)), key=lambda i: key(row[i], i))[:k]
        ids[b, : len(order)], best[b, : len(order)] = np.array(order, dtype=int) + lo, [row[i] for i in order]
    return TopK(torch.tensor(ids), torch.tensor(best))


def assert_same(got: TopK, want: TopK) -> None:
    assert got.ids.dtype == torch.int32 and got.scores.dtype == torch.float32
    assert got.ids.tolist() == want.ids.tolist()
    assert got.scores.tolist() == want.scores.tolist()


# --- topk_rows -------------------------------------------------------------------------------------


def check_topk(topk: Fn) -> None:
    @QUICK
    @given(st.integers(0, 4), st.integers(0, 12), st.integers(1, 15), st.integers(0, 1000), st.data())
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


WRONG_TOPK = [
    (late_ties, check_topk),
    (late_ties, check_many_ties),
    (signed_zeros, check_topk),
    (unstable, check_many_ties),
    (ignores_lo, check_topk),
    (cuts_k, check_topk),
]


@pytest.mark.parametrize(("fn", "check"), WRONG_TOPK)
def test_wrong_topk_is_caught(fn: Fn, check: Any) -> None:
    with pytest.raises(AssertionError):
        check(fn)


@pytest.mark.parametrize("check", [check_topk, check_many_ties, check_topk_alone])
@pytest.mark.parametrize("fn", [topk_by_rank, topk_rows])
def test_topk_rows(fn: Fn, check: Any) -> None:
    check(fn)


def test_infinite_scores_lead() -> None:
    got = topk_rows(torch.tensor([[1.0, torch.inf, 2.0, torch.inf]]), 3)
    assert got.ids.tolist() == [[1, 3, 2]]


def test_minus_infinity_is_no_candidate() -> None:
    got = topk_rows(torch.tensor([[-torch.inf, 2.0, -torch.inf], [-torch.inf] * 3]), 2)
    assert got.ids.tolist() == [[1, -1], [-1, -1]] and got.scores[:, 1].tolist() == [-torch.inf] * 2


def test_nan_scores_are_an_error() -> None:
    for row in ([float("nan"), 1.0], [1.0, 2.0, 3.0, float("nan")]):
        with pytest.raises(GpuRagError):
            topk_rows(torch.tensor([[1.0] * len(row), row]), 1)


# --- nearest ---------------------------------------------------------------------------------------


def grid_vectors(n: int, dim: int, seed: int, levels: int = 3) -> torch.Tensor:
    """Multiples of 1/4 (exact in float16, their dot products exact in float32), with many repeats."""
    return torch.tensor(np.random.default_rng(seed).integers(-levels, levels + 1, (n, dim)) / 4).float()


def check_nearest(near: Fn) -> None:
    """Equal to brute force in float64, ids and scores, for every dtype, tile and number of queries."""
    for n, dim, b, k in ((500, 4, 5, 20), (70, 16, 65, 9), (64, 3, 1, 64), (130, 2, 130, 3), (5, 4, 3, 8)):
        queries, base = grid_vectors(b, dim, 1), grid_vectors(n, dim, 2)
        want = by_rank((queries.double() @ base.double().T).numpy(), k)
        for dtype in (torch.float32, torch.float16):
            for tile in (7, 64, 65536):
                assert_same(near(queries, base.to(dtype), k, tile=tile), want)


def check_precision(near: Fn) -> None:
    """float16 rows are widened first: products and sums in float32; no normalising of either side."""
    g = torch.Generator().manual_seed(0)
    queries, base = 3 * torch.randn(4, 512, generator=g), torch.randn(200, 512, generator=g).half()
    want = queries.double() @ base.double().T
    got = near(queries, base, 10)
    assert (want.gather(1, got.ids.long()) - got.scores).abs().max() <= 2e-4
    assert (want.topk(10).values - got.scores).abs().max() <= 2e-4
    big = near(torch.full((1, 64), 200.0), torch.full((1, 64), 200.0).half(), 1)
    assert big.scores.tolist() == [[64 * 40000.0]], "float16 overflowed"


def check_nearest_alone(near: Fn) -> None:
    """BIT-equal alone, in any batch and from run to run, for vectors whose sums do round."""
    g = torch.Generator().manual_seed(3)
    base = torch.randn(700, 48, generator=g)
    queries = torch.randn(200, 48, generator=g)
    for rows, tile in ((base, 65536), (base.half(), 65536), (base, 100)):
        whole = near(queries, rows, 12, tile=tile)
        for start, stop in ((0, 1), (63, 64), (64, 65), (199, 200), (0, 3), (60, 124), (1, 66)):
            part = near(queries[start:stop], rows, 12, tile=tile)
            assert torch.equal(part.ids, whole.ids[start:stop]), f"ids of rows {start}:{stop}"
            assert torch.equal(part.scores, whole.scores[start:stop]), f"scores of rows {start}:{stop}"


class Largest(TorchFunctionMode):
    """Records the size of the largest tensor that any torch function returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return out


def check_memory(near: Fn) -> None:
    """Never more than [B, tile] scores at once (here: a quarter of all [B, N] would already fail)."""
    queries, base = grid_vectors(64, 2, 0, levels=50), grid_vectors(8192, 2, 1, levels=50)
    with Largest() as largest:
        near(queries, base, 4, tile=256)
    assert largest.numel <= 64 * 8192 // 4, f"{largest.numel} numbers in one tensor"


def by_matmul(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536, topk: Fn = topk_by_rank) -> TopK:
    rows = [(base.float().double() @ q.double()).float() for q in queries]  # one query at a time: bits cannot depend
    return topk(torch.stack(rows), k)


def whole_matrix(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
    return unstable(queries @ base.float().T, k)


def half_sums(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
    return topk_by_rank((queries.to(base.dtype) @ base.T).float(), k)


def cosine(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
    unit = torch.nn.functional.normalize
    return by_matmul(unit(queries), unit(base.float()), k)


def distance(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
    return topk_by_rank(-torch.cdist(queries, base.float()), k)


def merged(shift: bool, newest_first: bool) -> Fn:
    def near(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
        """Tiles merged one by one; wrong where ids of a tile are not shifted, or a later tile wins ties."""
        best: list[list[tuple[float, int]]] = [[] for _ in queries]
        for start in range(0, len(base), tile):
            part = by_matmul(queries, base[start : start + tile], k)
            for b, row in enumerate(best):
                new = [(s, i + start * shift) for s, i in zip(part.scores[b].tolist(), part.ids[b].tolist()) if i >= 0]
                best[b] = sorted(new + row if newest_first else row + new, key=lambda x: -x[0])[:k]
        pad = [row + [(-torch.inf, -1)] * (k - len(row)) for row in best]
        ids = torch.tensor([[i for _, i in row] for row in pad], dtype=torch.int32)
        return TopK(ids, torch.tensor([[s for s, _ in row] for row in pad]))

    return near


def noisy_in_batches(queries: torch.Tensor, base: torch.Tensor, k: int, *, tile: int = 65536) -> TopK:
    """Wrong: as a product whose last bit depends on the number of rows."""
    got = by_matmul(queries, base, k)
    return TopK(got.ids, got.scores * (1 + 1e-7 * (len(queries) > 64)))


WRONG_NEAREST = [
    (merged(shift=False, newest_first=False), check_nearest),
    (merged(shift=True, newest_first=True), check_nearest),
    (cosine, check_nearest),
    (distance, check_nearest),
    (lambda *a, **o: by_matmul(*a, topk=late_ties), check_nearest),
    (half_sums, check_precision),
    (cosine, check_precision),
    (noisy_in_batches, check_nearest_alone),
    (whole_matrix, check_memory),
]


@pytest.mark.parametrize("case", range(len(WRONG_NEAREST)))
def test_wrong_nearest_is_caught(case: int) -> None:
    fn, check = WRONG_NEAREST[case]
    with pytest.raises(AssertionError):
        check(fn)


@pytest.mark.parametrize("check", [check_nearest, check_precision, check_nearest_alone])
@pytest.mark.parametrize("fn", [by_matmul, merged(shift=True, newest_first=False)], ids=["whole", "tiles"])
def test_the_checks_accept_a_right_one(fn: Fn, check: Any) -> None:
    check(fn)


@pytest.mark.parametrize("check", [check_nearest, check_precision, check_nearest_alone, check_memory])
def test_nearest(check: Any) -> None:
    check(nearest)


def test_nothing_to_search() -> None:
    assert tuple(nearest(torch.zeros(0, 4), torch.zeros(3, 4), 2).ids.shape) == (0, 2)
    got = nearest(torch.ones(2, 4), torch.zeros(0, 4), 3)
    assert (got.ids == -1).all() and (got.scores == -torch.inf).all() and tuple(got.ids.shape) == (2, 3)


def test_bad_vectors_are_refused() -> None:
    good = torch.ones(2, 4)
    nan = torch.tensor([[1.0, float("nan"), 1.0, 1.0]])
    for queries, base in ((nan, good), (good, nan), (torch.ones(2, 3), good), (torch.ones(4), good)):
        with pytest.raises(GpuRagError):
            nearest(queries, base, 1)


def test_bad_limits_are_refused() -> None:
    for call in (lambda: topk_rows(torch.ones(1, 3), -1), lambda: nearest(torch.ones(1, 3), torch.ones(2, 3), -1)):
        with pytest.raises(UsageError):
            call()
