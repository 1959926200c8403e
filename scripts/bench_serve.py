"""Compare a server with a batch job, without a language model: retrieval over HTTP and by the engine. Prints JSON.

usage: OMP_NUM_THREADS=1 python scripts/bench_serve.py INDEX QUESTIONS [--methods dense,ppr] [--clients 1,8,64]
       [--rounds 3]

The same questions go in turns through `gpu-rag serve` (in its own process; a client sends one question per request, and
the next one after the response) and through the engine in this process as one job, as `answer` and `eval` do. Figures
are medians of the rounds. Questions are numbered so that their texts differ, and no vectors are kept. cpu_ms is the
processor time per question of the serving process or of the job; their ratio is steady even if other work runs on the
machine. The clients run beside the server on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_rag import Index, load_questions
from gpu_rag.engine import Engine
from gpu_rag.types import Question

SETTINGS = {"models": {"llm": "none", "vector_cache_gib": 0.0}}
ASSIGNED = ("--set", "models.llm=none", "--set", "models.vector_cache_gib=0")
LEAST, A_CLIENT = 64, 4  # a round has at least 64 questions, and at least 4 per client


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--methods", default="dense,ppr")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = [row.question.text for row in load_questions(options.questions)[0]]
    engine = Index.open(options.index).engine(SETTINGS)
    command = [sys.executable, "-m", "gpu_rag", "serve", str(options.index), "--port", "0", "--json", *ASSIGNED]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        rows = [
            _compare(engine, url, server.pid, method, int(n), texts, options.rounds)
            for method in options.methods.split(",")
            for n in options.clients.split(",")
        ]
    finally:
        server.terminate()
        server.wait()
    machine = {"cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "python": platform.python_version()}
    print(json.dumps({"rows": rows, "rounds": options.rounds, "machine": machine}))


def _compare(engine: Engine, url: str, pid: int, method: str, n: int, texts: list[str], rounds: int) -> dict[str, Any]:
    """Measure a method with a number of clients."""
    count = max(LEAST, A_CLIENT * n)
    served, job = [], []
    for turn in range(rounds + 1):
        asked = [f"{texts[i % len(texts)]} ({turn}.{i})" for i in range(count)]
        served.append(_serve(url, pid, method, n, asked))
        job.append(_job(engine, method, asked))
    middle = {name: statistics.median(row[name] for row in served[1:]) for name in served[0]}
    batch = {name: statistics.median(row[name] for row in job[1:]) for name in job[0]}
    figures = {"method": method, "clients": n, "questions": count, **middle}
    figures.update({f"job_{name}": value for name, value in batch.items()})
    return {**figures, "cpu_ratio": middle["cpu_ms"] / batch["cpu_ms"]}


def _job(engine: Engine, method: str, asked: list[str]) -> dict[str, float]:
    """Answer the questions as one job."""
    questions = [Question(str(i), text) for i, text in enumerate(asked)]
    began, cpu = time.perf_counter(), time.process_time()
    answers = engine.run(method, questions, retrieval_only=True).answers
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert all(answer.error is None for answer in answers)
    return {"per_s": len(asked) / seconds, "cpu_ms": 1000 * cpu / len(asked)}


def _serve(url: str, pid: int, method: str, n: int, asked: list[str]) -> dict[str, float]:
    """Send the questions from n clients."""
    cpu, began = _cpu_s(pid), time.perf_counter()
    latencies = sorted(asyncio.run(_clients(url, method, n, asked)))
    seconds, cpu = time.perf_counter() - began, _cpu_s(pid) - cpu
    figures = {"per_s": len(asked) / seconds, "cpu_ms": 1000 * cpu / len(asked)}
    for share in (50, 95):
        figures[f"p{share}_ms"] = 1000 * latencies[min(len(latencies) * share // 100, len(latencies) - 1)]
    return figures


async def _clients(url: str, method: str, n: int, asked: list[str]) -> list[float]:
    left = iter(asked)
    return [s for part in await asyncio.gather(*(_client(url, method, left) for _ in range(n))) for s in part]


async def _client(url: str, method: str, left: Any) -> list[float]:
    """Send questions over one connection, each after the response to the last. Returns the seconds of each."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    seconds = []
    for text in left:
        body = json.dumps({"question": text, "method": method}).encode()
        head = f"POST /v1/retrieve HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        began = time.perf_counter()
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        headers = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line.split(":")[1] for line in headers.splitlines() if line.lower().startswith("content-length"))
        row = json.loads(await reader.readexactly(int(length)))
        seconds.append(time.perf_counter() - began)
        assert row["status"] == "retrieved", row
    writer.close()
    return seconds


def _cpu_s(pid: int) -> float:
    """Processor seconds of a process, summed over its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
