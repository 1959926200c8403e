"""A relaxed step of PageRank by every implementation against its formula, with states in f16, f32 and f64.

The reference runs everywhere; Triton interpreted on the CPU (scripts/test_triton.sh), or on a GPU.
"""

from collections.abc import Callable

import pytest
import torch
from gpu_rag_kernels import rows
from gpu_rag_kernels.pagerank import Restart, ppr_step
from kernel_device import BOTH, DEVICE, NEEDS_TRITON, dense, graph, marked
from refusals import caught

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import matrix as pagerank_matrix
from gpu_rag.graph.pagerank import personalized_pagerank
from gpu_rag.types import CSR, Ragged

STATES = [  # of x, of y, of the sums, scale
    pytest.param(torch.float16, torch.float16, torch.float32, 2.0**14, id="f16"),
    pytest.param(torch.float32, torch.float32, torch.float32, 1.0, id="f32"),
    pytest.param(torch.float32, torch.float32, torch.float64, 1.0, id="f32 in f64"),
    pytest.param(torch.float32, torch.float64, torch.float64, 1.0, id="f32 to f64"),
    pytest.param(torch.float64, torch.float64, torch.float64, 1.0, id="f64"),
]
ROUNDING = {torch.float16: 2.0**-10.9, torch.float32: 2.0**-21, torch.float64: 1e-13}
Step = Callable[..., torch.Tensor | None]
State = tuple[torch.dtype, torch.dtype, torch.dtype, float]


@pytest.fixture(autouse=True)
def small_chunks(lowered: Callable[..., None]) -> None:
    lowered("pagerank", CHUNK=6, PARTS=4)


