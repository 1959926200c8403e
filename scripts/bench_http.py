"""How busy the engine keeps model servers, and what HTTP clients cost: simulated servers, a JSON line.

usage: python scripts/bench_http.py busy [--requests 1000] [--servers 1,4] [--in-flight 256] [--rounds 5]
       python scripts/bench_http.py clients [--requests 2000] [--in-flight 256] [--rounds 5] [--only aiohttp,httpx]

Each simulated server is a process of its own: one asyncio protocol that reads chat completions and answers each after
its delay. busy: the product's own engine (`HttpLLM.complete`) has `requests` waiting for each server, replies come
after 0.5 to 2 s, drawn by a seed. A slot is busy from the arrival of a request at the server until its reply is
written; slots are available from the first arrival until the last one, when nothing waits any more. busy = slots used
/ slots available. clients: the same server without delay and several HTTP clients, in turns; `engine` is HttpLLM
itself, `asyncio` a hand-written client that reads the least it can, as a bound. cpu_ms is processor time of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import platform
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.types import Reply, Request

MODEL = "simulated"
WORDS = "A passage of some length that a question is asked about. " * 40  # 2.3 kB, as a short prompt
LOW_S, HIGH_S = 0.5, 2.0
THREADS = 32  # of the clients that block
REPLY = {
    "choices": [{"message": {"content": "an answer"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 500, "completion_tokens": 8},
}


# --- the simulated server ---


class _Simulated(asyncio.Protocol):
    """One connection. delays: seconds until the reply, one after the other; log: (arrival, reply) of each request."""

    def __init__(self, delays: Iterator[float], log: list[tuple[float, float]]):
        self._delays, self._log, self._data = delays, log, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        while found:
            length = next((line[15:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), b"0")
            if len(rest) < int(length):
                return
            self._data = rest[int(length) :]
            self._answer(head)
            head, found, rest = self._data.partition(b"\r\n\r\n")

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"GET /log"):
            self._write(list(self._log))
            self._log.clear()
        elif head.startswith(b"GET"):
            self._write({"data": [{"id": MODEL, "max_model_len": 32768}]})
        elif delay := next(self._delays):
            asyncio.get_running_loop().call_later(delay, self._reply, time.monotonic())
        else:
            self._write(REPLY)

    def _reply(self, arrived: float) -> None:
        self._log.append((arrived, time.monotonic()))
        self._write(REPLY)

    def _write(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def _serve(low_s: float, high_s: float, seed: int) -> None:
    draw, log = random.Random(seed), []
    delays = iter(lambda: draw.uniform(low_s, high_s) if high_s else 0.0, None)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Simulated(delays, log), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def _servers(n: int, low_s: float = 0.0, high_s: float = 0.0) -> Iterator[list[str]]:
    """Addresses of n processes of `_serve`."""
    command = [sys.executable, __file__, "serve", str(low_s), str(high_s)]
    started = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(n)]
    try:
        ports = [int(process.stdout.readline()) for process in started if process.stdout]
        yield [f"http://127.0.0.1:{port}/v1" for port in ports]
    finally:
        for process in started:
            process.kill()
            process.wait()


# --- the clients ---

Client = Callable[[str, list[bytes], int], None]  # url, bodies, requests in flight


def _in_threads(open_one: Callable[[str], Callable[[bytes], Any]]) -> Client:
    """A client that blocks, in THREADS threads; `open_one(url)` gives what posts a body."""

    def run(url: str, bodies: list[bytes], in_flight: int) -> None:
        waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for body in bodies:
            waiting.put(body)

        def work() -> None:
            post = open_one(url)
            with contextlib.suppress(queue.Empty):
                while True:
                    post(waiting.get_nowait())

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _on_a_loop(work: Callable[[str, int, Callable[..., Awaitable[None]]], Awaitable[None]]) -> Client:
    """A client on an event loop; `work(url, in_flight, drain)` opens it and awaits `drain(post)` once."""

    def run(url: str, bodies: list[bytes], in_flight: int) -> None:
        waiting = list(bodies)

        async def drain(post: Callable[[bytes], Awaitable[Any]], *more: Callable[[bytes], Awaitable[Any]]) -> None:
            async def one(post: Callable[[bytes], Awaitable[Any]]) -> None:
                while waiting:
                    await post(waiting.pop())

            posts = [post, *more] if more else [post] * in_flight
            await asyncio.gather(*(one(post) for post in posts))

        asyncio.run(work(url, in_flight, drain))  # type: ignore[arg-type]

    return run


async def _aiohttp(url: str, in_flight: int, drain: Callable[..., Awaitable[None]]) -> None:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight)) as session:

        async def post(body: bytes) -> None:
            async with session.post(f"{url}/chat/completions", data=body) as response:
                json.loads(await response.read())

        await drain(post)


def _httpx_async(module: str) -> Callable[..., Awaitable[None]]:
    async def work(url: str, in_flight: int, drain: Callable[..., Awaitable[None]]) -> None:
        httpx = importlib.import_module(module)
        limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
        async with httpx.AsyncClient(limits=limits, timeout=600, trust_env=False) as client:

            async def post(body: bytes) -> None:
                (await client.post(f"{url}/chat/completions", content=body)).json()

            await drain(post)

    return work


async def _asyncio(url: str, in_flight: int, drain: Callable[..., Awaitable[None]]) -> None:
    address = urlsplit(url)

    async def open_one() -> Callable[[bytes], Awaitable[None]]:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)

        async def post(body: bytes) -> None:
            head = f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            json.loads(await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r")[0])))

        return post

    await drain(*[await open_one() for _ in range(in_flight)])


def _httpx(url: str) -> Callable[[bytes], Any]:
    return lambda body: _httpx_client().post(f"{url}/chat/completions", content=body).json()


_SHARED: list[Any] = []


def _httpx_client() -> Any:
    import httpx

    if not _SHARED:
        limits = httpx.Limits(max_connections=THREADS, max_keepalive_connections=THREADS)
        _SHARED.append(httpx.Client(limits=limits, timeout=600, trust_env=False))
    return _SHARED[0]


def _standard(url: str) -> Callable[[bytes], Any]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)

    def post(body: bytes) -> None:
        connection.request("POST", f"{address.path}/chat/completions", body)
        json.loads(connection.getresponse().read())

    return post


def _engine(url: str, bodies: list[bytes], in_flight: int) -> None:
    llm = HttpLLM(url, MODEL, max_connections=in_flight)
    llm.complete([Request("", f"{i} {WORDS}", max_tokens=64) for i in range(len(bodies))])
    llm.close()


CLIENTS: dict[str, Client] = {
    "engine": _engine,
    "asyncio": _on_a_loop(_asyncio),
    "aiohttp": _on_a_loop(_aiohttp),
    "httpx": _on_a_loop(_httpx_async("httpx")),
    "httpx2": _on_a_loop(_httpx_async("httpx2")),
    "httpx in threads": _in_threads(_httpx),
    "http.client in threads": _in_threads(_standard),
}


def _clients(options: argparse.Namespace) -> dict[str, Any]:
    """Requests a second and processor time of each client, at zero delay."""
    chosen = options.only.split(",") if options.only else list(CLIENTS)
    chosen = [name for name in chosen if name != "httpx2" or importlib.util.find_spec("httpx2")]
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": WORDS}], "max_tokens": 64}).encode()
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    with _servers(1) as [url]:
        for _ in range(options.rounds + 1):
            for name in chosen:
                began, cpu = time.perf_counter(), time.process_time()
                CLIENTS[name](url, [body] * options.requests, options.in_flight)
                measured[name].append((time.perf_counter() - began, time.process_time() - cpu))
    rows = []
    for name, found in measured.items():
        wall_s, cpu_s = (statistics.median(row[i] for row in found[1:]) for i in (0, 1))
        rate, cpu_ms = options.requests / wall_s, 1000 * cpu_s / options.requests
        rows.append({"client": name, "requests_s": round(rate), "cpu_ms": round(cpu_ms, 3)})
    return {"rows": rows}


# --- how busy servers are kept ---


def _busy(options: argparse.Namespace) -> dict[str, Any]:
    """Share of slots used, requests a second and time of each number of servers; medians of the rounds."""
    measured: dict[int, list[dict[str, float]]] = {int(n): [] for n in options.servers.split(",")}
    with _servers(max(measured), LOW_S, HIGH_S) as urls:
        for _ in range(options.rounds):
            for n, found in measured.items():
                found.append(_run(urls[:n], options.requests * n, options.in_flight))
    rows = []
    for n, found in measured.items():
        middle = {name: round(statistics.median(row[name] for row in found), 3) for name in found[0]}
        rows.append({"servers": n, "requests": options.requests * n, **middle})
    one = rows[0]
    for row in rows:
        row["times_one"] = round(row["requests_s"] / one["requests_s"] * one["servers"], 2)
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
        asyncio.run(_serve(float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("busy", "clients"))
    parser.add_argument("--requests", type=int, default=1000, help="waiting for each server, or for a client")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--servers", default="1,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="these clients")
    options = parser.parse_args()
    found = _busy(options) if options.what == "busy" else _clients(options)
    machine = {"cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "python": platform.python_version()}
    print(json.dumps({**found, "rounds": options.rounds, "in_flight": options.in_flight, "machine": machine}))


if __name__ == "__main__":
    main()
