"""What workers cost and give on this machine: processor seconds of the driver and of workers, beside no workers at all.

usage: python scripts/bench_ray.py [--texts N] [--requests N] [--rounds N] [--json]
Embedding by MiniLM; a language model that only echoes, so that what is left is the way there and back; SmolLM2. The
three ways (in this process, 1 worker, 2 workers) take turns in each round; figures are medians. Wall times say little
on a machine that does other things; processor times of a worker are those of its process, read before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpu_rag.cluster.models import RayEmbedder, RayLLM
from gpu_rag.cluster.pool import Plan, Pool
from gpu_rag.cluster.worker import EmbedWorker, LLMWorker, Loaded, build_embedder, build_llm
from gpu_rag.models.packaged import cache_dir
from gpu_rag.models.set import plain_embedder, plain_llm
from gpu_rag.settings import ModelSettings
from gpu_rag.settings.sections import ScaleSettings, VllmSettings
from gpu_rag.types import Request

MODELS = ModelSettings()
SCALE = ScaleSettings(address="local", embed_workers=4, llm_workers=4)


def texts(n: int) -> list[str]:
    """Texts of 5 to 124 words, all different."""
    words = re.findall(r"\w+", "The old bridge over the river was built by an engineer from the town below the hill.")
    return [f"{i} " + " ".join(words[(i * 7 + j) % len(words)] for j in range(5 + i * 37 % 120)) for i in range(n)]


def requests(n: int, n_tokens: int) -> list[Request]:
    """Questions that differ, under one system text."""
    return [Request("Answer in one line.", f"What is known of town {i}?", max_tokens=n_tokens) for i in range(n)]


def echo() -> Loaded:
    """A model that costs nothing."""
    from gpu_rag.models.llm.scripted import ScriptedLLM

    return Loaded(ScriptedLLM(lambda request: request.prompt), 64)


def pool_of(role: str, actor: type, build: Callable[[], Any], n_workers: int) -> Pool:
    """A pool whose workers are all ready."""
    pool = Pool(SCALE, Plan(role, actor, build, n_workers, 1.0, 0.0))
    while len(pool.ready()) < n_workers:
        pool.pump(0.2)
    return pool


def processor_s(pool: Pool) -> float:
    """Processor seconds of all workers so far."""
    total = 0
    for worker in pool.ready():
        assert worker.facts is not None
        total += sum(map(int, Path(f"/proc/{worker.facts.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], Any], pool: Pool | None) -> dict[str, float]:
    """Seconds of one call: wall, processor of this process, processor of the workers."""
    before, here, wall = processor_s(pool) if pool else 0.0, time.process_time(), time.perf_counter()
    work()
    wall, here = time.perf_counter() - wall, time.process_time() - here
    return {"wall_s": wall, "driver_s": here, "workers_s": processor_s(pool) - before if pool else 0.0}


def compare(ways: dict[str, tuple[Callable[[], Any], Pool | None]], rounds: int) -> dict[str, dict[str, float]]:
    """Medians of each way, taken in turns after one warm call."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for work, _ in ways.values():
        work()
    for _ in range(rounds):
        for name, (work, pool) in ways.items():
            found[name].append(measured(work, pool))
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}


def embedding(n: int, rounds: int) -> dict[str, dict[str, float]]:
    """MiniLM."""
    some = texts(n)
    build = partial(build_embedder, MODELS, "cpu", str(cache_dir()))
    pools = {count: pool_of("embedder", EmbedWorker, build, count) for count in (1, 2)}
    ways: dict[str, Any] = {"here": (partial(plain_embedder(MODELS, "cpu").embed, some), None)}
    for count, pool in pools.items():
        ways[f"{count} workers"] = (partial(RayEmbedder(pool, SCALE.embed_batch).embed, some), pool)
    try:
        return compare(ways, rounds)
    finally:
        for pool in pools.values():
            pool.close()


def asking(asked: list[Request], rounds: int, build: Callable[[], Loaded], here: Any) -> dict[str, dict[str, float]]:
    """A language model."""
    pools = {count: pool_of("llm", LLMWorker, build, count) for count in (1, 2)}
    ways: dict[str, Any] = {"here": (partial(here.complete, asked), None)}
    for count, pool in pools.items():
        ways[f"{count} workers"] = (partial(RayLLM(pool).complete, asked), pool)
    try:
        return compare(ways, rounds)
    finally:
        for pool in pools.values():
            pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=5000, help="of the model that echoes")
    parser.add_argument("--replies", type=int, default=64, help="of SmolLM2, of 16 tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from gpu_rag.cluster.ray import attach, detach

    attach(SCALE)
    vllm = VllmSettings()
    tables = {
        f"MiniLM, {options.texts} texts": embedding(options.texts, options.rounds),
        f"echo, {options.requests} requests": asking(requests(options.requests, 16), options.rounds, echo, echo().llm),
        f"SmolLM2, {options.replies} replies": asking(
            requests(options.replies, 16),
            options.rounds,
            partial(build_llm, MODELS, vllm, "cpu", str(cache_dir())),
            plain_llm(MODELS, vllm, "cpu"),
        ),
    }
    detach()
    if options.json:
        print(json.dumps(tables))
        return
    for title, rows in tables.items():
        print(f"\n{title}\n{'':12}{'wall s':>10}{'driver s':>10}{'workers s':>11}{'processor / here':>18}")
        here = rows["here"]["driver_s"]
        for name, row in rows.items():
            ratio = (row["driver_s"] + row["workers_s"]) / here
            print(f"{name:12}{row['wall_s']:10.2f}{row['driver_s']:10.3f}{row['workers_s']:11.2f}{ratio:18.2f}")


if __name__ == "__main__":
    main()
