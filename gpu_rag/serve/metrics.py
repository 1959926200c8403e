"""Counts of the server's work, in the text form that Prometheus reads."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_rag.serve.live import READY, Live

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")


class Histogram:
    """Counts of values by upper bound. bounds: ascending."""

    def __init__(self, bounds: tuple[float, ...]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, n: int = 1) -> None:
        """Count a value n times."""
        self.counts[bisect_left(self.bounds, value)] += n
        self.sum += value * n

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it) in ascending order; the last bound is infinite."""
        return list(zip([*(f"{bound:g}" for bound in self.bounds), "+Inf"], accumulate(self.counts), strict=True))


class Counts:
    """Counts made in the event loop's thread; labels come from names of ours, never from a client."""

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


class Metrics(Collector):
    """All metrics of a server. began: time.monotonic() at the start."""

    def __init__(self, counts: Counts, live: Live, n_open: int, began: float):
        self._counts, self._live, self._n_open, self._began = counts, live, n_open, began

    def text(self) -> bytes:
        """The text form. Read while the engine works: totals are a moment apart."""
        return generate_latest(self)  # type: ignore[arg-type]  # it only collects

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        counts, running = self._counts, self._live.n_running
        yield _gauge("ready", "1 while questions are taken", int(self._live.state == READY))
        yield _gauge("uptime_seconds", "since the server began", time.monotonic() - self._began)
        yield _counter("questions_total", "questions that ended", counts.questions, "method", "status")
        yield _gauge("questions_open", "questions taken and not ended", self._n_open)
        yield _gauge("questions_running", "questions whose program runs", running)
        yield _gauge("questions_queued", "questions that wait to run", max(self._n_open - running, 0))
        yield _counter("refused_total", "questions and requests not served", counts.refused, "reason")
        yield _counter("requests_total", "HTTP responses begun", counts.requests, "route", "code")
        yield _counter("llm_calls_total", "LLM calls of ended questions", {(): counts.llm_calls})
        yield _counter("tokens_total", "LLM tokens of ended questions", counts.tokens, "kind")
        yield from self._engine()
        yield _histogram("question_seconds", "from arrival to row", "method", counts.seconds)

    def _engine(self) -> Iterator[Metric]:
        """The driver's time and batches, and the LLM's queue."""
        stats, llm = self._live.stats, self._live.stats.llm
        services, sizes = Counter[str](), dict[str, Histogram]()
        for name, step in stats.steps.copy().items():
            services[step.service] += step.s  # type: ignore[assignment]  # seconds
            sizes[name] = Histogram(SIZES)
            for size, n in step.batch_sizes.copy().items():
                sizes[name].add(size, n)
        yield _counter("service_seconds_total", "seconds inside services", services, "service")
        yield _counter("driver_seconds_total", "the driver's time by what it did", llm.doing_s.copy(), "doing")
        yield _counter("llm_busy_seconds_total", "seconds with LLM requests open", {(): llm.busy_s})
        yield _counter("llm_idle_seconds_total", "seconds without, by cause", llm.idle_s.copy(), "cause")
        yield _gauge("llm_requests_open", "LLM requests in flight", llm.level)
        yield _counter("late_calls_total", "calls answered after their question", {(): stats.n_late_calls})
        yield _histogram("batch_size", "calls that ran together", "verb", sizes)


def _gauge(name: str, said: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gpu_rag_{name}", said, value)


def _counter(name: str, said: str, counts: Mapping[Any, float], *labels: str) -> Metric:
    family = CounterMetricFamily(f"gpu_rag_{name}", said, labels=labels)
    for names, value in sorted(counts.items()):
        family.add_metric([str(part) for part in (names if isinstance(names, tuple) else (names,))], value)
    return family


def _histogram(name: str, said: str, label: str, found: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"gpu_rag_{name}", said, labels=[label])
    for value, histogram in sorted(found.items()):
        family.add_metric([value], histogram.buckets(), histogram.sum)
    return family
