"""Time and memory of `radius_clusters` on more vectors than `gpu-rag bench clusters` takes: one JSON line.

python scripts/bench_clusters.py --rows 1000000 --dims 32 [--eps 0.2] [--dtype f16]

Random unit vectors around planted centres, as in the benchmark, of --dims dimensions. `rss_gb` is the highest resident
memory of the process, `beside_gb` what the call added to it, and `bound_gb` the limit of that by `cluster_bytes`. A
sample of rows is compared with all others in f64: neighbours must have one label, and a row without neighbours must be
noise.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from gpu_rag.graph.cluster import cluster_bytes, radius_clusters
from gpu_rag.index.memory import memory_bytes, peak_memory_bytes, reset_peak_memory

MEMBERS, SPREAD = 4, 0.3
SAMPLE = 200


def planted(n: int, dims: int, dtype: torch.dtype) -> torch.Tensor:
    """Unit rows around planted centres: f16 or f32[n, dims], made part by part."""
    generator, vectors = torch.Generator().manual_seed(0), torch.empty(n, dims, dtype=dtype)
    for first in range(0, n, 1 << 16):
        rows = min(1 << 16, n - first)
        centres = torch.nn.functional.normalize(torch.randn(-(-rows // MEMBERS), dims, generator=generator))
        noise = torch.nn.functional.normalize(torch.randn(rows, dims, generator=generator))
        part = centres.repeat_interleave(MEMBERS, 0)[:rows] + SPREAD * noise
        vectors[first : first + rows] = torch.nn.functional.normalize(part)
    return vectors


def wrong_rows(labels: torch.Tensor, vectors: torch.Tensor, eps: float, min_samples: int) -> int:
    """Number of rows of a sample with another label than a neighbour, or that wrongly are or are not noise. Border rows
    would count as wrong; these vectors have hardly any."""
    wrong = 0
    for i in torch.linspace(0, len(vectors) - 1, SAMPLE).long().tolist():
        own = vectors[i].double()
        near = torch.cat([part.double() @ own >= 1 - eps for part in vectors.split(1 << 16)])
        near[i] = True
        alone = int(near.sum()) < min_samples
        wrong += int(labels[i] != -1) if alone else int(bool((labels[near] != labels[i]).any()) or labels[i] < 0)
    return wrong


def main() -> None:
    """Read the options, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--eps", type=float, default=0.2)
    parser.add_argument("--min-samples", type=int, default=2)
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    vectors = planted(options.rows, options.dims, {"f16": torch.float16, "f32": torch.float32}[options.dtype])
    radius_clusters(vectors[:4096], options.eps, options.min_samples)  # compiles
    reset_peak_memory()
    before, started = memory_bytes(), time.process_time()
    labels = radius_clusters(vectors, options.eps, options.min_samples)
    spent, peak = time.process_time() - started, peak_memory_bytes()
    bound = cluster_bytes(options.rows, options.dims, options.min_samples)
    figures = {**vars(options), "cpu_s": round(spent, 2), "clusters": len(labels[labels >= 0].unique())}
    wrong = wrong_rows(labels, vectors, options.eps, options.min_samples)
    figures |= {"noise": int((labels < 0).sum()), "wrong_of_sample": wrong}
    for name, n_bytes in (("rss", peak), ("beside", peak - before), ("bound", bound)):
        figures[f"{name}_gb"] = round(n_bytes / 1e9, 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