class Given:
    """Inputs of a step: states of very different sizes, restarts at a few nodes, degrees from .5 to 300."""

    def __init__(self, csr: CSR, width: int, state: State, seed: int = 1):
        g = torch.Generator().manual_seed(seed)
        kept_x, kept_y, dtype, self.scale = state
        size = 2.0 ** torch.randint(-24, 0, (csr.n, 1), generator=g)
        x, y = (torch.rand(csr.n, width, generator=g) * size for _ in range(2))
        self.csr, self.x, self.y = csr, (x * self.scale).to(DEVICE, kept_x), (y * self.scale).to(DEVICE, kept_y)
        at = torch.full((csr.n,), -1, dtype=torch.int32)
        at[:: 1 + csr.n // 4] = torch.arange(len(at[:: 1 + csr.n // 4]), dtype=torch.int32).flip(0)
        rows = torch.rand(int(at.max()) + 1, width, generator=g)
        self.restart = Restart(rows.to(DEVICE), at.to(DEVICE))
        self.degree = (0.5 * 600 ** torch.rand(csr.n, generator=g)).to(DEVICE, dtype)
        self.omega = torch.rand(width, generator=g).to(DEVICE, dtype)
        self.omega[::3] = 0

    def exact(self) -> tuple[torch.Tensor, torch.Tensor]:
        """y and the sums after the step, in f64."""
        pi = torch.zeros(self.csr.n, self.x.shape[1], dtype=torch.float64, device=DEVICE)
        for v, at in enumerate(self.restart.at.tolist()):
            if at >= 0:
                pi[v] = self.restart.rows[at].double()
        x, y, degree = self.x.double() / self.scale, self.y.double() / self.scale, self.degree.double()[:, None]
        z = (0.85 * dense(self.csr) @ x + 0.15 * pi) / degree
        return y + self.omega.double() * (z - y), ((z - x).abs() * degree).sum(0)


def check(step: Step, csr: CSR, width: int, state: State) -> None:
    given = Given(csr, width, state)
    (after, change), kept, before = given.exact(), given.x.clone(), given.y.clone()
    size = after + before.double() / given.scale  # of what is added
    found = step(csr, given.x, given.y, given.restart, 0.85, given.degree, 1 / given.degree, given.omega, given.scale)
    assert found is not None and found.dtype == torch.float64 and found.shape == (width,)
    assert torch.allclose(found, change, rtol=1e-5 if state[2] == torch.float32 else 1e-9, atol=0)
    smallest = 2.0**-24.9 / given.scale if state[1] == torch.float16 else 0.0
    off = (given.y.double() / given.scale - after).abs()
    assert bool((off <= size * ROUNDING[state[1]] + smallest).all())
    assert torch.equal(given.y[:, ::3], before[:, ::3]), "omega 0 leaves a column as it is"
    assert torch.equal(given.x, kept)


CASES = [
    pytest.param(graph(1, 0), 1, id="one node"),
    pytest.param(graph(30, 100), 37, id="two tiles of columns"),
    pytest.param(graph(30, 100, weighted=True), 3, id="weights, hubs of two chunks"),
    pytest.param(graph(60, 60, hub=55), 4, id="a hub of ten chunks"),
]


@BOTH
@pytest.mark.parametrize("state", [p.values for p in STATES], ids=[p.id for p in STATES])
@pytest.mark.parametrize(("csr", "width"), CASES)
def test_is_the_formula(implementation: str, state: State, csr: CSR, width: int) -> None:
    def step(*given):  # type: ignore[no-untyped-def]
        return ppr_step(*given[:-1], scale=given[-1], implementation=implementation)

    check(step, csr, width, state)


@BOTH
def test_the_sum_is_left_out_where_it_is_not_wanted(implementation: str) -> None:
    state = STATES[0].values
    one, other = (Given(graph(60, 60, hub=55), 4, state) for _ in range(2))
    for given, measured in ((one, True), (other, False)):
        options = {"scale": given.scale, "measured": measured, "implementation": implementation}
        found = ppr_step(given.csr, given.x, given.y, given.restart, 0.85, given.degree, 1 / given.degree, given.omega,
                         **options)  # fmt: skip
        assert (found is not None) == measured
    assert torch.equal(one.y, other.y)


@BOTH
@pytest.mark.parametrize("state", [p.values for p in STATES], ids=[p.id for p in STATES])
def test_a_question_alone_has_the_bits_of_the_batch(implementation: str, state: State) -> None:
    given = Given(graph(60, 90, hub=50, weighted=True), 35, state)
    parts = [given.x.clone(), given.y.clone()]
    options = {"scale": given.scale, "implementation": implementation}
    fixed = (0.85, given.degree, 1 / given.degree)
    ppr_step(given.csr, given.x, given.y, given.restart, *fixed, given.omega, **options)
    for b in (1, 31, 34):
        x, y = (a[:, b : b + 1].contiguous() for a in parts)
        alone = Restart(given.restart.rows[:, b : b + 1].contiguous(), given.restart.at)
        ppr_step(given.csr, x, y, alone, *fixed, given.omega[b : b + 1], **options)
        assert torch.equal(y, given.y[:, b : b + 1])


def scale_forgotten(*given):  # type: ignore[no-untyped-def]
    return ppr_step(*given[:-1])


def restarts_at_their_rows(csr, x, y, restart, alpha, degree, inverse, omega, scale):  # type: ignore[no-untyped-def]
    """A wrong version: row r of the restarts is taken for node r."""
    at = torch.full_like(restart.at, -1)
    at[: len(restart.rows)] = torch.arange(len(restart.rows), dtype=torch.int32, device=DEVICE)
    return ppr_step(csr, x, y, Restart(restart.rows, at), alpha, degree, inverse, omega, scale=scale)


def degree_of_the_sum_forgotten(csr, x, y, restart, alpha, degree, inverse, omega, scale):  # type: ignore[no-untyped-def]
    return ppr_step(csr, x, y, restart, alpha, torch.ones_like(degree), inverse, omega, scale=scale)


def not_relaxed(csr, x, y, restart, alpha, degree, inverse, omega, scale):  # type: ignore[no-untyped-def]
    return ppr_step(csr, x, y, restart, alpha, degree, inverse, (omega > 0).to(omega), scale=scale)


def without_the_last_chunk(csr, *given):  # type: ignore[no-untyped-def]
    rows.row_plan(csr.indptr, 6).bounds[-1:] -= 1
    return ppr_step(csr, *given[:-1], scale=given[-1], implementation="triton")


def without_the_hubs(csr, *given):  # type: ignore[no-untyped-def]
    hubs = rows.row_plan(csr.indptr, 6).hubs
    hubs.set_(hubs.new_zeros(0))
    return ppr_step(csr, *given[:-1], scale=given[-1], implementation="triton")


test_checks_of_hubs_catch = marked(NEEDS_TRITON)(
    caught(
        [without_the_last_chunk, without_the_hubs],
        lambda wrong: check(wrong, graph(60, 60, hub=55, weighted=True), 4, STATES[1].values),
    )
)
test_checks_catch = caught(
    [scale_forgotten, restarts_at_their_rows, degree_of_the_sum_forgotten, not_relaxed],
    lambda wrong: check(wrong, graph(30, 100), 4, STATES[0].values),
)


@pytest.mark.parametrize("state", [pytest.param(state, marks=NEEDS_TRITON) for state in ("f32", "f16")])
def test_pagerank_by_triton(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole op, with a hub, an isolated node and f64 steps, against numba's."""
    calls: list[torch.dtype] = []

    def by_triton(csr, x, *rest, **options):  # type: ignore[no-untyped-def]
        calls.append(x.dtype)
        return ppr_step(csr, x, *rest, **options, implementation="triton")

    csr = graph(40, 30, hub=20)
    csr = csr_from_edges(torch.repeat_interleave(torch.arange(40, device=DEVICE), csr.indptr.diff()), csr.indices, 41)
    seeds = Ragged(torch.tensor([0, 7, 40]), torch.tensor([0, 1, 3]))
    exact = personalized_pagerank(
        CSR(csr.indptr.cpu(), csr.indices.cpu()), seeds, damping=0.5, tol=1e-10, implementation="numba"
    )
    monkeypatch.setattr(pagerank_matrix, "ppr_step", by_triton)
    found = personalized_pagerank(csr, seeds, damping=0.5, implementation="torch", state=state, block=2)
    assert float((found.cpu() - exact).abs().sum(1).max()) < 1.1e-6
    assert (calls.count(torch.float16) > 3) == (state == "f16") and torch.float32 in calls
