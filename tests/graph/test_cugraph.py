"""The cuGraph backend with a stand-in for pylibcugraph: what it is handed, and what comes back. No GPU is involved.

The stand-in takes the arguments that the sources in the wheel of 26.10 take, refuses what they refuse, and iterates as
they do, off by a little noise.
"""

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import preferring, recording

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.components import connected_components
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import cugraph, personalized_pagerank, prepare
from gpu_rag.graph.pagerank.matrix import MatrixTile
from gpu_rag.graph.pagerank.plan import plan_of
from gpu_rag.types import CSR, Ragged

# of graphs.pyx, personalized_pagerank.pyx, graph_properties.pyx and resource_handle.pyx: names, then how many have none
# of a default
SIGNATURES: dict[str, tuple[str, int]] = {
    "SGGraph": (
        "resource_handle graph_properties src_or_offset_array dst_or_index_array weight_array store_transposed renumber"
        " do_expensive_check edge_id_array edge_type_array edge_start_time_array edge_end_time_array input_array_format"
        " vertices_array drop_self_loops drop_multi_edges symmetrize",
        4,
    ),
    "personalized_pagerank": (
        "resource_handle graph precomputed_vertex_out_weight_vertices precomputed_vertex_out_weight_sums"
        " initial_guess_vertices initial_guess_values personalization_vertices personalization_values alpha epsilon"
        " max_iterations do_expensive_check fail_on_nonconvergence",
        12,
    ),
    "weakly_connected_components": ("resource_handle graph offsets indices weights labels do_expensive_check", 7),
    "GraphProperties": ("is_symmetric is_multigraph", 0),
    "ResourceHandle": ("handle", 0),
}
Calls = list[tuple[str, dict[str, Any]]]


