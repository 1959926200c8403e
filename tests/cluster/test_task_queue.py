"""Who holds what and what a death means, without Ray: simulated workers, poison, deaths from outside."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.cluster.task_queue import Task, TaskQueue
from gpu_rag.errors import ModelError, RequestFailed


class Cluster:
    """Workers that do one running task after the other; a task in `poison` kills the worker that begins it."""

    def __init__(self, queue: TaskQueue, n_tasks: int, poison: set[int], n_workers: int, window: int, seed: int):
        self.queue, self.poison, self.window, self.random = queue, poison, window, random.Random(seed)
        self.results: dict[int, list[Any]] = {i: [] for i in range(n_tasks)}
        self.tasks = [Task(i, self.results[i].append) for i in range(n_tasks)]
        self.running: dict[int, dict[int, int]] = {}
        self.n_deaths, self.most_running = 0, 0
        queue.add(self.tasks)
        for worker in range(n_workers):
            self.join(worker)

    def join(self, worker: int) -> None:
        self.running[worker] = {}
        self.queue.join(worker, self.window)

    def die(self, worker: int) -> None:
        self.n_deaths += 1
        self.queue.leave(worker, "killed")
        self.join(worker)

    def turn(self, deaths: float = 0.0) -> None:
        for worker, given_now in self.queue.shares(self.running):
            self.running[worker].update((number, task.item) for number, task in given_now)
            self.most_running = max(self.most_running, len(self.running[worker]))
        for worker, running in list(self.running.items()):
            if running:
                number = self.random.choice(sorted(running))
                if running[number] in self.poison or self.random.random() < deaths:
                    self.die(worker)
                else:
                    self.queue.finish(worker, number, f"done {running.pop(number)}")

    def run(self, deaths: float = 0.0) -> None:
        for _ in range(20_000):
            if all(self.results.values()):
                return
            self.turn(deaths)
        raise AssertionError("tasks are left")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_task_ends_once_and_only_poison_is_given_up(data: st.DataObject) -> None:
    n_tasks = data.draw(st.integers(0, 120))
    poison = data.draw(st.sets(st.integers(0, max(n_tasks - 1, 0)), max_size=min(4, n_tasks)))
    n_workers, window, seed = (data.draw(st.integers(1, most)) for most in (4, 70, 1000))
    cluster = Cluster(TaskQueue(), n_tasks, poison, n_workers, window, seed)
    cluster.run()
    for item, results in cluster.results.items():
        assert len(results) == 1
        assert isinstance(results[0], RequestFailed) if item in poison else results == [f"done {item}"]
    assert cluster.most_running <= window
    assert cluster.n_deaths <= 4 * len(poison)  # in company, in two groups, alone


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 3), st.integers(1, 40), st.integers(0, 1000))
def test_deaths_from_outside_lose_no_task_that_had_company(n: int, n_workers: int, window: int, seed: int) -> None:
    cluster = Cluster(TaskQueue(), n, set(), n_workers, window, seed)
    cluster.run(deaths=0.05)
    for (result,), task in zip(cluster.results.values(), cluster.tasks):
        assert result == f"done {task.item}" or (isinstance(result, RequestFailed) and task.deaths >= 1)


def test_what_waits_is_spread_over_workers_and_full_ones_get_nothing() -> None:
    queue = TaskQueue()
    for worker, window in ((0, 10), (1, 10), (2, 3)):
        queue.join(worker, window)
    queue.add([Task(i, print) for i in range(12)])
    assert [len(tasks) for _, tasks in queue.shares([0, 1, 2])] == [4, 4, 3]
    assert [len(tasks) for _, tasks in queue.shares([2])] == [0]
    assert [(worker, len(tasks)) for worker, tasks in queue.shares([0, 1, 2])] == [(2, 0), (0, 1), (1, 0)]


def test_suspects_are_tried_alone_while_others_work_and_before_anything_new() -> None:
    queue, ended = TaskQueue(), []
    queue.join(0, 4)
    queue.join(1, 4)
    queue.add([Task(i, partial(lambda i, r: ended.append(i), i)) for i in range(20)])
    queue.shares([0, 1])
    queue.leave(0, "killed")
    queue.join(0, 4)
    given_now = dict(queue.shares([0, 1]))
    assert [task.item for _, task in given_now[0]] == [0] and given_now[1] == []  # one of four is a sixteenth, rounded
    number = given_now[0][0][0]
    assert dict(queue.shares([0]))[0] == []
    queue.finish(1, 5, "done")
    assert list(given_to(queue, 1).values()) == [8]  # the other worker goes on with what is new
    queue.finish(0, number, "done")
    assert [task.item for _, task in dict(queue.shares([0]))[0]] == [1]
    assert ended == [4, 0]


def test_a_worker_runs_empty_for_suspects_when_no_other_will() -> None:
    """The dead worker does not come back: its tasks must not wait behind all that is new."""
    queue, ended = TaskQueue(), Counter[int]()
    for worker in (0, 1):
        queue.join(worker, 2)
    queue.add([Task(i, partial(lambda i, r: ended.update([i]), i)) for i in range(100)])
    running = {worker: dict(tasks) for worker, tasks in queue.shares([0, 1])}
    queue.leave(0, "killed")
    for number in list(running[1]):
        assert dict(queue.shares([1]))[1] == []
        queue.finish(1, number, "done")
    assert [task.item for _, task in dict(queue.shares([1]))[1]] == [0]


def test_an_aborted_task_ends_at_once_where_nobody_holds_it_and_is_not_tried_again() -> None:
    queue, results = TaskQueue(), {}
    tasks = [Task(i, partial(results.__setitem__, i)) for i in range(4)]
    queue.join(0, 2)
    queue.add(tasks)
    (((_, _), _),) = [(given_now[0], 0) for _, given_now in queue.shares([0])]
    queue.abort(tasks[3])
    assert "aborted" in str(results[3])
    queue.abort(tasks[0])
    assert 0 not in results and queue.to_abort(0) == [1] and queue.to_abort(0) == []
    queue.finish(0, 2, "done")
    queue.leave(0, "killed")
    assert "aborted" in str(results[0]) and results[1] == "done"
    queue.join(1, 2)
    assert [task.item for _, task in dict(queue.shares([1]))[1]] == [2]


def given_to(queue: TaskQueue, worker: int) -> dict[int, int]:
    """{number: item} of what this worker is to be given now."""
    return {number: task.item for number, task in dict(queue.shares([worker]))[worker]}


def test_a_worker_on_trial_gets_nothing_new_though_no_suspect_is_left_over() -> None:
    queue = TaskQueue()
    queue.join(0, 4)
    queue.add([Task(0, print)])
    given_to(queue, 0)
    queue.leave(0, "killed")
    queue.join(0, 4)
    queue.add([Task(i, print) for i in range(1, 9)])
    (number,) = given_to(queue, 0)
    assert given_to(queue, 0) == {}
    queue.finish(0, number, "done")
    assert list(given_to(queue, 0).values()) == [1, 2, 3, 4]


def test_suspects_go_on_elsewhere_when_the_worker_that_tried_them_stays_away() -> None:
    queue = TaskQueue()
    for worker in (0, 1):
        queue.join(worker, 2)
    queue.add([Task(i, print) for i in range(20)])
    running = {worker: dict(tasks) for worker, tasks in queue.shares([0, 1])}
    queue.leave(0, "killed")
    queue.join(0, 2)
    assert list(given_to(queue, 0).values()) == [0]
    queue.leave(0, "killed again, for good")
    for number in running[1]:
        assert given_to(queue, 1) == {}
        queue.finish(1, number, "done")
    assert list(given_to(queue, 1).values()) == [1]  # 0 is given up; 1 was near twice


def test_the_suspects_of_the_last_death_come_first() -> None:
    queue = TaskQueue()
    queue.join(0, 64)
    queue.add([Task(i, print) for i in range(64)])
    given_to(queue, 0)
    queue.leave(0, "killed")
    queue.join(0, 64)
    assert list(given_to(queue, 0).values()) == [0, 1, 2, 3]  # a sixteenth
    queue.leave(0, "killed")
    queue.join(0, 64)
    for item in range(4):
        ((number, tried),) = given_to(queue, 0).items()
        assert tried == item
        queue.finish(0, number, "done")
    assert list(given_to(queue, 0).values()) == [4, 5, 6, 7]


def test_an_aborted_suspect_ends_at_once_and_is_not_tried() -> None:
    queue, results = TaskQueue(), {}
    tasks = [Task(i, partial(results.__setitem__, i)) for i in range(3)]
    queue.join(0, 3)
    queue.add(tasks)
    given_to(queue, 0)
    queue.leave(0, "killed")
    queue.abort(tasks[0])
    assert "aborted" in str(results.pop(0))
    queue.join(0, 3)
    assert list(given_to(queue, 0).values()) == [1]


def test_what_was_aborted_while_it_waited_is_not_ended_again_with_the_rest() -> None:
    queue, results, error = TaskQueue(), [], ModelError("the end")
    tasks = [Task(i, results.append) for i in range(2)]
    queue.add(tasks)
    queue.abort(tasks[0])
    queue.give_up(error)
    assert [str(result) for result in results] == [str(results[0]), "the end"] and "aborted" in str(results[0])


def test_a_worker_is_not_told_to_abort_what_it_has_done() -> None:
    queue = TaskQueue()
    tasks = [Task(i, print) for i in range(2)]
    queue.join(0, 2)
    queue.add(tasks)
    given_to(queue, 0)
    for task in tasks:
        queue.abort(task)
    queue.finish(0, 1, "done")
    assert queue.to_abort(0) == [2]


def test_what_a_worker_says_twice_counts_once() -> None:
    """A call whose bookkeeping Ctrl-C cut short is heard again."""
    queue, results = TaskQueue(), []
    queue.join(0, 2)
    queue.add([Task(0, results.append)])
    (number,) = given_to(queue, 0)
    queue.finish(0, number, "done")
    queue.finish(0, number, "done")
    assert results == ["done"]


def test_giving_up_ends_every_task_with_the_error() -> None:
    queue, error, results = TaskQueue(), ModelError("the end"), []
    queue.join(0, 2)
    queue.add([Task(i, results.append) for i in range(6)])
    queue.shares([0])
    queue.leave(0, "killed")
    queue.join(0, 2)
    queue.shares([0])
    queue.give_up(error)
    assert results == [error] * 6
