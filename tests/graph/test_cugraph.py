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

from gpu_rag.graph.components import connected_components
from gpu_rag.graph.csr import csr_from_edges

# of graphs.pyx, personalized_pagerank.pyx, graph_properties.pyx and resource_handle.pyx: names, then how many have none
# of a default
SIGNATURES: dict[str, tuple[str, int]] = {
    "SGGraph": (
        "resource_handle graph_properties src_or_offset_array dst_or_index_array weight_array store_transposed renumber"
        " do_expensive_check edge_id_array edge_type_array edge_start_time_array edge_end_time_array input_array_format"
        " vertices_array drop_self_loops drop_multi_edges symmetrize",
        4,
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
            "weakly_connected_components": stand_in.components,
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


@pytest.mark.parametrize("undirected", [True, False])
def test_components_are_those_of_every_implementation(stand_in: StandIn, undirected: bool) -> None:
    ends = torch.from_numpy(np.random.default_rng(5).integers(0, 60, (2, 40)))
    csr = csr_from_edges(ends[0], ends[1], 64, undirected=undirected)
    found = connected_components(csr, implementation="cugraph")
    assert torch.equal(found, connected_components(csr)) and len(found.unique()) > 10
    with preferring({"ops": "auto"}), recording() as record:
        connected_components(csr)
    assert record["connected_components"] != {"cugraph"}, "by name alone"
