"""Measure the cost of the runtime itself, and the gain of streaming behind a slow engine. Prints lines of JSON.

usage: python scripts/bench_runtime.py [--questions 10000] [--calls 5] [--max-live 1024] [--repeats 5]

Overhead: programs of CALLS requests to an LLM that answers at once, so that drivers and programs take all the time.
Microseconds per call are medians of the repeats in one process. Memory is measured in separate processes, and answers
are not kept: it is the peak allocation of Python for N and for 10 N questions at the same max_live.
Slow engine: it decodes `width` requests at once, each for a random time (log-normal, sigma 0.8), as continuous batching
does. A program asks it five times, with a graph op (2 ms per batch and 20 us per call) before each. No model takes
part: the engine sleeps for these times.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_rag.runtime import RANK_GRAPH, RANK_LLM, Context, Kind, Metered, RunStats, batched, run_rounds, run_streaming
from gpu_rag.types import Draft, Question

DRIVERS = ("rounds", "streaming")
LLM: Kind[None] = Kind("nothing", "llm", RANK_LLM, 8192)
ENGINE: Kind[Slow] = Kind("engine", "llm", RANK_LLM, 8192)
GRAPH: Kind[Slow] = Kind("engine", "graph", RANK_GRAPH)


@batched(LLM)
def instant(nothing: None, queries: list[int]) -> Sequence[int | Metered[int]]:
    """Replies at once."""
    return [Metered(query, 100, 0, 10) for query in queries]


@batched(ENGINE)
def slow(engine: Slow, queries: list[float]) -> Sequence[str | Metered[str]]:
    """Replies of a slow engine to a batch, returned when the last request has ended."""
    return engine.complete(queries)


@batched(GRAPH)
def walk(engine: Slow, queries: list[int]) -> list[int]:
    """A graph op that takes 2 ms, and 20 us per call."""
    time.sleep(0.002 + 2e-5 * len(queries))
    return queries


class Instant:
    """A service that answers at once."""

    def __init__(self) -> None:
        self.done: list[tuple[int, Any]] = []

    def submit(self, key: int, query: Any) -> None:
        self.done.append((key, Metered(query, 100, 0, 10)))

    def poll(self, timeout_s: float) -> list[tuple[int, Any]]:
        done, self.done = self.done, []
        return done

    def abort(self, key: int) -> None:
        """Do nothing: no request is ever open."""

    @property
    def n_open(self) -> int:
        return len(self.done)


class Slow:
    """A service that works on `width` requests at once; the time of each is its query."""

    def __init__(self, width: int):
        self.free = [0.0] * width  # when each place is free again
        self.open: list[tuple[float, int]] = []  # (when it ends, key)

    def submit(self, key: int, query: float) -> None:
        begins = max(heapq.heappop(self.free), time.perf_counter())
        heapq.heappush(self.free, begins + query)
        heapq.heappush(self.open, (begins + query, key))

    def poll(self, timeout_s: float) -> list[tuple[int, Any]]:
        if self.open and timeout_s > 0:
            time.sleep(max(0.0, min(timeout_s, self.open[0][0] - time.perf_counter())))
        ended: list[tuple[int, Any]] = []
        while self.open and self.open[0][0] <= time.perf_counter():
            ended.append((heapq.heappop(self.open)[1], Metered("a reply")))
        return ended

    def abort(self, key: int) -> None:
        """Do nothing: requests that run are finished."""

    @property
    def n_open(self) -> int:
        return len(self.open)

    def complete(self, queries: list[float]) -> list[Metered[str]]:
        """Answer a whole batch, when its last request has ended."""
        for key, seconds in enumerate(queries):
            self.submit(key, seconds)
        answered: list[Any] = []
        while len(answered) < len(queries):
            answered += self.poll(1.0)
        return [reply for _, reply in answered]


# --- overhead --------------------------------------------------------------------------------------


def instant_programs(n: int, calls: int) -> Iterator[tuple[Question, Any]]:
    async def program(ctx: Context) -> Draft:
        for i in range(calls):
            await instant(i)
        ctx.note("answer", 0)
        return Draft("done")

    return ((Question(str(i), "?"), program) for i in range(n))


def drive_instant(driver: str, n: int, calls: int, max_live: int) -> float:
    """Run programs of instant calls. Returns seconds."""
    started, programs = time.perf_counter(), instant_programs(n, calls)
    if driver == "rounds":
        run_rounds(programs, {"nothing": None}, max_live=max_live, keep=False)
    else:
        run_streaming(programs, {"nothing": None}, (instant, Instant()), max_live=max_live, keep=False)
    return time.perf_counter() - started


def memory(driver: str, n: int, calls: int, max_live: int) -> int:
    """Peak bytes that Python allocates in a run."""
    drive_instant(driver, 200, calls, 100)
    tracemalloc.start()
    drive_instant(driver, n, calls, max_live)
    return tracemalloc.get_traced_memory()[1]


def overhead(options: argparse.Namespace) -> list[dict[str, Any]]:
    n, rows = options.questions, []
    for driver in DRIVERS:
        seconds = [drive_instant(driver, n, options.calls, options.max_live) for _ in range(options.repeats)]
        command = [
            sys.executable,
            __file__,
            "--memory",
            driver,
            "--calls",
            options.calls,
            "--max-live",
            options.max_live,
        ]
        few, many = (  # each in a process of its own
            int(
                subprocess.run(
                    [*map(str, command), "--questions", str(size)], stdout=subprocess.PIPE, check=True
                ).stdout
            )
            for size in (n, 10 * n)
        )
        us = statistics.median(seconds) / n / options.calls * 1e6
        rows.append({"driver": driver, "us_a_call": us, "bytes_an_open_question": few / options.max_live})
        rows[-1] |= {"peak_bytes": few, "peak_bytes_10x": many}
    return rows


# --- a slow engine ---------------------------------------------------------------------------------


def slow_run(driver: str, n: int, width: int, mean_s: float, max_live: int) -> dict[str, Any]:
    """Run n questions of five requests each on a slow engine, and measure."""
    moods, stats, engine = random.Random(0), RunStats(), Slow(width)
    times = [[mean_s * math.exp(moods.gauss(-0.32, 0.8)) for _ in range(5)] for _ in range(n)]

    async def program(ctx: Context) -> Draft:
        for seconds in times[int(ctx.question.id)]:
            await walk(1)
            await slow(seconds)
        return Draft("done")

    programs = [(Question(str(i), "?"), program) for i in range(n)]
    if driver == "rounds":
        run_rounds(programs, {"engine": engine}, max_live=max_live, stats=stats)
    else:
        run_streaming(programs, {"engine": engine}, (slow, engine), max_live=max_live, low_water=2 * width, stats=stats)
    least = sum(map(sum, times)) / width
    shares = {"of_the_engine": least / stats.wall_s, "idle_share": stats.llm.share}
    sizes = {"driver": driver, "questions": n, "width": width, "max_live": max_live}
    return {**sizes, "wall_s": stats.wall_s, "least_s": least, **shares}


def slow_engine(mean_s: float) -> list[dict[str, Any]]:
    cases = ((64, 32, 64), (256, 32, 256), (1024, 32, 256), (1024, 32, 1024))
    return [slow_run(driver, n, width, mean_s, live) for n, width, live in cases for driver in DRIVERS]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--max-live", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mean-s", type=float, default=0.04, help="mean time of a request of the slow engine")
    parser.add_argument("--memory", choices=DRIVERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(memory(options.memory, options.questions, options.calls, options.max_live))
        return
    for row in (*overhead(options), *slow_engine(options.mean_s)):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
