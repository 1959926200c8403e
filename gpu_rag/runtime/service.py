"""What answers calls beside the driver: a slow service, and the calls that are in flight there."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Protocol

from gpu_rag.errors import Cancelled, ModelError
from gpu_rag.runtime.core import Core
from gpu_rag.runtime.step import Step
from gpu_rag.runtime.tasks import Pending, Task, blame

AnyStep = Step[Any, Any, Any, Any]


class SlowService(Protocol):
    """Answers calls one by one, in threads or processes of its own. The driver's thread alone uses this face.

    A key is the driver's number for a call. Every key that was submitted comes out of `poll` exactly once, unless the
    service dies first.
    """

    def submit(self, key: int, query: Any) -> None:
        """Take the query of a call; never waits for the answer."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, Any]]:
        """What has been answered, as (key, result), where a result is what a step gives for a query.

        Waits up to timeout_s for the first; [] where none came. Raises ModelError when the service is dead; its
        `request` is the query that is to blame, where the service knows them.
        """
        ...

    def abort(self, key: int) -> None:
        """The answer is wanted no more. It still comes out of `poll`: as a late reply, or as an error."""
        ...

    @property
    def n_open(self) -> int:
        """Keys submitted and not yet given out by `poll`."""
        ...


class Flights:
    """The calls in flight at slow services, by step. Keys count up over all services.

    A call's seconds are its share of the time in which its service had requests open, n of them sharing each moment
    equally: the shares of all calls add up to that time.
    """

    def __init__(self, core: Core, services: Mapping[AnyStep, SlowService]):
        self.core, self.services = core, services
        self._ranks = {step.kind.rank for step in services}
        self._lanes = {step: _Lane(service) for step, service in services.items()}
        self._key_of: dict[Task, tuple[_Lane, int]] = {}
        self._n_sent = 0

    @property
    def n_open(self) -> int:
        """Calls in flight, aborted ones not counted."""
        return len(self._key_of)

    @property
    def n_late(self) -> int:
        """Aborted calls that have not come back yet."""
        return sum(len(lane.calls) for lane in self._lanes.values()) - len(self._key_of)

    @property
    def n_llm(self) -> int:
        """Those of them that a language model is to answer, aborted ones included: they may still run."""
        return sum(len(lane.calls) for step, lane in self._lanes.items() if step.kind.service == "llm")

    def send(self) -> int:
        """Submit all calls that wait for a slow service, by (question, slot). Returns how many there were."""
        waiting, before = self.core.waiting, self._n_sent
        for rank in self._ranks:
            groups = waiting.get(rank)
            if groups is None:
                continue
            for key in [key for key in groups if key[0] in self._lanes]:
                self._send_all(self._lanes[key[0]], sorted(groups.pop(key)))
            if not groups:
                del waiting[rank]
        return self._n_sent - before

    def _send_all(self, lane: _Lane, calls: list[Pending]) -> None:
        lane.tick()
        for pending in calls:
            if pending.task.alive:
                key, self._n_sent = self._n_sent, self._n_sent + 1
                lane.calls[key] = (pending, lane.shared_s)
                self._key_of[pending.task] = (lane, key)
                lane.service.submit(key, pending.call.query)

    def take(self, timeout_s: float) -> int:
        """Settle what has been answered, waiting up to timeout_s where nothing is. Returns how many there were.

        Raises ModelError and Cancelled out of a service: they stop the run.
        """
        flying = [(step, lane) for step, lane in self._lanes.items() if lane.calls]
        n = 0
        for i, (step, lane) in enumerate(flying):
            wait_s = timeout_s / (len(flying) - i) if not n else 0.0
            found = self._poll(lane, wait_s)
            if not found:
                continue
            lane.tick()
            n += len(found)
            seconds = 0.0
            for key, result in found:
                pending, since = lane.calls.pop(key)
                seconds += lane.shared_s - since
                self._settle(pending, result, lane.shared_s - since)
            self.core.stats.add_batch(step.name, step.kind.service, len(found), seconds)
        return n

    def _poll(self, lane: _Lane, wait_s: float) -> list[tuple[int, Any]]:
        try:
            return lane.service.poll(wait_s)
        except ModelError as error:
            blame(error, (pending for pending, _ in lane.calls.values()))
            raise

    def _settle(self, pending: Pending, result: Any, seconds: float) -> None:
        wanted = self._key_of.pop(pending.task, None) is not None
        if isinstance(result, (ModelError, Cancelled)) and wanted:
            raise result
        self.core.settle(pending, result, seconds)

    def drop(self, task: Task) -> None:
        """A task was cancelled: abort its call, if one is in flight. What it has cost by then is still counted."""
        found = self._key_of.pop(task, None)
        if found is not None:
            lane, key = found
            lane.service.abort(key)


class _Lane:
    """The calls in flight at one service: by key, with the service's shared seconds when they were sent."""

    __slots__ = ("at", "calls", "service", "shared_s")

    def __init__(self, service: SlowService):
        self.service = service
        self.calls: dict[int, tuple[Pending, float]] = {}
        self.shared_s, self.at = 0.0, 0.0

    def tick(self) -> None:
        """Bring the shared seconds, the integral of dt / (calls in flight), up to now."""
        now = perf_counter()
        if self.calls:
            self.shared_s += (now - self.at) / len(self.calls)
        self.at = now
