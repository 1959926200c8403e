"""The memory that PageRank counts is what it allocates, and a device without enough of it gets half the questions."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from gpu_rag_kernels.pagerank import reference
from ragged_lists import ragged
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_rag.errors import BadInput
from gpu_rag.graph import memory
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import Job, Options, Restarts, personalized_pagerank, prepare
from gpu_rag.graph.pagerank import matrix as matrix_tiles
from gpu_rag.graph.pagerank.inputs import PageRankGraph, teleport_of

N, ROWS = 4000, 8  # a Triton program writes one sum of changes for so many rows


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that ops have made and that live still, and the most of it."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = self.pauses = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.pauses:
            return func(*args, **(kwargs or {}))
        before = {t.untyped_storage()._cdata for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in before:
                    self.live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.live = {key: held for key, held in self.live.items() if not held[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.live.values()))
        return found


def graph() -> PageRankGraph:
    ends = torch.randint(0, N, (2, 3 * N), generator=torch.Generator().manual_seed(0))
    return prepare(csr_from_edges(ends[0], ends[1], N))


def restarts(batch: int) -> Restarts:
    g = torch.Generator().manual_seed(1)
    nodes = torch.argsort(torch.rand(batch, N // 2, generator=g), 1)[:, :10]
    return Restarts(nodes, torch.rand(batch, 10, generator=g), torch.rand(batch, N // 2, generator=g))


@pytest.mark.parametrize("kind", ["seeds", "prior", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("proved", [16, 64])
def test_what_a_tile_allocates_is_counted(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype, proved: int
) -> None:
    """To a tenth, with a product that allocates as the kernel does: a sum for each 8 rows, and nothing else."""
    found, made = Allocations(), graph()
    given = {"seeds": (ragged([[b, b + 9] for b in range(64)]), None, None),
             "prior": (None, None, torch.rand(64, N)), "both": (None, None, restarts(64))}[kind]  # fmt: skip
    tol = 1e-6 if dtype == torch.float32 else 1e-11
    job = Job(made, teleport_of(made, *given), "torch", Options(0.5, tol, 200, 64, 1))
    assert job.dtypes[0] == dtype
    result = torch.zeros(64, N)
    plain = reference.ppr_step

    def as_the_kernel(csr: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor | None:
        found.pauses += 1
        change = plain(csr, x, *rest)
        found.pauses -= 1
        return None if change is None else torch.zeros(N // ROWS, x.shape[1], dtype=torch.float64).sum(0) + change

    monkeypatch.setattr(reference, "ppr_step", as_the_kernel)
    monkeypatch.setattr(matrix_tiles, "proved_columns", lambda n: proved)
    counted = job.bytes(0, 1)
    with found:
        job.solve(0, 64, result, 0)
    assert found.most == pytest.approx(counted, rel=0.1)
    if proved == 64:
        return
    monkeypatch.setattr(matrix_tiles, "proved_columns", lambda n: 48)  # a wrong version: three times as many
    found.most, found.live = 0, {}
    with found:
        job.solve(0, 64, result, 0)
    assert found.most > 1.1 * counted


def test_tiles_for_which_there_is_no_memory_come_again_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seeds, widths = graph(), ragged([[b] for b in range(70)]), []
    whole = personalized_pagerank(made, seeds, implementation="torch", damping=0.2, tol=1e-3)
    plain = matrix_tiles.MatrixTile.__init__

    def small(tile: Any, *given: Any) -> None:
        widths.append(given[3])
        if given[3] > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        plain(tile, *given)

    monkeypatch.setattr(matrix_tiles.MatrixTile, "__init__", small)
    monkeypatch.setattr(memory, "_warned", set())
    with pytest.warns(RuntimeWarning, match="64 questions at a time: going on with half as many") as said:
        halves = personalized_pagerank(made, seeds, implementation="torch", damping=0.2, tol=1e-3)
        assert torch.allclose(halves, whole, rtol=0, atol=1e-8)  # some processors sum narrow rows in another order
        personalized_pagerank(made, seeds, implementation="torch", damping=0.2, tol=1e-3, block=32)
    assert len(said) == 1 and widths[:2] == [64, 64] and widths[2:5] == [32] * 3 and set(widths[5:10]) == {16}
    with pytest.raises(BadInput, match="the device ran out of memory; given one question"):
        memory.halve(1, "CUDA out of memory")


def test_a_gpu_without_memory_for_a_tile_gets_a_narrower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graph()
    job = Job(made, teleport_of(made, ragged([[0]] * 64), None, None), "torch", Options(0.5, 1e-6, 200, 64, 1))
    enough = matrix_tiles.tile_bytes(N, job.teleport.n_rows(16), 16, torch.float32)
    monkeypatch.setattr(memory, "LOOK_FROM", 1)
    monkeypatch.setattr(memory, "free_bytes", lambda device: enough)
    monkeypatch.setattr("gpu_rag.graph.pagerank.is_cpu", lambda device: False)
    job.check_memory(0)
    assert job.width == 16
    with pytest.raises(BadInput, match="not enough memory"):
        job.check_memory(1 << 40)


def test_a_cpu_without_memory_for_all_tiles_solves_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graph()
    job = Job(made, teleport_of(made, ragged([[0]] * 256), None, None), "numba", Options(0.5, 1e-6, 200, 64, 8))
    monkeypatch.setattr(memory, "LOOK_FROM", 1)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * N * 32 * 4)
    job.check_memory(0)
    assert (job.threads, job.width) == (2, 32)
    with pytest.raises(BadInput, match="not enough memory"):
        job.check_memory(3 * N * 32 * 4)


def test_a_step_is_taken_in_halves() -> None:
    calls = []

    @memory.halved
    def doubled(factor: int, queries: list[int]) -> list[int]:
        calls.append(len(queries))
        if len(queries) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [factor * q for q in queries]

    with pytest.warns(RuntimeWarning) if not memory._warned else nullcontext():
        assert doubled(2, [*range(7)]) == [0, 2, 4, 6, 8, 10, 12]
    assert calls == [7, 3, 1, 2, 4, 2, 2]
