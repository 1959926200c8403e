"""Which implementation of a kernel runs, and the references and errors that need no Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from gpu_rag_kernels import choice, join_top1, msbfs_or, ragged_gather_dot_topk
from gpu_rag_kernels.rows import packed, row_plan

from gpu_rag.errors import BadInput, MissingBackend, UsageError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR, Ragged

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_auto_is_triton_on_a_gpu_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    assert choice.pick_kernel("op", GPU) == "triton" and choice.pick_kernel("op", CPU) == "reference"
    assert choice.known() == ("reference",) and choice.known("cuda:0") == ("triton", "reference")
    with pytest.raises(UsageError, match="op in triton works on a GPU; given tensors on cpu"):
        choice.pick_kernel("op", CPU, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choice.pick_kernel("op", CPU, "triton") == "triton" and choice.pick_kernel("op", CPU) == "reference"
    assert choice.known() == ("triton", "reference")


def test_without_triton_the_reference_runs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    assert choice.pick_kernel("op", GPU) == "reference" == choice.pick_kernel("op", CPU, "reference")
    with pytest.raises(MissingBackend, match=r"triton is not installed; pip install 'gpu-rag\[gpu\]'"):
        choice.pick_kernel("op", GPU, "triton")
    with pytest.raises(UsageError, match="no such implementation of op; given cuda"):
        choice.pick_kernel("op", GPU, "cuda")


def test_triton_runs_on_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton itself takes the current device, whatever device the tensors are on."""
    current: list[torch.device] = []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    def step(x: int, *, more: int) -> tuple[int, list[torch.device]]:
        return x + more, list(current)

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    monkeypatch.setattr(choice, "import_module", lambda name: SimpleNamespace(step=step))
    monkeypatch.setattr(torch.cuda, "device", on)
    second = torch.device("cuda:1")
    assert choice.kernel("op", "step", second)(1, more=2) == (3, [second]) and not current
    assert choice.kernel("op", "step", second, "reference")(1, more=2) == (3, [])
    assert choice.kernel("op", "step", CPU)(1, more=2) == (3, [])


def test_triton_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(choice, "find_spec", lambda name: asked.append(name))
    for _ in range(3):
        assert choice.pick_kernel("op", GPU) == "reference" and choice.known("cuda") == ("reference",)
    assert asked == ["triton"]
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    assert choice.pick_kernel("op", GPU) == "triton", "another look-up is asked anew"


def test_rows_are_planned_once_longest_first_and_hubs_in_chunks() -> None:
    indptr = torch.tensor([0, 1, 8, 8, 11, 17, 19])  # 1, 7, 0, 3, 6 and 2 entries
    plan = row_plan(indptr, 3)
    assert plan.rows.tolist() == [3, 5, 0, 2] and plan.hubs.tolist() == [1, 4]
    assert list(zip(plan.starts.tolist(), plan.ends.tolist())) == [(1, 4), (4, 7), (7, 8), (11, 14), (14, 17)]
    assert plan.bounds.tolist() == [0, 3, 5]
    assert row_plan(indptr, 3) is plan and row_plan(indptr, 7).hubs.tolist() == [] != row_plan(indptr, 6).hubs.tolist()


def test_a_matrix_without_gaps_stays_as_it_is() -> None:
    csr = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor([2.0, 3.0]))
    assert packed(csr) is csr
    gaps = CSR(csr.indptr.repeat_interleave(2)[::2], torch.tensor([[1, 5], [0, 5]])[:, 0], csr.weight)
    for made, wanted in zip(vars(packed(gaps)).values(), vars(csr).values()):
        assert torch.equal(made, wanted) and made.is_contiguous()


def test_a_join_fits_the_grid_of_a_gpu() -> None:
    def side(n: int) -> join_top1.Side:
        return join_top1.Side(torch.zeros(n, 1), torch.zeros(n, 0).half(), torch.zeros(n, dtype=torch.int32))

    most = join_top1.MOST_STRIPS
    assert join_top1.join_top1(side(0), side(most), strip=1).best.shape == (0, most)
    with pytest.raises(BadInput, match="too many rows; given 65536 right rows in strips of 1; expected at most 65535"):
        join_top1.join_top1(side(0), side(most + 1), strip=1)


def test_a_hop_by_hand() -> None:
    path = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 3)
    words = torch.tensor([[1], [2], [0]])
    fresh, seen = msbfs_or.msbfs_or(path, words, words)
    assert (fresh.flatten().tolist(), seen.flatten().tolist()) == ([2, 1, 2], [3, 3, 2])
    assert words.flatten().tolist() == [1, 2, 0]


def test_the_best_of_lists_by_hand() -> None:
    lists = Ragged(torch.tensor([0, 1, 2]), torch.tensor([0, 3, 3]))
    vectors = torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])
    found = ragged_gather_dot_topk.ragged_gather_dot_topk(torch.tensor([[1.0, 0.0]] * 2), vectors, lists, 2)
    assert found.ids.tolist() == [[2, 0], [-1, -1]]
    assert found.scores.flatten().tolist() == pytest.approx([1.0, 0.6, -torch.inf, -torch.inf])


LONE = csr_from_edges(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 2)
WORDS, LIST, ONE = (
    torch.zeros(2, 1, dtype=torch.int64),
    Ragged(torch.tensor([0]), torch.tensor([0, 1])),
    torch.ones(1, 3),
)
gather, dots = ragged_gather_dot_topk.ragged_gather_dot_topk, ragged_gather_dot_topk.gather_dots


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("wrong dtypes", lambda: msbfs_or.msbfs_or(LONE, WORDS.int(), WORDS)),
        ("shapes do not fit", lambda: msbfs_or.msbfs_or(LONE, WORDS[:1], WORDS[:1])),
        ("no matrices", lambda: gather(ONE.double(), ONE, LIST, 1)),
        ("shapes do not fit", lambda: gather(ONE, ONE[:, :2], LIST, 1)),
        ("shapes do not fit", lambda: gather(ONE, ONE, LIST, -1)),
        ("shapes do not fit", lambda: gather(ONE, ONE, LIST, 1, bias=ONE[0, :1])),
        ("shapes do not fit", lambda: gather(ONE, ONE, LIST, 1, owner=LIST.offsets)),
        ("shapes do not fit", lambda: gather(torch.ones(2, 3), ONE, LIST, 1)),
        ("no pairs", lambda: dots(ONE, LIST.values, ONE, LIST.offsets)),
    ],
)
def test_bad_input_says_what(match: str, call: Callable[[], object]) -> None:
    with pytest.raises(BadInput, match=match):
        call()
