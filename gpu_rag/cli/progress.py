"""Progress on stderr: bars, plain lines where stderr is not a terminal, or events as lines of JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

BEAT_S = 1.0  # seconds between two reports of a stage, even if it does not advance
LINE_S = 4.0  # the same for plain lines, which are kept
Event = dict[str, Any]


class Meter:
    """Work done and work left, of the stage that runs and of a build whose stages have predicted seconds."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._planned: Mapping[str, float | None] = {}
        self._ended: dict[str, float | None] = {}  # seconds of each stage that ended; None: it was up to date
        self._share = 0.0
        self.start("", None, "")

    def begin(self, planned: Mapping[str, float | None]) -> None:
        """A build of these stages, with their predicted seconds, begins."""
        self._planned, self._ended, self._share = planned, {}, 0.0

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """A stage begins."""
        self.stage, self.total, self.unit = stage, total, unit
        self.done, self.tokens, self._since = 0, 0, time.perf_counter()

    def finish(self, stage: str, skipped: bool) -> None:
        """A stage has ended, or was up to date."""
        self._ended[stage] = None if skipped else time.perf_counter() - self._since

    def event(self, kind: str) -> Event:
        """All figures, as docs/cli.md describes them."""
        s = time.perf_counter() - self._since
        stage_share, left = self._left(s)
        passed = sum(ended for ended in self._ended.values() if ended is not None)
        passed += 0.0 if self.stage in self._ended else s
        if left is not None:
            share = passed / (passed + left) if left else 1.0
            at_most = 1.0 if self._ended.keys() >= self._planned.keys() else 0.99
            self._share = max(self._share, min(share, at_most))
        return {
            "event": kind,
            "s": round(time.perf_counter() - self._began, 3),
            "stage": self.stage,
            "number": min(len(self._ended.keys() | {self.stage}), len(self._planned)) or None,
            "stages": len(self._planned) or None,
            "stage_s": round(s, 3),
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "rate": round(self.done / s, 2) if s else 0.0,
            "tokens": self.tokens,
            "stage_share": None if stage_share is None else round(stage_share, 4),
            "share": None if left is None else round(self._share, 4),
            "left_s": None if left is None else round(left, 1),
        }

    def _left(self, s: float) -> tuple[float | None, float | None]:
        """(share of the stage that is done, seconds left of the build); None: not known.

        The estimate of a stage that counts its units improves as the stage advances. The planned seconds of the other
        stages are multiplied by the ratio of actual to planned seconds so far. This ratio has as much weight as the
        share of the plan that it comes from.
        """
        share = min(self.done / self.total, 1.0) if self.total else None
        planned = {name: seconds for name, seconds in self._planned.items() if seconds is not None}
        ran = {name: s for name, s in self._ended.items() if s is not None and name in planned}
        actual, predicted = sum(ran.values()), sum(planned[name] for name in ran)
        runs = self.stage not in self._ended
        own = planned.get(self.stage, 0.0) if runs else 0.0
        if own:
            actual, predicted = actual + s, predicted + (min(s, own) if share is None else share * own)
        left = sum(seconds for name, seconds in planned.items() if name not in self._ended)
        weight = predicted / max(left - own + predicted, own, 1e-9)
        ratio = 1 + weight * (actual / predicted - 1) if predicted else 1.0
        if not runs:
            share, here = 1.0, 0.0
        elif share is None:
            here = max(ratio * own - s, 0.0)
            share = s / (s + here) if own and s else None
        elif own:
            here = (1 - share) * (s + (1 - share) * ratio * own)
        else:
            here = s * (1 / share - 1) if share else 0.0
        return share, ratio * (left - own) + here if planned else None


def line_of(event: Event) -> str:
    """An event in words, without its stage."""
    n, unit = f"{event['done']:,}", event["unit"]
    if event["total"]:
        n = f"{n} of {event['total']:,} {unit} ({event['stage_share']:.0%})"
    else:
        n = f"{n} {unit}"
    parts = [f"{n}, {event['rate']:,.0f}/s" if event["done"] else f"{event['stage_s']:,.0f} s"]
    parts += [f"{event['tokens']:,} LLM tokens"] if event["tokens"] else []
    parts += [f"build {event['share']:.0%}, {_span(event['left_s'])} left"] if event["left_s"] is not None else []
    return "; ".join(parts)


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Bars:
    """Progress of a build (gpu_rag.index.work.Progress) or of a run of questions. A context manager.

    events: write JSON lines, see docs/cli.md. A thread of its own reports at regular times.
    """

    def __init__(self, events: bool = False) -> None:
        from rich.console import Console  # here, so that `--help` stays quick
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._console, self._events = Console(stderr=True), events
        self._live = self._console.is_terminal and not events
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<18}"),
            BarColumn(20),
            TextColumn("{task.fields[text]}"),
        )
        self._bars = Progress(*columns, console=self._console, disable=not self._live)
        self._task = self._bars.add_task("", text="", visible=False)
        self._meter, self._lock, self._stop = Meter(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Bars:
        self._bars.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._bars.stop()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S if self._live or self._events else LINE_S):
            with self._lock:
                if self._meter.stage:
                    self._report("progress")

    def begin(self, planned: Mapping[str, float | None]) -> None:
        """A build begins; see `Progress`."""
        with self._lock:
            self._meter.begin(planned)

    def start(self, stage: str, total: int | None, unit: str) -> None:
        """A stage begins, or learns its total."""
        with self._lock:
            if stage == self._meter.stage:
                self._meter.total, self._meter.unit = total, unit
                return
            self._meter.start(stage, total, unit)
            if self._live:
                self._task = self._bars.add_task(stage, text="", total=total)
            elif self._events:
                self._report("start")

    def advance(self, n: int, tokens: int = 0) -> None:
        """n more units are done, with this many LLM tokens."""
        with self._lock:
            self._meter.done += n
            self._meter.tokens += tokens

    def finish(self, stage: str, skipped: bool) -> None:
        """A stage is done, or was up to date."""
        with self._lock:
            if stage != self._meter.stage:
                self._meter.start(stage, None, "rows")
            self._meter.finish(stage, skipped)
            self._report("skip" if skipped else "finish")
            self._meter.stage = ""

    def _report(self, kind: str) -> None:
        event = self._meter.event(kind)
        if self._events:
            print(json.dumps(event), file=sys.stderr, flush=True)
        elif self._live:
            if kind != "skip":
                ended = {"total": 1, "completed": 1} if kind == "finish" else {}
                now = {"total": event["total"], "completed": event["done"], **ended}
                self._bars.update(self._task, text=line_of(event), **now)
        else:
            text = "up to date" if kind == "skip" else line_of(event)
            self._console.print(f"{event['stage']}: {text}", highlight=False, soft_wrap=True)
