"""The workers of one model: they are started, compared with one another, given tasks, and restarted when they die.

All of this happens in `pump`, in the caller's thread. Nothing runs beside it, so Ctrl-C always works.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_rag.cluster.ray import attach, detach, first_line, resources
from gpu_rag.cluster.task_queue import Task, TaskQueue
from gpu_rag.cluster.worker import EmbedWorker, Facts, LLMWorker, installed_version
from gpu_rag.errors import Cancelled, GpuRagError, ModelError
from gpu_rag.settings.sections import ScaleSettings

POLL_S = 0.05  # time that a worker waits for a reply before it looks for new requests
CALLS = 2  # calls in flight per worker: one that runs, one that waits
WAIT_S = 1.0  # maximum wait for workers between two looks at the clock


@dataclass(frozen=True)
class Plan:
    """The workers that a pool needs. role: embedder or llm; actor: their class; build: loads the model."""

    role: str
    actor: type[EmbedWorker] | type[LLMWorker]
    build: Callable[[], Any]
    n_workers: int
    cpus: float
    gpus: float


@dataclass(eq=False)
class Worker:
    """One slot for a worker. handle: its actor; loading, calls: its unanswered calls.

    facts: its answer when it was ready; joined: whether it was ever ready; deaths: number of its deaths; gone: it is
    not restarted.
    """

    number: int
    handle: Any = None
    loading: Any = None
    since: float = 0.0
    calls: set[Any] = field(default_factory=set)
    facts: Facts | None = None
    joined: bool = False
    deaths: int = 0
    gone: bool = False


class Pool:
    """Workers and their tasks. Only one thread at a time works in it; others wait.

    It works as soon as the first worker is ready. Later workers join if they hold the same model and compute the same
    bits. A different worker stops the run, since the result would depend on the worker. A worker that dies is
    restarted, each at most `scale.restarts` times; its tasks go to others, see `TaskQueue`. When none is left, every
    task ends with the error that `pump` raises.
    """

    def __init__(self, settings: ScaleSettings, plan: Plan):
        """Start the workers and wait for the first. Raises MissingBackend, ModelError, and the errors of loading."""
        self.plan, self._settings = plan, settings
        self.about: dict[str, Any] = {}  # facts about the model, equal for all workers
        self.queue = TaskQueue()
        self.workers = [Worker(number) for number in range(plan.n_workers)]
        self._nodes, self._n_deaths, self._reason = set[str](), 0, object()
        self._lock = threading.RLock()
        self._dead: GpuRagError | None = None
        self._ray = attach(settings)
        try:
            for worker in self.workers:
                self._start(worker)
            while not self.about:
                self.pump(WAIT_S)
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """{"workers", "joined", "cpus", "gpus", "nodes", "deaths"} for the record of a run.

        joined: the number of workers that were ever ready; fewer than workers if the cluster was too small for all.
        """
        plan, joined = self.plan, sum(worker.joined for worker in self.workers)
        kind = {"workers": plan.n_workers, "joined": joined, "cpus": plan.cpus, "gpus": plan.gpus}
        return {**kind, "nodes": sorted(self._nodes), "deaths": self._n_deaths}

    def ready(self) -> list[Worker]:
        """The workers whose model is loaded."""
        return [worker for worker in self.workers if worker.facts is not None]

    def add(self, tasks: Sequence[Task]) -> None:
        """Add tasks. Nothing is sent before the next `pump`."""
        with self._lock:
            if self._dead is None:
                self.queue.add(tasks)
                return
        for task in tasks:
            task.end(self._dead)

    def run(self, items: Sequence[Any]) -> Generator[tuple[int, Any], None, None]:
        """Do all items and yield (place, result) as each finishes, in any order. A result may be a RequestFailed.

        Raises as `pump`, after everything that was finished before. Closing the generator aborts the rest.
        """
        finished: deque[tuple[int, Any]] = deque()  # another thread that pumps may append here

        def keep(place: int, result: Any) -> None:
            finished.append((place, result))

        tasks = [Task(item, partial(keep, place)) for place, item in enumerate(items)]
        self.add(tasks)
        left = len(tasks)
        try:
            while left:
                error = self.pumped(WAIT_S)
                while finished:
                    place, result = finished.popleft()
                    if result is not error:
                        left -= 1
                        yield place, result
                if error is not None:
                    raise error
        finally:  # an interrupted caller leaves no tasks behind
            for task in tasks:
                self.abort(task)

    def abort(self, task: Task) -> None:
        """Abort a task. It ends now, or with the answer of its worker."""
        with self._lock:
            if not task.over:
                self.queue.abort(task)

    def pump(self, timeout_s: float) -> None:
        """Send new tasks to workers and take their results; waits up to timeout_s for the first.

        Raises ModelError, and the errors of loading a model, when the pool cannot continue. Then every task has ended
        with the error.
        """
        with self._lock:
            if self._dead is not None:
                raise self._dead
            try:
                self._check()
                self._send()
                self._take(timeout_s)
                self._send()
            except GpuRagError as error:
                self._die(error)
                raise

    def pumped(self, timeout_s: float) -> GpuRagError | None:
        """Call `pump`. Returns the error that it raises, or None."""
        try:
            self.pump(timeout_s)
        except GpuRagError as error:
            return error
        return None

    def ask(self, method: str, *arguments: Any) -> Any:
        """The reply of a worker to one of its own methods. Raises as `pump`."""
        with self._lock:
            while True:
                ready = self.ready()
                if not ready:
                    self.pump(WAIT_S)
                    continue
                try:
                    return self._ray.get(getattr(ready[0].handle, method).remote(*arguments))
                except self._ray.exceptions.RayTaskError as raised:
                    self._failed(ready[0], raised, loading=False)
                except self._ray.exceptions.RayError as death:
                    self._restart(ready[0], first_line(death))

    def close(self) -> None:
        """End the workers. Open tasks end with Cancelled."""
        with self._lock:
            if self._ray is None:
                return
            self._die(Cancelled("the workers were ended"))
            for worker in self.workers:
                self._kill(worker)
            self._ray = None
            detach()

    # --- in pump -----------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send waiting tasks, one call each or one call for all."""
        free = {worker.number: worker for worker in self.ready() if len(worker.calls) < CALLS}
        for number, given in self.queue.shares(free):
            items = [(key, task.item) for key, task in given]
            if not self.plan.actor.streams:
                for item in items:
                    self._call(free[number], [item], [])
                continue
            unwanted = self.queue.to_abort(number)
            if items or unwanted or (not free[number].calls and self.queue.n_running(number)):
                self._call(free[number], items, unwanted)

    def _call(self, worker: Worker, new: list[tuple[int, Any]], unwanted: list[int]) -> None:
        worker.calls.add(worker.handle.work.remote(new, unwanted, POLL_S))

    def _take(self, timeout_s: float) -> None:
        """Process finished calls, finished starts, and dead workers."""
        owner = {call: worker for worker in self.workers for call in worker.calls}
        owner.update((worker.loading, worker) for worker in self.workers if worker.loading is not None)
        if not owner:
            return
        first, _ = self._ray.wait(list(owner), timeout=timeout_s)
        if first and len(owner) > 1:
            first, _ = self._ray.wait(list(owner), num_returns=len(owner), timeout=0)
        for call in first:
            worker = owner[call]
            if call is worker.loading or call in worker.calls:  # otherwise its worker died a moment ago
                self._hear(worker, call)

    def _hear(self, worker: Worker, call: Any) -> None:
        loading = call is worker.loading
        try:
            said = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as raised:
            self._failed(worker, raised, loading)
        except self._ray.exceptions.RayError as death:
            self._restart(worker, first_line(death))
        else:
            if loading:
                self._join(worker, said)
                return
            for number, result in said:
                self.queue.finish(worker.number, number, result)
            worker.calls.discard(call)  # last, so that a call interrupted here by Ctrl-C is processed again

    def _failed(self, worker: Worker, raised: Any, loading: bool) -> None:
        """Handle an error of a worker. One that gave up, or cannot load after the begin, counts as a death."""
        cause = raised.cause
        if isinstance(cause, ModelError) and (not loading or self.about):
            self._restart(worker, cause)
        elif isinstance(cause, GpuRagError):
            raise cause
        else:
            given = f"{type(cause).__name__}: {first_line(cause)}"
            raise ModelError(f"a worker of the {self.plan.role} failed", given=given) from raised

    def _restart(self, worker: Worker, reason: object) -> None:
        """Handle the death of a worker: its tasks go to others, and it is restarted while allowed."""
        self._n_deaths += 1
        worker.deaths += 1
        self._reason = reason
        self._kill(worker)
        if worker.deaths <= self._settings.restarts:
            self._start(worker)
        else:
            worker.gone = True
        self.queue.leave(worker.number, reason)

    def _die(self, error: GpuRagError) -> None:
        if self._dead is None:
            self._dead = error
            self.queue.give_up(error)

    # --- workers -----------------------------------------------------------------------------------

    def _start(self, worker: Worker) -> None:
        plan = self.plan
        needs: dict[str, Any] = {"num_cpus": plan.cpus, "num_gpus": plan.gpus, "max_restarts": 0}
        # One per node first: Ray would pack embedders with fractional GPUs onto few GPUs and leave no whole GPU for an
        # LLM.
        needs["scheduling_strategy"] = "SPREAD"
        worker.handle = self._ray.remote(plan.actor).options(**needs).remote(plan.build)
        worker.loading, worker.since = worker.handle.load.remote(), time.monotonic()

    def _join(self, worker: Worker, facts: Facts) -> None:
        """Add a worker that has loaded the model. Raises ModelError if its model differs from the others'."""
        worker.loading = None
        said = {"gpu-rag": facts.version, **facts.about}
        for name, value in (self.about or {"gpu-rag": installed_version()}).items():
            if said[name] != value:
                raise ModelError(
                    f"the workers of the {self.plan.role} differ",
                    given=f"{name} {said[name]} on {facts.node}",
                    expected=str(value),
                    do="give every node the same gpu-rag, the same model folder, and processors of one kind",
                )
        self.about, worker.facts, worker.joined = said, facts, True
        self._nodes.add(facts.node)
        self.queue.join(worker.number, facts.window)

    def _kill(self, worker: Worker) -> None:
        """End the worker's process and drop its calls."""
        worker.loading, worker.facts = None, None
        worker.calls.clear()
        if worker.handle is not None:
            with suppress(self._ray.exceptions.RayError):  # the worker or its cluster may be gone already
                self._ray.kill(worker.handle)
            worker.handle = None

    def _check(self) -> None:
        """Raise ModelError when no worker is left, or when none has become ready for too long."""
        role, left = self.plan.role, [worker for worker in self.workers if not worker.gone]
        if not left:
            given = f"{self._reason}; {self._n_deaths} deaths, scale.restarts={self._settings.restarts}"
            raise ModelError(
                f"no worker of the {role} is left", given=given, do="run again to go on with what is missing"
            )
        limit = time.monotonic() - self._settings.start_seconds
        if all(worker.loading is not None and worker.since < limit for worker in left):
            plan = self.plan
            given = f"{plan.n_workers} with {plan.cpus:g} CPUs and {plan.gpus:g} GPUs each; the cluster has "
            raise ModelError(
                f"no worker of the {role} was ready within scale.start_seconds",
                given=given + resources(self._ray),
                do="ask for what a node has, add nodes, or give loading more time",
            )
