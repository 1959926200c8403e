"""A slow service, which answers the calls of one step while the driver works, and the calls in flight to it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from gpu_rag.errors import Cancelled, GpuRagError, ModelError
from gpu_rag.runtime.core import Core
from gpu_rag.runtime.step import Step
from gpu_rag.runtime.tasks import Pending, Task, blame


class SlowService(Protocol):
    """A service that answers calls one by one, in threads or processes of its own. Only the driver's thread uses this
    interface.

    A key is the driver's number for a call. `poll` returns every submitted key exactly once, unless the service dies
    first.
    """

    def submit(self, key: int, query: Any) -> None:
        """Accept the query of a call, without waiting for the answer."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, Any]]:
        """Answered calls, as (key, result). A result is what the step's function would return for the query.

        Waits up to timeout_s for the first one; [] if none came. Raises ModelError if the service is dead; the error's
        `request` is the query that caused it, if the service knows that query.
        """
        ...

    def abort(self, key: int) -> None:
        """Give up a call. `poll` still returns its key, with a late reply or with an error."""
        ...


Slow = tuple[Step[Any, Any, Any, Any], SlowService]  # a step, and the service that replaces its function


class Flights:
    """Calls in flight at a slow service, such as an LLM, if there is one. Keys count up.

    A call's seconds are its share of the time in which the service had requests open. The n requests open at a moment
    share it equally, so the shares of all calls add up to that time.
    """

    def __init__(self, core: Core, slow: Slow | None, on_answer: Callable[[Any], None] | None = None):
        self.core, self.slow, self._on_answer = core, slow, on_answer
        self.calls: dict[int, tuple[Pending, float]] = {}  # {key: (call, shared seconds when it was sent)}
        self._key_of: dict[Task, int] = {}
        self._n_sent = 0
        self._shared_s, self._at = 0.0, 0.0

    @property
    def n_open(self) -> int:
        """Number of calls in flight, not counting aborted ones."""
        return len(self._key_of)

    @property
    def n_late(self) -> int:
        """Number of aborted calls that have not come back yet; they may still run."""
        return len(self.calls) - len(self._key_of)

    def send(self) -> int:
        """Submit all calls that wait for the service, by (question, slot). Returns their number."""
        if self.slow is None:
            return 0
        (step, service), before = self.slow, self._n_sent
        groups = self.core.waiting.get(step.kind.rank, {})
        for group in [group for group in groups if group[0] is step]:
            self._tick()
            for pending in sorted(groups.pop(group)):
                if pending.task.alive:
                    key, self._n_sent = self._n_sent, self._n_sent + 1
                    self.calls[key] = (pending, self._shared_s)
                    self._key_of[pending.task] = key
                    service.submit(key, pending.call.query)
        if not groups:
            self.core.waiting.pop(step.kind.rank, None)
        return self._n_sent - before

    def take(self, timeout_s: float) -> int:
        """Settle the answered calls. Waits up to timeout_s if there are none. Returns their number.

        Raises ModelError and Cancelled if the service does; they stop the run.
        """
        if self.slow is None or not self.calls:
            return 0
        step, service = self.slow
        try:
            answered = service.poll(timeout_s)
        except ModelError as error:
            blame(error, (pending for pending, _ in self.calls.values()))
            raise
        if not answered:
            return 0
        self._tick()
        total_s = 0.0
        for key, result in answered:
            pending, since = self.calls.pop(key)
            wanted = self._key_of.pop(pending.task, None) is not None
            if isinstance(result, (ModelError, Cancelled)) and wanted:
                raise result
            if self._on_answer is not None:
                self._on_answer(result)
            if step.meter is not None and (wanted or not isinstance(result, GpuRagError)):  # an aborted call is free
                result = step.meter(result)
            seconds = self._shared_s - since
            total_s += seconds
            self.core.settle(pending, result, seconds)
        self.core.stats.add_batch(step.name, step.kind.service, len(answered), total_s)
        return len(answered)

    def drop(self, task: Task) -> None:
        """Abort the call of a cancelled task, if one is in flight. Its cost until then is still counted."""
        key = self._key_of.pop(task, None)
        if key is not None and self.slow is not None:
            self.slow[1].abort(key)

    def _tick(self) -> None:
        """Update the shared seconds, the integral of dt / (calls in flight), to the current time."""
        now = perf_counter()
        if self.calls:
            self._shared_s += (now - self._at) / len(self.calls)
        self._at = now
