"""Measure HydraRAG on a generated graph of any size: seconds and memory to index it, to open it, and to answer.

usage: python scripts/bench_knowledge_base.py OUT [--triples N] [--nodes N] [--embedder hash|minilm] [--part make|ask]

make writes a seeded graph (40 relations, degrees by a power law: the first node is an end of 67,000 of 10^7 triples)
and indexes it. ask opens it and asks one question that loads everything, then questions from ordinary nodes and from
hubs one at a time, then 16 together. Each part runs in its own process, so that the memory is its own. Prints one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpu_rag
from gpu_rag.types import Question

WORDS = (
    "amber birch cedar delta ember frost grove haven ivory juniper kestrel lumen maple north ocean pine quartz river"
)
SKEW = 3.0  # of the power law: a node of rank r is an end as often as r ** (1 / SKEW - 1)
PART = 1_000_000


def name(node: int) -> str:
    """The name of the node of a rank."""
    words = WORDS.title().split()
    return f"{words[node % 18]} {words[node // 18 % 18]} {node}"


def relation(number: int) -> str:
    """The name of one of 40 relations."""
    words = WORDS.split()
    return f"{words[number % 18]} {words[(number * 7 + 3) % 18]} of"


def triples(n: int, nodes: int, seed: int = 0) -> Any:
    """The drawn triples, as parts of columns (head, relation, tail)."""
    rng = np.random.default_rng(seed)
    for first in range(0, n, PART):
        m = min(PART, n - first)
        ends = [(nodes * rng.random(m) ** skew).astype(int).tolist() for skew in (SKEW / 2, SKEW)]
        yield zip(ends[0], rng.integers(0, 40, m).tolist(), ends[1])


def spent() -> dict[str, float]:
    """Processor seconds and peak memory of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak = max(usage.ru_maxrss for usage in used)
    return {"cpu_s": round(sum(usage.ru_utime + usage.ru_stime for usage in used), 1), "peak_mb": peak // 1024}


def memory_mb() -> int:
    """Current memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def make(out: Path, n: int, nodes: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Write the graph and index it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "kg.tsv").open("w") as file:
        for part in triples(n, nodes):
            file.writelines(f"{name(h)}\t{relation(r)}\t{name(t)}\n" for h, r, t in part)
    begun, before = time.perf_counter(), spent()["cpu_s"]
    report = gpu_rag.build((), out / "index", kg=out / "kg.tsv", methods=["hydrarag"], settings=settings).report
    stages = {stage: round(done.s, 1) for stage, done in report.stages.items()}
    wall, used = time.perf_counter() - begun, spent()
    disk = sum(file.stat().st_size for file in (out / "index").rglob("*") if file.is_file())
    counts = {key: report.stages["kb"].counts[key] for key in ("kb_nodes", "kb_edges")}
    used["cpu_s"] = round(used["cpu_s"] - before, 1)
    return {**counts, "index_s": round(wall, 1), **used, "disk_mb": disk >> 20, "stages": stages}


def asked(lines: list[list[str]]) -> list[Question]:
    """A question for each triple, about its head."""
    return [Question(f"q{i}", f"Which {r} is {h} to?") for i, (h, r, _) in enumerate(lines)]


def ask(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Open the index and ask."""
    with (out / "kg.tsv").open() as file:
        lines = [line.rstrip("\n").split("\t") for _, line in zip(range(20_000), file)]
    rank = [int(line[0].rsplit(" ", 1)[1]) for line in lines]
    ordinary = asked([line for line, r in zip(lines, rank) if r > max(rank) // 4][:64])
    hubs = asked([lines[i] for i in np.argsort(rank, kind="stable")[:5]])
    begun = time.perf_counter()
    index = gpu_rag.Index.open(out / "index")
    engine = index.engine(settings)
    opened = time.perf_counter() - begun

    def run(questions: list[Question]) -> tuple[float, Any]:
        begun = time.perf_counter()
        answers = engine.run("hydrarag", questions, retrieval_only=True).answers
        assert not any(answer.error for answer in answers), [answer.error for answer in answers]
        return time.perf_counter() - begun, answers

    first, _ = run(ordinary[:1])
    costs: dict[str, Any] = {"open_s": round(opened, 2), "first_question_s": round(first, 1), "loaded_mb": memory_mb()}
    for label, questions in (("ordinary", ordinary[1:21]), ("hub", hubs)):
        done = [run([question]) for question in questions]
        ms = [1000 * seconds for seconds, _ in done]
        cut = sum("left out" in line for _, (a,) in done for step in a.trace for line in step.chosen)
        paths = sum(bool(a.paths) for _, (a,) in done)
        costs[label] = {"n": len(done), "median_ms": round(statistics.median(ms)), "max_ms": round(max(ms))}
        costs[label] |= {"cut": cut, "with_paths": paths}
    seconds, _ = run(ordinary[21:37])
    return {**costs, "16_together_ms": round(1000 * seconds), **spent()}


def main() -> None:
    """Read the command line, and run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--triples", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=0, help="a third of the triples")
    parser.add_argument("--embedder", default="hash")
    parser.add_argument("--part", choices=("make", "ask"), default="make")
    options = parser.parse_args()
    settings = {"models": {"embedder": options.embedder, "llm": "none"}}
    if options.part == "make":
        made = make(options.out, options.triples, options.nodes or options.triples // 3, settings)
    else:
        made = ask(options.out, settings)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
