"""Tiles of PageRank by a sparse matrix product: torch and Triton on any device."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import is_cpu, pick_implementation
from gpu_rag_kernels.pagerank import Restart, ppr_step

from gpu_rag.graph.pagerank.inputs import PageRankGraph, Teleport, restart_rows
from gpu_rag.graph.pagerank.plan import COARSE_GAP, ROUNDING, Array, Plan

F16_RANGE = 2.0**14  # f16 ends at 4 times this; an iterate stays below 3 times the maximum of pi / degree


PROVED, PROVED_BYTES = (16, 64), 1 << 30  # fewest and most columns in f64 at a time, and the memory of more than fewest
LAST_ROW = 2**31 - 1
MAX_RECORDED = 1 << 23  # maximum numbers of a recorded state: a larger step takes longer than its launches, and by
# `auto` begins in f16: it does not fit a GPU's L2, and is bound by the bytes that it reads
RECORDINGS = 8  # maximum recordings of a graph: each has its own states
_RECORDING = Lock()


@dataclass(frozen=True)
class Recording:
    """A CUDA graph of steps, and the tensors that it reads and writes. after: the tensors with x and y at the end."""

    graph: Any
    x: torch.Tensor
    y: torch.Tensor
    restart: Restart
    after: tuple[torch.Tensor, torch.Tensor]


def proved_columns(n: int) -> int:
    """Columns of a state of n nodes that are in f64 at a time."""
    return min(max(PROVED_BYTES // (8 * max(n, 1)), PROVED[0]), PROVED[1])


def tile_bytes(n: int, n_rows: int, width: int, dtype: torch.dtype) -> int:
    """Bytes that a tile of `width` questions, which restart at `n_rows` nodes, allocates in Triton during the proof,
    its peak: two states and the restart, the degrees and a row number of each node; and for `proved_columns` questions
    the state, its proof in f64, the restart and the sums of 8 rows."""
    size, proved = dtype.itemsize, min(proved_columns(n), width)
    copied = proved * (n + n_rows) * size if proved < width else 0
    return width * size * (2 * n + n_rows) + 20 * n + 9 * proved * n + copied


class MatrixTile:
    """A `Tile` of `width` questions. result: f32[>= questions, hi - lo] on the graph's device."""

    def __init__(
        self, graph: PageRankGraph, plan: Plan, teleport: Teleport, width: int, dtype: torch.dtype,
        questions: Array, result: torch.Tensor, lo: int,
    ):  # fmt: skip
        self.plan, self.damping, self.result, self.lo = plan, plan.damping, result, lo
        self.width, self.graph, self.proved = width, graph, proved_columns(graph.n)
        self.slack, self.coarsest = (ROUNDING, COARSE_GAP) if dtype == torch.float32 else (0.0, 0.0)
        self.scale = graph.scale[:, None]
        self.degrees = _degrees_of(graph)
        self.x = torch.zeros(graph.n, width, dtype=dtype, device=graph.device)
        put = self._start_in_lists if teleport.spread is None else self._start_everywhere
        self.restart = put(teleport, questions)
        self.y = torch.zeros_like(self.x)

    def _begun(self, nodes: torch.Tensor | slice, pi: torch.Tensor) -> torch.Tensor:
        """The initial state at nodes with probabilities pi f64[S, B]; a dangling node starts at its own fixpoint."""
        if self.plan.known_mass:
            pi = torch.where(self.graph.dangling[nodes, None], pi * (1 - self.plan.damping), pi)
        return (pi / self.scale[nodes]).to(self.x.dtype)

    def _start_in_lists(self, teleport: Teleport, questions: Array) -> Restart:
        """The state and the restart of seeds, which are at few nodes."""
        nodes, pi = restart_rows(teleport, questions, self.width, self.graph)
        row_of_node = torch.full((self.graph.n,), -1, dtype=torch.int32, device=self.graph.device)
        row_of_node[nodes] = torch.arange(nodes.shape[0], dtype=torch.int32, device=self.graph.device)
        self.x[nodes] = self._begun(nodes, pi)
        return Restart(pi.to(self.x.dtype), row_of_node, nodes)

    def _start_everywhere(self, teleport: Teleport, questions: Array) -> Restart:
        """The state and restart of `Restarts`, some questions at a time; equal `nodes` share a row. No wait."""
        part, total = teleport.shares(questions)
        n, (batch, places), size = self.graph.n, part.nodes.shape, part.last.shape[1]
        first, device = n - size, self.graph.device
        row_of_node = torch.full((n,), LAST_ROW, dtype=torch.int32, device=device)
        row = torch.arange(batch * places, dtype=torch.int32, device=device)
        row_of_node.scatter_reduce_(0, part.nodes.flatten(), row, "amin")
        row_of_node = torch.where(row_of_node == LAST_ROW, -1, row_of_node)
        row_of_node[first:] = torch.arange(batch * places, batch * places + size, dtype=torch.int32, device=device)
        rows = torch.zeros(batch * places + size, self.width, dtype=self.x.dtype, device=device)
        lane = torch.arange(batch, device=device)[:, None]
        pi = part.mass.double() / total
        rows[row_of_node[part.nodes].long(), lane] = pi.to(rows.dtype)
        self.x[part.nodes, lane] = self._begun(part.nodes.flatten(), pi.view(-1, 1)).view(batch, places)
        for a in range(0, batch, PROVED[0]):
            b = min(a + PROVED[0], batch)
            pi = part.last[a:b].double().div_(total[a:b]).T
            rows[batch * places :, a:b] = pi
            self.x[first:, a:b] = self._begun(slice(first, n), pi)
        return Restart(rows, row_of_node)

    def step_in_f16(self, n_steps: int) -> None:
        """Do the first steps of all columns, with a state of half the bytes of f32 and sums in f32.

        V = q / degree is at most 1 / the least degree, and three times that during Chebyshev's iteration (an iterate is
        no farther from the fixpoint than the start, in the norm of sqrt(degree) V). Multiplied by `scale` it is in the
        range of f16. The following steps recover the parts that are rounded off or lost below 2^-24. The rounding error
        of each step fades like the error of the start, see `pagerank.plan`.
        """
        key = ("f16 steps", n_steps, self.width, self.damping)
        if key not in self.graph.views:
            smallest = float(self.scale.min()) if len(self.scale) else 1.0
            omegas = self._of_columns(self.plan.omega[:n_steps]).to(torch.float32)
            self.graph.views[key] = F16_RANGE * 2.0 ** math.floor(math.log2(smallest)), omegas
        scale, omegas = self.graph.views[key]
        kind = self.x.dtype
        self.x, self.y = self.x.mul_(scale).half(), self.y.mul_(scale).half()
        self._steps(omegas, torch.float32, scale)
        self.x, self.y = self.x.to(kind).div_(scale), self.y.to(kind).div_(scale)

    def _of_columns(self, steps: Array) -> torch.Tensor:
        """f64[K, width] on the device: the relaxation f64[K] of each step, for all columns."""
        return torch.from_numpy(steps).to(self.graph.device)[:, None].repeat(1, self.width)

    def leap(self, steps: Array, n_fine: int) -> None:
        """See `Leap`. The factors of the steps are kept on the device. On a GPU, the steps of small states, whose
        launches would take longer than the work, become one launch."""
        key = ("leap", tuple(steps), n_fine, self.width, self.damping, self.x.dtype)
        if key not in self.graph.views:
            omegas = self._of_columns(steps)
            self.graph.views[key] = omegas, omegas.to(self.x.dtype)
        fine, coarse = self.graph.views[key]
        cut = len(steps) - n_fine

        def all_steps() -> None:
            self._steps(coarse[:cut], self.x.dtype)
            self._steps(fine[cut:], torch.float64)

        device = self.x.device
        small = 0 < self.x.numel() <= MAX_RECORDED and not is_cpu(device)
        if small and pick_implementation(device, family="loops") == "triton":
            with torch.cuda.device(device), _RECORDING:  # a recording has one set of tensors
                self._recorded(key, all_steps)
        else:
            all_steps()

    def _recorded(self, key: tuple[object, ...], all_steps: Callable[[], None]) -> None:
        """Run `all_steps` as a CUDA graph over its own tensors, one graph for each power of two of restart rows. The
        first call of a key does the steps one by one, which compiles kernels and makes plans; the second call records
        them."""
        own, n_rows = (self.x, self.y, self.restart), 1 << max(self.restart.rows.shape[0] - 1, 0).bit_length()
        recordings: dict[object, Recording | None] = self.graph.views.setdefault("recordings", {})
        key = (*key, n_rows)
        if key in recordings and recordings[key] is None and "not recorded" not in self.graph.views:
            recordings[key] = self._record(n_rows, all_steps)
            self.x, self.y, self.restart = own
        recordings[key] = recording = recordings.pop(key, None)  # the last used one is the last
        if len(recordings) > RECORDINGS:
            del recordings[next(iter(recordings))]
        if recording is None:
            all_steps()
            return
        recording.x.copy_(own[0])
        recording.y.copy_(own[1])
        recording.restart.rows[: own[2].rows.shape[0]] = own[2].rows
        recording.restart.at.copy_(own[2].at)
        recording.graph.replay()
        own[0].copy_(recording.after[0])
        own[1].copy_(recording.after[1])

    def _record(self, n_rows: int, all_steps: Callable[[], None]) -> Recording | None:
        """A recording; None if CUDA cannot record (warns once for each graph): then steps are done one by one."""
        rows = torch.zeros(n_rows, self.width, dtype=self.x.dtype, device=self.x.device)
        x, y, restart = torch.zeros_like(self.x), torch.zeros_like(self.y), Restart(rows, self.restart.at.clone())
        self.x, self.y, self.restart = x, y, restart
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                all_steps()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.graph.views["not recorded"] = str(error)
            warnings.warn(f"PageRank goes without a CUDA graph: {error}", RuntimeWarning, stacklevel=2)
            return None
        return Recording(graph, x, y, restart, (self.x, self.y))

    def _steps(self, omegas: torch.Tensor, sums: torch.dtype, scale: float = 1.0) -> None:
        degree, inverse = self.degrees[sums]
        for omega in omegas:
            ppr_step(
                self.graph.pull, self.x, self.y, self.restart, self.damping, degree, inverse, omega, scale=scale,
                measured=False,
            )  # fmt: skip
            self.x, self.y = self.y, self.x

    def sweep(self, omegas: Array, fine: bool) -> Array:
        """See `Tile.sweep`."""
        degree, inverse = self.degrees[torch.float64 if fine else self.x.dtype]
        change = None
        for left, omega in zip(range(len(omegas) - 1, -1, -1), torch.from_numpy(omegas).to(inverse)):  # one copy
            change = ppr_step(
                self.graph.pull, self.x, self.y, self.restart, self.damping, degree, inverse, omega, measured=left == 0
            )
            self.x, self.y = self.y, self.x
        return np.full(self.width, np.inf) if change is None else np.asarray(change.cpu().numpy())

    def check(self, rows: Array) -> tuple[Array, Array]:
        """See `Tile.check`. Some columns at a time, so that f64 takes only a part of the memory of the states."""
        numbers = torch.zeros(2, self.width, dtype=torch.float64, device=self.graph.device)
        for a in range(0, self.width, self.proved):
            part = slice(a, min(a + self.proved, self.width))
            if (rows[part] >= 0).any():
                self._prove(part, rows[part], numbers[:, part])
        gaps, mass = numbers.cpu().numpy()  # the one wait
        return gaps, mass

    def _prove(self, part: slice, rows: Array, numbers: torch.Tensor) -> None:
        """Run `check` for some columns; numbers: f64[2, columns], gaps and masses."""
        degree, inverse = self.degrees[torch.float64]
        x, restart = self.x[:, part].contiguous(), self.restart.columns(part)
        q = torch.zeros_like(x, dtype=torch.float64)
        ones = torch.ones(q.shape[1], dtype=torch.float64, device=q.device)
        gap = ppr_step(self.graph.pull, x, q, restart, self.damping, degree, inverse, ones)
        q.mul_(degree[:, None])
        numbers[0] = torch.inf if gap is None else gap
        numbers[1] = q.sum(0)
        proved, lanes = q[self.lo : self.lo + self.result.shape[1]].T, np.flatnonzero(rows >= 0)
        to = rows[lanes]
        if to[-1] - to[0] == lanes[-1] - lanes[0] == len(lanes) - 1:  # as in the first check: nothing to upload
            self.result[to[0] : to[-1] + 1] = proved[lanes[0] : lanes[-1] + 1]
        else:
            row, lane = (torch.from_numpy(v).to(q.device) for v in (to, lanes))
            self.result[row] = proved[lane].float()


def _degrees_of(graph: PageRankGraph) -> dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]]:
    """Degrees and their inverses, [N], in f32 and f64; made once for each graph: 16 bytes a node."""
    if "degrees" not in graph.views:
        graph.views["degrees"] = {
            t: (graph.scale.to(t), (1 / graph.scale).to(t)) for t in (torch.float32, torch.float64)
        }
    degrees: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = graph.views["degrees"]
    return degrees
