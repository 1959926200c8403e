"""The data types of a benchmark: its settings, one case to measure, its check, and a peer to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_rag.settings.ranges import COUNT, DAMPING, Range, check_value
from gpu_rag.types import CSR

MAX_ALONE = 16  # maximum timed questions of a peer that takes one at a time
MAX_TILED = 64  # the same for a peer that works in tiles of questions
STARTS = 64  # places of the pool at which a round can start
REFUSED = "refused: "  # prefix of the note of an op that failed its check and was not timed


@dataclass(frozen=True)
class Config:
    """The settings of a run. sizes: nodes or vectors. Raises UsageError if one is out of range."""

    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    dampings: tuple[float, ...] = (0.5, 0.85)
    peers: bool = False
    device: str = "cpu"
    threads: int = 1
    rounds: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, values, allowed in (
            ("threads", (self.threads,), COUNT), ("rounds", (self.rounds,), COUNT), ("batch", self.batches, COUNT),
            ("sizes", self.sizes, Range(16)), ("damping", self.dampings, DAMPING),
        ):  # fmt: skip
            for value in values:
                check_value(f"--{name}", value, allowed)

    @property
    def pool(self) -> int:
        """Number of generated questions: enough for the largest call from any start, and for one untimed call."""
        return 2 * max(*self.batches, MAX_TILED) + STARTS


@dataclass(frozen=True)
class Checked:
    """A check. reason: why the result is wrong, or empty; l1_error: its largest distance from the reference."""

    reason: str = ""
    l1_error: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the result is right."""
        return not self.reason


def sampled(count: int) -> list[int]:
    """The first, the middle and the last of `count` questions."""
    return sorted({0, count // 2, count - 1})


def check_sample(count: int, reason: Callable[[int], str]) -> Checked:
    """Check a sample of the questions: right if `reason`, why an answer is wrong, is empty for each of them."""
    return Checked(next(filter(None, map(reason, sampled(count))), ""))


@dataclass(frozen=True)
class Peer:
    """Another library for the same op.

    inputs(start, count): questions start..start+count of the pool in the library's form, made before the clock starts;
    run(inputs): their results, in a form that the case's check can read. Both are None if it cannot be timed; `note`
    then gives the reason. missing: it is not installed. max_questions: maximum of one call. alone: it takes one
    question at a time, so its cost for each question does not depend on the batch, and `run` is timed on at most
    MAX_ALONE. threads: its number of threads; None: the library's choice. l1_error: from its check, as in `Checked`.
    """

    name: str = ""
    inputs: Callable[[int, int], Any] | None = None
    run: Callable[[Any], Any] | None = None
    note: str = ""
    missing: bool = False
    max_questions: int | None = None
    alone: bool = False
    threads: int | None = 1
    l1_error: float | None = None

    def count(self, batch: int) -> int:
        """The number of questions in a call that represents a batch."""
        return self.max_questions or 1 if self.alone else min(batch, self.max_questions or batch)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op on one input.

    labels: columns of its rows (graph, n, m, damping, hops, k, dims). inputs(start, count) and run(inputs): the op on
    these questions of the pool, as in `Peer`; torch has as many threads as the settings say. check(result, count):
    check the result of questions 0..count. bytes_of(B): bytes that a call must move. memory_of(B): bytes that a call
    allocates. peers: makes the peers, called only if they are wanted. implementation: None: the op's
    own choice on the device.
    """

    op: str
    labels: dict[str, Any]
    inputs: Callable[[int, int], Any]
    run: Callable[[Any], Any]
    check: Callable[[Any, int], Checked]
    bytes_of: Callable[[int], int]
    memory_of: Callable[[int], int]
    peers: Callable[[], list[Peer]]
    implementation: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One op at one size and batch, compared with one peer. None: does not apply, or was not measured; `note` gives the
    reason.

    graph: its kind; n: nodes or vectors; m: stored entries of the graph; B: questions of a call;
    hops: radius; ms: time of a call: the mean over the `asked` questions of a round, then the median over
    rounds; bytes: what a call must move; pct_of_copy_bandwidth: 100 * bytes / ms / the bandwidth of a plain copy with
    as many threads in the same rounds (copy_gb_s); peer_ms: the peer's time for B questions, scaled from `sampled`
    questions of a round; ratio: peer_ms / ms; l1_error, peer_l1_error: largest L1 distance from an f64 solution;
    cpu_ms, peer_cpu_ms, cpu_ratio: the same in processor time of all threads, which excludes waiting: on a shared
    machine it is more stable. None on a GPU.
    """

    op: str
    graph: str | None = None
    n: int
    m: int | None = None
    B: int
    damping: float | None = None
    hops: int | None = None
    k: int | None = None
    dims: int | None = None
    ms: float | None = None
    asked: int | None = None
    peer: str | None = None
    peer_ms: float | None = None
    ratio: float | None = None
    sampled: int | None = None
    bytes: int | None = None
    pct_of_copy_bandwidth: float | None = None
    copy_gb_s: float | None = None
    cpu_ms: float | None = None
    peer_cpu_ms: float | None = None
    cpu_ratio: float | None = None
    l1_error: float | None = None
    peer_l1_error: float | None = None
    threads: int
    peer_threads: int | None = None
    rounds: int
    device: str
    implementation: str
    note: str = ""

    def document(self) -> dict[str, Any]:
        """The row as plain JSON, with numbers rounded to 6 digits."""
        fields = asdict(self).items()
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in fields}


def adjacency(csr: CSR) -> Any:
    """The matrix as a scipy CSR matrix in f64."""
    from scipy.sparse import csr_matrix

    weight = np.ones(csr.m) if csr.weight is None else csr.weight.cpu().double().numpy()
    return csr_matrix((weight, csr.indices.cpu().numpy(), csr.indptr.cpu().numpy()), shape=(csr.n, csr.n))
