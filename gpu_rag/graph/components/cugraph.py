"""Connected components by pylibcugraph, with CuPy for its arrays.

Written against the sources in the wheel of pylibcugraph 26.10 and tested with a stand-in that takes the same arguments;
it has NOT yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from gpu_rag.graph.csr import is_symmetric, row_of_entry
from gpu_rag.types import CSR

I32_EDGES = 2**31 - 1  # cuGraph counts edges in the type of its vertices


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Run cuGraph on the device, synchronized before and after: cuGraph uses the current device and its own stream."""
    if device.type != "cuda":  # a stand-in in tests
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        yield
        torch.cuda.synchronize()


def array(values: torch.Tensor) -> Any:
    """A CuPy array in the memory of a tensor."""
    cupy: Any = import_module("cupy")
    if values.numel() == 0:  # an empty tensor has no memory to share
        return cupy.empty(0, dtype=str(values.dtype).removeprefix("torch."))
    return cupy.from_dlpack(values.contiguous())


def components_by_cugraph(csr: CSR) -> torch.Tensor:
    """`connected_components` by cuGraph, which needs both directions and gives arbitrary labels.

    The edges are passed as a list: cuGraph accepts no CSR with i64 rows and columns, and its kernels rely on
    renumbering. Memory: a copy of the graph.
    """
    plc: Any = import_module("pylibcugraph")
    kind = torch.int32 if 2 * csr.m < I32_EDGES else torch.int64
    rows, columns = row_of_entry(csr).to(kind), csr.indices.to(kind)
    one_way = not is_symmetric(CSR(csr.indptr, csr.indices))
    tails, heads = (torch.cat([rows, columns]), torch.cat([columns, rows])) if one_way else (rows, columns)
    with on_device(rows.device):
        handle = plc.ResourceHandle()
        graph = plc.SGGraph(
            resource_handle=handle,
            graph_properties=plc.GraphProperties(is_symmetric=True, is_multigraph=one_way),
            src_or_offset_array=array(tails),
            dst_or_index_array=array(heads),
            weight_array=None,
            store_transposed=False,
            renumber=True,
            do_expensive_check=False,
            vertices_array=array(torch.arange(csr.n, dtype=kind, device=rows.device)),
        )
        nodes, labels = plc.weakly_connected_components(
            resource_handle=handle, graph=graph, offsets=None, indices=None, weights=None, labels=None,
            do_expensive_check=False,
        )  # fmt: skip
    nodes, group = torch.from_dlpack(nodes).long(), torch.unique(torch.from_dlpack(labels), return_inverse=True)[1]
    smallest = torch.full_like(nodes, csr.n).scatter_reduce_(0, group, nodes, "amin")
    return torch.empty_like(nodes).scatter_(0, nodes, smallest[group])
