"""The clocks of gpu-rag bench count calls, questions, and the untimed call before them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_rag.bench import measure
from gpu_rag.bench import run as runner
from gpu_rag.bench.case import MAX_ALONE, MAX_TILED, STARTS, Case, Checked, Config, Peer

pytestmark = pytest.mark.usefixtures("small_bench")
CPU = torch.device("cpu")
CALL_S, QUESTION_S, COLD_S = 0.010, 0.002, 0.050  # of a call, of each of its questions, of the first after another's


class Clock:
    """Time that only moves when somebody works; processor time at half its speed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.last = 0.0, ""
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(measure.time, "process_time", lambda: self.now / 2)
        monkeypatch.setattr(measure.gc, "collect", lambda: 0)  # it looks at all that is imported, once a round

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_calls_are_averaged_and_rounds_have_a_median(clock):
    """By hand: 3 calls a round take 1, 2, 3 ms, then 4, 5, 6, then 70, 80, 90; the untimed ones count nowhere."""
    order: list[tuple[int, int]] = []
    took = {(r, c): (3 * r + c) * (10 if r == 2 else 1) * 1e-3 for r in range(3) for c in (1, 2, 3)}

    def run(asked: tuple[int, int]) -> None:
        order.append(asked)
        clock.work(took.get(asked, 0.5))

    found = measure.time_turns({"op": measure.Turn(lambda *at: at, run, 3)}, 3, CPU, lambda text: None)["op"]
    assert order == [(r, c) for r in range(3) for c in range(4)]
    assert (found.ms, found.cpu_ms, found.calls) == (pytest.approx(5.0), pytest.approx(2.5), 3)


def questions(turn: measure.Turn, round_number: int) -> tuple[list[int], list[int]]:
    """(asked on the clock, asked before)."""
    timed = [q for call in range(1, turn.calls + 1) for q in turn.inputs(round_number, call)]
    return timed, list(turn.inputs(round_number, 0))


def span(start: int, count: int) -> range:
    return range(start, start + count)


@pytest.mark.parametrize("batch", [1, 5, 15, 16, 17, 32, 63, 64, 1000])
def test_questions_of_a_turn(batch):
    pool = Config(sizes=(), batches=(batch,)).pool
    turn = runner._turn(span, lambda asked: None, batch)
    starts = set()
    for round_number in range(STARTS):
        timed, before = questions(turn, round_number)
        assert timed == list(range(timed[0], timed[0] + len(timed)))
        assert len(timed) >= MAX_ALONE and len(timed) < MAX_ALONE + batch
        assert len(before) == batch and not set(timed) & set(before) and max(timed + before) < pool
        starts.add(timed[0])
    assert len(starts) == STARTS


def costing(clock: Clock, name: str, call_s: float, question_s: float) -> Callable[[range], range]:
    """Work on questions that is dearer where another one has been at work before."""

    def run(asked: range) -> range:
        clock.work(call_s + question_s * len(asked) + (COLD_S if clock.last != name else 0.0))
        clock.last = name
        return asked

    return run


def rows_of(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, batches: tuple[int, ...], peers: list[Peer], run: Any = None
) -> list[Any]:
    """The rows of an op, by default of CALL_S a call and QUESTION_S a question."""
    case = Case(
        op="made up",
        implementation="numba",
        labels={"n": 16},
        inputs=span,
        run=run or costing(clock, "ours", CALL_S, QUESTION_S),
        check=lambda result, count: Checked("" if len(result) == count else "too few"),
        bytes_of=lambda batch: 8,
        memory_of=lambda batch: 8,
        peers=lambda: peers,
    )

    class Copied(measure.Copy):
        def __call__(self, _: object = None) -> None:
            clock.work(0.001)
            clock.last = "copy"

    monkeypatch.setattr(runner, "OPS", ("made up",))
    monkeypatch.setattr(runner, "cases_of", lambda op, config: [case])
    monkeypatch.setattr(runner, "Copy", Copied)
    rows = runner.run_bench(["made up"], Config(sizes=(16,), batches=batches, peers=True))
    assert not any(row.note for row in rows)
    return rows


@pytest.mark.parametrize("batch", [1, 3, 16, 64, 200])
def test_equal_work_has_the_ratio_one(clock, monkeypatch, batch):
    """A twin of the op as a peer is exactly as fast, at every batch; so is a loop of the twin at B = 1."""
    twin = Peer("twin", span, costing(clock, "twin", CALL_S, QUESTION_S))
    loop = Peer("loop", span, costing(clock, "loop", 0.0, CALL_S + QUESTION_S), max_questions=MAX_ALONE, alone=True)
    beside, alone = rows_of(clock, monkeypatch, (batch,), [twin, loop])
    expected = 1e3 * (CALL_S + batch * QUESTION_S)
    for row in (beside, alone):
        assert (row.ms, row.cpu_ms) == (pytest.approx(expected), pytest.approx(expected / 2))
    assert (beside.peer_ms, beside.ratio, beside.cpu_ratio) == (pytest.approx(expected), *[pytest.approx(1.0)] * 2)
    one = CALL_S + QUESTION_S
    assert alone.peer_ms == pytest.approx(1e3 * one * batch)
    assert alone.ratio == pytest.approx(one * batch / (CALL_S + batch * QUESTION_S))
    calls = -(-MAX_ALONE // batch)
    assert (beside.asked, beside.sampled, alone.sampled) == (calls * batch, calls * batch, MAX_ALONE)


@pytest.mark.parametrize("batch", [16, 17, 63, 200])
def test_the_untimed_call_warms_the_path_of_its_batch(clock, monkeypatch, batch):
    """From 17 questions on all work in tiles; the first call on either path after somebody else is cold."""

    def tiling(name: str) -> Callable[[range], range]:
        paths = {tiled: costing(clock, f"{name} {tiled}", CALL_S, QUESTION_S) for tiled in (False, True)}
        return lambda asked: paths[len(asked) > MAX_ALONE](asked)

    peers = [Peer("whole", span, tiling("whole")), Peer("tiled", span, tiling("tiled"), max_questions=MAX_TILED)]
    whole, tiled = rows_of(clock, monkeypatch, (batch,), peers, tiling("ours"))
    assert (whole.ms, whole.ratio) == (pytest.approx(1e3 * (CALL_S + batch * QUESTION_S)), pytest.approx(1.0))
    count = min(batch, MAX_TILED)
    assert tiled.peer_ms == pytest.approx(1e3 * (CALL_S + count * QUESTION_S) * batch / count)


@pytest.mark.parametrize(("seconds", "before", "each"), [(5.0, 1, 1), (0.4, 2, 5), (0.001, 2, MAX_ALONE)])
def test_a_peer_that_works_alone_is_asked_what_fits_two_seconds(clock, monkeypatch, seconds, before, each):
    """It is run once for its check, and once more, if that was fast, to see how many questions fit a round."""
    asked: list[int] = []

    def run(given: range) -> range:
        asked.append(len(given))
        clock.work(seconds * len(given))
        return given

    (row,) = rows_of(clock, monkeypatch, (64,), [Peer("alone", span, run, alone=True)])
    assert asked == [1] * before + [1, each] * 3
    assert (row.sampled, row.peer_ms) == (each, pytest.approx(64e3 * seconds))
