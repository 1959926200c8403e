"""Who holds what and what a death means, without Ray: simulated workers, poison, deaths from outside."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.cluster.task_queue import Ledger, Task
from gpu_rag.errors import ModelError, RequestFailed


class Cluster:
    """Workers that do one held task after the other; a task in `poison` kills the worker that begins it."""

    def __init__(self, ledger: Ledger, n_tasks: int, poison: set[int], n_workers: int, window: int, seed: int):
        self.ledger, self.poison, self.window, self.random = ledger, poison, window, random.Random(seed)
        self.results: dict[int, list[Any]] = {i: [] for i in range(n_tasks)}
        self.tasks = [Task(i, self.results[i].append) for i in range(n_tasks)]
        self.held: dict[int, dict[int, int]] = {}
        self.n_deaths, self.most_held = 0, 0
        ledger.add(self.tasks)
        for worker in range(n_workers):
            self.join(worker)

    def join(self, worker: int) -> None:
        self.held[worker] = {}
        self.ledger.join(worker, self.window)

    def die(self, worker: int) -> None:
        self.n_deaths += 1
        self.ledger.leave(worker, "killed")
        self.join(worker)

    def turn(self, deaths: float = 0.0) -> None:
        for worker, given_now in self.ledger.shares(self.held):
            self.held[worker].update((number, task.item) for number, task in given_now)
            self.most_held = max(self.most_held, len(self.held[worker]))
        for worker, held in list(self.held.items()):
            if held:
                number = self.random.choice(sorted(held))
                if held[number] in self.poison or self.random.random() < deaths:
                    self.die(worker)
                else:
                    self.ledger.finish(worker, number, f"done {held.pop(number)}")

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
    cluster = Cluster(Ledger(), n_tasks, poison, n_workers, window, seed)
    cluster.run()
    for item, results in cluster.results.items():
        assert len(results) == 1
        assert isinstance(results[0], RequestFailed) if item in poison else results == [f"done {item}"]
    assert cluster.most_held <= window
    assert cluster.n_deaths <= 4 * len(poison)  # in company, in two groups, alone


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 3), st.integers(1, 40), st.integers(0, 1000))
def test_deaths_from_outside_lose_no_task_that_had_company(n: int, n_workers: int, window: int, seed: int) -> None:
    cluster = Cluster(Ledger(), n, set(), n_workers, window, seed)
    cluster.run(deaths=0.05)
    for (result,), task in zip(cluster.results.values(), cluster.tasks):
        assert result == f"done {task.item}" or (isinstance(result, RequestFailed) and task.deaths >= 1)


class Careless(Ledger):
    """Wrong: suspects wait among all others, and the second death is the end of whoever was there."""

    def leave(self, worker: int, why: object) -> None:
        held = self._held.pop(worker)
        for task in held.values():
            task.deaths, task.held = task.deaths + 1, None
            if task.deaths > 1:
                task.end(RequestFailed("it was there twice"))
        self._waiting.extendleft(task for task in held.values() if not task.over)


def innocents_lost(kind: type[Ledger], seed: int) -> int:
    cluster = Cluster(kind(), 40, {7, 8}, 1, 8, seed)
    cluster.run()
    return sum(isinstance(r[0], RequestFailed) for i, r in cluster.results.items() if i not in (7, 8))


def test_a_ledger_without_trials_gives_up_innocents() -> None:
    assert max(innocents_lost(Careless, seed) for seed in range(10)) > 0
    assert max(innocents_lost(Ledger, seed) for seed in range(10)) == 0


def test_what_waits_is_spread_over_workers_and_full_ones_get_nothing() -> None:
    ledger = Ledger()
    for worker, window in ((0, 10), (1, 10), (2, 3)):
        ledger.join(worker, window)
    ledger.add([Task(i, print) for i in range(12)])
    assert [len(tasks) for _, tasks in ledger.shares([0, 1, 2])] == [4, 4, 3]
    assert [len(tasks) for _, tasks in ledger.shares([2])] == [0]
    assert [(worker, len(tasks)) for worker, tasks in ledger.shares([0, 1, 2])] == [(2, 0), (0, 1), (1, 0)]


def test_suspects_are_tried_alone_while_others_work_and_before_anything_new() -> None:
    ledger, ended = Ledger(), []
    ledger.join(0, 4)
    ledger.join(1, 4)
    ledger.add([Task(i, partial(lambda i, r: ended.append(i), i)) for i in range(20)])
    ledger.shares([0, 1])
    ledger.leave(0, "killed")
    ledger.join(0, 4)
    given_now = dict(ledger.shares([0, 1]))
    assert [task.item for _, task in given_now[0]] == [0] and given_now[1] == []  # one of four is a sixteenth, rounded
    number = given_now[0][0][0]
    assert dict(ledger.shares([0]))[0] == []
    ledger.finish(1, 5, "done")
    assert list(given_to(ledger, 1).values()) == [8]  # the other worker goes on with what is new
    ledger.finish(0, number, "done")
    assert [task.item for _, task in dict(ledger.shares([0]))[0]] == [1]
    assert ended == [4, 0]


def test_a_worker_runs_empty_for_suspects_when_no_other_will() -> None:
    """The dead worker does not come back: its tasks must not wait behind all that is new."""
    ledger, ended = Ledger(), Counter[int]()
    for worker in (0, 1):
        ledger.join(worker, 2)
    ledger.add([Task(i, partial(lambda i, r: ended.update([i]), i)) for i in range(100)])
    held = {worker: dict(tasks) for worker, tasks in ledger.shares([0, 1])}
    ledger.leave(0, "killed")
    for number in list(held[1]):
        assert dict(ledger.shares([1]))[1] == []
        ledger.finish(1, number, "done")
    assert [task.item for _, task in dict(ledger.shares([1]))[1]] == [0]


def test_an_aborted_task_ends_at_once_where_nobody_holds_it_and_is_not_tried_again() -> None:
    ledger, results = Ledger(), {}
    tasks = [Task(i, partial(results.__setitem__, i)) for i in range(4)]
    ledger.join(0, 2)
    ledger.add(tasks)
    (((_, _), _),) = [(given_now[0], 0) for _, given_now in ledger.shares([0])]
    ledger.abort(tasks[3])
    assert "aborted" in str(results[3])
    ledger.abort(tasks[0])
    assert 0 not in results and ledger.to_abort(0) == [1] and ledger.to_abort(0) == []
    ledger.finish(0, 2, "done")
    ledger.leave(0, "killed")
    assert "aborted" in str(results[0]) and results[1] == "done"
    ledger.join(1, 2)
    assert [task.item for _, task in dict(ledger.shares([1]))[1]] == [2]


def given_to(ledger: Ledger, worker: int) -> dict[int, int]:
    """{number: item} of what this worker is to be given now."""
    return {number: task.item for number, task in dict(ledger.shares([worker]))[worker]}


def test_a_worker_on_trial_gets_nothing_new_though_no_suspect_is_left_over() -> None:
    ledger = Ledger()
    ledger.join(0, 4)
    ledger.add([Task(0, print)])
    given_to(ledger, 0)
    ledger.leave(0, "killed")
    ledger.join(0, 4)
    ledger.add([Task(i, print) for i in range(1, 9)])
    (number,) = given_to(ledger, 0)
    assert given_to(ledger, 0) == {}
    ledger.finish(0, number, "done")
    assert list(given_to(ledger, 0).values()) == [1, 2, 3, 4]


def test_suspects_go_on_elsewhere_when_the_worker_that_tried_them_stays_away() -> None:
    ledger = Ledger()
    for worker in (0, 1):
        ledger.join(worker, 2)
    ledger.add([Task(i, print) for i in range(20)])
    held = {worker: dict(tasks) for worker, tasks in ledger.shares([0, 1])}
    ledger.leave(0, "killed")
    ledger.join(0, 2)
    assert list(given_to(ledger, 0).values()) == [0]
    ledger.leave(0, "killed again, for good")
    for number in held[1]:
        assert given_to(ledger, 1) == {}
        ledger.finish(1, number, "done")
    assert list(given_to(ledger, 1).values()) == [1]  # 0 is given up; 1 was near twice


def test_the_suspects_of_the_last_death_come_first() -> None:
    ledger = Ledger()
    ledger.join(0, 64)
    ledger.add([Task(i, print) for i in range(64)])
    given_to(ledger, 0)
    ledger.leave(0, "killed")
    ledger.join(0, 64)
    assert list(given_to(ledger, 0).values()) == [0, 1, 2, 3]  # a sixteenth
    ledger.leave(0, "killed")
    ledger.join(0, 64)
    for item in range(4):
        ((number, tried),) = given_to(ledger, 0).items()
        assert tried == item
        ledger.finish(0, number, "done")
    assert list(given_to(ledger, 0).values()) == [4, 5, 6, 7]


def test_an_aborted_suspect_ends_at_once_and_is_not_tried() -> None:
    ledger, results = Ledger(), {}
    tasks = [Task(i, partial(results.__setitem__, i)) for i in range(3)]
    ledger.join(0, 3)
    ledger.add(tasks)
    given_to(ledger, 0)
    ledger.leave(0, "killed")
    ledger.abort(tasks[0])
    assert "aborted" in str(results.pop(0))
    ledger.join(0, 3)
    assert list(given_to(ledger, 0).values()) == [1]


def test_what_was_aborted_while_it_waited_is_not_ended_again_with_the_rest() -> None:
    ledger, results, error = Ledger(), [], ModelError("the end")
    tasks = [Task(i, results.append) for i in range(2)]
    ledger.add(tasks)
    ledger.abort(tasks[0])
    ledger.give_up(error)
    assert [str(result) for result in results] == [str(results[0]), "the end"] and "aborted" in str(results[0])


def test_a_worker_is_not_told_to_abort_what_it_has_done() -> None:
    ledger = Ledger()
    tasks = [Task(i, print) for i in range(2)]
    ledger.join(0, 2)
    ledger.add(tasks)
    given_to(ledger, 0)
    for task in tasks:
        ledger.abort(task)
    ledger.finish(0, 1, "done")
    assert ledger.to_abort(0) == [2]


def test_what_a_worker_says_twice_counts_once() -> None:
    """A call whose bookkeeping Ctrl-C cut short is heard again."""
    ledger, results = Ledger(), []
    ledger.join(0, 2)
    ledger.add([Task(0, results.append)])
    (number,) = given_to(ledger, 0)
    ledger.finish(0, number, "done")
    ledger.finish(0, number, "done")
    assert results == ["done"]


def test_giving_up_ends_every_task_with_the_error() -> None:
    ledger, error, results = Ledger(), ModelError("the end"), []
    ledger.join(0, 2)
    ledger.add([Task(i, results.append) for i in range(6)])
    ledger.shares([0])
    ledger.leave(0, "killed")
    ledger.join(0, 2)
    ledger.shares([0])
    ledger.give_up(error)
    assert results == [error] * 6


@pytest.mark.parametrize("n", [1, 2, 16, 17, 33, 320])
def test_a_killer_costs_few_deaths_however_much_company_it_had(n: int) -> None:
    cluster = Cluster(Ledger(), n, {n // 2}, 1, n, seed=0)
    cluster.run()
    assert 2 <= cluster.n_deaths <= (2 if n == 1 else 3 if n <= 33 else 4)
