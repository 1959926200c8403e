"""Questions a second of `ppr` retrieval in batches, query vectors given, on one thread: one JSON line.

usage: OMP_NUM_THREADS=1 python scripts/bench_retrieval.py INDEX QUESTIONS [--batch 256] [--repeats 7]

The questions of the file are repeated up to the batch size (nothing is cached between them). The median of the repeats
counts; the first, which compiles, is left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

from gpu_rag.api import Index, load_questions
from gpu_rag.graph.pagerank import pick_implementation
from gpu_rag.methods.ppr.batched import rank_by_graph
from gpu_rag.methods.registry import load_method


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--k", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    index = Index.open(options.index)
    texts = [row.question.text for row in load_questions(options.questions)[0]]
    engine = index.engine({})
    vectors = engine.models.embedder().embed(texts)
    asked = [(texts[i % len(texts)], vectors[i % len(texts)]) for i in range(options.batch)]
    params = load_method("ppr").Params()
    index.threads = 1
    seconds = []
    for _ in range(options.repeats + 1):
        started = time.perf_counter()
        rank_by_graph.run(index, asked, (params, options.k))
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    graph = index.graph
    document = {
        "op": "ppr retrieval, vectors given",
        "nodes": graph.n,
        "edges": index.manifest.stages["graph"].counts["edges"],
        "distinct_questions": len(texts),
        "batch": options.batch,
        "threads": 1,
        "median_s": median,
        "best_s": min(seconds[1:]),
        "questions_per_s": options.batch / median,
        "implementation": pick_implementation(graph, "auto"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
