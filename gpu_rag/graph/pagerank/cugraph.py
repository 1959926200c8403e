"""Personalized PageRank started by pylibcugraph, for ONE large graph on a GPU: `implementation="cugraph"`.

cuGraph iterates in f32, one question for each call, and stops at a step length that bounds nothing. Here its result is
only the start: at least two of our own steps follow, and the error is proved in f64 as in every other implementation.
The bits are not reproducible, because cuGraph adds in the order of its threads; so `auto` never means it. cuGraph
begins with equal ranks everywhere, so a node that no seed reaches may get a score of up to `tol` where others give 0.
See `gpu_rag.graph.common.cugraph`: it has NOT yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from gpu_rag.graph.common.cugraph import Library, on_device, vertex_type
from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport, unnormalised
from gpu_rag.graph.pagerank.matrix import MatrixTile
from gpu_rag.graph.pagerank.plan import Array, Plan
from gpu_rag.types import CSR

F32_STEP = 1e-6  # L1 step length that f32 surely reaches; our own steps do the rest


class Ranks(Library):
    """The personalized PageRank of cuGraph."""

    def pagerank(
        self, handle: Any, graph: Any, nodes: torch.Tensor, mass: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(nodes i64, ranks f32) of one question that restarts at `nodes`, each once, with f32 `mass` of any sum.

        Mass on nodes without outgoing weight returns to `nodes`, as here. A result without convergence to `step_length`
        is still a valid start, so it is no error.
        """
        with on_device(nodes.device):
            vertices, ranks, _ = self.plc.personalized_pagerank(
                resource_handle=handle,
                graph=graph,
                precomputed_vertex_out_weight_vertices=None,
                precomputed_vertex_out_weight_sums=None,
                initial_guess_vertices=None,
                initial_guess_values=None,
                personalization_vertices=self.array(nodes),
                personalization_values=self.array(mass),
                alpha=plan.damping,
                epsilon=step_length(plan),
                max_iterations=plan.max_iter,
                do_expensive_check=False,
                fail_on_nonconvergence=False,
            )
        return torch.from_dlpack(vertices).long(), torch.from_dlpack(ranks)


def step_length(plan: Plan) -> float:
    """The L1 step length at which cuGraph stops: within the tolerance, or as close as f32 surely comes."""
    return max(plan.tol * (1 - plan.damping) / max(plan.damping, 1e-12), F32_STEP)


def memory_of(csr: CSR) -> tuple[int, int]:
    """The addresses of the columns and the weights of a graph, because two graphs may share their row pointers."""
    return csr.indices.data_ptr(), 0 if csr.weight is None else csr.weight.data_ptr()


class SingleGraph:
    """A graph in cuGraph's own form on one GPU. It is an additional copy: 8 bytes an entry and more."""

    def __init__(self, graph: PageRankGraph):
        self.library, self.n, self.kind = Ranks(), graph.n, vertex_type(graph.pull.m)
        self.memory = memory_of(graph.pull)
        self.one_call = Lock()  # several threads may solve tiles, but a handle serves one
        tails, heads = graph.pull.indices.to(self.kind), row_of_entry(graph.pull).to(self.kind)
        weight, symmetric = graph.pull.weight, graph.symmetric
        self.handle, self.graph = self.library.graph(
            tails, heads, weight, graph.n, symmetric=symmetric, transposed=True
        )

    def ranks(self, pi: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Ranks f32[N, B] for restart distributions pi f64[N, B], none of them zero: one call for each."""
        result = torch.zeros(self.n, pi.shape[1], dtype=torch.float32, device=pi.device)
        for b, column in enumerate(pi.unbind(1)):
            nodes = column.nonzero()[:, 0]
            mass = column[nodes].float()
            with self.one_call:
                vertices, ranks = self.library.pagerank(self.handle, self.graph, nodes.to(self.kind), mass, plan)
            result[vertices, b] = ranks
        return result


class CugraphTile(MatrixTile):
    """A `MatrixTile` whose state begins at cuGraph's result. It looks at each step, because few are left."""

    leap = None  # type: ignore[assignment]

    def __init__(
        self, single: SingleGraph, graph: PageRankGraph, plan: Plan, teleport: Teleport, width: int,
        dtype: torch.dtype, questions: Array, result: torch.Tensor, lo: int,
    ):  # fmt: skip
        super().__init__(graph, plan, teleport, width, dtype, questions, result, lo)
        count = len(questions)
        pi = teleport.dense(questions, width, graph)
        ranks = single.ranks(pi[:, :count], plan).double()
        lost = (ranks * graph.dangling[:, None]).sum(0)
        first = unnormalised(ranks, ranks.sum(0), lost, plan.damping) / self.scale
        self.x[:, :count] = first.to(self.x.dtype)


_graphs: Any = WeakTensorKeyDictionary()  # indptr -> cuGraph's own form of a graph, made once


def tile_maker(
    graph: PageRankGraph, teleport: Teleport, plan: Plan, width: int
) -> Callable[[torch.dtype, np.ndarray[Any, Any], torch.Tensor, int], CugraphTile]:
    """A function that makes a tile from (dtype, questions, result, lo): see `Job`."""
    pull = graph.pull
    single = _graphs.get(pull.indptr)
    if single is None or single.memory != memory_of(pull):
        single = _graphs[pull.indptr] = SingleGraph(graph)
    return partial(CugraphTile, single, graph, plan, teleport, width)
