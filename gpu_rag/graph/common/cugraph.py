"""pylibcugraph, CuPy for its arrays, and graphs in cuGraph's own form.

Written against the sources in the wheel of pylibcugraph 26.10 and tested with a stand-in that takes the same arguments;
it has NOT yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

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


def vertex_type(edges: int) -> torch.dtype:
    """i32 if it can count the edges, else i64."""
    return torch.int32 if edges < I32_EDGES else torch.int64


class Library:
    """The two modules, pylibcugraph and CuPy."""

    def __init__(self) -> None:
        self.plc: Any = import_module("pylibcugraph")
        self.cupy: Any = import_module("cupy")

    def array(self, values: torch.Tensor) -> Any:
        """A CuPy array in the memory of a tensor."""
        if values.numel() == 0:  # an empty tensor has no memory to share
            return self.cupy.empty(0, dtype=str(values.dtype).removeprefix("torch."))
        return self.cupy.from_dlpack(values.contiguous())

    def graph(
        self, tails: torch.Tensor, heads: torch.Tensor, weight: torch.Tensor | None, n: int, *, symmetric: bool,
        multiple: bool = False, transposed: bool,
    ) -> tuple[Any, Any]:  # fmt: skip
        """(handle, graph) of edges between n nodes, in cuGraph's own form: a copy. tails, heads: of `vertex_type`.

        The edges are passed as a list: cuGraph accepts no CSR with i64 rows and columns, and its kernels rely on
        renumbering.
        """
        nodes = torch.arange(n, dtype=tails.dtype, device=tails.device)
        with on_device(tails.device):
            handle = self.plc.ResourceHandle()
            graph = self.plc.SGGraph(
                resource_handle=handle,
                graph_properties=self.plc.GraphProperties(is_symmetric=symmetric, is_multigraph=multiple),
                src_or_offset_array=self.array(tails),
                dst_or_index_array=self.array(heads),
                weight_array=None if weight is None else self.array(weight),
                store_transposed=transposed,
                renumber=True,
                do_expensive_check=False,
                vertices_array=self.array(nodes),
            )
        return handle, graph
