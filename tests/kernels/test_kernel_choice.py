"""The implementation of a kernel that runs, and the references and errors that need no Triton."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import chosen, pick_implementation, preferred, preferring, recording
from gpu_rag_kernels.rows import packed, row_plan

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.types import CSR

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def pick(device: torch.device, implementation: str = "auto") -> str:
    return dispatch.pick_implementation(device, implementation, family="loops")


def test_auto_is_triton_on_a_gpu_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "find_spec", lambda name: object())
    assert pick(GPU) == "triton" and pick(CPU) == "reference"
    with pytest.raises(UsageError, match="triton works on a GPU; given tensors on cpu"):
        pick(CPU, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert pick(CPU, "triton") == "triton" and pick(CPU) == "reference"


def test_without_triton_the_reference_runs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert pick(GPU) == "reference" == pick(CPU, "reference")
    with pytest.raises(MissingBackend, match=r"triton is not installed; pip install 'gpu-rag\[gpu\]'"):
        pick(GPU, "triton")
    with pytest.raises(UsageError, match="no such implementation; given cuda"):
        pick(GPU, "cuda")


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
    monkeypatch.setattr(dispatch, "find_spec", lambda name: object())
    monkeypatch.setitem(dispatch.LOOPS, "op", "op")
    monkeypatch.setattr(dispatch, "import_module", lambda name: SimpleNamespace(step=step))
    monkeypatch.setattr(torch.cuda, "device", on)
    second = torch.device("cuda:1")
    assert dispatch.kernel("op", "step", second)(1, more=2) == (3, [second]) and not current
    assert dispatch.kernel("op", "step", second, "reference")(1, more=2) == (3, [])
    assert dispatch.kernel("op", "step", CPU)(1, more=2) == (3, [])


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


CPU = torch.device("cpu")


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None if name == "numba" else object())


def test_auto_is_the_fastest_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_implementation(CPU) == "numba"
    assert pick_implementation(torch.device("cuda")) == "torch"
    without_numba(monkeypatch)
    assert pick_implementation(CPU) == "torch"


def test_a_name_that_cannot_be_had_is_an_error_and_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no such implementation; given fast; expected numba, torch, auto"):
        pick_implementation(CPU, "fast")
    with pytest.raises(UsageError, match="numba works on the CPU"):
        pick_implementation(torch.device("cuda"), "numba")
    without_numba(monkeypatch)
    with pytest.raises(MissingBackend, match=r"gpu-rag\[cpu\]"):
        pick_implementation(CPU, "numba")


def test_a_preference_stands_in_for_auto_and_for_nothing_else() -> None:
    with preferring({"ops": "torch", "pagerank": "torch"}):
        assert pick_implementation(CPU) == "torch"
        assert pick_implementation(CPU, "numba") == "numba"
        assert preferred("pagerank", "auto") == "torch"
        assert preferred("neighbours", "auto") == "auto"
        with preferring({}):
            assert pick_implementation(CPU) == "numba"
        assert pick_implementation(CPU) == "torch"
    assert pick_implementation(CPU) == "numba"


def test_the_record_has_every_choice_of_an_op_once() -> None:
    with recording() as record:
        pick_implementation(CPU, op="reachable")
        pick_implementation(CPU, op="reachable")
        pick_implementation(CPU, "torch", op="reachable")
        pick_implementation(CPU)  # no op of its own
        chosen("nearest", "faiss")
    assert record == {"reachable": {"numba", "torch"}, "nearest": {"faiss"}}
    pick_implementation(CPU, op="later")
    assert "later" not in record


def test_two_threads_do_not_share_preferences_or_records() -> None:
    def work(name: str) -> tuple[str, dict[str, set[str]]]:
        with preferring({"ops": name}), recording() as record:
            return pick_implementation(CPU, op=name), dict(record)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, ["torch", "numba"]))
    assert found == [("torch", {"torch": {"torch"}}), ("numba", {"numba": {"numba"}})]
