"""The case `rrf`: two rankings of each of B questions fused into one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import MOST_ALONE, Case, Checked, Config, Peer
from gpu_rag.bench.measure import torch_threads
from gpu_rag.graph.fuse import rrf
from gpu_rag.types import TopK

K = 100  # length of each ranking and of the result
SHARED = 50  # items that a question's two rankings have in common
CONSTANTS = (60.0, 60.0)


def cases(config: Config) -> Iterator[Case]:
    """Rankings of random items, every size."""
    for n in config.sizes:
        yield _case(_rankings(n, config), n, config)


def _rankings(n: int, config: Config) -> list[torch.Tensor]:
    """Two of i32[pool, K], ids below n."""
    generator = torch.Generator().manual_seed(config.seed)
    items = torch.randint(n, (config.pool, 2 * K - SHARED), generator=generator, dtype=torch.int32)
    second = items[:, K - SHARED :]
    order = torch.rand(second.shape, generator=generator).argsort(1)
    return [items[:, :K].contiguous(), second.gather(1, order)]


def _case(rankings: list[torch.Tensor], n: int, config: Config) -> Case:
    held = [ids.to(config.device) for ids in rankings]
    scores = torch.arange(K, 0, -1, dtype=torch.float32, device=held[0].device).expand(config.pool, K)

    def inputs(start: int, count: int) -> list[TopK]:
        span = slice(start, start + count)
        return [TopK(ids[span], scores[span]) for ids in held]

    def run(wanted: list[TopK]) -> TopK:
        with torch_threads(config.threads):
            return rrf(wanted, K, constants=CONSTANTS)

    lists = [ids.numpy() for ids in rankings]
    return Case(
        "rrf",
        pick_implementation(held[0].device),
        {"n": n, "k": K},
        inputs,
        run,
        lambda result, count: check(result, count, lists),
        lambda batch: rrf_bytes(len(rankings), batch, K, K),
        lambda batch: 200 * len(rankings) * K * batch,
        lambda: [_python(lists)],
    )


def rrf_bytes(n_rankings: int, batch: int, width: int, k: int) -> int:
    """Ids read once, (id, score) written: 4 R B K + 8 B k."""
    return 4 * n_rankings * batch * width + 8 * batch * k


def fused(lists: list[list[int]], k: int) -> list[tuple[int, float]]:
    """Reciprocal rank fusion as a loop over a dictionary; the best rank counts where an item stands twice."""
    total: dict[int, float] = {}
    for ranking, constant in zip(lists, CONSTANTS):
        seen: set[int] = set()
        for rank, item in enumerate(ranking, 1):
            if item not in seen:
                seen.add(item)
                total[item] = total.get(item, 0.0) + 1 / (constant + rank)
    rounded = [(item, float(np.float32(score))) for item, score in total.items()]
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))[:k]


def check(result: Any, count: int, lists: list[np.ndarray]) -> Checked:
    """A sample of rows equals the loop, ids and f32 scores."""
    ids, scores = torch.as_tensor(result.ids).cpu(), torch.as_tensor(result.scores).cpu()
    if ids.shape != (count, K) or scores.shape != (count, K):
        return Checked(False, f"the shape is {tuple(ids.shape)} instead of {(count, K)}")
    for row in sorted({0, count // 2, count - 1}):
        wanted = fused([ranking[row].tolist() for ranking in lists], K)
        found = list(zip(ids[row].tolist(), scores[row].tolist()))
        if found[: len(wanted)] != wanted or any(item != -1 for item, _ in found[len(wanted) :]):
            return Checked(False, f"row {row} is another ranking than the loop's")
    return Checked(True)


def _python(lists: list[np.ndarray]) -> Peer:
    def inputs(start: int, count: int) -> list[list[list[int]]]:
        return [[ranking[row].tolist() for ranking in lists] for row in range(start, start + count)]

    def run(wanted: list[list[list[int]]]) -> TopK:
        count = len(wanted)
        ids, scores = np.full((count, K), -1, np.int32), np.full((count, K), -np.inf, np.float32)
        for row, rankings in enumerate(wanted):
            best = fused(rankings, K)
            ids[row, : len(best)] = [item for item, _ in best]
            scores[row, : len(best)] = [score for _, score in best]
        return TopK(torch.from_numpy(ids), torch.from_numpy(scores))

    return Peer("Python dict", inputs, run, most=MOST_ALONE, alone=True)
