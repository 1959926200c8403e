"""`join_top1` by every implementation against its definition, and the join that is built on it against all pairs.

The reference runs everywhere; Triton interpreted on the CPU (scripts/test_triton.sh), or on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpu_rag_kernels import join as kernel
from gpu_rag_kernels.join import Side, Strips
from hybrid_pairs import Groups, all_scores, check_join
from joins import hybrid_argmax
from kernel_device import BOTH, DEVICE, ragged, unit_rows

from gpu_rag.graph import join
from gpu_rag.graph.join import triton_path as join_kernel

Find = Callable[..., Strips]


@pytest.fixture(autouse=True)
def small_tiles(lowered: Callable[..., None]) -> None:
    lowered("join", ROWS=16, COLUMNS=16, DEPTH=16)


def side(r: np.random.Generator, n: int, dims: int, words: int, dtype: torch.dtype, grouped: bool) -> Side:
    """Components are quarters, so that every sum is exact; many rows are equal."""
    vectors = torch.from_numpy(r.integers(-2, 3, (n, dims)) / 4).to(DEVICE, dtype)
    head = torch.from_numpy(r.random((n, words)) < 0.3).to(DEVICE, torch.float16)
    if n:
        copied = torch.from_numpy(r.integers(0, n, n)).to(DEVICE)
        vectors, head = vectors[copied], head[copied]
    size = head.sum(1).int() + torch.from_numpy(r.integers(0, 3, n)).to(DEVICE).int()
    group = torch.from_numpy(r.integers(0, 3, n)).to(DEVICE) if grouped else None
    return Side(vectors, head, size, group)


def check(
    find: Find, n_left: int, n_right: int, dims: int, words: int, strip: int, dtype: torch.dtype, grouped: bool
) -> None:
    r = np.random.default_rng(n_left + 7 * n_right)
    left, right = (side(r, n, dims, words, dtype, grouped) for n in (n_left, n_right))
    found = find(left, right, strip=strip)
    n_strips = -(-n_right // strip)
    assert found.best.shape == found.index.shape == found.second.shape == (n_left, n_strips)
    assert (found.best.dtype, found.index.dtype, found.second.dtype) == (torch.float32, torch.int32, torch.float32)
    for i in range(n_left):
        for s in range(n_strips):
            scores = {}
            for j in range(s * strip, min((s + 1) * strip, n_right)):
                if grouped and left.group[i] == right.group[j]:
                    continue
                shared = int((left.head[i] * right.head[j]).sum())
                union = int(left.size[i]) + int(right.size[j]) - shared
                dot = float((left.vectors[i].double() * right.vectors[j].double()).sum())
                share = np.float32(shared) / np.float32(max(union, 1))
                scores[j] = float((share + np.float32(dot)) * np.float32(0.5))
            order = sorted(scores, key=lambda j: (-scores[j], j))
            assert int(found.index[i, s]) == (order[0] if order else -1)
            assert float(found.best[i, s]) == (scores[order[0]] if order else -np.inf)
            assert float(found.second[i, s]) == (scores[order[1]] if len(order) > 1 else -np.inf)


SHAPES = [
    pytest.param(1, 1, 1, 0, 5, False, id="one pair"),
    pytest.param(3, 0, 4, 2, 5, False, id="nothing on the right"),
    pytest.param(0, 3, 4, 2, 5, False, id="nothing on the left"),
    pytest.param(18, 40, 20, 19, 100, False, id="one strip of three tiles"),
    pytest.param(18, 40, 5, 3, 17, True, id="strips that end in a tile, groups"),
    pytest.param(5, 16, 16, 16, 16, True, id="whole tiles"),
]


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("n_left", "n_right", "dims", "words", "strip", "grouped"), SHAPES)
def test_is_the_definition(
    implementation: str, dtype: torch.dtype, n_left: int, n_right: int, dims: int, words: int, strip: int, grouped: bool
) -> None:
    def find(left: Side, right: Side, strip: int) -> Strips:
        return kernel.join_top1(left, right, strip=strip, implementation=implementation)

    check(find, n_left, n_right, dims, words, strip, dtype, grouped)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_error_on_unit_rows(implementation: str, dtype: torch.dtype) -> None:
    """Within the bound on rows of length 1, and far within it: no component is lost."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.nn.functional.normalize(torch.randn(20, 100, generator=generator)).to(DEVICE, dtype) for _ in "lr"]
    none, size = torch.zeros(20, 0, dtype=torch.float16, device=DEVICE), torch.zeros(20, device=DEVICE).int()
    found = kernel.join_top1(*(Side(v, none, size) for v in rows), strip=20, implementation=implementation)
    exact = (rows[0].double() @ rows[1].double().T / 2).topk(2).values
    worst = float((torch.stack([found.best, found.second], 1)[:, :, 0] - exact).abs().max())
    assert worst < kernel.error_of(100) / 20


@BOTH
def test_a_row_alone_has_the_bits_of_the_batch(implementation: str) -> None:
    r = np.random.default_rng(1)
    rows = [torch.nn.functional.normalize(torch.from_numpy(r.normal(size=(n, 33)))).to(DEVICE).half() for n in (20, 50)]
    heads = [torch.from_numpy(r.random((n, 7)) < 0.5).to(DEVICE).half() for n in (20, 50)]
    left, right = (Side(v, h, h.sum(1).int()) for v, h in zip(rows, heads))
    whole = kernel.join_top1(left, right, strip=30, implementation=implementation)
    alone = kernel.join_top1(left.rows(17, 18), right, strip=30, implementation=implementation)
    if implementation == "triton":  # the reference's product in torch may order its sums by the size of the batch
        assert torch.equal(alone.best[0], whole.best[17]) and torch.equal(alone.second[0], whole.second[17])
    assert torch.equal(alone.index[0], whole.index[17])


