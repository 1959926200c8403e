"""Occupancy of the LLM: the time with open requests, and the reasons for having none."""

from __future__ import annotations

# Activities of the driver, for which the LLM waits while no request is open.
PROGRAMS, WAITING, QUESTIONS = "programs", "waiting", "questions"
DOING = {"text": "graph", "graph": "graph", "embed": "embedding", "llm": WAITING}
# Idle reasons that are known only later: before the first request, and after the last one.
RAMP_UP, NOTHING_LEFT = "ramp-up", "nothing left to ask"


class Occupancy:
    """The LLM's queue during a run, as its driver sees it: a request is open until its reply is taken.

    `mark` ends an interval and begins the next. open_s: the seconds that each request was open, summed. idle_s: seconds
    without an open request, by cause: ramp-up (before the first request), graph, embedding, programs (the driver's
    activity meanwhile), questions (there was none to answer), nothing left to ask (after the last reply). doing_s: all
    seconds, by activity of the driver.
    """

    def __init__(self) -> None:
        self.busy_s = self.open_s = 0.0
        self.idle_s: dict[str, float] = {}
        self.doing_s: dict[str, float] = {}
        self.level = 0
        self._unexplained: dict[str, float] = {}  # idle since the last reply
        self._at, self._doing, self._began = 0.0, PROGRAMS, False

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

    @property
    def share(self) -> float | None:
        """Share of the time without an open request; None if there was no request."""
        total = self.busy_s + sum(self.idle_s.values())
        return sum(self.idle_s.values()) / total if self.busy_s else None

    @property
    def mean_open(self) -> float:
        """Open requests on average; 0 if there was none."""
        return self.open_s / (self.busy_s + sum(self.idle_s.values())) if self.busy_s else 0.0

    def _explain(self, cause: str | None) -> None:
        for doing, seconds in self._unexplained.items():
            name = cause or doing
            self.idle_s[name] = self.idle_s.get(name, 0.0) + seconds
        self._unexplained.clear()

    def _add(self, seconds: float) -> None:
        doing = self._doing
        self.doing_s[doing] = self.doing_s.get(doing, 0.0) + seconds
        self.open_s += seconds * self.level
        if self.level:
            self.busy_s += seconds
        else:
            self._unexplained[doing] = self._unexplained.get(doing, 0.0) + seconds
