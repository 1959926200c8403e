"""Context of a program, without its question: its position, random seeds, trace and costs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from gpu_rag.runtime.accounts import Cost
from gpu_rag.types import Question, TraceStep, Usage

Slot = tuple[int, ...]


class Strand(Protocol):
    """Fields of the strand being stepped that a context uses."""

    path: Slot
    n_awaits: int
    cost: Cost | None


def request_seed(run_seed: int, question_id: str, slot: Slot, attempt: int = 0) -> int:
    """A seed in [0, 2**31) from sha256(run seed, slot, attempt, question id), equal in every run and driver."""
    text = f"{run_seed}|{'.'.join(map(str, slot))}|{attempt}|{question_id}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big") >> 1


class Context:
    """Context of one question. A program reads `question` and calls `note` at each decision.

    usage: costs of the question so far; the driver books calls, tokens and seconds, `ask` the rest. resources: the
    question's own, which replace the driver's for its steps; calls share a batch only if these are the same.
    """

    __slots__ = ("_notes", "question", "resources", "run_seed", "task", "usage")

    def __init__(self, question: Question, seed: int = 0):
        self.question = question
        self.run_seed = seed
        self.usage = Usage()
        self.resources: Mapping[str, Any] = {}
        self.task: Strand | None = None  # the task being stepped; set by the driver
        self._notes: list[tuple[Slot, str, int, tuple[str, ...], str, Cost | None]] = []

    @property
    def slot(self) -> Slot:
        """Slot of the next awaited call: its path in the program, e.g. (2, 0, 1) for the second call of the first
        sibling of the gather that is the program's third await."""
        return () if self.task is None else (*self.task.path, self.task.n_awaits)

    def request_seed(self, slot: Slot, attempt: int = 0) -> int:
        """Seed of attempt number `attempt` of the request in `slot`; see the function of the same name."""
        return request_seed(self.run_seed, self.question.id, slot, attempt)

    def note(self, name: str, n_candidates: int, chosen: tuple[str, ...] = (), reply_hash: str = "") -> None:
        """Record one decision: its name, the number of candidates, the chosen ones, and the hash of the reply.

        It carries the cost of this strand of the program since its last note.
        """
        cost = None
        if self.task is not None:
            cost, self.task.cost = self.task.cost, None
        self._notes.append((self.slot, name, n_candidates, tuple(chosen), reply_hash, cost))

    def steps(self) -> tuple[TraceStep, ...]:
        """Notes in the order of the program text (by slot), not in the order in which siblings ran."""
        ordered = sorted(self._notes, key=lambda note: note[0])  # stable: notes of one slot keep their order
        return tuple(TraceStep(i, *note[1:-1], note[-1].s if note[-1] else 0.0) for i, note in enumerate(ordered))

    def costs(self) -> list[tuple[str, Cost | None]]:
        """(name, cost that led to it) of each note."""
        return [(note[1], note[-1]) for note in self._notes]

    def forget(self, path: Slot, after: int) -> list[Cost | None]:
        """Drop the notes of the siblings after number `after` of the gather at `path`. Returns their costs.

        Their progress before the cancellation depends on chance: without them a trace depends on replies alone.
        """
        n = len(path)
        lost = [note for note in self._notes if note[0][:n] == path and len(note[0]) > n and note[0][n] > after]
        if lost:
            dropped = {id(note) for note in lost}
            self._notes = [note for note in self._notes if id(note) not in dropped]
        return [note[-1] for note in lost]
