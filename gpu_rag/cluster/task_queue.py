"""A task queue for workers that may die. It only keeps books: no Ray, no model."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpu_rag.errors import GpuRagError, RequestFailed
from gpu_rag.models.llm.interface import aborted

# After a death the worker's tasks are retried in about this many groups, one after the other.
GROUPS = 16


@dataclass(eq=False)
class Task:
    """One piece of work. done(result) is called once, with the worker's result or an error.

    deaths: number of workers that died while they had it; at: (worker, number) while a worker has it.
    """

    item: Any
    done: Callable[[Any], None]
    deaths: int = 0
    at: tuple[int, int] | None = None
    over: bool = False
    unwanted: bool = False

    def end(self, result: Any) -> None:
        """Deliver the result, once."""
        if not self.over:
            self.over = True
            self.done(result)


class TaskQueue:
    """Tasks in order of arrival, given to workers up to their windows.

    The tasks of a worker that dies are suspects, since one of them may have killed it. Suspects are retried before new
    tasks, a sixteenth of them at a time, on a worker without other tasks. The suspects of another death are split
    again. A task is given up only when a worker died that had only this task, and an earlier death was recorded for the
    task. So an innocent task loses only time.
    """

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._groups: deque[list[Task]] = deque()
        self._running: dict[int, dict[int, Task]] = {}
        self._windows: dict[int, int] = {}
        self._trials: set[int] = set()  # workers with suspects
        self._abort: dict[int, list[int]] = {}  # by worker: numbers that it has not been told yet
        self._n_given = 0

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks."""
        self._waiting.extend(tasks)

    def join(self, worker: int, window: int) -> None:
        """Add a worker that takes up to `window` tasks at once."""
        self._running[worker], self._windows[worker], self._abort[worker] = {}, window, []

    def n_running(self, worker: int) -> int:
        """The number of tasks that this worker has."""
        return len(self._running[worker])

    def shares(self, reachable: Iterable[int]) -> list[tuple[int, list[tuple[int, Task]]]]:
        """The tasks to give now to each worker of `reachable`, the one with fewest tasks first: (worker, [(number,
        task)]).

        Each giving uses new numbers. Waiting tasks are spread over the workers, so that none is idle beside a full one.
        """
        workers = sorted(set(reachable) & self._running.keys(), key=lambda worker: (len(self._running[worker]), worker))
        return [(w, self._give(w, math.ceil(len(self._waiting) / (len(workers) - i)))) for i, w in enumerate(workers)]

    def _give(self, worker: int, most: int) -> list[tuple[int, Task]]:
        running = self._running[worker]
        if worker in self._trials:
            if running:
                return []
            self._trials.discard(worker)
        group: list[Task] = []
        while self._groups and not running and not group:
            group = [task for task in self._groups.popleft() if not task.over]
        if group:
            self._trials.add(worker)
            return self._numbered(worker, group)
        freest = min(self._running, key=lambda other: (len(self._running[other]), other))
        if self._groups and not self._trials and worker == freest:  # a worker on trial takes the next group itself
            return []  # let it run empty for the suspects: no other worker will soon
        chosen: list[Task] = []
        limit = min(most, self._windows[worker] - len(running))
        while self._waiting and len(chosen) < limit:
            task = self._waiting.popleft()
            if not task.over:
                chosen.append(task)
        return self._numbered(worker, chosen)

    def _numbered(self, worker: int, tasks: list[Task]) -> list[tuple[int, Task]]:
        numbered = list(enumerate(tasks, self._n_given + 1))
        self._n_given += len(tasks)
        self._running[worker].update(numbered)
        for number, task in numbered:
            task.at = (worker, number)
        return numbered

    def finish(self, worker: int, number: int, result: Any) -> None:
        """Record the result of a task. Ignores a finished task: a call may be processed twice."""
        task = self._running[worker].pop(number, None)
        if task is not None:
            task.end(result)

    def abort(self, task: Task) -> None:
        """Abort a task that is no longer needed. It ends now if no worker has it; else its worker may end it."""
        task.unwanted = True
        if task.at is None:
            task.end(aborted())
        else:
            worker, number = task.at
            self._abort[worker].append(number)

    def to_abort(self, worker: int) -> list[int]:
        """The numbers that this worker should abort, each returned once."""
        numbers, self._abort[worker] = self._abort[worker], []
        return [number for number in numbers if number in self._running[worker]]

    def leave(self, worker: int, why: object) -> None:
        """Remove a worker that died. Tasks that are given up end with a RequestFailed that says why."""
        running = self._running.pop(worker, {})
        self._windows.pop(worker, None)
        self._abort.pop(worker, None)
        self._trials.discard(worker)
        for task in running.values():
            task.at = None
            if task.unwanted:
                task.end(aborted())
        suspects = [task for task in running.values() if not task.over]
        if len(suspects) == 1 and suspects[0].deaths:
            suspects.pop().end(RequestFailed("workers died while this request ran, the last time alone", given=why))
        for task in suspects:
            task.deaths += 1
        size = max(1, len(suspects) // GROUPS)
        groups = [suspects[i : i + size] for i in range(0, len(suspects), size)]
        self._groups.extendleft(reversed(groups))

    def give_up(self, error: GpuRagError) -> None:
        """End every task with `error`."""
        tasks = [*self._waiting, *(task for group in self._groups for task in group)]
        tasks += [task for running in self._running.values() for task in running.values()]
        self._waiting.clear()
        self._groups.clear()
        self._running.clear()
        for task in tasks:
            task.at = None
            task.end(error)
