"""The cuGraph backend with a stand-in for pylibcugraph: what it is handed, and what comes back. No GPU is involved.

The stand-in takes the arguments that the sources in the wheel of 26.10 take, and refuses what they refuse.
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

# of graphs.pyx, graph_properties.pyx and resource_handle.pyx: names, then how many have none of a default
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


def taking(name: str, answer: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """A function of the library, which answers by the names of its arguments."""
    names, required = SIGNATURES[name][0].split(), SIGNATURES[name][1]

    def call(*positional: Any, **given: Any) -> Any:
        held = {**dict(zip(names, positional, strict=False)), **given}
        assert set(names[:required]) <= set(held) <= set(names), f"{name} does not take {sorted(held)}"
        return answer(held)

    return call


def graph_of(given: dict[str, Any]) -> Any:
    src, dst, vertices = given["src_or_offset_array"], given["dst_or_index_array"], given["vertices_array"]
    weight = given["weight_array"]
    if given.get("input_array_format", "COO") == "CSR" and dst.dtype == np.int64:
        raise RuntimeError("ERROR: Data type INT64 not allowed for edge type (valid types: INT32).")
    assert src.dtype == dst.dtype == vertices.dtype and len(src) == len(dst)
    assert weight is None or (weight.dtype == np.float32 and len(weight) == len(src))
    assert np.array_equal(np.sort(vertices), np.arange(len(vertices))), "every vertex once"
    shape = {"transposed": given["store_transposed"], "properties": given["graph_properties"]}
    return types.SimpleNamespace(src=src, dst=dst, n=len(vertices), **shape)


def components(given: dict[str, Any]) -> Any:
    graph = given["graph"]
    assert graph.properties["is_symmetric"] and not graph.transposed
    edges = set(zip(graph.src.tolist(), graph.dst.tolist()))
    assert {(b, a) for a, b in edges} == edges, "cuGraph refuses a graph that is not symmetric"
    assert graph.properties["is_multigraph"] or len(edges) == len(graph.src)
    label = np.arange(graph.n, dtype=graph.src.dtype)
    for _ in range(graph.n):
        np.maximum.at(label, graph.src, label[graph.dst])
    order = np.arange(graph.n, dtype=graph.src.dtype)[::-1]
    return order.copy(), label[order]


@pytest.mark.parametrize("undirected", [True, False])
def test_components_are_those_of_every_implementation(undirected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"ResourceHandle": dict, "GraphProperties": dict, "SGGraph": graph_of,
               "weakly_connected_components": components}  # fmt: skip
    functions = {name: taking(name, answer) for name, answer in answers.items()}
    monkeypatch.setitem(sys.modules, "pylibcugraph", types.SimpleNamespace(**functions))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(from_dlpack=np.from_dlpack, empty=np.empty))
    monkeypatch.setattr(dispatch, "check_backend", lambda name, device: None)
    ends = torch.from_numpy(np.random.default_rng(5).integers(0, 60, (2, 40)))
    csr = csr_from_edges(ends[0], ends[1], 64, undirected=undirected)
    found = connected_components(csr, implementation="cugraph")
    assert torch.equal(found, connected_components(csr)) and len(found.unique()) > 10
    with preferring({"ops": "auto"}), recording() as record:
        connected_components(csr)
    assert record["connected_components"] != {"cugraph"}, "by name alone"
