"""Personalized PageRank by pylibcugraph, for ONE large graph on a GPU: a call a question, since cuGraph takes one
personalization vector a call.

This file was written against the documented API of pylibcugraph 26.10 and tested with a stand-in that records its
calls; it has NOT yet run on a GPU.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from gpu_rag.errors import BadInput, GpuRagError, MissingBackend, UsageError
from gpu_rag.graph.csr import check_csr, transpose
from gpu_rag.graph.pagerank_graph import PageRankGraph
from gpu_rag.graph.ragged import check_ragged, row_of_value
from gpu_rag.types import CSR, Ragged


def pagerank_by_cugraph(
    csr: CSR | PageRankGraph,
    seeds: Ragged,
    weights: Ragged | None = None,
    *,
    damping: float = 0.85,
    tol: float = 1e-6,
    max_iter: int = 200,
) -> torch.Tensor:
    """PageRank of every node for B questions, one call each: f32[B, N] on the device of the graph.

    Arguments as in `personalized_pagerank`, with nodes that have no outgoing weight treated as there: their mass
    returns to the seeds of the question. An empty list of seeds gives a row of zeros. tol: cuGraph stops when the L1
    length of a step is below its epsilon; epsilon = tol (1-d) / d makes the error of power iteration at most tol, f32
    rounding apart, which is not proved here. Not bit-reproducible: cuGraph adds in the order of its threads. Raises
    BadInput, UsageError (no CUDA tensors), MissingBackend, and GpuRagError after max_iter steps without convergence.
    """
    if isinstance(csr, PageRankGraph):
        csr = csr.pull if csr.symmetric else transpose(csr.pull)
    _check_available(csr.indptr.device)
    check_csr(csr)
    check_ragged(seeds, "seeds", n=csr.n, device=csr.indptr.device)
    mass = _mass(seeds, weights)
    if not 0 < damping < 1 or not 0 < tol <= 1 or max_iter < 1:
        given = f"damping={damping}, tol={tol}, max_iter={max_iter}"
        raise UsageError("an option is out of range", given=given, expected="0 < damping < 1, 0 < tol <= 1, >= 1 steps")
    solver = _Solver(csr, damping, tol * (1 - damping) / damping, max_iter)
    result = torch.zeros(seeds.batch, csr.n, dtype=torch.float32, device=csr.indptr.device)
    ends = seeds.offsets.tolist()
    for b, (first, last) in enumerate(zip(ends[:-1], ends[1:])):
        nodes, each = torch.unique(seeds.values[first:last].int(), return_inverse=True)
        values = torch.zeros(nodes.shape[0], dtype=torch.float32, device=nodes.device)
        values.index_add_(0, each, mass[first:last])
        if float(values.sum()) > 0:
            solver.solve(nodes, values, result[b])
    return result


def _check_available(device: torch.device) -> None:
    if find_spec("pylibcugraph") is None or find_spec("cupy") is None:
        raise MissingBackend("pylibcugraph is not installed", do="pip install 'gpu-rag[gpu]'")
    if device.type != "cuda":
        raise UsageError("cugraph works on a GPU", given=f"a graph on {device}", expected="cuda")


def _mass(seeds: Ragged, weights: Ragged | None) -> torch.Tensor:
    """f32[T]: the weight of every seed, 1 where none are given."""
    if weights is None:
        return torch.ones(seeds.values.shape[0], dtype=torch.float32, device=seeds.values.device)
    if not torch.equal(weights.offsets, seeds.offsets) or not bool(
        (torch.isfinite(weights.values) & (weights.values >= 0)).all()
    ):
        raise BadInput("weights do not fit the seeds", expected="equal offsets, finite and >= 0")
    total = torch.zeros(seeds.batch, dtype=torch.float64, device=seeds.values.device)
    row = row_of_value(seeds)
    total.index_add_(0, row, weights.values.double())
    return (weights.values / total.clamp_min(1e-300)[row]).float()


class _Solver:
    """A graph in cuGraph's own form, made once."""

    def __init__(self, csr: CSR, damping: float, epsilon: float, max_iter: int):
        self.lib: Any = import_module("pylibcugraph")
        self.cupy: Any = import_module("cupy")
        self.damping, self.epsilon, self.max_iter, self.n = damping, epsilon, max_iter, csr.n
        values = torch.ones(csr.m, device=csr.indices.device) if csr.weight is None else csr.weight
        self.handle = self.lib.ResourceHandle()
        # offsets and columns must have one integer type; the graph is stored transposed, as PageRank pulls
        self.graph = self.lib.SGGraph(
            resource_handle=self.handle,
            graph_properties=self.lib.GraphProperties(is_symmetric=False, is_multigraph=False),
            src_or_offset_array=self.cupy.from_dlpack(csr.indptr),
            dst_or_index_array=self.cupy.from_dlpack(csr.indices.long()),
            weight_array=self.cupy.from_dlpack(values),
            store_transposed=True,
            renumber=False,
            do_expensive_check=False,
            input_array_format="CSR",
        )

    def solve(self, nodes: torch.Tensor, values: torch.Tensor, row: torch.Tensor) -> None:
        """Writes the PageRank of one question into row f32[N]."""
        vertices, ranks, converged = self.lib.personalized_pagerank(
            resource_handle=self.handle,
            graph=self.graph,
            precomputed_vertex_out_weight_vertices=None,
            precomputed_vertex_out_weight_sums=None,
            initial_guess_vertices=None,
            initial_guess_values=None,
            personalization_vertices=self.cupy.from_dlpack(nodes.long()),
            personalization_values=self.cupy.from_dlpack(values / values.sum()),
            alpha=self.damping,
            epsilon=self.epsilon,
            max_iterations=self.max_iter,
            do_expensive_check=False,
            fail_on_nonconvergence=False,
        )
        if not converged:
            given = f"{self.max_iter} steps, epsilon {self.epsilon:.2g}"
            raise GpuRagError("cugraph did not converge", given=given, do="raise max_iter or tol")
        row[torch.from_dlpack(vertices).long()] = torch.from_dlpack(ranks)
