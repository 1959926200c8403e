"""Personalized PageRank on B local subgraphs at once, with a proved bound on the error.

In block b: p = (1-d) pi_b + d (P^T p + lost(p) pi_b), where P is the adjacency of the block with each row divided by
its sum, pi_b the restart distribution on its seeds, and lost(p) the mass of p on nodes without outgoing weight.

As in `pagerank.plan`, p = q / |q|_1 with q = (1-d) pi + d P^T q. For any x, let Z = (1-d) pi + d P^T x and gap = |Z -
x|_1. P^T has L1 norm <= 1, so E = |Z - q|_1 <= d gap / (1-d), and |Z/|Z| - p|_1 <= 2 E / |Z|. Every block iterates in
f64 until its Z meets the tolerance by this bound; this Z gives the answer.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.common.segments import SegmentSum
from gpu_rag.graph.common.threads import run_parts
from gpu_rag.graph.csr import row_of_entry, transpose
from gpu_rag.graph.ego import local_nodes
from gpu_rag.graph.memory import check_memory, is_small
from gpu_rag.graph.pagerank import Options
from gpu_rag.graph.pagerank.inputs import Array, Teleport, teleport_of_seeds
from gpu_rag.graph.pagerank.plan import way_out
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import CSR, Blocks, Ragged

__all__ = ["blocks_pagerank"]

STRIDE = 8  # steps between two looks of torch on a device; a look makes the host wait
PARTS = 8  # parts for each thread, so that threads end together


def blocks_pagerank(
    blocks: Blocks,
    seeds: Ragged,
    weights: Ragged | None = None,
    *,
    damping: float = 0.85,
    tol: float = 1e-6,
    max_iter: int = 200,
    implementation: str = "auto",
    threads: int = 1,
) -> Ragged:
    """PageRank of every node of each block: Ragged of f32 with the offsets of the blocks, aligned with their
    global_ids.

    blocks: from `induced_subgraphs`, entries from row to column; weights allowed. seeds: Ragged of nodes i32/i64 of the
    WHOLE graph, one list for each block, in its block; weights: Ragged of floats >= 0 with the same offsets, scaled to
    sum to 1 in each list (equal if None; a node given twice counts twice). An empty list gives a block of zeros.
    damping: d in [0, 1). tol: each block has |values - p|_1 <= tol, tol in [1e-12, 1], proved in f64, apart from the
    rounding of the result to f32 (at most 6e-8). The values of a block sum to 1 (to 1e-5). max_iter: maximum steps, up
    to 10^6. From damping .999 on, rounding may keep the proved bound above 1e-12; the error then names a tol that was
    reached. implementation: numba (one block after another, in the cache: SOR with a mass correction if a block is
    symmetric, else Gauss-Seidel; see its loop) | torch (all blocks together on any device: Chebyshev if symmetric, else
    power) | auto. The two agree within 2 tol, not bit by bit. threads: blocks solved at once (numba). A block has the
    same bits alone, in any batch, at any position and with any number of threads. Raises BadInput (blocks, seeds,
    weights, options), UsageError, MissingBackend, and GpuRagError if a block is not within `tol` after `max_iter`
    steps. Memory: numba, 16 bytes an entry and 52 a node of the largest block, for each thread; torch, about 60 bytes
    an entry of all blocks.

    Blocks [5, 7, 9] with edges 5 - 7 - 9, and [5, 8] without; seeds [[5], [8]], d = 0.5: [7/12, 4/12, 1/12], [0, 1].
    """
    options = Options(damping, tol, max_iter, 1, threads)
    chosen = pick_implementation(blocks.csr.indptr.device, implementation, "blocks_pagerank")
    rows = local_nodes(blocks, seeds, "seeds")
    _check_memory(blocks, chosen)
    teleport = teleport_of_seeds(max(blocks.csr.n, 1), rows, weights)
    solve = _by_numba if chosen == "numba" else _by_torch
    values, bound = solve(blocks, teleport, options)
    unsolved = np.flatnonzero(~(bound <= tol))
    if len(unsolved):
        error = float(bound[unsolved[0]])
        given, do = f"block {unsolved[0]}: L1 error up to {error:.2g} after {max_iter} steps", way_out(error, damping)
        raise GpuRagError("PageRank of a block did not converge", given=given, expected=f"<= {tol:g}", do=do)
    return Ragged(values, blocks.offsets)


def _check_memory(blocks: Blocks, chosen: str) -> None:
    """Raise BadInput if the result and the state of the largest block (numba), or of all blocks (torch), cannot fit."""
    n, m, offsets = blocks.csr.n, blocks.csr.m, blocks.offsets
    if is_small(60 * (n + m)):
        return
    if chosen == "torch":
        least = 32 * (n + m)
    else:
        sizes, entries = offsets.diff(), blocks.csr.indptr[offsets].diff()
        least = 4 * n + (int((52 * sizes + 8 * entries).max()) if len(sizes) else 0)
    check_memory(least, offsets.device, f"blocks of {n:,} nodes", "ask fewer questions at a time")


def _by_numba(blocks: Blocks, teleport: Teleport, options: Options) -> tuple[torch.Tensor, Array]:
    """Values f32[T] and the proved error of each block f64[B]."""
    from gpu_rag_kernels.local_pagerank.numba import solve_blocks

    csr = blocks.csr
    indptr, indices, offsets = (a.contiguous().numpy() for a in (csr.indptr, csr.indices, blocks.offsets))
    weight = None if csr.weight is None else csr.weight.contiguous().numpy()
    values = torch.empty(csr.n, dtype=torch.float32)
    bound = np.zeros(teleport.batch)

    def part(span: tuple[int, int]) -> None:
        solve_blocks(
            indptr, indices, weight, offsets, *span, teleport.offsets, teleport.nodes, teleport.mass,
            options.damping, options.tol, options.max_iter, values.numpy(), bound,
        )  # fmt: skip

    cost = indptr[offsets] + offsets  # cost of all earlier blocks
    n_parts = 1 if options.threads == 1 else min(PARTS * options.threads, teleport.batch)
    run_parts(part, _spans(cost, n_parts), options.threads)
    return values, bound


def _spans(cost: Array, n_parts: int) -> list[tuple[int, int]]:
    """Ranges of blocks with about equal cost; cost: i64[B+1], ascending from 0."""
    if n_parts == 1:
        return [(0, len(cost) - 1)]
    cuts = np.searchsorted(cost, np.linspace(0, cost[-1], n_parts + 1)[1:-1])
    ends = np.unique(np.concatenate([[0], cuts, [len(cost) - 1]])).tolist()
    return list(zip(ends[:-1], ends[1:]))


def _by_torch(blocks: Blocks, teleport: Teleport, options: Options) -> tuple[torch.Tensor, Array]:
    """`_by_numba` in torch, all blocks in each step. State q f64[T]; x is the iterate, y the previous one."""
    device, d = blocks.csr.indptr.device, options.damping
    pi = np.zeros(blocks.csr.n)  # (1-d) pi of all blocks
    np.add.at(pi, teleport.nodes, (1 - d) * teleport.mass)
    restart = torch.from_numpy(pi).to(device)
    empty = torch.from_numpy(teleport.is_empty(np.arange(teleport.batch))).to(device)  # restart nowhere
    pull, symmetric = _pull(blocks)
    n, m = blocks.csr.n, blocks.csr.m
    rows, sizes = SegmentSum(pull.indptr.diff(), m), SegmentSum(blocks.offsets.diff(), n)
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    source = pull.indices.long()
    out_weight = SegmentSum(blocks.csr.indptr.diff(), m)(_weights(blocks.csr))
    share = d * _weights(pull) / torch.where(out_weight > 0, out_weight, 1.0)[source]
    values = torch.zeros(blocks.csr.n, dtype=torch.float32, device=device)
    bound = torch.where(empty, 0.0, torch.inf)
    stride, first = (1, 0) if device.type == "cpu" else (STRIDE, _steps_before_a_look(d, options.tol))
    x, y, omega = restart / (1 - d), torch.zeros_like(restart), 1.0
    for step in range(options.max_iter):
        z = rows(share * x[source]) + restart
        mass = sizes(z)
        new_bound = torch.where(empty, 0.0, 2 * d * sizes((z - x).abs()) / ((1 - d) * mass))
        solved = (bound > options.tol) & (new_bound <= options.tol)
        values = torch.where(solved[block], (z / mass[block]).float(), values)
        bound = torch.where(bound > options.tol, new_bound, bound)
        # a solved block keeps its values, so extra steps change nothing
        if step >= first and (step + 1) % stride == 0 and bool((bound <= options.tol).all()):
            break
        omega = 1.0 if step == 0 else 2 / (2 - d * d) if step == 1 else 1 / (1 - d * d * omega / 4)
        x, y = y + torch.where(symmetric[block], omega, 1.0) * (z - y), x
    return values, bound.cpu().numpy()


def _steps_before_a_look(damping: float, tol: float) -> int:
    """The number of steps after which Chebyshev's iteration may come below `tol`."""
    rate = damping / (1 + math.sqrt(1 - damping * damping))
    return int(math.log(tol) / math.log(rate)) if 0 < rate < 1 and tol < 1 else 0


def _pull(blocks: Blocks) -> tuple[CSR, torch.Tensor]:
    """The transpose, and whether each block equals its transpose, weights bit by bit: bool[B]."""
    csr, other = blocks.csr, transpose(blocks.csr)
    differ = csr.indices != other.indices
    if csr.weight is not None and other.weight is not None:
        differ |= csr.weight != other.weight
    row = row_of_entry(csr)
    differ |= row != row_of_entry(other)
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    differing = torch.zeros(blocks.offsets.shape[0] - 1, dtype=torch.int32, device=differ.device)
    return other, differing.scatter_reduce_(0, block[row], differ.int(), "amax") == 0


def _weights(csr: CSR) -> torch.Tensor:
    """The weights f64[E], ones if there are none."""
    if csr.weight is None:
        return torch.ones(csr.m, dtype=torch.float64, device=csr.indptr.device)
    return csr.weight.double()
