"""The way of faiss on a GPU, with a stand-in that has the signatures of faiss-gpu 1.15 and forgets what it forgets."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.graph.nearest.index import MAX_K_ON_GPU, FaissIndex


class Rows:
    """The attributes of a tensor on a GPU that the code reads."""

    def __init__(self, rows: torch.Tensor):
        self.rows, self.shape, self.device = rows, rows.shape, torch.device("cuda:1")

    def float(self) -> Rows:
        return self

    def contiguous(self) -> Rows:
        return self

    def __len__(self) -> int:
        return len(self.rows)


class Flat:
    def __init__(self, dims: int):
        self.dims, self.rows = dims, torch.zeros(0, dims)

    def add(self, rows: Rows) -> None:
        assert isinstance(rows, Rows), "a tensor of the device"
        self.rows = rows.rows

    def search(self, queries: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores, ids = (queries @ self.rows.T).sort(dim=1, descending=True, stable=True)
        return scores[:, :k], ids[:, :k]


class FakeFaiss(SimpleNamespace):
    """The module: indexes that are moved to a GPU are new ones."""

    IndexFlatIP = Flat
    threads = 1

    def StandardGpuResources(self) -> str:
        return "resources"

    def index_cpu_to_gpu(self, provider: str, device: int, index: Flat, options: Any = None) -> Flat:
        assert (provider, len(index.rows)) == ("resources", 0)
        self.moved_to = device
        return Flat(index.dims)

    def omp_get_max_threads(self) -> int:
        return self.threads

    def omp_set_num_threads(self, threads: int) -> None:
        self.threads = threads


@pytest.fixture
def faiss(monkeypatch: pytest.MonkeyPatch) -> FakeFaiss:
    module = FakeFaiss()
    for name in ("faiss", "faiss.contrib", "faiss.contrib.torch_utils"):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    return module


def base(n: int) -> Any:
    return Rows(torch.nn.functional.normalize(torch.randn(n, 4, generator=torch.Generator().manual_seed(0))))


def test_rows_are_searched_on_their_gpu(faiss: FakeFaiss) -> None:
    made = FaissIndex(base(400))
    assert faiss.moved_to == 1
    assert made.index.rows.shape == (400, 4)
    found = made.propose(made.index.rows[:3], 2)
    assert found.ids[:, 0].tolist() == [0, 1, 2] and found.ids.dtype == torch.int32


def test_more_rows_than_a_gpu_finds_are_refused(faiss: FakeFaiss) -> None:
    made = FaissIndex(base(3))
    with pytest.raises(UsageError, match="fewer rows on a GPU; given 2049 for a query.*implementation=torch"):
        made.propose(torch.zeros(1, 4), MAX_K_ON_GPU + 1)


def test_what_a_gpu_cannot_take(faiss: FakeFaiss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeFaiss, "StandardGpuResources")
    with pytest.raises(MissingBackend, match="this faiss has no GPU"):
        FaissIndex(base(3))
