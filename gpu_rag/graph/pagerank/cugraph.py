"""Personalized PageRank started by pylibcugraph, for ONE large graph on a GPU: `implementation="cugraph"`.

cuGraph iterates in f32, one question a call, and stops at a step length that bounds nothing. Here its result is where
our own steps begin: at least two of them follow, and the error is proved in f64 as that of every other implementation.
The bits are not reproducible, since cuGraph adds in the order of its threads; so `auto` never means it. cuGraph begins
with equal ranks everywhere, so a node that no seed reaches may get a score of up to `tol` where others give it 0.

Written against the sources in the wheel of pylibcugraph 26.10 and tested with a stand-in that takes the same arguments;
it has NOT yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from gpu_rag.graph.csr import row_of_entry
from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport, unnormalised
from gpu_rag.graph.pagerank.matrix import MatrixTile, torch_product
from gpu_rag.graph.pagerank.plan import Array, Plan
from gpu_rag.types import CSR

F32_STEP = 1e-6  # the L1 length of a step that f32 surely comes below; less is left to our own steps
I32_EDGES = 2**31 - 1  # cuGraph counts edges in the type of its vertices


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """cuGraph works on the current device and on a stream of its own: each side waits for what the other has queued."""
    if device.type != "cuda":  # the stand-in of the tests
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        yield
        torch.cuda.synchronize()


class Library:
    """pylibcugraph, and CuPy for the arrays that it takes."""

    def __init__(self) -> None:
        self.plc: Any = import_module("pylibcugraph")
        self.cupy: Any = import_module("cupy")

    def array(self, values: torch.Tensor) -> Any:
        """A CuPy array in the memory of a tensor."""
        if values.numel() == 0:  # it has no memory to share
            return self.cupy.empty(0, dtype=str(values.dtype).removeprefix("torch."))
        return self.cupy.from_dlpack(values.contiguous())

    def pagerank(
        self, handle: Any, graph: Any, nodes: torch.Tensor, mass: torch.Tensor, plan: Plan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(nodes i64, ranks f32) of one question that restarts at `nodes`, each once, with f32 `mass` of any sum.

        Mass on nodes without outgoing weight returns to `nodes`, as here. Without convergence to `step_length` the
        result is a start like any other, so that is no error.
        """
        with on_device(nodes.device):
            found, ranks, _ = self.plc.personalized_pagerank(
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
        return torch.from_dlpack(found).long(), torch.from_dlpack(ranks)


def step_length(plan: Plan) -> float:
    """The L1 length of a step at which cuGraph stops: power iteration is then within the tolerance, or as near as f32
    surely comes."""
    return max(plan.tol * (1 - plan.damping) / max(plan.damping, 1e-12), F32_STEP)


def vertex_type(edges: int) -> torch.dtype:
    """i32 where it can count the edges, else i64."""
    return torch.int32 if edges < I32_EDGES else torch.int64


def memory_of(csr: CSR) -> tuple[int, int]:
    """The addresses of the columns and the weights of a graph: two graphs may share their row pointers."""
    return csr.indices.data_ptr(), 0 if csr.weight is None else csr.weight.data_ptr()


class SingleGraph:
    """A graph in cuGraph's own form on one GPU. It is a copy: 8 bytes an entry and more, beside ours."""

    def __init__(self, graph: PageRankGraph):
        self.library, self.n, self.kind = Library(), graph.n, vertex_type(graph.pull.m)
        self.memory = memory_of(graph.pull)
        self.one_call = Lock()  # tiles may be solved by several threads; a handle is for one
        array, weight = self.library.array, graph.pull.weight
        tails, heads = graph.pull.indices.to(self.kind), row_of_entry(graph.pull).to(self.kind)
        nodes = torch.arange(graph.n, dtype=self.kind, device=graph.device)
        with on_device(graph.device):
            self.handle = self.library.plc.ResourceHandle()
            # as edges: rows and columns in i64 are not taken as a CSR; renumbering is what its kernels are made for
            self.graph = self.library.plc.SGGraph(
                resource_handle=self.handle,
                graph_properties=self.library.plc.GraphProperties(is_symmetric=graph.symmetric, is_multigraph=False),
                src_or_offset_array=array(tails),
                dst_or_index_array=array(heads),
                weight_array=None if weight is None else array(weight),
                store_transposed=True,
                renumber=True,
                do_expensive_check=False,
                vertices_array=array(nodes),
            )

    def ranks(self, pi: torch.Tensor, plan: Plan) -> torch.Tensor:
        """f32[N, B] for restart distributions pi f64[N, B], none of them zero: a call each, one at a time."""
        found = torch.zeros(self.n, pi.shape[1], dtype=torch.float32, device=pi.device)
        for b, column in enumerate(pi.unbind(1)):
            nodes = column.nonzero()[:, 0]
            mass = column[nodes].float()
            with self.one_call:
                vertices, ranks = self.library.pagerank(self.handle, self.graph, nodes.to(self.kind), mass, plan)
            found[vertices, b] = ranks
        return found


class CugraphTile(MatrixTile):
    """`MatrixTile` whose state begins at what cuGraph found: it looks at each step, as few are left."""

    leap = None  # type: ignore[assignment]

    def __init__(
        self, single: SingleGraph, graph: PageRankGraph, plan: Plan, teleport: Teleport, width: int,
        dtype: torch.dtype, questions: Array, result: torch.Tensor, lo: int,
    ):  # fmt: skip
        super().__init__(graph, torch_product(graph), plan, teleport, width, dtype, questions, result, lo)
        count = len(questions)
        pi = teleport.dense(questions, width, graph)
        ranks = single.ranks(pi[:, :count], plan).double()
        lost = (ranks * graph.dangling[:, None]).sum(0)
        first = unnormalised(ranks, ranks.sum(0), lost, plan.damping) / self.scale
        self.x[:, :count] = first.to(self.x.dtype)


_graphs: Any = WeakTensorKeyDictionary()  # by indptr: cuGraph's own form of a graph is made once


def tile_maker(
    graph: PageRankGraph, teleport: Teleport, plan: Plan, width: int
) -> Callable[[torch.dtype, np.ndarray[Any, Any], torch.Tensor, int], CugraphTile]:
    """A function that makes a tile of (dtype, questions, result, lo): see `job`."""
    pull = graph.pull
    single = _graphs.get(pull.indptr)
    if single is None or single.memory != memory_of(pull):
        single = _graphs[pull.indptr] = SingleGraph(graph)
    return partial(CugraphTile, single, graph, plan, teleport, width)
