"""The rows of the result, and the arithmetic in them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One op at one size and batch, beside one peer. None: does not apply, or was not measured; `note` says why.

    graph: its kind, or "index"; n: nodes, vectors or items; m: stored entries of the graph; B: questions of a call;
    hops: radius, or steps; ms: of a call, the mean over the `asked` questions of a round, and of that the median;
    bytes: what a call must move; pct_of_copy_bandwidth: 100 * bytes / ms / that of a plain copy by as many threads in
    the same rounds (copy_gb_s); peer_ms: the peer's time for B questions, scaled from `sampled` questions of a round;
    ratio: peer_ms / ms; l1_error, peer_l1_error: largest L1 distance from an f64 solution;
    cpu_ms, peer_cpu_ms, cpu_ratio: the same in processor time of all threads, which waits for nobody: on a shared
    machine it is the steadier figure. None on a GPU.
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
        """The row as plain JSON, rounded to what was measured."""
        return {name: _short(value) for name, value in asdict(self).items()}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def pct_of_bandwidth(n_bytes: int, ms: float, gb_s: float) -> float:
    """100 * (bytes moved a second) / (bytes that a copy moves a second)."""
    return 100 * n_bytes / (ms * 1e-3) / (gb_s * 1e9)
