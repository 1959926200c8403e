"""Personalized PageRank on B local subgraphs at once, with a proved bound on the error.

In block b: p = (1-d) pi_b + d (P^T p + lost(p) pi_b), where P is the adjacency of the block with each row divided by
its degree, pi_b uniform on its seeds, and lost(p) the mass of p on nodes without edges.

As in `pagerank.plan`, p = q / |q|_1 with q = (1-d) pi + d P^T q. For any x, let Z = (1-d) pi + d P^T x and gap = |Z -
x|_1. P^T has L1 norm <= 1, so E = |Z - q|_1 <= d gap / (1-d), and |Z/|Z| - p|_1 <= 2 E / |Z|. Every block iterates in
f64 until its Z meets the tolerance by this bound; this Z gives the answer.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.common.segments import SegmentSum
from gpu_rag.graph.ego import local_nodes
from gpu_rag.graph.memory import check_memory
from gpu_rag.graph.pagerank import Options
from gpu_rag.graph.pagerank.inputs import teleport_of_seeds
from gpu_rag.graph.pagerank.plan import way_out
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import Blocks, Ragged

STRIDE = 8  # steps between two checks on a device; a check makes the host wait


def blocks_pagerank(
    blocks: Blocks, seeds: Ragged, *, damping: float = 0.85, tol: float = 1e-6, max_iter: int = 200
) -> Ragged:
    """PageRank of every node of each block: Ragged of f32 with the offsets of the blocks, aligned with their
    global_ids.

    blocks: from `induced_subgraphs` of an undirected graph without weights. seeds: Ragged of nodes i32/i64 of the WHOLE
    graph, one list for each block, in its block; a node given twice counts twice. An empty list gives a block of zeros.
    damping: d in [0, 1). tol: each block has |values - p|_1 <= tol, tol in [1e-12, 1], proved in f64, apart from the
    rounding of the result to f32 (at most 6e-8). The values of a block sum to 1 (to 1e-5). max_iter: maximum steps of
    Chebyshev's iteration, all blocks in each, up to 10^6. From damping .999 on, rounding may keep the proved bound
    above 1e-12; the error then names a tol that was reached. A block has the same bits alone, in any batch and at any
    position. Raises BadInput (seeds, options), and GpuRagError if a block is not within `tol` after `max_iter` steps.
    Memory: about 60 bytes an entry of all blocks.

    Blocks [5, 7, 9] with edges 5 - 7 - 9, and [5, 8] without; seeds [[5], [8]], d = 0.5: [7/12, 4/12, 1/12], [0, 1].
    """
    Options(damping, tol, max_iter, 1, 1)
    rows = local_nodes(blocks, seeds, "seeds")
    n, m, device, d = blocks.csr.n, blocks.csr.m, blocks.csr.indptr.device, damping
    check_memory(32 * (n + m), device, f"blocks of {n:,} nodes", "ask fewer questions at a time")
    teleport = teleport_of_seeds(max(n, 1), rows, None)
    pi = np.zeros(n)  # (1-d) pi of all blocks
    np.add.at(pi, teleport.nodes, (1 - d) * teleport.mass)
    restart = torch.from_numpy(pi).to(device)
    empty = torch.from_numpy(teleport.is_empty(np.arange(teleport.batch))).to(device)  # restart nowhere
    degree = blocks.csr.indptr.diff()
    of_rows, of_blocks = SegmentSum(degree, m), SegmentSum(blocks.offsets.diff(), n)
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    source = blocks.csr.indices.long()
    share = d / degree[source].double()
    values = torch.zeros(n, dtype=torch.float32, device=device)
    bound = torch.where(empty, 0.0, torch.inf)
    stride, first = (1, 0) if device.type == "cpu" else (STRIDE, _steps_before_a_look(d, tol))
    x, before, omega = restart / (1 - d), torch.zeros_like(restart), 1.0
    for step in range(max_iter):
        z = of_rows(share * x[source]) + restart
        mass = of_blocks(z)
        new_bound = torch.where(empty, 0.0, 2 * d * of_blocks((z - x).abs()) / ((1 - d) * mass))
        solved = (bound > tol) & (new_bound <= tol)
        values = torch.where(solved[block], (z / mass[block]).float(), values)
        bound = torch.where(bound > tol, new_bound, bound)
        # a solved block keeps its values, so extra steps change nothing
        if step >= first and (step + 1) % stride == 0 and bool((bound <= tol).all()):
            break
        omega = 1.0 if step == 0 else 2 / (2 - d * d) if step == 1 else 1 / (1 - d * d * omega / 4)
        x, before = before + omega * (z - before), x
    errors = bound.cpu().numpy()
    unsolved = np.flatnonzero(~(errors <= tol))
    if len(unsolved):
        error = float(errors[unsolved[0]])
        given, do = f"block {unsolved[0]}: L1 error up to {error:.2g} after {max_iter} steps", way_out(error, d)
        raise GpuRagError("PageRank of a block did not converge", given=given, expected=f"<= {tol:g}", do=do)
    return Ragged(values, blocks.offsets)


def _steps_before_a_look(damping: float, tol: float) -> int:
    """The number of steps after which Chebyshev's iteration may come below `tol`."""
    rate = damping / (1 + math.sqrt(1 - damping * damping))
    return int(math.log(tol) / math.log(rate)) if 0 < rate < 1 and tol < 1 else 0
