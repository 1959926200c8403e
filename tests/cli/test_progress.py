"""Progress: what is left of a build, events that only go forward, and no stage that is silent."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.cli import progress
from gpu_rag.cli.progress import Bars, Meter, line_of

FORWARD = ("s", "number", "share")


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_time_left_is_planned_time_corrected_by_what_was_seen(clock: Clock) -> None:
    meter = Meter()
    meter.begin({"read": 10.0, "links": 30.0, "web": None})
    meter.start("read", None, "rows")
    assert meter.event("start")["left_s"] == 40
    clock.now = 5
    assert (meter.event("progress")["left_s"], meter.event("progress")["share"]) == (35, 0.125)
    clock.now = 20  # twice as long as planned; the stage is a quarter of the plan, so a quarter of that is believed
    meter.finish("read", skipped=False)
    event = meter.event("finish")
    assert event["left_s"] == pytest.approx(30 * 1.25)
    assert event["share"] == pytest.approx(20 / 57.5, abs=1e-4)
    meter.start("links", 100, "names")
    meter.done, clock.now = 50, 60  # half of the names in 40 s
    event = meter.event("progress")
    assert event["stage_share"] == 0.5 and event["rate"] == 1.25 and (event["number"], event["stages"]) == (2, 3)
    assert 30 <= event["left_s"] <= 40  # the plan says less, the names say 40 s
    meter.finish("links", skipped=False)
    assert meter.event("finish")["left_s"] == 0 and meter.event("finish")["share"] == 0.99, (
        "a stage without plan is left"
    )
    meter.start("web", None, "rows")
    meter.finish("web", skipped=False)
    assert meter.event("finish")["share"] == 1


def test_a_stage_that_is_up_to_date_takes_no_time_and_corrects_nothing(clock: Clock) -> None:
    meter = Meter()
    meter.begin({"read": 10.0, "links": 30.0})
    meter.start("read", None, "rows")
    clock.now = 0.5
    meter.finish("read", skipped=True)
    assert meter.event("skip")["left_s"] == 30 and meter.event("skip")["share"] == 0


def test_the_share_never_falls(clock: Clock) -> None:
    meter, shares = Meter(), []
    meter.begin({"read": 10.0, "links": 100.0})
    meter.start("read", 100, "rows")
    for now in (1, 5, 10, 50, 80):  # far slower than planned
        meter.done, clock.now = now, now
        shares.append(meter.event("progress")["share"])
    assert shares == sorted(shares) and 0 < shares[-1] < 1


def test_without_a_plan_a_stage_tells_its_share_and_nobody_the_time_left(clock: Clock) -> None:
    meter = Meter()
    meter.begin({"read": None})
    meter.start("read", 8, "rows")
    meter.done, clock.now = 2, 1
    event = meter.event("progress")
    assert (event["stage_share"], event["share"], event["left_s"]) == (0.25, None, None)
    assert line_of(event) == "2 of 8 rows (25%), 2/s"


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def check_forward(events: list[dict[str, Any]]) -> None:
    for before, after in zip(events, events[1:]):
        for name in FORWARD:
            if before[name] is not None and after[name] is not None:
                assert before[name] <= after[name], (name, before, after)
        if before["stage"] == after["stage"]:
            assert before["done"] <= after["done"] and before["event"] not in ("finish", "skip")


def test_every_stage_of_a_build_reports_and_events_go_forward(run: Any, cli: Any, tiny_corpus: Path, tmp_path: Path):
    given = ("index", tiny_corpus, "--out", tmp_path / "ix", "--for", "ppr", *cli.NO_LLM)
    assert run(*given, "--plan").status == 0
    result = run(*given, "--json-progress", "--json")
    events, stages = events_of(result.err), json.loads(result.out)["stages"]
    check_forward(events)
    for name in stages:
        kinds = [event["event"] for event in events if event["stage"] == name]
        assert (kinds[0], kinds[-1]) == ("start", "finish"), name
    assert (events[-1]["share"], events[-1]["left_s"], events[-1]["number"]) == (1, 0, len(stages))
    assert all(event["left_s"] is not None for event in events)
    again = events_of(run(*given, "--json-progress").err)
    assert [(event["event"], event["stage"]) for event in again] == [("skip", name) for name in stages]
    (tmp_path / "more.jsonl").write_text('{"text": "Bern is the capital of Switzerland."}\n')
    other = events_of(run("index", tmp_path / "more.jsonl", *given[2:], "--json-progress").err)
    assert {event["left_s"] for event in other} == {None}, "the plan is of another corpus"


@pytest.mark.parametrize("events", [True, False])
def test_a_long_stage_that_does_not_advance_is_not_silent(events: bool, capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    monkeypatch.setattr(progress, "BEAT_S", 0.05)
    with Bars(events) as bars:
        bars.start("links", None, "rows")
        time.sleep(1)
        bars.finish("links", skipped=False)
    told = capsys.readouterr().err.splitlines()
    assert len(told) > 4 and all("links" in line for line in told)
    if events:
        check_forward([json.loads(line) for line in told])
