"""Measure cases: every batch is checked first; then ops, peers and a copy are timed in time_turns rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench import OPS
from gpu_rag.bench.case import MAX_ALONE, REFUSED, STARTS, Case, Checked, Config, Peer, Row
from gpu_rag.bench.measure import TURN_S, Copy, Spent, Turn, poisoned, time_turns, torch_threads
from gpu_rag.errors import GpuRagError
from gpu_rag.graph.memory import free_bytes
from gpu_rag.settings.check import unknown_name

SHARE = 0.8  # share of the free memory that a call may take
STRIDE = 17  # questions between the starts of two rounds
COPY = "copy"

Say = Callable[[str], None]


def run_bench(ops: Sequence[str], config: Config, say: Say = lambda text: None) -> list[Row]:
    """Measure all cases of the ops, in this order. Raises UsageError for an unknown op, and the errors of cases."""
    for op in ops:
        if op not in OPS:
            raise unknown_name("op", op, list(OPS))
    return [row for op in ops for case in cases_of(op, config) for row in _Measurement(case, config, say).rows()]


def cases_of(op: str, config: Config) -> Iterator[Case]:
    """The cases of an op, from the bench file in its folder."""
    yield from import_module(f"gpu_rag.graph.{op}.bench").cases(config)


class _Measurement:
    """The measurement of one case, with all batches."""

    def __init__(self, case: Case, config: Config, say: Say):
        self.case, self.config = case, config
        self.device = torch.device(config.device)
        label = " ".join(f"{name}={value}" for name, value in case.labels.items() if value is not None)
        self.say: Say = lambda text: say(f"{case.op} {label}: {text}")

    def rows(self) -> list[Row]:
        checked = {batch: self._check(batch) for batch in self.config.batches}
        good = [batch for batch, outcome in checked.items() if isinstance(outcome, Checked)]
        peers = [self._ready(peer) for peer in self.case.peers()] if self.config.peers and good else []
        copy = Copy(self.device, self.config.threads)
        times = time_turns(self._turns(good, peers, copy), self.config.rounds, self.device, self.say) if good else {}
        rows: list[Row] = []
        for batch, outcome in checked.items():
            if isinstance(outcome, Checked):
                rows.extend(self._measured(batch, outcome, peers, times, copy))
            else:
                rows.append(outcome)
        return rows

    def _empty(self, batch: int, note: str = "", error: float | None = None) -> Row:
        return Row(
            op=self.case.op,
            B=batch,
            threads=self.config.threads,
            rounds=self.config.rounds,
            device=self.config.device,
            implementation=self.case.implementation or pick_implementation(self.device),
            note=note,
            l1_error=error,
            **self.case.labels,
        )

    def _check(self, batch: int) -> Checked | Row:
        """Check a batch. Return its check if it may be timed, else a row that gives the reason."""
        needed, free = self.case.memory_of(batch), free_bytes(self.device)
        if needed > SHARE * free:
            return self._empty(batch, f"not run: it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
        self.say(f"checking B={batch}")
        try:
            with poisoned(), torch_threads(self.config.threads):
                outcome = self.case.check(self.case.run(self.case.inputs(0, batch)), batch)
        except GpuRagError as error:
            outcome = Checked(str(error))
        if outcome.ok:
            return outcome
        self.say(f"refused: B={batch}: {outcome.reason}")
        return self._empty(batch, f"{REFUSED}{outcome.reason}", outcome.l1_error)

    def _ready(self, peer: Peer) -> Peer:
        """The peer with its own error, checked by one question; a second question tells how many fit in a round."""
        if peer.inputs is None or peer.run is None:
            return peer
        self.say(f"checking {peer.name}")
        inputs = peer.inputs(0, 1)
        with torch_threads(peer.threads):
            result, spent = _time_call(peer.run, inputs)
            if spent < TURN_S:  # the first call may have filled caches
                _, spent = _time_call(peer.run, inputs)
        outcome = self.case.check(result, 1)
        fit = max(1, math.floor(TURN_S / max(spent, 1e-9)))
        limit = min(fit, peer.max_questions or MAX_ALONE) if peer.alone else peer.max_questions
        note = peer.note if outcome.ok else f"the peer fails the check: {outcome.reason}"
        return replace(peer, max_questions=limit, note=note, l1_error=outcome.l1_error)

    def _turns(self, batches: Sequence[int], peers: Sequence[Peer], copy: Copy) -> dict[Hashable, Turn]:
        turns: dict[Hashable, Turn] = {COPY: Turn(lambda round_number, call: None, copy)}
        for batch in batches:
            turns[batch] = _turn(self.case.inputs, self.case.run, batch, threads=self.config.threads)
            for peer in peers:
                count = peer.count(batch)
                if peer.inputs is not None and peer.run is not None:
                    turns[peer.name, count] = _turn(peer.inputs, peer.run, count, peer.alone, peer.threads)
        return turns

    def _measured(
        self, batch: int, outcome: Checked, peers: Sequence[Peer], times: dict[Hashable, Spent], copy: Copy
    ) -> list[Row]:
        """A row for each peer, or one row if there is no peer."""
        ms, n_bytes, gb_s = times[batch].ms, self.case.bytes_of(batch), copy.gb_s(times[COPY].ms)
        cpu_ms = times[batch].cpu_ms if self.device.type == "cpu" else None
        row = replace(
            self._empty(batch),
            ms=ms,
            asked=batch * times[batch].calls,
            bytes=n_bytes,
            pct_of_copy_bandwidth=100 * n_bytes / (ms * 1e-3) / (gb_s * 1e9),
            copy_gb_s=gb_s,
            cpu_ms=cpu_ms,
            l1_error=outcome.l1_error,
        )
        rows = []
        for peer in peers:
            compared = replace(row, peer=None if peer.missing else peer.name, note=peer.note)
            if peer.run is not None:
                count = peer.count(batch)
                spent = times[peer.name, count]
                peer_ms, peer_cpu_ms = spent.ms * batch / count, spent.cpu_ms * batch / count
                compared = replace(
                    compared,
                    peer_ms=peer_ms,
                    ratio=peer_ms / ms,
                    sampled=count * spent.calls,
                    peer_cpu_ms=peer_cpu_ms,
                    cpu_ratio=peer_cpu_ms / cpu_ms if cpu_ms else None,
                    peer_l1_error=peer.l1_error,
                    peer_threads=peer.threads,
                )
            rows.append(compared)
        return rows or [row]


def _time_call(run: Callable[[Any], Any], inputs: Any) -> tuple[Any, float]:
    """A result, and the seconds it took."""
    start = time.perf_counter()
    return run(inputs), time.perf_counter() - start


def _turn(
    inputs: Callable[[int, int], Any], run: Callable[[Any], Any], count: int, alone: bool = False,
    threads: int | None = None,
) -> Turn:  # fmt: skip
    """A turn with `count` questions in a call, and enough calls for MAX_ALONE; ops and peers get the same questions in
    a round.

    The untimed call has as many questions as a timed one, because a smaller batch may take another path through the
    code. alone: `run` asks one question after another, so one call is enough, with one question as its untimed call.
    """
    calls = 1 if alone else math.ceil(MAX_ALONE / count)
    untimed = 1 if alone else count

    def given(round_number: int, call: int) -> Any:
        start = round_number * STRIDE % STARTS
        if call == 0:
            return inputs(start + calls * count, untimed)
        return inputs(start + (call - 1) * count, count)

    return Turn(given, run, calls, threads)
