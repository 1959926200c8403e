"""An actor pool: the workers of one model, started, compared with one another, started again when they die."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpu_rag.cluster.ray import resources
from gpu_rag.cluster.worker import Facts, installed_version
from gpu_rag.errors import ModelError


@dataclass(frozen=True)
class Plan:
    """The workers that a pool shall have. role: embedder or llm; actor: their class; build: its argument.

    build loads the model. streams: a call gives a worker all that is new and brings what is finished; else each task is
    a call of its own.
    window: tasks that a worker has at once; 0: as many as it says itself.
    """

    role: str
    actor: type
    build: Callable[[], Any]
    n_workers: int
    cpus: float
    gpus: float
    streams: bool
    window: int = 0


@dataclass(eq=False)
class Worker:
    """One place for a worker. handle: its actor; loading, calls: calls that it has not answered.

    facts: its answer when it was ready; joined: it was ready once; deaths: how often it died; gone: it is not started
    again.
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


class ActorPool:
    """`plan.n_workers` workers. about: the facts of the first that was ready; all others must have the same."""

    def __init__(self, ray: Any, plan: Plan, *, restarts: int, start_seconds: float):
        """Nothing runs before `start`."""
        self._ray, self._plan = ray, plan
        self._restarts, self._start_seconds = restarts, start_seconds
        self.about: dict[str, Any] = {}
        self.n_deaths, self.nodes = 0, set[str]()
        self._reason: object = None
        self.workers = [Worker(number) for number in range(plan.n_workers)]

    def start(self) -> None:
        """Start them all, and wait for none."""
        for worker in self.workers:
            self._start(worker)

    def ready(self) -> list[Worker]:
        """The workers that have loaded the model."""
        return [worker for worker in self.workers if worker.facts is not None]

    def _start(self, worker: Worker) -> None:
        plan = self._plan
        needs: dict[str, Any] = {"num_cpus": plan.cpus, "num_gpus": plan.gpus, "max_restarts": 0}
        # One a node first: Ray would pack embedders with parts of GPUs into few, and leave no GPU for an LLM.
        needs["scheduling_strategy"] = "SPREAD"
        worker.handle = self._ray.remote(plan.actor).options(**needs).remote(plan.build)
        worker.loading, worker.since = worker.handle.load.remote(), time.monotonic()

    def join(self, worker: Worker, facts: Facts) -> None:
        """A worker has loaded the model. Raises ModelError for one that differs from the others or this process."""
        worker.loading = None
        said = {"gpu-rag": facts.version, **facts.about}
        for name, value in (self.about or {"gpu-rag": installed_version()}).items():
            if said[name] != value:
                raise ModelError(
                    f"the workers of the {self._plan.role} differ",
                    given=f"{name} {said[name]} on {facts.node}",
                    expected=str(value),
                    do="give every node the same gpu-rag, the same model folder, and processors of one kind",
                )
        self.about, worker.facts, worker.joined = said, facts, True
        self.nodes.add(facts.node)

    def restart(self, worker: Worker, reason: object) -> None:
        """A worker died: it starts again while it may."""
        self.n_deaths += 1
        worker.deaths += 1
        self._reason = reason
        self.kill(worker)
        if worker.deaths <= self._restarts:
            self._start(worker)
        else:
            worker.gone = True

    def kill(self, worker: Worker) -> None:
        """End its process and drop its calls."""
        worker.loading, worker.facts = None, None
        worker.calls.clear()
        if worker.handle is not None:
            with suppress(self._ray.exceptions.RayError):  # it may be gone by itself, or its cluster may
                self._ray.kill(worker.handle)
            worker.handle = None

    def check(self) -> None:
        """Raises ModelError when no worker is left, or none has become ready for too long."""
        role, left = self._plan.role, [worker for worker in self.workers if not worker.gone]
        if not left:
            given = f"{self._reason}; {self.n_deaths} deaths, scale.restarts={self._restarts}"
            raise ModelError(
                f"no worker of the {role} is left", given=given, do="run again to go on with what is missing"
            )
        limit = time.monotonic() - self._start_seconds
        if all(worker.loading is not None and worker.since < limit for worker in left):
            plan = self._plan
            given = f"{plan.n_workers} with {plan.cpus:g} CPUs and {plan.gpus:g} GPUs each; the cluster has "
            raise ModelError(
                f"no worker of the {role} was ready within scale.start_seconds",
                given=given + resources(self._ray),
                do="ask for what a node has, add nodes, or give loading more time",
            )
