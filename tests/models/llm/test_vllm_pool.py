"""Several engines of one model: where jobs go, what a dead engine's jobs become, which GPUs each engine sees."""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_rag.errors import GpuRagError, ModelError, RequestFailed, UsageError
from gpu_rag.models.llm import vllm_engine, vllm_service
from gpu_rag.models.llm.vllm_engine import check_arguments, engine_arguments, has_child, more_arguments, places, seeing
from gpu_rag.models.llm.vllm_jobs import Finished, Generation, Piece
from gpu_rag.models.llm.vllm_service import EngineDied, EnginePool
from gpu_rag.settings.sections import VllmSettings

WAIT_S = 20.0
POISON = 666


class Engine:
    """Finishes what it is given once its gate is open; dies of the poison, or when it is told to."""

    def __init__(self, name: int, done: Counter[int], gate: threading.Event, mortal: set[int]):
        self.name, self.done, self.gate, self.mortal = name, done, gate, mortal
        self.inside: dict[int, Piece] = {}
        self.n_slept = 0

    def add(self, number: int, piece: Piece) -> None:
        self.inside[number] = piece

    def step(self) -> list[tuple[int, Finished]]:
        assert self.gate.wait(WAIT_S)
        if self.name in self.mortal or any(piece.ids == (POISON,) for piece in self.inside.values()):
            raise EngineDied("it died")
        self.done[self.name] += len(self.inside)
        finished = [(number, Finished((1,), "stop", 0, n_preempted=2, queued_s=0.5)) for number in self.inside]
        self.inside.clear()
        return finished

    def abort(self, numbers: list[int]) -> None:
        for number in numbers:
            self.inside.pop(number, None)

    def sleep(self) -> None:
        assert not self.inside
        self.n_slept += 1

    def close(self) -> None:
        pass


class Bench:
    """A pool of engines behind one gate, and what its jobs ended with."""

    def __init__(self, n: int, restarts: int = 0):
        self.done: Counter[int] = Counter()
        self.gate, self.mortal = threading.Event(), set[int]()
        self.ended: queue.SimpleQueue[tuple[int, GpuRagError | None]] = queue.SimpleQueue()
        builds = [lambda i=i: Engine(i, self.done, self.gate, self.mortal) for i in range(n)]
        self.pool = EnginePool(builds, window=4, restarts=restarts)

    def submit(self, key: int) -> Any:
        return self.pool.submit(Generation(Piece((key,), 1)), lambda error: self.ended.put((key, error)))

    def outcomes(self, n: int) -> dict[int, GpuRagError | None]:
        found = [self.ended.get(timeout=WAIT_S) for _ in range(n)]
        assert self.ended.empty()
        return dict(found)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_service, "CLOSE_FIRST_S", 0.0)


def test_jobs_are_shared_evenly() -> None:
    bench = Bench(3)
    placed = [bench.submit(key) for key in range(30)]  # none ends before the gate opens
    assert set(Counter(id(job.at[0]) for job in placed).values()) == {10}
    bench.gate.set()
    assert bench.outcomes(30) == dict.fromkeys(range(30))
    assert sum(bench.done.values()) == 30 and len(bench.done) == 3
    bench.pool.close()


def test_jobs_of_a_dead_engine_go_to_the_others() -> None:
    bench = Bench(3)
    bench.mortal.add(1)
    for key in range(12):
        bench.submit(key)
    bench.gate.set()
    assert bench.outcomes(12) == dict.fromkeys(range(12))
    assert set(bench.done) == {0, 2} and sum(one.failures for one in bench.pool.accounts()) == 1
    bench.submit(99)
    assert bench.outcomes(1) == {99: None}
    bench.pool.close()


def test_the_last_engine_takes_all_with_it() -> None:
    bench = Bench(2)
    bench.mortal.update((0, 1))
    for key in range(6):
        bench.submit(key)
    bench.gate.set()
    assert all(isinstance(error, ModelError) for error in bench.outcomes(6).values())
    bench.submit(7)
    assert isinstance(bench.outcomes(1)[7], ModelError)


def test_a_job_that_kills_engines_is_given_up_and_the_others_end() -> None:
    bench = Bench(2, restarts=2)
    for key in (1, POISON, 2, 3):
        bench.submit(key)
    bench.gate.set()
    found = bench.outcomes(4)
    assert isinstance(found.pop(POISON), RequestFailed) and set(found.values()) == {None}
    bench.pool.close()


def test_an_aborted_job_ends_once() -> None:
    bench = Bench(2)
    placed = [bench.submit(key) for key in range(4)]
    bench.pool.abort(placed[2])
    bench.gate.set()
    found = bench.outcomes(4)
    assert set(found) == set(range(4)) and all(job.over for job in placed)
    bench.pool.abort(placed[2])  # nothing happens
    bench.pool.close()


