"""PageRank of one graph on several GPUs by pylibcugraph: the start of `personalized_pagerank_sharded`.

One process a GPU. cuGraph has communication of its own (NCCL, by raft-dask): rank 0 makes its id, which goes to the
others over the process group. Every rank hands over its own edges, which cuGraph deals out again in its own way; each
rank gets ranks of some nodes back, and what a rank misses is added from the others: each node has one owner, so adding
zeros changes no bit. Beside cuGraph's graph a rank needs 4 N bytes for that.

Written against the sources in the wheels of pylibcugraph and raft-dask 26.10, and tested with a stand-in over two
processes on the CPU; it has NOT yet run on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gpu_rag_kernels.dispatch import check_backend, installed

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.graph.pagerank.cugraph import Library, on_device, vertex_type
from gpu_rag.graph.pagerank.inputs import Teleport
from gpu_rag.graph.pagerank.plan import Plan
from gpu_rag.graph.pagerank.sharded.graph import Shard, own_edges

ID_BYTES = 256  # space for the id of NCCL, which has 127 bytes, and its length


def estimates(shard: Shard, teleport: Teleport, plan: Plan) -> torch.Tensor:
    """f32[B, rows of this rank]: what cuGraph finds for B questions, one call each; 1 for questions without seeds.

    To be called by every rank. Raises MissingBackend, and UsageError without GPUs or a process group.
    """
    check_backend("cugraph", shard.device)
    if not installed("raft_dask"):
        raise MissingBackend("raft-dask is not installed", do="pip install 'gpu-rag[gpu,multi-gpu]'")
    if shard.group is None:
        raise UsageError("no process group", given="one rank alone", expected="torchrun, or personalized_pagerank")
    found = torch.ones(teleport.batch, shard.rows, dtype=torch.float32, device=shard.device)
    wanted = np.flatnonzero(~teleport.is_empty(np.arange(teleport.batch)))
    with on_device(shard.device), communication(shard) as handle:
        whole_graph = MultiGraph(shard, handle)
        for b in wanted:
            found[int(b)] = whole_graph.ranks(teleport, int(b), plan)
        del whole_graph  # before its communicator
    return found


@contextmanager
def communication(shard: Shard) -> Iterator[Any]:
    """The ResourceHandle of a communicator of cuGraph's over all ranks; closed at the end."""
    plc, comms = import_module("pylibcugraph"), import_module("pylibcugraph.comms")
    message = torch.zeros(ID_BYTES, dtype=torch.uint8)
    if shard.rank == 0:
        made = bytes(comms.cugraph_comms_create_unique_id())
        message[: len(made) + 1] = torch.tensor([len(made), *made], dtype=torch.uint8)
    # a gather, of which the first part is taken: a broadcast names its source by global rank
    known = shard.gather(message.to(shard.device))[0].tolist()
    comms.cugraph_comms_init(
        rank=shard.rank, world_size=shard.world, uid=bytes(known[1 : known[0] + 1]), device=shard.device.index or 0
    )
    try:
        yield plc.ResourceHandle(comms.cugraph_comms_get_raft_handle().getHandle())
    finally:
        comms.cugraph_comms_shutdown()


class MultiGraph:
    """The graph of all shards in cuGraph's own form."""

    def __init__(self, shard: Shard, handle: Any):
        self.library, self.shard, self.handle = Library(), shard, handle
        self.kind = vertex_type(shard.entries)
        array, weight = self.library.array, shard.pull.weight
        tails, heads = (ends.to(self.kind) for ends in own_edges(shard))
        nodes = torch.arange(shard.lo, shard.hi, dtype=self.kind, device=shard.device)
        with on_device(shard.device):
            # lists, though of one array: cuGraph tests the truth of an array, which CuPy refuses
            self.graph = self.library.plc.MGGraph(
                resource_handle=handle,
                graph_properties=self.library.plc.GraphProperties(is_symmetric=shard.symmetric, is_multigraph=False),
                src_array=[array(tails)],
                dst_array=[array(heads)],
                weight_array=None if weight is None else [array(weight)],
                store_transposed=True,
                do_expensive_check=False,
                vertices_array=[array(nodes)],
                num_arrays=1,
            )

    def ranks(self, teleport: Teleport, question: int, plan: Plan) -> torch.Tensor:
        """f32[rows of this rank] of one question."""
        shard = self.shard
        node, _, mass = teleport.entries(np.array([question]))
        nodes, each = np.unique(node, return_inverse=True)
        here = (nodes >= shard.lo) & (nodes < shard.hi)  # every rank names seeds of its own, or none
        seeds = torch.from_numpy(nodes[here]).to(shard.device, self.kind)
        values = torch.from_numpy(np.bincount(each, mass)[here]).to(shard.device, torch.float32)
        vertices, ranks = self.library.pagerank(self.handle, self.graph, seeds, values, plan)
        whole = torch.zeros(shard.n, dtype=torch.float32, device=shard.device)
        whole[vertices] = ranks
        dist.all_reduce(whole, group=shard.group)
        return whole[shard.lo : shard.hi]
