"""Questions a second of retrieval in batches, query vectors given, on one thread: one JSON line.

usage: OMP_NUM_THREADS=1 python scripts/bench_retrieval.py INDEX QUESTIONS [--batch 256] [--repeats 7]
           [--method M[:key=value]]

Without --method the step of `ppr`; with it the whole retrieval of a method, driver and evidence included, such as
fused:bubblerag=false, vectors of all its texts (keywords too) looked up.
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

import numpy as np
import torch

from gpu_rag import Index, load_questions
from gpu_rag.engine import Engine
from gpu_rag.graph.pagerank import pick_implementation
from gpu_rag.methods.ppr.batched import rank_by_graph
from gpu_rag.methods.registry import load_method
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.settings import parse_assignment
from gpu_rag.types import Question


class LookedUp:
    """An embedder that gives the vectors of texts that it was asked for before at once."""

    def __init__(self, embedder: Embedder):
        self._embedder, self._known = embedder, dict[str, np.ndarray]()
        self.name, self.content_hash, self.dim = embedder.name, embedder.content_hash, embedder.dim

    def embed(self, texts: list[str]) -> np.ndarray:
        """f32[n, D]."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            self._known.update(zip(new, self._embedder.embed(new)))
        return np.stack([self._known[text] for text in texts])


Seconds = tuple[float, float]  # by the clock, of the processor


def retrievals(engine: Engine, method: str, texts: list[str], batch: int, k: int, repeats: int) -> list[Seconds]:
    """Seconds of each repeat; the first run, which compiles and embeds, is left out."""
    embedder = LookedUp(engine.models.embedder())
    engine.models.embedder = lambda: embedder  # type: ignore[method-assign,assignment,return-value]
    asked = [Question(f"q{i}", texts[i % len(texts)]) for i in range(batch)]
    seconds = []
    for _ in range(repeats + 1):
        busy = time.process_time()
        answers = engine.run(method, asked, limit=k, retrieval_only=True)
        assert all(answer.error is None for answer in answers.answers)
        seconds.append((answers.wall_s, time.process_time() - busy))
    return seconds[1:]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--method", default="", metavar="M[:key=value]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    index = Index.open(options.index)
    texts = [row.question.text for row in load_questions(options.questions)[0]]
    method, _, assigned = options.method.partition(":")
    given = parse_assignment(f"method.{assigned}") if assigned else ("", None)
    engine = index.engine({"method": {method: {given[0].removeprefix("method."): given[1]}}} if assigned else {})
    vectors = engine.models.embedder().embed(texts)
    asked = [(texts[i % len(texts)], vectors[i % len(texts)]) for i in range(options.batch)]
    params = load_method("ppr").Params()
    index.threads = 1
    seconds = []
    for _ in range(0 if method else options.repeats + 1):
        started, busy = time.perf_counter(), time.process_time()
        rank_by_graph.run(index, asked, (params, options.k))
        seconds.append((time.perf_counter() - started, time.process_time() - busy))
    seconds = retrievals(engine, method, texts, options.batch, options.k, options.repeats) if method else seconds[1:]
    median, processor = (statistics.median(one) for one in zip(*seconds))
    graph = index.graph
    document = {
        "op": f"{options.method or 'ppr'} retrieval, vectors given",
        "nodes": graph.n,
        "edges": index.manifest.stages["graph"].counts["edges"],
        "distinct_questions": len(texts),
        "batch": options.batch,
        "threads": 1,
        "median_s": median,
        "best_s": min(seconds)[0],
        "questions_per_s": options.batch / median,
        "questions_per_processor_s": options.batch / processor,
        "implementation": pick_implementation(graph, "auto"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
