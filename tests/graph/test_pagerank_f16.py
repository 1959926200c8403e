"""PageRank whose first steps have an f16 state: the same promises as without, and what breaks them is caught."""

from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pytest
import torch
from dense_pagerank import pagerank_of
from ragged_lists import ragged

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import Job, Options, personalized_pagerank, prepare
from gpu_rag.graph.pagerank import plan as pagerank_questions
from gpu_rag.graph.pagerank.inputs import teleport_of
from gpu_rag.graph.pagerank.matrix import RECORDINGS, MatrixTile
from gpu_rag.graph.pagerank.plan import F16_ERROR, Solved
from gpu_rag.types import CSR, Ragged

N = 300
ROUNDING = 6e-8  # of the result to f32
LISTS = [[0], [1, 5, 9], [N - 1], [7, 7, 8, N - 2], [40, 299]]
Solve = Callable[..., torch.Tensor]


def graph(kind: str, *, undirected: bool, seed: int = 3) -> CSR:
    """Node 0 is a hub of 200 neighbours; the last nodes are isolated; directed graphs have dangling nodes."""
    r = np.random.default_rng(seed)
    ends = (0.9 * N * r.random((2, 500)) ** 2).astype(np.int64)
    ends = np.concatenate([ends, [np.zeros(200, np.int64), np.arange(1, 201)]], 1)
    weight = {"pattern": None, "light": 0.01 + 0.04 * r.random(700), "heavy": 5000 * (0.1 + r.random(700)),
              "uneven": 10.0 ** r.integers(-6, 7, 700)}[kind]  # fmt: skip
    held = None if weight is None else torch.from_numpy(weight)
    return csr_from_edges(torch.from_numpy(ends[0]), torch.from_numpy(ends[1]), N, held, undirected=undirected)


def in_f16(csr: CSR, seeds: Ragged, **options: object) -> torch.Tensor:
    return personalized_pagerank(csr, seeds, implementation="torch", state="f16", max_iter=1000, **options)  # type: ignore[arg-type]


def check(solve: Solve, csr: CSR, damping: float) -> None:
    p = solve(csr, ragged(LISTS), damping=damping).double().numpy()
    assert np.abs(p - pagerank_of(csr, LISTS, damping)).sum(1).max() <= 1e-6 + ROUNDING
    assert np.abs(p.sum(1) - 1).max() <= 1e-5


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("undirected", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize("kind", ["pattern", "light", "heavy", "uneven"])
def test_is_the_dense_solution(kind: str, undirected: bool, damping: float) -> None:
    check(in_f16, graph(kind, undirected=undirected), damping)


def without_the_steps_in_f32(csr: CSR, seeds: Ragged, *, damping: float) -> torch.Tensor:
    """A wrong version: what the f16 steps found is returned, as if its check had been a proof."""

    def believed(tile: MatrixTile, plan, rows, least, taken):  # type: ignore[no-untyped-def]
        _, mass = tile.check(rows)
        return Solved(plan.scale(mass, least), np.zeros(0, np.int64), np.zeros(tile.width), np.full(tile.width, taken))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pagerank_questions, "solve_tile", believed)
        return in_f16(csr, seeds, damping=damping)


def with_one_step_in_f32(csr: CSR, seeds: Ragged, *, damping: float) -> torch.Tensor:
    return in_f16(csr, seeds, damping=damping, tol=1e-2)


@pytest.mark.parametrize("wrong", [without_the_steps_in_f32, with_one_step_in_f32])
@pytest.mark.parametrize("undirected", [True, False], ids=["symmetric", "directed"])
def test_checks_catch(wrong: Solve, undirected: bool) -> None:
    for damping in (0.5, 0.85):
        with pytest.raises(AssertionError):
            check(wrong, graph("pattern", undirected=undirected), damping)


def started(csr: CSR, damping: float, state: str, tol: float = 1e-6) -> tuple[Job, MatrixTile]:
    """The tile of all questions after its steps in f16."""
    prepared = prepare(csr)
    options = Options(damping, tol, 1000, 8, 1, state)
    job = Job(prepared, teleport_of(prepared, ragged(LISTS), None, None), "torch", options)
    tile = job.new_tile(job.dtypes[0], np.arange(5), torch.zeros(5, N), 0)
    assert isinstance(tile, MatrixTile)
    return job, tile


def distance(one: MatrixTile, other: MatrixTile) -> float:
    """In q, in L1, of the worst question."""
    return float(((one.x.double() - other.x) * one.scale).abs().sum(0).max())


