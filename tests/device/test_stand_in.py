"""The stand-in device catches what a GPU would: a plausible wrong op for each kind of mistake, and right ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from stand_in import CUDA, Device, OnDevice, Refused, stand_in

from gpu_rag.types import CSR, Ragged


def on_device(*size: int) -> torch.Tensor:
    return torch.arange(float(np.prod(size)), device="cuda").reshape(size)


CPU_ROWS = torch.ones(3)
WRONG: dict[str, tuple[type[Exception], str, Callable[[torch.Tensor], object]]] = {
    "two devices": (Refused, "two devices", lambda x: x + CPU_ROWS),
    "a CPU tensor first": (Refused, "two devices", lambda x: CPU_ROWS * x),
    "a number of the device for a CPU tensor": (Refused, "two devices", lambda x: CPU_ROWS * x.sum()),
    "a factory without its device": (Refused, "two devices", lambda x: torch.cat([x, torch.zeros(1)])),
    "an index of the device": (Refused, "two devices", lambda x: CPU_ROWS[x.long()]),
    "index_add_ of the CPU": (Refused, "two devices", lambda x: x.index_add_(0, torch.tensor([0]), x[:1])),
    "repeats of the CPU": (Refused, "two devices", lambda x: torch.repeat_interleave(x, torch.tensor([1, 2, 3]))),
    "scatter_ of the CPU": (Refused, "two devices", lambda x: x.scatter_(0, torch.tensor([0, 1, 2]), x)),
    "searching a number of the CPU": (Refused, "two devices", lambda x: torch.searchsorted(x, torch.tensor(1.0))),
    "values of the CPU": (Refused, "two devices", lambda x: x.__setitem__(torch.tensor([0, 1]), torch.ones(2))),
    "where with rows of the CPU": (Refused, "two devices", lambda x: torch.where(x > 1, x, CPU_ROWS)),
    "out on the CPU": (Refused, "two devices", lambda x: torch.cumsum(x, 0, out=torch.empty(3))),
    "in place on the CPU": (Refused, "two devices", lambda x: torch.zeros(3).add_(x)),
    "equal across": (Refused, "two devices", lambda x: torch.equal(x, CPU_ROWS)),
    "numpy": (TypeError, r"Tensor.cpu\(\)", lambda x: x.numpy()),
    "numpy of a view": (TypeError, r"Tensor.cpu\(\)", lambda x: x[1:].numpy()),
    "np.asarray": (TypeError, r"Tensor.cpu\(\)", lambda x: np.asarray(x)),
    "a NumPy function": (TypeError, r"Tensor.cpu\(\)", lambda x: np.cumsum(x)),
    "DLPack to NumPy": (BufferError, "device", lambda x: np.from_dlpack(x)),
    "a product of integers": (Refused, "not implemented", lambda x: x.long()[None] @ x.long()[:, None]),
    "pinning": (Refused, "pin", lambda x: x.pin_memory()),
    "a generator of the CPU": (Refused, "generator", lambda x: torch.rand(3, device=CUDA, generator=torch.Generator())),
    "a generator of the device": (Refused, "generator", lambda x: torch.rand(3, generator=torch.Generator("cuda"))),
    "another device": (Refused, "invalid device", lambda x: CPU_ROWS.to("cuda:1")),
    "two values for one place": (Refused, "not defined", lambda x: x.__setitem__(x.long() * 0, x)),
    "two values scattered": (Refused, "not defined", lambda x: x.scatter_(0, x.long() * 0, x)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_catches(device: Device, kind: str) -> None:
    error, words, wrong = WRONG[kind]
    with pytest.raises(error, match=words):
        wrong(on_device(3))


def sparse(*parts: torch.Tensor) -> torch.Tensor:
    return torch.sparse_csr_tensor(*parts, (1, 3), check_invariants=False)


RIGHT: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float]]] = {
    "a number of the CPU": (lambda x: x + torch.tensor(1.0), [1, 2, 3]),
    "an index of the CPU": (lambda x: x[torch.tensor([2, 0])], [2, 0]),
    "an index of the device": (lambda x: x[x.long()[1:]], [1, 2]),
    "a mask": (lambda x: x[x > 0], [1, 2]),
    "where with a number": (lambda x: torch.where(x > 1, x, 0.0), [0, 0, 2]),
    "one value for a place": (lambda x: x.index_put_((x.long() * 0,), x.new_tensor(7.0)), [7, 1, 2]),
    "in place": (lambda x: x.add_(1).mul_(2), [2, 4, 6]),
    "in a view": (lambda x: (x[1:].zero_(), x)[1], [0, 0, 0]),
    "out": (lambda x: torch.cumsum(x, 0, out=torch.empty(3, device=CUDA)), [0, 1, 3]),
    "copied from the CPU": (lambda x: x.copy_(CPU_ROWS), [1, 1, 1]),
    "a part copied from the CPU": (lambda x: (x[:2].copy_(CPU_ROWS[:2]), x)[1], [1, 1, 2]),
    "a factory": (lambda x: torch.cat([x, torch.zeros(1, device=x.device)]), [0, 1, 2, 0]),
    "like": (lambda x: torch.ones_like(x, dtype=torch.float64) + x, [1, 2, 3]),
    "moved": (lambda x: x + CPU_ROWS.to(x.device), [1, 2, 3]),
    "moved to that of another": (lambda x: x.double() + CPU_ROWS.to(x.double()), [1, 2, 3]),
    "as_tensor": (lambda x: x + torch.as_tensor(np.ones(3, np.float32), device="cuda:0"), [1, 2, 3]),
    "a product": (lambda x: (x[None].half() @ x[:, None].half())[0], [5]),
    "a sparse product": (lambda x: sparse(on_device(2).long(), x.long()[:1], x[2:]) @ x[:, None], [[0]]),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_lets_through(device: Device, kind: str) -> None:
    right, expected = RIGHT[kind]
    found = right(on_device(3))
    assert isinstance(found, OnDevice) and found.device == CUDA and found.is_cuda and not found.is_cpu
    assert found.tolist() == expected and found.cpu().numpy().tolist() == expected


def test_names_of_the_device(device: Device) -> None:
    """ "cuda" names the current device and is not equal to it, as in torch."""
    x = torch.zeros(2, device="cuda")
    assert x.device == torch.device("cuda:0") != torch.device("cuda") and x.device.type == "cuda"
    assert str(x.device) == "cuda:0" and x.device.index == x.get_device() == torch.cuda.current_device() == 0
    assert x.to("cuda") is x and x.to(CUDA) is x and x.cuda() is x and x.to(torch.float32) is x
    assert x.to("cpu").device.type == x.cpu().device.type == "cpu"
    assert x.clone() is not x and CPU_ROWS.cuda().device == CPU_ROWS.to(device="cuda").device == CUDA


def test_threads_see_the_device(device: Device) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda n: torch.ones(n, device="cuda").sum().item(), [1, 2, 3])) == [1, 2, 3]
    seen: list[torch.device] = []
    thread = threading.Thread(target=lambda: seen.append(torch.zeros(1).to("cuda").device))
    thread.start()
    thread.join()
    assert seen == [CUDA]


def test_data_goes_there_and_back(device: Device) -> None:
    csr = CSR(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), None)
    held = device.put({"graph": (csr, [Ragged(csr.indptr, csr.indptr)]), "name": "x"})
    graph, (lists,) = held["graph"]
    assert isinstance(graph, CSR) and graph.weight is None and held["name"] == "x"
    assert all(isinstance(t, OnDevice) for t in (graph.indptr, graph.indices, lists.values))
    assert torch.equal(device.back(held)["graph"][0].indices, csr.indices) and not device.copies


def test_copies_and_waits_are_told(device: Device) -> None:
    x = torch.ones(5).to("cuda")
    assert [(copy.to, copy.bytes) for copy in device.copies] == [("cuda", 20)] and not device.syncs
    x[:2] = torch.zeros(2)
    x.cpu()
    x.tolist()
    assert [(copy.to, copy.bytes) for copy in device.copies[1:]] == [("cuda", 8), ("cpu", 20), ("cpu", 20)]
    device.forget()
    int(x.sum())
    x[x > 0]
    torch.unique(x)
    torch.repeat_interleave(x, x.long(), output_size=3)
    assert [name for name, _ in device.syncs] == ["_local_scalar_dense", "index", "_unique2"]
    assert device.launches["sum"] == 1 and device.launches["slice"] == 0


@pytest.mark.parametrize(
    ("call", "differs"),
    [
        (lambda x, i: torch.zeros(2, device=CUDA).index_add_(0, i, x), True),
        (lambda x, i: torch.zeros(2, device=CUDA).index_put_((i,), x, accumulate=True), True),
        (lambda x, i: torch.zeros(2, device=CUDA).scatter_add_(0, i, x), True),
        (lambda x, i: torch.bincount(i, weights=x), True),
        (lambda x, i: x.cumsum(0), True),
        (lambda x, i: torch.zeros(2, device=CUDA).index_add_(0, i, x.round()), False),  # whole numbers
        (lambda x, i: torch.zeros(9, device=CUDA).index_add_(0, torch.arange(4, device=CUDA), x), False),  # each once
        (lambda x, i: torch.bincount(i), False),
        (lambda x, i: torch.zeros(2, device=CUDA).scatter_reduce_(0, i, x, "amax"), False),
        (lambda x, i: torch.segment_reduce(x, "sum", lengths=i[1:2] * 4), False),
    ],
)
def test_sums_whose_order_is_open_are_told(
    device: Device, call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], differs: bool
) -> None:
    x, i = torch.tensor([0.1, 0.2, 0.7, 0.4], device=CUDA), torch.tensor([0, 1, 1, 1], device=CUDA)
    call(x, i)
    assert bool(device.atomic_sums) == differs


def test_torch_cuda_answers_and_is_put_back() -> None:
    before = torch.cuda.is_available(), torch.cuda.mem_get_info
    with stand_in(free=1000, total=5000) as device:
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.mem_get_info(CUDA) == (1000, 5000)
        device.free = 10
        assert torch.cuda.mem_get_info()[0] == 10
        with torch.cuda.device(CUDA), torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.synchronize()
        made = torch.Generator(device="cuda").manual_seed(1)
        one = torch.rand(3, generator=made, device="cuda")
        other = torch.rand(3, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda")
        assert torch.equal(one, other)
        with pytest.raises(RuntimeError, match="already"), stand_in():
            pass
    assert (torch.cuda.is_available(), torch.cuda.mem_get_info) == before
    assert torch.Generator().device.type == "cpu"
    assert torch.zeros(2).device.type == "cpu"
