"""Counts of the server's work, in the text format of Prometheus."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_rag.serve.keys import Keys
from gpu_rag.serve.live import READY, EngineThread

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")

disable_created_metrics()  # type: ignore[no-untyped-call]  # start times of counters would double the text


class Counts:
    """Counts kept by the event loop's thread. Labels are fixed names, never taken from a client."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, namespace="gpu_rag", registry=self.registry)
        self.questions = count("questions", "questions that ended", ["method", "status"])
        self.refused = count("refused", "questions and requests not served", ["reason"])
        self.requests = count("requests", "HTTP responses begun", ["route", "code"])
        self.llm_calls = count("llm_calls", "LLM calls of ended questions")
        self.tokens = count("tokens", "LLM tokens of ended questions", ["kind"])
        text = "from arrival to row"
        self.seconds = Histogram("gpu_rag_question_seconds", text, ["method"], buckets=SECONDS, registry=self.registry)

    def ended(self, row: Mapping[str, Any], seconds: float) -> None:
        """Count a question that ended with this row after `seconds`."""
        usage = row["usage"]
        self.questions.labels(row["method"], row["status"]).inc()
        self.llm_calls.inc(usage["llm_calls"])
        for name in TOKENS:
            self.tokens.labels(name.removesuffix("_tokens")).inc(usage[name])
        self.seconds.labels(row["method"]).observe(seconds)


class EngineMetrics(Collector):
    """The state of the engine, its times and batches, and the LLM's queue, read at each request. Totals are read one
    after another, so they may differ by a moment."""

    def __init__(self, thread: EngineThread, n_open: Callable[[], int], keys: Keys | None = None):
        self._thread, self._n_open, self._began, self._keys = thread, n_open, time.monotonic(), keys

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families one by one."""
        stats, llm, steps = self._thread.stats, self._thread.stats.llm, self._thread.stats.steps.copy()
        n_open, running = self._n_open(), self._thread.driver.n_running
        services: dict[str, float] = defaultdict(float)
        for step in steps.values():
            services[step.service] += step.s
        yield _gauge("ready", "1 while questions are taken", int(self._thread.state == READY))
        if self._keys is not None:
            yield _gauge("keys_current", "0 while a changed file of keys cannot be read", int(self._keys.is_current))
        yield _gauge("uptime_seconds", "since the server began", time.monotonic() - self._began)
        yield _gauge("questions_open", "questions taken and not ended", n_open)
        yield _gauge("questions_running", "questions whose program runs", running)
        yield _gauge("questions_queued", "questions that wait to run", max(n_open - running, 0))
        yield _counter("service_seconds", "seconds inside services", services, "service")
        yield _counter("driver_seconds", "the driver's time by what it did", llm.doing_s.copy(), "doing")
        yield _counter("llm_busy_seconds", "seconds with LLM requests open", llm.busy_s)
        yield _counter("llm_idle_seconds", "seconds without LLM requests, by cause", llm.idle_s.copy(), "cause")
        yield _gauge("llm_requests_open", "LLM requests in flight", llm.level)
        yield _counter("late_calls", "calls answered after their question", stats.n_late_calls)
        batches = HistogramMetricFamily("gpu_rag_batch_size", "calls that ran together", labels=["verb"])
        for name, step in sorted(steps.items()):
            sizes = step.batch_sizes.copy()
            batches.add_metric([name], buckets(sizes), sum(size * n for size, n in sizes.items()))
        yield batches


def buckets(sizes: Mapping[int, int]) -> list[tuple[str, float]]:
    """Buckets of a histogram: (upper bound, number of batches up to it), ascending; the last bound is infinite. sizes:
    {size: number of batches}."""
    counts = [(str(bound), sum(n for size, n in sizes.items() if size <= bound)) for bound in SIZES]
    return [*counts, ("+Inf", sum(sizes.values()))]


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gpu_rag_{name}", help_text, value)


def _counter(name: str, help_text: str, counts: Mapping[str, float] | float, *labels: str) -> Metric:
    family = CounterMetricFamily(f"gpu_rag_{name}", help_text, labels=labels)
    for label, value in sorted(counts.items()) if isinstance(counts, Mapping) else [(None, counts)]:
        family.add_metric([label] if label else [], value)
    return family