def test_each_engine_has_an_account() -> None:
    bench = Bench(2)
    for key in range(10):
        bench.submit(key)
    bench.gate.set()
    bench.outcomes(10)
    accounts = bench.pool.accounts()
    assert [one.name for one in accounts] == ["vLLM engine 1", "vLLM engine 2"]
    assert [(one.requests, one.prompt_tokens, one.generated_tokens, one.preemptions) for one in accounts] == [
        (5, 5, 5, 10)
    ] * 2
    assert all(one.queue_s >= 2.5 and one.busy_s > 0 and not one.failures for one in accounts)
    bench.pool.close()
    assert [one.requests for one in bench.pool.accounts()] == [5, 5]


def test_engines_without_jobs_sleep() -> None:
    bench = Bench(2)
    engines = [service._engine for service in bench.pool._all]
    bench.pool.sleep()
    assert [engine.n_slept for engine in engines] == [1, 1]
    bench.submit(1)
    sleeping = threading.Thread(target=bench.pool.sleep)  # it waits for the step that runs
    sleeping.start()
    bench.gate.set()
    sleeping.join(WAIT_S)
    assert bench.outcomes(1) == {1: None} and not sleeping.is_alive()
    bench.mortal.update((0, 1))
    bench.submit(2)
    assert isinstance(bench.outcomes(1)[2], ModelError)
    bench.pool.sleep()  # nothing is left to sleep
    bench.pool.close()


def test_an_engine_sleeps_once_and_wakes_for_a_piece() -> None:
    log: list[str] = []
    engine = object.__new__(vllm_engine.VllmEngine)
    engine._engine = SimpleNamespace(
        sleep=lambda level: log.append(f"sleep {level}"),
        wake_up=lambda: log.append("wake"),
        add_request=lambda *_: log.append("add"),
    )
    engine._sampling, engine._kinds = dict, SimpleNamespace(CUMULATIVE=0, FINAL_ONLY=2)
    engine._failures, engine._refusals = (RuntimeError,), (ValueError,)
    engine._can_sleep, engine._sleeps = False, False
    engine.sleep()
    assert log == []
    engine._can_sleep = True
    for _ in range(2):
        engine.sleep()
    for number in range(2):
        engine.add(number, Piece((1,), 1))
    assert log == ["sleep 1", "wake", "add", "add"]
    engine._engine.sleep = lambda level: 1 // 0
    engine._failures = (ArithmeticError,)
    with pytest.raises(EngineDied, match="ZeroDivisionError"):
        engine.sleep()


def test_an_engine_that_does_not_start_closes_the_others() -> None:
    closed: list[str] = []

    class First(Engine):
        def close(self) -> None:
            closed.append("closed")

    def fails() -> Engine:
        raise EngineDied("no memory")

    first = First(0, Counter(), threading.Event(), set())
    with pytest.raises(ModelError, match="did not start"):
        EnginePool([lambda: first, fails], window=1, restarts=0)
    assert closed == ["closed"]


# --- where engines are -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "gpus", "found"),
    [
        ({}, 1, [""]),
        ({}, 3, ["0", "1", "2"]),
        ({"tensor_parallel": 2}, 5, ["0,1", "2,3"]),
        ({"tensor_parallel": 2}, 2, [""]),
        ({"engines": 2}, 4, ["0", "1"]),
        ({"engines": 1}, 4, [""]),
    ],
)
def test_each_engine_has_its_gpus(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], gpus: int, found: list[str]
) -> None:
    monkeypatch.setattr(vllm_engine, "visible_gpus", lambda: [str(i) for i in range(gpus)])
    assert places(VllmSettings(**settings), "cuda") == found


def test_places_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "visible_gpus", lambda: ["4", "7"])
    assert places(VllmSettings(), "cuda") == ["4", "7"]
    for settings in (VllmSettings(engines=3), VllmSettings(engines=2, tensor_parallel=2)):
        with pytest.raises(UsageError, match="too few GPUs"):
            places(settings, "cuda")
    with pytest.raises(UsageError, match="processes of their own"):
        places(VllmSettings(child_process=False), "cuda")
    assert places(VllmSettings(engines=2, child_process=True), "cpu") == ["", ""]
    assert [has_child(VllmSettings(), device) for device in ("cpu", "cuda")] == [False, True]


def test_the_named_gpus_are_seen_while_an_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert vllm_engine.visible_gpus() == ["4", "7"]
    with seeing("7"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(KeyError), seeing("1"):
        raise KeyError
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


# --- arguments passed through ----------------------------------------------------------------------


@dataclass
class EngineArgs:
    model: str = ""
    quantization: str = ""


def test_arguments_of_the_user_reach_the_engine_and_are_checked(tmp_path: Any) -> None:
    settings = VllmSettings(arguments='{"quantization": "fp8", "max_num_seqs": 7}')
    found = engine_arguments(tmp_path, settings, "cuda")
    assert (found["quantization"], found["max_num_seqs"]) == ("fp8", 7)
    check_arguments({"quantization": "fp8"}, EngineArgs)
    with pytest.raises(UsageError, match=r"quantisation.*did you mean quantization"):
        check_arguments({"quantisation": "fp8"}, EngineArgs)


@pytest.mark.parametrize("text", ["[1]", "{", '{"model": "other"}', '{"trust_remote_code": true}'])
def test_arguments_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        more_arguments(text)
