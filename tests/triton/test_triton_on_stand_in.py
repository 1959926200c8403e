"""Graph ops with the Triton kernels on the stand-in device of tests/device: all that a launch is handed lies there."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_rag_kernels import dispatch
from gpu_rag_kernels.dispatch import recording

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.pagerank import personalized_pagerank

FOLDER = str(Path(__file__).resolve().parents[1] / "device")
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        not (dispatch.interpreted() and dispatch.installed("triton")) or torch.cuda.is_available(),
        reason="needs triton and TRITON_INTERPRET=1",
    ),
]
KERNELS: dict[str, set[str]] = {  # of the ops of tests/device/test_graph_ops.py, which must run
    "balls_and_blocks": {"msbfs_or"},
    "bubbles": {"minplus_relax", "ragged_gather_dot_topk"},
    "hops": {"ragged_gather_dot_topk"},
    "joins": {"ragged_gather_dot_topk"},
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_find_what_torch_finds(name: str) -> None:
    from interpreted import launches
    from stand_in import OnDevice, stand_in
    from test_graph_ops import OPS, World, same, tensors

    expected: Any = OPS[name](World(), lambda held: held, "torch")
    with stand_in() as device, launches() as launched, recording() as ran:
        found = OPS[name](World(), device.put, "auto")
        assert launched and {op for op, by in ran.items() if "triton" in by} >= KERNELS[name]
        assert all(isinstance(held, OnDevice) for held in tensors(found))
        assert same(device.back(found), expected)


def test_pagerank_by_the_kernel() -> None:
    """Begun in f16. A wide tolerance, since the interpreter is slow; the error is proved by the op itself."""
    from interpreted import launches
    from stand_in import CUDA, stand_in
    from test_graph_ops import World

    w, options = World(), {"tol": 1e-2, "block": 4, "state": "f16"}
    expected = personalized_pagerank(w.csr, w.seeds, implementation="torch", **options)
    with stand_in() as device, launches() as launched, recording() as ran:
        found = personalized_pagerank(device.put(w.csr), device.put(w.seeds), **options)
        assert launched and ran["ppr_step"] == {"triton"} and found.device == CUDA
        assert float((device.back(found) - expected).abs().sum(1).max()) <= 2e-2


def test_the_steps_of_pagerank_are_one_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second tile on; over tensors of its own, so that it serves questions with other seeds: the same bits as
    step by step. A wait or a copy between the devices while it is recorded would be refused."""
    from interpreted import launches
    from ragged_lists import ragged
    from stand_in import stand_in

    from gpu_rag.graph.pagerank import matrix, prepare

    ring = torch.arange(20)
    csr = csr_from_edges(ring, (ring * 7 + 1) % 20, 20)
    options: Any = {"tol": 1e-2, "damping": 0.5, "block": 2, "state": "f32"}
    questions = [ragged([[1], [2, 5]]), ragged([[3], [7, 19]]), ragged([[0, 4], [11]])]

    def solved(most: int) -> tuple[list[torch.Tensor], int, int]:
        monkeypatch.setattr(matrix, "MAX_RECORDED", most)
        with stand_in() as device, launches() as launched:
            graph = prepare(device.put(csr))
            found = [device.back(personalized_pagerank(graph, device.put(one), **options)) for one in questions]
            return found, device.replays, len(launched)

    one_by_one, recorded = solved(0), solved(1 << 23)
    assert (one_by_one[1], recorded[1]) == (0, 2) and recorded[2] < one_by_one[2]
    assert all(torch.equal(a, b) for a, b in zip(one_by_one[0], recorded[0]))
    steps = matrix.MatrixTile._steps

    def waiting(tile: Any, *given: Any) -> None:  # CUDA cannot record a wait
        bool(tile.x.isnan().any())
        steps(tile, *given)

    monkeypatch.setattr(matrix.MatrixTile, "_steps", waiting)
    with pytest.warns(RuntimeWarning, match="goes without a CUDA graph: .*not permitted when stream is capturing"):
        without = solved(1 << 23)
    assert without[1] == 0 and all(torch.equal(a, b) for a, b in zip(one_by_one[0], without[0]))


def test_a_launch_with_a_tensor_of_the_cpu_is_refused() -> None:
    from gpu_rag_kernels.ego import triton as module
    from interpreted import launches
    from stand_in import Refused, stand_in

    csr = csr_from_edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 3)
    with stand_in() as device, launches(), pytest.raises(Refused, match="cpu"):
        words = device.put(torch.ones(3, 1, dtype=torch.int64))
        module._pull[1, 1](
            csr.indptr, csr.indices, words, words, words, words, words[:, 0], 3, 1, n_nodes=16, n_words=4
        )
