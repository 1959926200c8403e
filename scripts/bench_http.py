"""Measure how busy the engine keeps simulated model servers. Prints a JSON line.

usage: python scripts/bench_http.py [--requests 1000] [--servers 1,4] [--in-flight 256] [--rounds 5]

Each simulated server is a process of its own: one asyncio protocol that reads chat completions and answers each after
0.5 to 2 s, drawn by a seed. The product's engine (`HttpLLM.complete`) has `requests` waiting for each server. A slot is
used from the arrival of a request until its reply is written, and available from the first arrival until the last one,
after which nothing waits. busy = slots used / slots available. cpu_ms is the processor time of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.types import Reply, Request

MODEL = "simulated"
WORDS = "A passage of some length that a question is asked about. " * 40  # 2.3 kB, as a short prompt
LOW_S, HIGH_S = 0.5, 2.0
REPLY = {
    "choices": [{"message": {"content": "an answer"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 500, "completion_tokens": 8},
}


# --- the simulated server ---


class _Simulated(asyncio.Protocol):
    """One connection. log: (arrival, reply) of each request."""

    def __init__(self, draw: random.Random, log: list[tuple[float, float]]):
        self._draw, self._log, self._data = draw, log, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, rest = self._data.partition(b"\r\n\r\n")
        while separator:
            length = next((line[15:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), b"0")
            if len(rest) < int(length):
                return
            self._data = rest[int(length) :]
            self._answer(head)
            head, separator, rest = self._data.partition(b"\r\n\r\n")

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"GET /log"):
            self._write(list(self._log))
            self._log.clear()
        elif head.startswith(b"GET"):
            self._write({"data": [{"id": MODEL, "max_model_len": 32768}]})
        else:
            asyncio.get_running_loop().call_later(self._draw.uniform(LOW_S, HIGH_S), self._reply, time.monotonic())

    def _reply(self, arrived: float) -> None:
        self._log.append((arrived, time.monotonic()))
        self._write(REPLY)

    def _write(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def _serve(seed: int) -> None:
    draw, log = random.Random(seed), list[tuple[float, float]]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Simulated(draw, log), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def _servers(n: int) -> Iterator[list[str]]:
    """Start n processes of `_serve`, and yield their addresses."""
    command = [sys.executable, __file__, "serve"]
    started = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(n)]
    try:
        ports = [int(process.stdout.readline()) for process in started if process.stdout]
        yield [f"http://127.0.0.1:{port}/v1" for port in ports]
    finally:
        for process in started:
            process.kill()
            process.wait()


# --- how busy servers are kept ---


def _busy(options: argparse.Namespace) -> dict[str, Any]:
    """Share of used slots, requests per second and time for each number of servers; medians of the rounds."""
    measured: dict[int, list[dict[str, float]]] = {int(n): [] for n in options.servers.split(",")}
    with _servers(max(measured)) as urls:
        for _ in range(options.rounds):
            for n, rounds in measured.items():
                rounds.append(_run(urls[:n], options.requests * n, options.in_flight))
    rows: list[dict[str, Any]] = []
    for n, rounds in measured.items():
        middle = {name: round(statistics.median(row[name] for row in rounds), 3) for name in rounds[0]}
        rows.append({"servers": n, "requests": options.requests * n, **middle})
    for row in rows:
        row["times_one"] = round(row["requests_s"] / rows[0]["requests_s"] * rows[0]["servers"], 2)
    return {"rows": rows}


def _run(urls: list[str], n_requests: int, in_flight: int) -> dict[str, float]:
    llm = HttpLLM(urls, MODEL, max_connections=in_flight)
    requests = [Request("", f"{i} {WORDS}", max_tokens=64) for i in range(n_requests)]
    began, cpu = time.perf_counter(), time.process_time()
    replies = llm.complete(requests)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    assert [reply for reply in replies if not isinstance(reply, Reply)] == []
    llm.close()
    spans = [span for url in urls for span in json.loads(urllib.request.urlopen(f"{url[:-3]}/log").read())]
    assert len(spans) == n_requests
    first, last = min(span[0] for span in spans), max(span[0] for span in spans)
    used_s = sum(min(span[1], last) - span[0] for span in spans)
    busy = used_s / ((last - first) * in_flight * len(urls))
    return {"busy": busy, "requests_s": n_requests / wall_s, "wall_s": wall_s, "cpu_ms": 1000 * cpu_s / n_requests}


def main() -> None:
    """Measures and prints."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(int(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="waiting for each server")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--servers", default="1,4")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    machine = {"cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "python": platform.python_version()}
    print(json.dumps({**_busy(options), "rounds": options.rounds, "in_flight": options.in_flight, "machine": machine}))


if __name__ == "__main__":
    main()