def last_of_ties(left: Side, right: Side, strip: int) -> Strips:
    """A wrong version: right rows backwards in one strip, so that ties go to the highest."""
    turned = Side(*(None if a is None else a.flip(0) for a in (right.vectors, right.head, right.size, right.group)))
    found = kernel.join_top1(left, turned, strip=max(right.n, strip))
    return Strips(found.best, torch.where(found.index < 0, -1, right.n - 1 - found.index).int(), found.second)


def second_may_not_tie(left: Side, right: Side, strip: int) -> Strips:
    found = kernel.join_top1(left, right, strip=strip)
    return Strips(found.best, found.index, torch.where(found.second == found.best, -torch.inf, found.second))


def forgets_groups(left: Side, right: Side, strip: int) -> Strips:
    return kernel.join_top1(*(Side(s.vectors, s.head, s.size) for s in (left, right)), strip=strip)


@pytest.mark.parametrize("wrong", [last_of_ties, second_may_not_tie, forgets_groups])
def test_checks_catch(wrong: Find) -> None:
    check(kernel.join_top1, 18, 40, 5, 3, 40, torch.float32, True)
    with pytest.raises(AssertionError):
        check(wrong, 18, 40, 5, 3, 40, torch.float32, True)


# --- the join --------------------------------------------------------------------------------------


def check_find(find: Callable[..., tuple[torch.Tensor, torch.Tensor]], seed: int) -> None:
    r = np.random.default_rng(seed)
    n_left, n_right, dims = int(r.integers(0, 13)), int(r.integers(0, 40)), int(r.integers(1, 8))
    dtypes = [torch.float16 if r.random() < 0.5 else torch.float32 for _ in "lr"]
    alike = int(r.integers(0, 3))
    left, right = (unit_rows(r, n, dims, t, alike) for n, t in zip((n_left, n_right), dtypes))
    vocabulary = int(r.choice([4, 30, 200]))
    lk, rk = ([r.integers(0, vocabulary, k).tolist() for k in r.integers(0, 6, n)] for n in (n_left, n_right))
    groups = tuple(torch.from_numpy(r.integers(0, 3, n)).to(DEVICE) for n in (n_left, n_right))
    exclude = groups if r.random() < 0.5 else None
    sides = left, ragged(lk), right, ragged(rk)
    check_join(find(*sides, exclude=exclude), all_scores(*sides, exclude))


@pytest.fixture
def kernel_in_the_torch_path(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[int]]:
    """`hybrid_argmax(implementation="torch")` as on CUDA, with the kernel by a named implementation, in small parts."""

    def use(implementation: str) -> list[int]:
        undecided: list[int] = []
        whole, tiles = join_kernel.join_by_kernel, join.join_by_torch

        def counted(left: torch.Tensor, *rest) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
            undecided.append(left.shape[0])
            return tiles(left, *rest)

        def named(*sides) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
            return whole(*sides[:5], counted, implementation)

        by = {"loops": "triton", "ops": "torch"}
        monkeypatch.setattr(join, "pick_implementation", lambda *_, family="ops": by[family])
        monkeypatch.setattr(join_kernel, "join_by_kernel", named)
        monkeypatch.setattr(join_kernel, "STRIP", 18)
        monkeypatch.setattr(join_kernel, "PAIRS", 200)
        monkeypatch.setattr(join_kernel, "RARE", 2)
        monkeypatch.setattr("gpu_rag.graph.join.torch_path.MOST_COMMON", 3)
        return undecided

    return use


def by_torch(*sides, exclude: Groups = None):  # type: ignore[no-untyped-def]
    return hybrid_argmax(*sides, exclude=exclude, implementation="torch")


@BOTH
def test_the_join_is_the_best_of_all_pairs(implementation: str, kernel_in_the_torch_path) -> None:  # type: ignore[no-untyped-def]
    undecided = kernel_in_the_torch_path(implementation)
    for seed in range(25 if implementation == "triton" else 80):
        check_find(by_torch, seed)
    assert undecided, "no row was left to the tiles: ties and many rare pairs are not tested"


def test_most_rows_are_certain(kernel_in_the_torch_path) -> None:  # type: ignore[no-untyped-def]
    """Where no rows are equal and rare keywords are rare, the kernel decides."""
    undecided = kernel_in_the_torch_path("reference")
    r = np.random.default_rng(5)
    left, right = (unit_rows(r, n, 16, torch.float16, 0) for n in (40, 90))
    lk, rk = ([r.integers(0, 2000, 4).tolist() for _ in range(n)] for n in (40, 90))
    sides = left, ragged(lk), right, ragged(rk)
    check_join(by_torch(*sides), all_scores(*sides))
    assert not undecided


@pytest.mark.parametrize("wrong", ["no rare pairs", "never undecided", "no room for the error"])
def test_join_checks_catch(wrong: str, kernel_in_the_torch_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    kernel_in_the_torch_path("reference")
    if wrong == "no rare pairs":
        monkeypatch.setattr(join_kernel, "expand", lambda first, last: [])
    elif wrong == "never undecided":
        search = join_kernel._best_of_strips

        def certain(*a):  # type: ignore[no-untyped-def]
            found = search(*a)
            return torch.ones_like(found[0]), *found[1:]

        monkeypatch.setattr(join_kernel, "_best_of_strips", certain)
    else:
        monkeypatch.setattr(join_kernel, "error_of", lambda dims: -1e-3)
    with pytest.raises(AssertionError):
        for seed in range(80):
            check_find(by_torch, seed)