@pytest.mark.parametrize("damping", [0.5, 0.85, 0.95])
@pytest.mark.parametrize("undirected", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize("kind", ["pattern", "light", "heavy"])
def test_they_are_the_steps_of_exact_arithmetic(kind: str, undirected: bool, damping: float) -> None:
    """Up to what f16 rounds off: the state neither overflows nor sinks below f16, whatever the degrees are."""
    csr = graph(kind, undirected=undirected)
    job, tile = started(csr, damping, "f16")
    _, exact = started(csr, damping, "f32", tol=1e-12)
    assert exact.x.dtype == torch.float64 and job.f16_steps > 3
    before = distance(tile, exact)
    for step in range(job.f16_steps):
        exact.sweep(np.full((1, 8), job.plan.omega[step]), True)
    assert 1e-6 < distance(tile, exact) < F16_ERROR < 0.1 < before


def test_masses_below_f16_are_found_afterwards() -> None:
    """Node 2 is entered with a probability of 10^-14: nothing of it is left in f16."""
    weight = torch.tensor([1.0, 1e-14])
    csr = csr_from_edges(torch.tensor([0, 0]), torch.tensor([1, 2]), N, weight, undirected=False)
    _, tile = started(csr, 0.5, "f16")
    assert float(tile.x[1, 0]) > 0.1 and float(tile.x[2, 0]) == 0
    found = personalized_pagerank(csr, ragged([[0]]), damping=0.5, implementation="torch", state="f16")
    assert found[0, :3].tolist() == pytest.approx([2 / 3, 1 / 3, 1e-14 / 3], rel=1e-5)


def test_fewer_steps_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[np.ndarray] = []

    def counted(take: Any, tile: MatrixTile, omegas: Any, *given: Any) -> Any:
        if tile.x.dtype != torch.float16:
            steps.extend(omegas)
        return take(tile, omegas, *given)

    for name in ("sweep", "_steps"):
        monkeypatch.setattr(MatrixTile, name, partialmethod(partial(counted, getattr(MatrixTile, name))))
    counts = {}
    for state in ("f32", "f16"):
        steps.clear()
        personalized_pagerank(graph("pattern", undirected=True), ragged(LISTS), implementation="torch", state=state)
        counts[state] = len(steps)
    assert 2 <= counts["f16"] <= counts["f32"] - 10


def test_steps_are_counted() -> None:
    csr = graph("pattern", undirected=False)
    with pytest.raises(GpuRagError, match=r"did not converge.*after 12 steps"):
        personalized_pagerank(csr, ragged([[0]]), implementation="torch", state="f16", max_iter=12)
    assert started(csr, 0.0, "f16")[0].f16_steps == 0
    assert started(csr, 0.5, "f16", tol=0.5)[0].f16_steps == 2, "as many as the tolerance asks for"


@pytest.mark.parametrize("undirected", [True, False], ids=["symmetric", "directed"])
def test_a_row_does_not_know_its_batch(undirected: bool) -> None:
    csr = prepare(graph("light", undirected=undirected))
    lists = [[b] for b in range(70)] + [[], [5, 290]]
    together = personalized_pagerank(csr, ragged(lists), implementation="torch", state="f16")
    for b in (0, 1, 31, 64, 69, 70, 71):
        alone = personalized_pagerank(csr, ragged([lists[b]]), implementation="torch", state="f16")
        assert torch.equal(alone[0], together[b]), f"question {b} alone"
    order = np.random.default_rng(5).permutation(len(lists))
    shuffled = personalized_pagerank(
        csr, ragged([lists[b] for b in order]), implementation="torch", state="f16", threads=2
    )
    assert torch.equal(shuffled, together[torch.from_numpy(order)])


def test_a_state_has_a_name_and_a_place() -> None:
    csr, seeds = graph("pattern", undirected=True), ragged([[0]])
    auto = personalized_pagerank(csr, seeds, implementation="torch")
    assert torch.equal(auto, personalized_pagerank(csr, seeds, implementation="torch", state="f32"))
    assert not torch.equal(auto, personalized_pagerank(csr, seeds, implementation="torch", state="f16"))
    with pytest.raises(UsageError, match="no such state; given bf16; expected f32, f16, auto"):
        personalized_pagerank(csr, seeds, state="bf16")
    with pytest.raises(UsageError, match="f16 states are torch's; given implementation=numba"):
        personalized_pagerank(csr, seeds, implementation="numba", state="f16")
    assert personalized_pagerank(csr, seeds, implementation="numba", state="f32").shape == (1, N)


def test_few_recordings_are_kept() -> None:
    """The last used ones; each holds memory of a GPU."""
    _, tile = started(graph("pattern", undirected=True), 0.5, "f32")
    for number in range(RECORDINGS + 3):
        tile._recorded((number,), lambda: None)
    kept = [key[0] for key in tile.graph.views["recordings"]]
    assert kept == list(range(3, RECORDINGS + 3))
