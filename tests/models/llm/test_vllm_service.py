"""The engine's thread and its jobs, without vllm: admission, abort, deaths, poison; ranking as a trie of pieces."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import GpuRagError, ModelError, RequestFailed
from gpu_rag.models.llm import vllm_service
from gpu_rag.models.llm.vllm_jobs import SCORES_A_PIECE, Finished, Generation, Piece, Ranking
from gpu_rag.models.llm.vllm_service import EngineDied, EngineService

WAIT_S = 60.0  # only a bug takes so long


@pytest.fixture(autouse=True)
def no_wait_before_a_restart(monkeypatch):
    monkeypatch.setattr(vllm_service, "CLOSE_FIRST_S", 0.0)


class FakeEngine:
    """Finishes one piece a step, oldest first; a piece whose ids hold POISON kills it; REFUSED is refused.

    Shared by all engines of a test: `log` of what happened, `gate` that every step waits for.
    """

    POISON, REFUSED, ADD_KILLS = 666, 404, 665

    def __init__(self, log: list[Any], gate: threading.Event, most: list[int]):
        self.log, self.gate, self.most = log, gate, most
        self.inside: dict[int, Piece] = {}
        log.append("built")

    def add(self, number: int, piece: Piece) -> None:
        if self.REFUSED in piece.ids:
            raise RequestFailed("refused")
        if self.ADD_KILLS in piece.ids:
            raise EngineDied("killed by an add")
        self.inside[number] = piece
        self.most.append(len(self.inside))
        self.log.append(("add", piece.ids))

    def step(self) -> list[tuple[int, Finished]]:
        assert self.gate.wait(WAIT_S)
        if any(self.POISON in piece.ids for piece in self.inside.values()):
            raise EngineDied("killed by a piece")
        number, piece = next(iter(self.inside.items()))
        del self.inside[number]
        return [(number, Finished(piece.ids, "stop", 0, {t: -float(t) for t in piece.scored}))]

    def abort(self, numbers: list[int]) -> None:
        self.log.append(("abort", len(numbers)))
        for number in numbers:
            del self.inside[number]

    def sleep(self) -> None:
        self.log.append("slept")

    def close(self) -> None:
        self.log.append("closed")


class Bench:
    """A service over fake engines, and what its jobs ended with."""

    def __init__(self, *, window: int = 4, restarts: int = 2, gate_open: bool = True):
        self.log: list[Any] = []
        self.most: list[int] = []
        self.gate = threading.Event()
        if gate_open:
            self.gate.set()
        self.ended: queue.SimpleQueue[tuple[int, GpuRagError | None]] = queue.SimpleQueue()
        self.service = EngineService(self.build, window=window, restarts=restarts)

    def build(self) -> FakeEngine:
        return FakeEngine(self.log, self.gate, self.most)

    def submit(self, key: int, *ids: int) -> Any:
        job = Generation(Piece(ids or (key,), 1))
        return self.service.submit(job, lambda error: self.ended.put((key, error)))

    def until_added(self, key: int) -> None:
        """Waits until the engine has the job."""
        end = time.monotonic() + WAIT_S
        while ("add", (key,)) not in self.log:
            assert time.monotonic() < end, "not added"
            time.sleep(0.001)

    def outcomes(self, n: int) -> dict[int, GpuRagError | None]:
        found = [self.ended.get(timeout=WAIT_S) for _ in range(n)]
        assert len(dict(found)) == n and self.ended.empty()
        return dict(found)


# --- admission, abort, refusal ---------------------------------------------------------------------


def test_jobs_are_admitted_while_others_run():
    bench = Bench(gate_open=False)
    bench.submit(0)
    bench.until_added(0)
    bench.submit(1)  # the engine is in a step now
    bench.gate.set()
    assert bench.outcomes(2) == {0: None, 1: None}
    bench.service.close()


def test_abort_before_during_and_after():
    bench = Bench(window=1, gate_open=False)
    running, waiting = bench.submit(0), bench.submit(1)
    bench.until_added(0)
    bench.service.abort(waiting)
    bench.service.abort(running)
    bench.submit(2)
    bench.gate.set()
    found = bench.outcomes(3)
    assert isinstance(found[1], RequestFailed) and "aborted" in str(found[1]) and found[2] is None
    assert found[0] is None or "aborted" in str(found[0])  # it may have finished first
    assert ("add", (1,)) not in bench.log
    bench.service.abort(running)
    bench.submit(3)
    assert bench.outcomes(1) == {3: None}
    bench.service.close()


def test_a_refused_piece_fails_its_job_alone():
    bench = Bench()
    bench.submit(0, FakeEngine.REFUSED)
    bench.submit(1)
    found = bench.outcomes(2)
    assert "refused" in str(found[0]) and found[1] is None and bench.service.account.failures == 0
    bench.service.close()


def test_closing_ends_what_is_open_and_later_jobs():
    bench = Bench(gate_open=False)
    for key in range(6):
        bench.submit(key)
    closer = threading.Thread(target=bench.service.close)
    closer.start()
    bench.gate.set()
    closer.join(WAIT_S)
    found = bench.outcomes(6)
    assert all(error is None or isinstance(error, ModelError) for error in found.values())
    bench.submit(7)
    assert "closed" in str(bench.outcomes(1)[7])


# --- deaths ----------------------------------------------------------------------------------------


def test_a_poisonous_job_is_given_up_and_the_rest_goes_on():
    bench = Bench(window=8, gate_open=False)
    for key in range(12):
        bench.submit(key, *((FakeEngine.POISON,) if key == 3 else (key,)))
    bench.gate.set()
    found = bench.outcomes(12)
    assert {key for key, error in found.items() if error is not None} == {3}
    assert "twice" in str(found[3]) and bench.service.account.failures == 2 and bench.log.count("built") == 3
    bench.submit(50)
    assert bench.outcomes(1) == {50: None}
    bench.service.close()


def test_an_add_that_kills_is_poison_too():
    bench = Bench(window=4, gate_open=False)
    for key in range(4):
        bench.submit(key, *((FakeEngine.ADD_KILLS,) if key == 2 else (key,)))
    bench.gate.set()
    found = bench.outcomes(4)
    assert {key for key, error in found.items() if error is not None} == {2}
    bench.service.close()


def test_after_the_last_restart_every_job_ends_with_the_error():
    bench = Bench(restarts=0)
    bench.submit(0, FakeEngine.POISON)
    [error] = bench.outcomes(1).values()
    assert isinstance(error, ModelError) and "1 deaths, 0 restarts" in str(error)
    bench.submit(1)
    assert isinstance(bench.outcomes(1)[1], ModelError)
    assert bench.log.count("built") == 1
    bench.service.close()


def test_two_poisons_use_up_the_restarts():
    bench = Bench(restarts=2, window=1)
    for key in (0, 1):
        bench.submit(key, FakeEngine.POISON)
    found = bench.outcomes(2)
    assert isinstance(found[0], RequestFailed) and isinstance(found[1], ModelError)


def failing(kind: type[Exception], times: int) -> Callable[[], FakeEngine]:
    engines = [kind("cannot load")] * times

    def build() -> FakeEngine:
        if engines:
            raise engines.pop()
        gate = threading.Event()
        gate.set()
        return FakeEngine([], gate, [])

    return build


def test_an_engine_that_does_not_start():
    with pytest.raises(ModelError, match="did not start; given cannot load"):
        EngineService(failing(EngineDied, 1), window=1, restarts=2)
    with pytest.raises(RequestFailed, match="cannot load"):
        EngineService(failing(RequestFailed, 1), window=1, restarts=2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_thread_leaves_nobody_waiting():
    with pytest.raises(ModelError, match="thread ended"):
        EngineService(failing(ZeroDivisionError, 1), window=1, restarts=2)
    bench = Bench()
    bench.service.submit(Generation(None), lambda error: bench.ended.put((0, error)))  # type: ignore[arg-type]
    assert "thread ended" in str(bench.outcomes(1)[0])
    bench.service.close()


def test_each_death_doubles_the_wait_before_the_next_engine(monkeypatch):
    monkeypatch.setattr(vllm_service, "CLOSE_FIRST_S", 1.0)
    monkeypatch.setattr(vllm_service, "MOST_WAIT_S", 3.0)
    bench, waits = Bench(window=1, restarts=4, gate_open=False), []
    monkeypatch.setattr(bench.service._closing, "wait", lambda seconds: waits.append(seconds))
    for key in range(3):
        bench.submit(key, FakeEngine.POISON)
    bench.gate.set()
    assert all(bench.outcomes(3).values()) and waits[:4] == [1.0, 2.0, 3.0, 3.0]
    bench.service.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    poison=st.sets(st.integers(0, 30), max_size=2),
    n=st.integers(1, 30),
    window=st.integers(1, 16),
    abort=st.sets(st.integers(0, 30), max_size=5),
)
def test_every_job_ends_once_whatever_happens(poison, n, window, abort):
    vllm_service.CLOSE_FIRST_S = 0.0
    bench = Bench(window=window, restarts=4, gate_open=False)
    tickets = [bench.submit(key, *((FakeEngine.POISON,) if key in poison else (key,))) for key in range(n)]
    for key in sorted(abort & set(range(n))):
        bench.service.abort(tickets[key])
    bench.gate.set()
    found = bench.outcomes(n)
    failed = {key for key, error in found.items() if error is not None}
    assert max(bench.most, default=0) <= window
    present = poison & set(range(n))
    assert present - abort <= failed <= present | abort
    bench.service.close()


# --- ranking ---------------------------------------------------------------------------------------


def next_score(ids: tuple[int, ...], token: int) -> float:
    """An invented model: the log-probability of a token depends on all before it."""
    return -math.fmod(sum((i + 1) * t for i, t in enumerate(ids)) * 0.37 + token * 0.91, 5.0)


def run_ranking(job: Ranking) -> list[Piece]:
    """Plays the engine, in the order in which pieces may run; returns them."""
    waiting, done = job.start(), []
    while waiting:
        piece = waiting.pop(0)
        scores = {t: next_score(piece.ids, t) for t in piece.scored}
        done.append(piece)
        waiting += job.take(piece, Finished((0,), "length", 7 if len(done) == 1 else 99, scores))
    return done


def rank_reference(prompt: list[int], options: list[list[int]]) -> list[float]:
    return [sum(next_score((*prompt, *ids[:i]), t) for i, t in enumerate(ids)) / len(ids) for ids in options]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    prompt=st.lists(st.integers(1, 9), max_size=5),
    options=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=8),
)
def test_ranking_is_the_mean_log_probability_of_each_option(prompt, options):
    job = Ranking(prompt, options)
    pieces = run_ranking(job)
    assert list(job.scores()) == pytest.approx(rank_reference(prompt, options), abs=1e-12)
    nodes = {tuple(ids[:i]) for ids in options for i in range(len(ids))}
    assert len(pieces) == len(nodes) and pieces[0].ids == tuple(prompt)
    assert job.n_cached == 7
    again = run_ranking(job)  # after a death everything begins anew
    assert [p.ids for p in again] == [p.ids for p in pieces]
    assert list(job.scores()) == pytest.approx(rank_reference(prompt, options), abs=1e-12)


def test_options_of_one_token_cost_one_piece_and_very_many_some_more():
    assert len(run_ranking(Ranking([5, 6], [[1], [2], [1]]))) == 1
    many = Ranking([5], [[t] for t in range(2 * SCORES_A_PIECE + 1)])
    assert len(run_ranking(many)) == 3 and len(many.scores()) == 2 * SCORES_A_PIECE + 1
    long = Ranking([5], [[t, t] for t in range(SCORES_A_PIECE + 1)])
    run_ranking(long)
    wanted = rank_reference([5], [[t, t] for t in range(SCORES_A_PIECE + 1)])
    assert list(long.scores()) == pytest.approx(wanted)
