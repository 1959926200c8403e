"""What the server has done, in the text form that Prometheus reads."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpu_rag.serve.live import READY, Live

if TYPE_CHECKING:
    from gpu_rag.runtime.accounts import RunStats

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, object]


class Histogram:
    """Counts of values by upper bound. bounds: ascending."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, n: int = 1) -> None:
        """Count a value n times."""
        self.counts[bisect_left(self.bounds, value)] += n
        self.sum += value * n

    def samples(self, name: str, labels: Labels) -> Iterator[str]:
        """Its lines."""
        total = 0
        for bound, n in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += n
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield _line(f"{name}_bucket", {**labels, "le": shown}, total)
        yield _line(f"{name}_sum", labels, self.sum)
        yield _line(f"{name}_count", labels, total)


class Counts:
    """What is counted in the event loop's thread; labels come from names of ours, never from a client."""

    def __init__(self) -> None:
        self.questions: Counter[tuple[str, str]] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.llm_calls = 0
        self.seconds: dict[str, Histogram] = {}

    def ended(self, row: Mapping[str, Any], seconds: float) -> None:
        """A question ended with this row, so long after it came."""
        method, usage = row["method"], row["usage"]
        self.questions[method, row["status"]] += 1
        self.llm_calls += usage["llm_calls"]
        for name in TOKENS:
            self.tokens[name.removesuffix("_tokens")] += usage[name]
        self.seconds.setdefault(method, Histogram(SECONDS)).add(seconds)


def exposition(counts: Counts, live: Live, n_open: int, began: float) -> str:
    """The whole text. began: time.monotonic() at the start. Read while the engine works: totals are a moment apart."""
    stats, running = live.stats, live.n_running
    verbs = stats.steps.copy()
    services: dict[str, float] = {}
    for verb in verbs.values():
        services[verb.service] = services.get(verb.service, 0.0) + verb.s
    parts = [
        _metric("ready", "gauge", "1 while questions are taken", [({}, int(live.state == READY))]),
        _metric("uptime_seconds", "gauge", "since the server began", [({}, time.monotonic() - began)]),
        _metric("questions_total", "counter", "questions that ended", _pairs(counts.questions, "method", "status")),
        _metric("questions_open", "gauge", "questions taken and not ended", [({}, n_open)]),
        _metric("questions_running", "gauge", "questions whose program runs", [({}, running)]),
        _metric("questions_queued", "gauge", "questions that wait to run", [({}, max(n_open - running, 0))]),
        _metric("refused_total", "counter", "questions and requests not served", _singles(counts.refused, "reason")),
        _metric("requests_total", "counter", "HTTP responses begun", _pairs(counts.requests, "route", "code")),
        _metric("llm_calls_total", "counter", "LLM calls of ended questions", [({}, counts.llm_calls)]),
        _metric("tokens_total", "counter", "LLM tokens of ended questions", _singles(counts.tokens, "kind")),
        _metric("service_seconds_total", "counter", "seconds inside services", _singles(services, "service")),
        *_engine(stats),
        _histograms("question_seconds", "from arrival to row", "method", counts.seconds),
        _histograms(
            "batch_size", "calls that ran together", "verb", {name: sizes(verb) for name, verb in verbs.items()}
        ),
    ]
    return "".join(parts)


def _engine(stats: RunStats) -> Iterator[str]:
    """What the driver did with its time, and the LLM's queue."""
    llm = stats.llm
    doing, idle = llm.doing_s.copy(), llm.idle_s.copy()
    yield _metric("driver_seconds_total", "counter", "the driver's time by what it did", _singles(doing, "doing"))
    yield _metric("llm_busy_seconds_total", "counter", "seconds with LLM requests open", [({}, llm.busy_s)])
    yield _metric("llm_idle_seconds_total", "counter", "seconds without, by cause", _singles(idle, "cause"))
    yield _metric("llm_requests_open", "gauge", "LLM requests in flight", [({}, llm.level)])
    yield _metric("late_calls_total", "counter", "calls answered after their question", [({}, stats.n_late_calls)])


def sizes(verb: Any) -> Histogram:
    """The batch sizes of a verb."""
    found = Histogram(SIZES)
    for size, n in verb.batch_sizes.copy().items():
        found.add(size, n)
    return found


def _metric(name: str, kind: str, said: str, samples: Iterable[tuple[Labels, float]]) -> str:
    lines = [f"# HELP gpu_rag_{name} {said}", f"# TYPE gpu_rag_{name} {kind}"]
    lines += [_line(f"gpu_rag_{name}", labels, value) for labels, value in samples]
    return "\n".join(lines) + "\n"


def _histograms(name: str, said: str, label: str, found: Mapping[str, Histogram]) -> str:
    lines = [f"# HELP gpu_rag_{name} {said}", f"# TYPE gpu_rag_{name} histogram"]
    for value, histogram in sorted(found.items()):
        lines += histogram.samples(f"gpu_rag_{name}", {label: value})
    return "\n".join(lines) + "\n"


def _singles(counter: Mapping[str, float], label: str) -> list[tuple[Labels, float]]:
    return [({label: name}, value) for name, value in sorted(counter.items())]


def _pairs(counter: Mapping[tuple[str, Any], int], *labels: str) -> list[tuple[Labels, float]]:
    return [(dict(zip(labels, names)), value) for names, value in sorted(counter.items())]


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    number = str(value) if isinstance(value, int) else f"{value:.9g}"
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
