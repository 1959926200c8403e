"""The inputs of PageRank: a graph, checked and transposed; and the restart of each question, checked and normalised."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.graph.common.arrays import ANY_FLOAT, are_masses, check_form, to_device, to_host
from gpu_rag.graph.common.segments import SegmentSum, row_sums
from gpu_rag.graph.csr import check_csr, degrees, transpose
from gpu_rag.graph.ragged import check_ragged
from gpu_rag.lazy import torch
from gpu_rag.types import CSR, Ragged

Array = np.ndarray[Any, Any]
SUMMED, CPU_SUMMED = 1 << 25, 1 << 22  # numbers of a restart that are in f64 at a time; a CPU has a cache for few


@dataclass(frozen=True)
class Restarts:
    """Restarts of B questions on the device of a graph of N nodes: at a few nodes for each question, and on the last P
    nodes.

    nodes: i64[B, S], below N - P; mass: float[B, S] >= 0; if a node is repeated in a row, only one of its places has
    mass. last: float[B, P] >= 0, for the nodes from N - P on. Nothing has the size B N.
    """

    nodes: torch.Tensor
    mass: torch.Tensor
    last: torch.Tensor


@dataclass(frozen=True)
class Teleport:
    """The distributions pi of B questions: lists of (node, mass) on the CPU, or `Restarts` on the device of the graph.

    offsets: i64[B+1]; nodes: i64[T]; mass: f64[T]; a list sums to 1, or is empty. spread: restarts, or None for lists;
    sums, and total on the device: f64[B], the sums of the restarts, where 0 means an empty list; lost: f64[B], the part
    of the sums on nodes without outgoing weight.
    """

    batch: int
    offsets: Array
    nodes: Array
    mass: Array
    spread: Restarts | None = None
    total: torch.Tensor | None = None
    sums: Array = field(default_factory=lambda: np.zeros(0))
    lost: Array = field(default_factory=lambda: np.zeros(0))

    def is_empty(self, questions: Array) -> Array:
        """Whether each question restarts nowhere: bool."""
        if self.spread is not None:
            return np.asarray(self.sums[questions] == 0)
        return np.asarray(self.offsets[questions] == self.offsets[questions + 1])

    def is_everywhere(self, questions: Array) -> Array:
        """Whether each question restarts on all of the last nodes: bool; not for lists."""
        if self.spread is None:
            return np.zeros(len(questions), bool)
        return np.asarray((rows_of(self.spread.last, questions) > 0).all(1).cpu().numpy())

    def n_rows(self, width: int) -> int:
        """The maximum number of nodes at which the questions of a tile restart."""
        if self.spread is None:
            return int(np.sort(np.diff(self.offsets))[-width:].sum()) if self.batch else 0
        return width * self.spread.nodes.shape[1] + self.spread.last.shape[1]

    def entries(self, questions: Array) -> tuple[Array, Array, Array]:
        """(node, lane, mass) of the given questions; lane = position in `questions`; for seeds only."""
        first = self.offsets[questions]
        lengths = self.offsets[questions + 1] - first
        lane = np.repeat(np.arange(len(questions)), lengths)
        chosen = np.arange(len(lane)) + (first + lengths - lengths.cumsum())[lane]
        return self.nodes[chosen], lane, self.mass[chosen]

    def shares(self, questions: Array) -> tuple[Restarts, torch.Tensor]:
        """The restarts of the given questions, and their sums f64[Q, 1], with 1 for 0. A place without mass repeats a
        place with mass, or node 0, so that a value may be written for every place."""
        if self.spread is None or self.total is None:
            raise TypeError("lists have no shares")
        given = (self.spread.nodes, self.spread.mass, self.spread.last, self.total)
        nodes, mass, last, total = (rows_of(part, questions) for part in given)
        if nodes.shape[1]:
            kept = mass > 0
            full = kept.long().argmax(1, keepdim=True)
            nodes = torch.where(kept, nodes, torch.where(kept.any(1, keepdim=True), nodes.gather(1, full), 0))
            mass = torch.where(kept, mass, mass.gather(1, full))
        return Restarts(nodes, mass, last), torch.where(total == 0, 1.0, total)[:, None]

    def mass_on(self, nodes: torch.Tensor, questions: Array) -> Array:
        """The mass of pi on the nodes true in `nodes` bool[N], those without outgoing weight: f64 for each question."""
        if self.spread is None:
            node, lane, mass = self.entries(questions)
            is_true = nodes[torch.from_numpy(node).to(nodes.device)].cpu().numpy()
            return np.bincount(lane[is_true], mass[is_true], minlength=len(questions)).astype(np.float64)
        return np.asarray(self.lost[questions] / np.where(self.is_empty(questions), 1.0, self.sums[questions]))


def rows_of(tensor: torch.Tensor, rows: Array) -> torch.Tensor:
    """tensor[rows]; consecutive rows, as in a tile, are not copied."""
    first, size = (int(rows[0]), len(rows)) if len(rows) else (0, 0)
    if size and int(rows[-1]) - first != size - 1:
        return tensor[torch.from_numpy(rows).to(tensor.device)]
    return tensor[first : first + size]


def teleport_of_seeds(n: int, seeds: Ragged, weights: Ragged | None) -> Teleport:
    """Check `seeds`, nodes below n, and `weights`; a seed given twice in a list counts twice. Raises BadInput."""
    check_ragged(seeds, "seeds", n=n)
    mass = None
    if weights is not None:
        if weights.values.shape != seeds.values.shape or not torch.equal(weights.offsets, seeds.offsets):
            raise BadInput("rows of weights do not match rows of seeds", expected="equal offsets")
        if not weights.values.is_floating_point():
            raise BadInput("seed weights are not floats", given=weights.values.dtype, expected="f32 or f64")
        mass = weights.values.detach().cpu().double().contiguous().numpy()
    offsets, nodes = (a.long().contiguous().numpy() for a in to_host(seeds.offsets.detach(), seeds.values.detach()))
    return Teleport(len(offsets) - 1, offsets, nodes, _shares(offsets, mass))


def _shares(offsets: Array, mass: Array | None) -> Array:
    """Weights f64[T], 1 each if None, divided by the sum of their list. Raises BadInput."""
    lengths = np.diff(offsets)
    mass = np.ones(offsets[-1]) if mass is None else mass
    if not np.all(np.isfinite(mass) & (mass >= 0)):
        raise BadInput("a seed weight is negative or not finite", expected="finite and >= 0")
    row = np.repeat(np.arange(len(lengths)), lengths)
    total = np.bincount(row, mass, minlength=len(lengths))
    if np.any((total <= 0) & (lengths > 0)):
        first = int(np.argmax((total <= 0) & (lengths > 0)))
        raise BadInput("the seed weights of a row sum to zero", given=f"row {first}", expected="a positive sum")
    _check_sums(total, "seed weights")
    return np.asarray(mass / total[row])


def _check_sums(total: Array, what: str) -> None:
    """Raise BadInput if the finite numbers of a row have no finite sum."""
    if not np.all(np.isfinite(total)):
        row = int(np.argmax(~np.isfinite(total)))
        raise BadInput(f"the {what} of a row are too large", given=f"row {row}", expected="a sum below 1.8e308")


def teleport_of_prior(graph: PageRankGraph, prior: torch.Tensor | Restarts) -> Teleport:
    """Check a dense prior [B, N], or restarts; one wait for the device. A row's sum has the same bits in any batch."""
    what = "the restarts do not fit the graph"
    if isinstance(prior, torch.Tensor):
        check_form(prior, "the prior does not fit the graph", ANY_FLOAT, ["B", graph.n], graph.device)
        nodes = torch.zeros(prior.shape[0], 0, dtype=torch.int64, device=graph.device)
        prior = Restarts(nodes, nodes.double(), prior)
    nodes, mass, last = prior.nodes, prior.mass, prior.last
    check_form(last, what, ANY_FLOAT, ["B", "P"], graph.device)
    check_form(nodes, what, ["i64"], [last.shape[0], "S"], graph.device)
    check_form(mass, what, ANY_FLOAT, nodes.shape, graph.device)
    first = graph.n - last.shape[1]
    sound = are_masses(last) & are_masses(mass)
    inside = ((nodes >= 0) & (nodes < first)).all()
    total = row_sums(mass.double()) + _sums_of_rows(last)
    lost = torch.zeros_like(total)
    if graph.has_dangling and first >= 0:
        ends = graph.dangling_nodes[graph.n_dangling_before(first) :] - first
        lost = _sums_of_rows(last[:, ends])
        lost += row_sums(torch.where(graph.dangling[nodes.clamp(0, max(graph.n - 1, 0))], mass.double(), 0.0))
    numbers = torch.cat([total, lost, sound.double()[None], inside.double()[None]]).cpu().numpy()
    if first < 0 or not numbers[-1]:
        raise BadInput("a node of a restart is not in the graph", expected=f"at least 0 and below {first}")
    if not numbers[-2]:
        raise BadInput("the prior has a negative value or one that is not finite", expected="finite and >= 0")
    sums, without = np.split(numbers[:-2], 2)
    _check_sums(sums, "values of the prior")
    nothing = np.zeros(0, np.int64)
    return Teleport(len(sums), nothing, nothing, nothing.astype(np.float64), prior, total, sums, without)