class StandIn:
    """pylibcugraph and its comms. `noise`: how far its ranks are off; `spoil`: what else becomes of them."""

    def __init__(self, noise: float = 1e-4, spoil: Callable[[np.ndarray], np.ndarray] = np.copy):
        self.calls: Calls = []
        self.random, self.noise, self.spoil = np.random.default_rng(7), noise, spoil

    def module(self, name: str, functions: dict[str, Callable[..., Any]]) -> Any:
        made: Any = types.ModuleType(name)
        for function, answer in functions.items():
            setattr(made, function, self._taking(function, answer))
        return made

    def _taking(self, name: str, answer: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
        names, required = SIGNATURES[name][0].split(), SIGNATURES[name][1]

        def call(*positional: Any, **given: Any) -> Any:
            held = {**dict(zip(names, positional, strict=False)), **given}
            assert set(names[:required]) <= set(held) <= set(names), f"{name} does not take {sorted(held)}"
            self.calls.append((name, held))
            return answer(held)

        return call

    def single(self, given: dict[str, Any]) -> Any:
        src, dst, vertices = given["src_or_offset_array"], given["dst_or_index_array"], given["vertices_array"]
        if given.get("input_array_format", "COO") == "CSR" and dst.dtype == np.int64:
            raise RuntimeError("ERROR: Data type INT64 not allowed for edge type (valid types: INT32).")
        return self._graph(given, src, dst, given["weight_array"], vertices)

    def _graph(self, given: dict[str, Any], src: Any, dst: Any, weight: Any, vertices: Any) -> Any:
        assert src.dtype == dst.dtype == vertices.dtype and len(src) == len(dst)
        assert weight is None or (weight.dtype == np.float32 and len(weight) == len(src))
        assert np.array_equal(np.sort(vertices), np.arange(len(vertices))), "every vertex once"
        return types.SimpleNamespace(
            src=src, dst=dst, n=len(vertices), kind=src.dtype,
            weight=np.ones(len(src), np.float32) if weight is None else weight,
            transposed=given["store_transposed"], properties=given["graph_properties"],
        )  # fmt: skip

    def pagerank(self, given: dict[str, Any]) -> Any:
        graph, nodes, mass = (given[name] for name in ("graph", "personalization_vertices", "personalization_values"))
        assert nodes.dtype == graph.kind and mass.dtype == np.float32 and given["fail_on_nonconvergence"] is False
        assert graph.transposed
        assert len(np.unique(nodes)) == len(nodes) > 0 and mass.sum() > 0
        degree = np.bincount(graph.src, graph.weight, graph.n).astype(np.float32)
        p, steps, d = np.full(graph.n, 1 / graph.n, np.float32), 0, np.float32(given["alpha"])
        while True:
            share = p / np.where(degree > 0, degree, 1)
            new = np.bincount(graph.dst, share[graph.src] * graph.weight, graph.n).astype(np.float32) * d
            new[nodes] += (d * p[degree == 0].sum() + 1 - d) * mass / mass.sum()
            moved, p, steps = np.abs(new - p).sum(), new, steps + 1
            if moved < given["epsilon"] or steps >= given["max_iterations"]:
                break
        off = self.random.random(graph.n) * self.noise
        p = self.spoil(p * (1 + off).astype(np.float32)).astype(np.float32)
        order = np.arange(graph.n, dtype=graph.kind)[::-1]  # cuGraph promises no order
        return order.copy(), p[order], steps < given["max_iterations"]

    def components(self, given: dict[str, Any]) -> Any:
        graph = given["graph"]
        assert graph.properties["is_symmetric"] and not graph.transposed
        edges = set(zip(graph.src.tolist(), graph.dst.tolist()))
        assert {(b, a) for a, b in edges} == edges, "cuGraph refuses a graph that is not symmetric"
        assert graph.properties["is_multigraph"] or len(edges) == len(graph.src)
        label = np.arange(graph.n, dtype=graph.kind)
        for _ in range(graph.n):
            np.maximum.at(label, graph.src, label[graph.dst])
        order = np.arange(graph.n, dtype=graph.kind)[::-1]
        return order.copy(), label[order]


def installed(monkeypatch: pytest.MonkeyPatch, **options: Any) -> StandIn:
    """Puts a stand-in where the libraries are looked for, and takes a CPU for a GPU."""
    stand_in = StandIn(**options)
    library = stand_in.module(
        "pylibcugraph",
        {
            "ResourceHandle": dict, "GraphProperties": dict, "SGGraph": stand_in.single,
            "personalized_pagerank": stand_in.pagerank, "weakly_connected_components": stand_in.components,
        },
    )  # fmt: skip
    cupy: Any = types.ModuleType("cupy")
    cupy.from_dlpack, cupy.empty = np.from_dlpack, np.empty
    for name, module in (("pylibcugraph", library), ("cupy", cupy)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(dispatch, "check_backend", lambda name, device: None)
    return stand_in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return installed(monkeypatch)


def some_graph(weighted: bool, undirected: bool = False) -> CSR:
    r = np.random.default_rng(0)
    ends = torch.from_numpy(r.integers(0, 260, (2, 900)))
    weight = torch.from_numpy(r.random(900)) + 0.1 if weighted else None
    return csr_from_edges(ends[0], ends[1], 300, weight, undirected=undirected)  # some nodes are dangling


SEEDS = Ragged(torch.tensor([3, 7, 7, 270]), torch.tensor([0, 3, 3, 4]))
WEIGHTS = Ragged(torch.tensor([1.0, 2.0, 1.0, 5.0]), SEEDS.offsets)


@pytest.mark.parametrize(
    ("undirected", "weighted", "weights", "tol"),
    [(True, True, WEIGHTS, 1e-6), (False, False, None, 1e-6), (True, False, None, 1e-9), (False, True, WEIGHTS, 1e-9)],
)
def test_within_tol(stand_in: StandIn, undirected: bool, weighted: bool, weights: Ragged | None, tol: float) -> None:
    csr = some_graph(weighted, undirected)
    found = personalized_pagerank(csr, SEEDS, weights, tol=tol, implementation="cugraph", block=2)
    exact = personalized_pagerank(csr, SEEDS, weights, tol=1e-11, implementation="numba")
    assert found.dtype == torch.float32 and float((found - exact).abs().sum(1).max()) <= tol + 1e-7
    assert torch.equal(found[1], torch.zeros(300)), "a question without seeds"


def test_priors(stand_in: StandIn) -> None:
    csr = some_graph(True)
    prior = torch.rand(5, 300, generator=torch.Generator().manual_seed(0))
    prior[2] = 0
    found = personalized_pagerank(csr, prior=prior, implementation="cugraph", threads=2, block=2)
    exact = personalized_pagerank(csr, prior=prior, tol=1e-10)
    assert float((found - exact).abs().sum(1).max()) < 1.2e-6


def test_one_graph_and_one_call_a_question(stand_in: StandIn) -> None:
    graph = prepare(some_graph(True))
    for _ in range(2):
        personalized_pagerank(graph, SEEDS, WEIGHTS, damping=0.5, tol=1e-4, max_iter=77, implementation="cugraph")
    names = [name for name, _ in stand_in.calls]
    assert names.count("SGGraph") == 1 and names.count("personalized_pagerank") == 4
    made, first = (next(given for name, given in stand_in.calls if name == n) for n in ("SGGraph", names[-1]))
    assert made["renumber"] is True and made["src_or_offset_array"].dtype == np.int32
    assert made["graph_properties"] == {"is_symmetric": False, "is_multigraph": False}
    assert (first["alpha"], first["max_iterations"], first["epsilon"]) == (0.5, 77, pytest.approx(1e-4))
    assert first["personalization_vertices"].tolist() == [3, 7]
    assert first["personalization_values"].tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("undirected", [True, False])
def test_edges_are_handed_over_the_right_way_round(monkeypatch: pytest.MonkeyPatch, undirected: bool) -> None:
    """Our own steps would hide a wrong start, so the start itself is looked at."""
    installed(monkeypatch, noise=0.0)
    csr = some_graph(True, undirected)
    graph, plan = prepare(csr), plan_of("power", 0.85, 1e-6, 200, symmetric=undirected, known_mass=undirected)
    pi = torch.zeros(300, 2, dtype=torch.float64)
    pi[3, 0], pi[[7, 270], 1] = 1.0, 0.5
    exact = personalized_pagerank(csr, prior=pi.T.float(), tol=1e-10)
    right = cugraph.SingleGraph(graph).ranks(pi, plan).T
    assert float((right - exact).abs().sum(1).max()) < 1e-4
    turned = prepare(graph.pull)  # a wrong version: sources for targets
    wrong = cugraph.SingleGraph(turned).ranks(pi, plan).T
    assert (float((wrong - exact).abs().sum(1).max()) > 0.1) == (not undirected)


def test_a_good_start_saves_steps_and_a_bad_one_no_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, steps = some_graph(False, True), list[int]()
    for name in ("sweep", "_steps"):  # of all steps those with a look, and those without
        taken = getattr(MatrixTile, name)
        monkeypatch.setattr(
            MatrixTile, name, lambda tile, omegas, how, f=taken: (steps.append(len(omegas)), f(tile, omegas, how))[1]
        )
    exact = personalized_pagerank(csr, SEEDS, tol=1e-10, implementation="numba")

    def run(implementation: str, **options: Any) -> int:
        installed(monkeypatch, **options)
        steps.clear()
        found = personalized_pagerank(some_graph(False, True), SEEDS, implementation=implementation)
        assert float((found - exact).abs().sum(1).max()) < 1.2e-6
        return sum(steps)

    cold = run("torch")
    assert run("cugraph", noise=0.0) <= 8 < cold
    assert run("cugraph", spoil=lambda p: p[::-1] + 1) > 8, "ranks of other nodes"
    with pytest.raises(GpuRagError, match="did not converge"):
        run("cugraph", spoil=lambda p: p * np.nan)


def test_other_weights_are_another_graph(stand_in: StandIn) -> None:
    csr = some_graph(True, True)
    for weight in (csr.weight, None, csr.weight):
        personalized_pagerank(CSR(csr.indptr, csr.indices, weight), SEEDS, implementation="cugraph")
    made = [given["weight_array"] is None for name, given in stand_in.calls if name == "SGGraph"]
    assert made == [False, True, False]


@pytest.mark.parametrize("undirected", [True, False])
def test_components_are_those_of_every_implementation(stand_in: StandIn, undirected: bool) -> None:
    ends = torch.from_numpy(np.random.default_rng(5).integers(0, 60, (2, 40)))
    csr = csr_from_edges(ends[0], ends[1], 64, undirected=undirected)
    found = connected_components(csr, implementation="cugraph")
    assert torch.equal(found, connected_components(csr)) and len(found.unique()) > 10
    with preferring({"ops": "auto"}), recording() as record:
        connected_components(csr)
    assert record["connected_components"] != {"cugraph"}, "by name alone"
