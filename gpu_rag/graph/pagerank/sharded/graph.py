"""A graph whose rows are dealt out to the ranks of a process group, and the numbers that ranks exchange.

It is made from a whole graph, or from edges that are spread over the ranks: no rank ever holds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gpu_rag_kernels.dispatch import kernel

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.csr import csr_from_edges, degrees, row_of_entry
from gpu_rag.graph.pagerank.inputs import PageRankGraph, fits_f32, prepare
from gpu_rag.types import CSR

Array = np.ndarray[Any, Any]

LEAST_CHUNK = 256  # rows that are summed together, at least; a power of two
MOST_CHUNKS = 1024  # of a graph: every step sends one f64 a chunk and question


@dataclass(frozen=True)
class Layout:
    """The rows of a graph on the ranks of a process group: those lo <= v < hi are this rank's.

    bounds: the first row of each rank, and N. group: None for one rank alone. A state of all ranks has `stride` places
    for each, as many as the longest has rows: node v of rank r lies at r * stride + v - bounds[r].
    """

    rank: int
    bounds: tuple[int, ...]
    group: Any

    @property
    def n(self) -> int:
        """Number of nodes of the whole graph."""
        return self.bounds[-1]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.bounds) - 1

    @property
    def sizes(self) -> list[int]:
        """Number of nodes of each rank."""
        return [b - a for a, b in zip(self.bounds[:-1], self.bounds[1:])]

    @property
    def stride(self) -> int:
        """Places of a rank in the state of all ranks."""
        return max(1, *self.sizes)

    @property
    def lo(self) -> int:
        """First node of this rank."""
        return self.bounds[self.rank]

    @property
    def hi(self) -> int:
        """One past the last node of this rank."""
        return self.bounds[self.rank + 1]

    @property
    def rows(self) -> int:
        """Number of nodes of this rank."""
        return self.hi - self.lo

    @property
    def own(self) -> slice:
        """The places of this rank's nodes in the state of all ranks."""
        return slice(self.rank * self.stride, self.rank * self.stride + self.rows)

    def owner_of(self, nodes: torch.Tensor) -> torch.Tensor:
        """The rank of each node: i64."""
        return torch.searchsorted(torch.tensor(self.bounds[1:], device=nodes.device), nodes, right=True)

    def places_of(self, nodes: torch.Tensor) -> torch.Tensor:
        """i32: the places of nodes i64 in the state of all ranks."""
        owner = self.owner_of(nodes)
        return (owner * self.stride + nodes - torch.tensor(self.bounds, device=nodes.device)[owner]).int()

    def nodes_of(self, places: torch.Tensor) -> torch.Tensor:
        """The nodes at places of the state: i64, the inverse of what `pull` holds."""
        places = places.long()
        first = torch.tensor(self.bounds, device=places.device)
        return first[places // self.stride] + places % self.stride

    def gather(self, own: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[world, ...]: `own`, of one shape and dtype on all ranks, from every rank; in `out` if given."""
        return gathered(own, self.group, out)


@dataclass(frozen=True)
class Shard(Layout):
    """The rows of a graph on one rank. Made by `shard_graph` or `shard_edges` on every rank.

    pull: own rows of the transposed adjacency; a column is the place of its node in the state of all ranks. scale:
    f64[hi - lo], out-degree, 1 where it is 0. dangling: bool[N] on the CPU, nodes without outgoing weight. entries: of
    all ranks. in_range: whether an f32 state can hold 1 / degree of every node.
    """

    pull: CSR
    scale: torch.Tensor
    dangling: torch.Tensor
    symmetric: bool
    entries: int
    in_range: bool

    @property
    def device(self) -> torch.device:
        """The device of the rows, and so of results."""
        return self.pull.indptr.device

    @property
    def has_dangling(self) -> bool:
        """Whether any node of the graph has no outgoing weight."""
        return bool(self.dangling.any())

    def product(self, x: torch.Tensor, source: torch.Tensor, damping: float) -> torch.Tensor:
        """damping A x + (1 - damping) source for own rows: [rows, B]. x: [world * stride, B]; source: [rows, B]."""
        if self.rows == 0:
            return torch.zeros_like(source)
        # the op itself takes square matrices only; its kernels take any
        return kernel("ppr_spmm", "ppr_spmm", x.device)(self.pull, x, source, damping)[: self.rows]

    def gather_state(self, own: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[world * stride, B]: the state of all ranks from own rows [rows, B]; places of no node are zero. out: a state
        that is overwritten."""
        padded = own.new_zeros(self.stride, own.shape[1])
        padded[: self.rows] = own
        part = None if out is None else out.view(self.world, *padded.shape)
        return self.gather(padded, part).flatten(0, 1)

    def total(self, values: torch.Tensor) -> Array:
        """f64[B]: the sum of values [rows, B] over all nodes, with the same bits on every rank.

        Rows are added in chunks of a size that depends on N alone, and chunks by halves: no bit depends on how many
        ranks there are.
        """
        chunk = chunk_of(self.n)
        mine = _chunks(self.rows, chunk)
        part = torch.zeros(mine * chunk, values.shape[1], dtype=torch.float64, device=values.device)
        part[: self.rows] = values
        counts = [_chunks(size, chunk) for size in self.sizes]
        sums = part.new_zeros(max(1, *counts), values.shape[1])
        sums[:mine] = _halved(part.view(mine, chunk, values.shape[1]))
        everything = self.gather(sums)
        chunks = torch.cat([everything[r, :count] for r, count in enumerate(counts)])
        whole = chunks.new_zeros(1 << max(0, (len(chunks) - 1).bit_length()), values.shape[1])
        whole[: len(chunks)] = chunks
        return np.asarray(_halved(whole[None])[0].cpu().numpy())

    def agree(self, what: str, number: int) -> None:
        """Raises BadInput on every rank unless all ranks give one number, below 2^63."""
        numbers = self.gather(torch.tensor(number, dtype=torch.int64, device=self.device)).tolist()
        if len(set(numbers)) > 1:
            odd = next(r for r, given in enumerate(numbers) if given != numbers[0])
            raise BadInput(f"ranks were given different {what}", given=f"rank {odd} unlike rank 0", expected="one call")


def shard_graph(graph: CSR | PageRankGraph, *, group: Any = None, device: torch.device | str | None = None) -> Shard:
    """This rank's rows of a graph. To be called by every rank of the group, with the same graph.

    graph: the adjacency, or `prepare` of it, in the memory of the host: it may be mapped from a file, since a rank
    reads all row pointers but only its own entries (of a prepared graph). group: a process group of torch.distributed;
    None takes the default one, or one rank alone where there is none. device: where the rows go; that of the graph if
    None. It must suit the group: nccl needs GPUs, gloo the CPU.
    Ranks take stretches of rows with equal (entries + rows * mean degree), so none has more than about twice the mean
    of either. Raises BadInput (graph; ranks that were given different graphs, as far as row pointers and the total
    weights of nodes tell: a rank does not read the columns of others). Memory: 2 / ranks of the graph.
    """
    graph = prepare(graph)
    layout = layout_of(graph.pull.indptr, group)
    target = graph.device if device is None else torch.device(device)
    made = Shard(
        **vars(layout), pull=own_rows(graph.pull, layout, target), scale=graph.scale[layout.lo : layout.hi].to(target),
        dangling=graph.dangling.cpu(), symmetric=graph.symmetric, entries=graph.pull.m, in_range=graph.in_range,
    )  # fmt: skip
    flags = int(graph.pull.indptr.sum()) + int(graph.scale.double().view(torch.int64).sum())  # wraps, equally on all
    made.agree("graphs", (flags + graph.n + int(graph.symmetric)) % 2**62)
    return made


def shard_edges(
    src: torch.Tensor,
    dst: torch.Tensor,
    n: int,
    weight: torch.Tensor | None = None,
    *,
    undirected: bool = True,
    group: Any = None,
) -> Shard:
    """This rank's rows of the graph of all ranks' edges. To be called by every rank, each with edges of its own.

    src, dst, n, weight and undirected as in `csr_from_edges`, on the device where rows shall be; self loops are left
    out; an edge given several times, by one rank or by several, is one entry, its weights summed by rank. A rank may
    give no edges; weights are given by all ranks or by none. group as in `shard_graph`. Ranks send each edge to the
    rank of its head (of a directed graph also to that of its tail, for the out-degrees), and 8 bytes a node.
    Raises BadInput (edges; ranks that do not agree on n, undirected or weights). Memory: a few times a rank's edges,
    and 8 N bytes a few times.
    """
    mine = csr_from_edges(src, dst, n, weight, undirected=undirected)
    group = group_of(group)
    kinds = gathered(torch.tensor([n, int(undirected), int(weight is None)], device=src.device), group)
    if bool((kinds != kinds[0]).any()):
        given = f"(n, undirected, no weights) {kinds.tolist()} by rank"
        raise BadInput("ranks do not agree on their graph", given=given, expected="the same of every rank")
    tails, heads = row_of_entry(mine), mine.indices.long()
    counts = gathered(torch.bincount(heads, minlength=n), group).sum(0)  # an edge of several ranks counts for each
    layout = layout_of(offsets_of(counts), group)
    pull = _rows_of(heads, tails, mine.weight, layout)
    degree = degrees(pull if undirected else _rows_of(tails, heads, mine.weight, layout))
    dangling = degree <= 0
    scale = torch.where(dangling, 1.0, degree)
    flags = torch.ones(layout.stride, dtype=torch.uint8, device=src.device)
    flags[: layout.rows] = dangling
    whole = torch.cat([part[:size] for part, size in zip(layout.gather(flags), layout.sizes)])
    facts = layout.gather(torch.tensor([pull.m, int(fits_f32(scale))], device=src.device))
    return Shard(
        **vars(layout), pull=CSR(pull.indptr, layout.places_of(pull.indices.long()), pull.weight), scale=scale,
        dangling=whole.bool().cpu(), symmetric=undirected, entries=int(facts[:, 0].sum()),
        in_range=bool(facts[:, 1].all()),
    )  # fmt: skip


def _rows_of(rows: torch.Tensor, columns: torch.Tensor, weight: torch.Tensor | None, layout: Layout) -> CSR:
    """Own rows of the matrix of all ranks' entries (rows, columns): entries go to the rank of their row."""
    if layout.group is not None:
        owner = layout.owner_of(rows)
        order = torch.argsort(owner, stable=True)
        sent = torch.bincount(owner, minlength=layout.world)
        arriving, leaving = layout.gather(sent)[:, layout.rank].tolist(), sent.tolist()

        def exchanged(values: torch.Tensor) -> torch.Tensor:
            found = values.new_empty(sum(arriving))
            dist.all_to_all_single(found, values[order], arriving, leaving, group=layout.group)
            return found

        rows, columns = exchanged(rows), exchanged(columns)
        weight = None if weight is None else exchanged(weight)
    whole = csr_from_edges(rows, columns, layout.n, weight, undirected=False)
    return CSR(whole.indptr[layout.lo : layout.hi + 1].clone(), whole.indices, whole.weight)


def own_rows(pull: CSR, layout: Layout, device: torch.device) -> CSR:
    """The rows of this rank on a device; a column becomes the place of its node in the state of all ranks."""
    indptr = pull.indptr[layout.lo : layout.hi + 1]
    first, last = int(indptr[0]), int(indptr[-1])
    weight = None if pull.weight is None else pull.weight[first:last].to(device)
    return CSR((indptr - first).to(device), layout.places_of(pull.indices[first:last].to(device).long()), weight)


def chunk_of(n: int) -> int:
    """Rows of a chunk of a graph of n nodes."""
    chunk = LEAST_CHUNK
    while chunk * MOST_CHUNKS < n:
        chunk *= 2
    return chunk


def bounds_of(indptr: torch.Tensor, world: int) -> tuple[int, ...]:
    """The first row of each rank, and N: whole chunks, of about equal (entries + rows * mean degree)."""
    n, m = indptr.shape[0] - 1, int(indptr[-1])
    starts = torch.arange(0, n, chunk_of(n), device=indptr.device)
    mean = max(1.0, m / max(n, 1))
    cost = indptr[starts].double() + starts * mean
    share = (m + n * mean) / world
    targets = torch.arange(1, world, device=cost.device, dtype=torch.float64) * share
    cuts = torch.searchsorted(cost, targets).tolist()
    return (0, *(int(starts[c]) if c < len(starts) else n for c in cuts), n)


def layout_of(indptr: torch.Tensor, group: Any) -> Layout:
    """The rows of each rank of the group, see `bounds_of`. Raises BadInput where a state would have too many."""
    group = group_of(group)
    rank, world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    layout = Layout(rank, bounds_of(indptr, world), group)
    if world * layout.stride > 2**31 - 1:
        raise BadInput("the state has too many rows", given=f"{world} of {layout.stride}", expected="below 2^31")
    return layout


def group_of(group: Any) -> Any:
    """The process group; no group is the default one, or None where there is none."""
    return dist.group.WORLD if group is None and dist.is_available() and dist.is_initialized() else group


def gathered(own: torch.Tensor, group: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """[world, ...]: `own`, of one shape and dtype on all ranks, from every rank; in `out` if given."""
    world = 1 if group is None else dist.get_world_size(group)
    everything = own.new_empty((world, *own.shape)) if out is None else out
    if group is None:
        everything[0] = own
        return everything
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name up to torch 2.12
    gather(everything.view(-1), own.contiguous().view(-1), group=group)
    return everything


def own_edges(shard: Shard) -> tuple[torch.Tensor, torch.Tensor]:
    """(tails, heads) i64 of the edges that lead to nodes of this rank, in the order of its entries."""
    return shard.nodes_of(shard.pull.indices), row_of_entry(shard.pull) + shard.lo


def _chunks(rows: int, chunk: int) -> int:
    return -(-rows // chunk)


def _halved(values: torch.Tensor) -> torch.Tensor:
    """[A, B] of [A, 2^k, B]: sums by adding the second half of the middle axis to the first, k times."""
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        values = values[:, :half] + values[:, half:]
    return values[:, 0]