def _sums_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Sums f64[B] in an order that does not depend on the number of rows, as a device's own sum may."""
    width, most = rows.shape[1], CPU_SUMMED if rows.device.type == "cpu" else SUMMED
    parts = rows.split(max(most // max(width, 1), 1))
    sums = [
        SegmentSum(torch.full((len(part),), width, device=rows.device), part.numel())(part.double().reshape(-1))
        for part in parts
    ]
    return torch.cat(sums)


def teleport_of(
    graph: PageRankGraph, seeds: Ragged | None, weights: Ragged | None, prior: torch.Tensor | Restarts | None
) -> Teleport:
    """The teleport from exactly one of `seeds` and `prior`."""
    if (seeds is None) == (prior is None):
        raise UsageError("PageRank needs seeds or a prior", given="both" if seeds is not None else "neither")
    if seeds is not None:
        return teleport_of_seeds(graph.n, seeds, weights)
    if weights is not None or prior is None:
        raise UsageError("weights go with seeds", given="weights and a prior")
    return teleport_of_prior(graph, prior)


def restart_rows(
    teleport: Teleport, questions: Array, width: int, graph: PageRankGraph
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nodes at which any of the questions restarts, i64[S] ascending, and their probabilities f64[S, width]."""
    if teleport.spread is None:
        node, lane, mass = teleport.entries(questions)
        nodes, row = np.unique(node, return_inverse=True)
        places, entry = np.unique(row * width + lane, return_inverse=True)  # a node may be in a list twice
        pi = torch.zeros(len(nodes), width, dtype=torch.float64, device=graph.device)
        summed = np.bincount(entry, mass, len(places))
        on_device, place, value = to_device(graph.device, nodes, places, summed)
        pi.view(-1)[place] = value
        return on_device, pi
    part, total = teleport.shares(questions)
    few_nodes, place = torch.unique(part.nodes, return_inverse=True)
    last = torch.arange(graph.n - part.last.shape[1], graph.n, device=graph.device)
    probabilities = torch.zeros(len(few_nodes) + len(last), width, dtype=torch.float64, device=graph.device)
    lanes = torch.arange(len(questions), device=graph.device)
    probabilities[place, lanes[:, None]] = part.mass.double() / total
    probabilities[len(few_nodes) :, : len(questions)] = (part.last.double() / total).T
    return torch.cat([few_nodes, last]), probabilities


MAX_DEGREE = 1e30  # larger degrees, and degrees below 1 / MAX_DEGREE, leave the range of an f32 state


@dataclass(frozen=True)
class PageRankGraph:
    """A CSR prepared by `prepare`. Make one for each graph and pass it to the ops instead of the CSR.

    pull: the transposed adjacency (the adjacency itself if symmetric); scale: f64[N], out-degree, or 1 if it is 0;
    dangling: bool[N], nodes without outgoing weight; symmetric: whether methods for undirected graphs apply.
    documents_from: the first of the last nodes, if these are documents, of which other nodes are the contents; else 0.
    It changes the speed on a large graph, and the result within its tolerance.
    """

    pull: CSR
    scale: torch.Tensor
    dangling: torch.Tensor
    has_dangling: bool
    symmetric: bool
    documents_from: int = 0

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.pull.n

    @property
    def device(self) -> torch.device:
        """The device of the graph and of results."""
        return self.pull.indptr.device

    @cached_property
    def in_range(self) -> bool:
        """Whether an f32 state can hold 1 / degree of every node; cached."""
        return fits_f32(self.scale)

    @cached_property
    def dangling_nodes(self) -> torch.Tensor:
        """The nodes without outgoing weight, ascending: i64; cached."""
        return self.dangling.nonzero()[:, 0]

    def n_dangling_before(self, node: int) -> int:
        """The number of dangling nodes below a node; cached for each node."""
        if ("dangling before", node) not in self.views:
            self.views["dangling before", node] = int((self.dangling_nodes < node).sum())
        return int(self.views["dangling before", node])

    def __getstate__(self) -> dict[str, Any]:
        """The graph without its views, which are dropped: they would read old memory after torch moves tensors."""
        self.__dict__.pop("views", None)
        return dict(self.__dict__)

    @cached_property
    def views(self) -> dict[Any, Any]:
        """The forms of the graph for each implementation, made by the first call; numba: 36 bytes a node,
        and 56 of a large graph of documents with 16 an entry."""
        return {}


def fits_f32(scale: torch.Tensor) -> bool:
    """Whether degrees and their inverses are in the range of an f32 state."""
    return bool(((scale > 1 / MAX_DEGREE) & (scale < MAX_DEGREE)).all())


def prepare(csr: CSR | PageRankGraph) -> PageRankGraph:
    """Check `csr` (BadInput, as `check_csr`) and compute the common data of every PageRank on it. O(E log E), once."""
    if isinstance(csr, PageRankGraph):
        return csr
    check_csr(csr)
    degree = degrees(csr)
    other = transpose(csr)
    symmetric = torch.equal(csr.indptr, other.indptr) and torch.equal(csr.indices, other.indices)
    if symmetric and csr.weight is not None and other.weight is not None:
        symmetric = torch.equal(csr.weight, other.weight)
    return _graph_of(csr if symmetric else other, degree, symmetric)


def prepared(csr: CSR, degree: torch.Tensor, documents_from: int = 0) -> PageRankGraph:
    """`prepare` without its computations, for a symmetric `csr` with known degrees f64[N]. documents_from:
    see `PageRankGraph`. Raises BadInput as `check_csr`, and if a degree is negative or not finite."""
    check_csr(csr)
    check_form(degree, "the degrees do not fit the graph", ["f64"], [csr.n], csr.indptr.device)
    if not bool(are_masses(degree)):
        raise BadInput("a degree is negative or not finite", expected="finite and >= 0")
    return _graph_of(csr, degree, True, documents_from)


def _graph_of(pull: CSR, degree: torch.Tensor, symmetric: bool, documents_from: int = 0) -> PageRankGraph:
    dangling = degree <= 0
    scale = torch.where(dangling, 1.0, degree)
    return PageRankGraph(pull, scale, dangling, bool(dangling.any()), symmetric, documents_from)
