"""The case `nearest`: the k largest dot products of B unit vectors with n others."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import MOST_TILED, Case, Checked, Config, Peer, missing_peer
from gpu_rag.bench.measure import torch_threads
from gpu_rag.errors import UsageError
from gpu_rag.graph.memory import free_bytes
from gpu_rag.graph.nearest import QUERY_TILE, nearest
from gpu_rag.graph.pagerank.bench_peers import single_openmp_thread
from gpu_rag.types import TopK

DIMS = 384
K = 10
CHECKED = 8  # questions whose products are computed in f64
ERROR = 1e-5  # of a dot product of unit vectors in f32
TILE = 65536


def cases(config: Config) -> Iterator[Case]:
    """Random unit vectors, every size."""
    for n in config.sizes:
        device = torch.device(config.device)
        needed, free = 3 * 4 * n * DIMS, free_bytes(device)  # the vectors, a peer's copy of them, and room
        if needed > free:
            given = f"{n:,} vectors: {needed / 1e9:.1f} GB"
            raise UsageError("the vectors do not fit", given=given, expected=f"at most {free / 1e9:.1f} GB")
        generator = torch.Generator().manual_seed(config.seed)
        base = torch.nn.functional.normalize(torch.randn(n, DIMS, generator=generator))
        queries = torch.nn.functional.normalize(torch.randn(config.pool, DIMS, generator=generator))
        yield _case(base, queries, base.to(device), queries.to(device), config)


def _case(
    base: torch.Tensor, queries: torch.Tensor, held: torch.Tensor, asked: torch.Tensor, config: Config
) -> Case:  # fmt: skip
    n = base.shape[0]
    k = min(K, n)

    def run(wanted: torch.Tensor) -> TopK:
        with torch_threads(config.threads):
            return nearest(wanted, held, k)

    return Case(
        "nearest",
        pick_implementation(held.device),
        {"n": n, "k": k, "dims": DIMS},
        lambda start, count: asked[start : start + count],
        run,
        lambda result, count: check(result, count, base, queries, k),
        lambda batch: nearest_bytes(n, DIMS, batch, k),
        lambda batch: 3 * 4 * QUERY_TILE * min(TILE, n) + 4 * min(TILE, n) * DIMS + 8 * batch * DIMS,
        lambda: [_faiss(base.numpy(), queries.numpy(), k, config.threads), _numpy(base.numpy(), queries.numpy(), k)],
    )


def nearest_bytes(n: int, dims: int, batch: int, k: int) -> int:
    """Vectors and queries read once in f32, (id, score) written: 4 D (n + B) + 8 B k."""
    return 4 * dims * (n + batch) + 8 * batch * k


def check(result: Any, count: int, base: torch.Tensor, queries: torch.Tensor, k: int) -> Checked:
    """Scores are those of their ids, and no worse than the k best in f64; the order of near-equal ones is free."""
    ids, scores = torch.as_tensor(result.ids).cpu().long(), torch.as_tensor(result.scores).cpu().double()
    if ids.shape != (count, k) or scores.shape != (count, k):
        return Checked(False, f"the shape is {tuple(ids.shape)} instead of {(count, k)}")
    if bool(((ids < 0) | (ids >= len(base))).any()) or bool((ids.sort(1).values.diff(dim=1) == 0).any()):
        return Checked(False, "an id is out of range, or twice in a row")
    if bool((scores.diff(dim=1) > 0).any()):
        return Checked(False, "a row is not sorted")
    rows = torch.unique(torch.linspace(0, count - 1, CHECKED).long())
    exact = _products(queries[rows].double(), base)
    best = exact.topk(k, dim=1).values
    own = (exact.gather(1, ids[rows]) - scores[rows]).abs().max()
    lost = (best - scores[rows]).abs().max()
    if not float(torch.maximum(own, lost)) <= ERROR:
        return Checked(False, f"a score is off by {float(torch.maximum(own, lost)):.2g}, more than {ERROR:g}")
    return Checked(True)


def _products(queries: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    return torch.cat([queries @ base[lo : lo + TILE].double().T for lo in range(0, len(base), TILE)], 1)


def _faiss(base: np.ndarray, queries: np.ndarray, k: int, threads: int) -> Peer:
    if find_spec("faiss") is None:
        return missing_peer("faiss", "faiss-cpu")
    import faiss

    index = faiss.IndexFlatIP(base.shape[1])
    index.add(base)

    def run(wanted: np.ndarray) -> TopK:
        faiss.omp_set_num_threads(threads)
        try:
            scores, ids = index.search(wanted, k)
        finally:
            faiss.omp_set_num_threads(1)  # other peers may share its OpenMP
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    return Peer("faiss flat", lambda start, count: queries[start : start + count], run, threads=threads)


def _numpy(base: np.ndarray, queries: np.ndarray, k: int) -> Peer:
    def run(wanted: np.ndarray) -> TopK:
        scores = wanted @ base.T
        ids = np.argpartition(scores, len(base) - k, axis=1)[:, len(base) - k :]
        kept = np.take_along_axis(scores, ids, 1)
        order = np.argsort(-kept, axis=1, kind="stable")
        found = np.take_along_axis(ids, order, 1), np.take_along_axis(kept, order, 1)
        return TopK(torch.from_numpy(found[0]), torch.from_numpy(found[1]))

    return Peer(
        "numpy argpartition", lambda start, count: queries[start : start + count], run, most=MOST_TILED,
        threads=1 if single_openmp_thread() else None,
    )  # fmt: skip
