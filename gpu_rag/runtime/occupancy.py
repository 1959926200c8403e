"""Occupancy of the LLM: open requests over time and the reasons for having none, in constant memory."""

from __future__ import annotations

from typing import NamedTuple

# Activity of the driver; while no request is open, the LLM waits for it.
PROGRAMS, WAITING, QUESTIONS = "programs", "waiting", "questions"
DOING = {"text": "graph", "graph": "graph", "embed": "embedding", "llm": WAITING}
# Idle reasons that are known only later: before the first request, and after the last one.
RAMP_UP, NOTHING_LEFT = "ramp-up", "nothing left to ask"
N_BINS, BIN_S = 120, 0.01


class Bin(NamedTuple):
    """Means over one bin of time: number of open requests, and the share of time without any."""

    queue: float
    idle: float


class Occupancy:
    """The LLM's queue during a run, as its driver sees it: a request is open until its reply is taken.

    `mark` ends an interval and begins the next. Time is kept in at most 120 bins of width `bin_s`, which doubles
    (neighbours are merged) when a run outgrows them. idle_s: seconds without an open request, by cause: ramp-up (before
    the first request), graph, embedding, programs (the driver's activity meanwhile), questions (there was none to
    answer), nothing left to ask (after the last reply). doing_s: all seconds, by activity of the driver.
    """

    def __init__(self) -> None:
        self.bin_s = BIN_S
        self.busy_s = 0.0
        self.idle_s: dict[str, float] = {}
        self.doing_s: dict[str, float] = {}
        self.level = 0
        self._queue = [0.0] * N_BINS  # request-seconds
        self._idle = [0.0] * N_BINS  # seconds
        self._unexplained: dict[str, float] = {}  # idle since the last reply
        self._at, self._elapsed, self._doing, self._began = 0.0, 0.0, PROGRAMS, False

    def begin(self, now: float) -> None:
        """Begin a run; the time since an earlier run is not counted."""
        self._at, self._doing, self._began, self.level = now, PROGRAMS, False, 0

    def end(self, now: float) -> None:
        """End the run."""
        self.mark(now, 0, PROGRAMS)
        self._explain(NOTHING_LEFT if self._began else RAMP_UP)

    def mark(self, now: float, level: int, doing: str | None = None) -> None:
        """Record that from `now` on `level` requests are open, and the driver's activity is `doing` if given."""
        seconds = now - self._at
        if seconds > 0:
            self._at = now
            self._add(seconds)
        if level and not self.level:
            self._explain(None if self._began else RAMP_UP)
            self._began = True
        self.level = level
        if doing is not None:
            self._doing = doing

    def answered(self, now: float) -> None:
        """Record the reply to one open request."""
        self.mark(now, max(self.level - 1, 0))

    def ran_dry(self, seconds: float, doing: str) -> None:
        """Record that all requests were answered at an unknown moment of the last `seconds`, in which the driver's
        activity was `doing`: half of that time counts as idle."""
        half = min(seconds, self.busy_s) / 2
        self.busy_s -= half
        self._unexplained[doing] = self._unexplained.get(doing, 0.0) + half
        self._idle[min(int(self._elapsed / self.bin_s), N_BINS - 1)] += half

    @property
    def share(self) -> float | None:
        """Share of the time without an open request; None if there was no request."""
        total = self.busy_s + sum(self.idle_s.values())
        return sum(self.idle_s.values()) / total if self.busy_s else None

    def bins(self) -> list[Bin]:
        """Bins so far, in order; the last may be partial."""
        bins, remaining = [], self._elapsed
        for queue, idle in zip(self._queue, self._idle):
            width = min(self.bin_s, remaining)
            if width <= 1e-9:
                break
            bins.append(Bin(queue / width, min(idle / width, 1.0)))
            remaining -= width
        return bins

    def _explain(self, cause: str | None) -> None:
        for doing, seconds in self._unexplained.items():
            name = cause or doing
            self.idle_s[name] = self.idle_s.get(name, 0.0) + seconds
        self._unexplained.clear()

    def _add(self, seconds: float) -> None:
        doing = self._doing
        self.doing_s[doing] = self.doing_s.get(doing, 0.0) + seconds
        if self.level:
            self.busy_s += seconds
        else:
            self._unexplained[doing] = self._unexplained.get(doing, 0.0) + seconds
        until = self._elapsed + seconds
        while until > self.bin_s * N_BINS:
            self._merge()
        moment = self._elapsed
        i = int(moment / self.bin_s)
        while moment < until and i < N_BINS:
            part = min(until, (i + 1) * self.bin_s) - moment
            self._queue[i] += part * self.level
            if not self.level:
                self._idle[i] += part
            moment, i = moment + part, i + 1
        self._elapsed = until

    def _merge(self) -> None:
        for values in (self._queue, self._idle):
            values[:] = [a + b for a, b in zip(values[::2], values[1::2])] + [0.0] * (N_BINS // 2)
        self.bin_s *= 2
