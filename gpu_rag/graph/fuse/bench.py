"""The case `rrf`: fuse two rankings of each of B questions into one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config, check_sample
from gpu_rag.bench.inputs import part, seeded
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.fuse import rrf
from gpu_rag.types import TopK

K = 100  # length of each ranking and of the result
SHARED = 50  # common items of a question's two rankings
CONSTANTS = (60.0, 60.0)


def cases(config: Config) -> Iterator[Case]:
    """Rankings of random items, for every size: two of i32[pool, K], ids below n."""
    for n in config.sizes:
        generator = seeded(config)
        items = torch.randint(n, (config.pool, 2 * K - SHARED), generator=generator, dtype=torch.int32)
        second = items[:, K - SHARED :]
        order = torch.rand(second.shape, generator=generator).argsort(1)
        yield _case(n, [items[:, :K].contiguous(), second.gather(1, order)], config)


def _case(n: int, rankings: list[torch.Tensor], config: Config) -> Case:
    device = torch.device(config.device)
    ids = [ranking.to(device) for ranking in rankings]
    scores = torch.arange(K, 0, -1, dtype=torch.float32, device=device).expand(config.pool, K)
    return Case(
        op="rrf",
        labels={"n": n, "k": K},
        inputs=lambda *span: [TopK(part(ranking, *span), part(scores, *span)) for ranking in ids],
        run=lambda given: rrf(given, K, constants=CONSTANTS),
        check=lambda result, count: check(result, count, rankings),
        bytes_of=lambda batch: rrf_bytes(len(rankings), batch, K, K),
        memory_of=lambda batch: 200 * len(rankings) * K * batch,
        peers=lambda: [peer_file("fuse").by_python(rankings)],
    )


def rrf_bytes(n_rankings: int, batch: int, width: int, k: int) -> int:
    """Bytes to read ids once and write (id, score): 4 R B K + 8 B k."""
    return 4 * n_rankings * batch * width + 8 * batch * k


def fused(rankings: list[list[int]]) -> list[tuple[int, float]]:
    """Reciprocal rank fusion by a loop over a dictionary; if an item is in a ranking twice, its best rank counts."""
    total: dict[int, float] = {}
    for ranking, constant in zip(rankings, CONSTANTS):
        seen: set[int] = set()
        for rank, item in enumerate(ranking, 1):
            if item not in seen:
                seen.add(item)
                total[item] = total.get(item, 0.0) + 1 / (constant + rank)
    rounded = [(item, float(np.float32(score))) for item, score in total.items()]
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))[:K]


def check(result: Any, count: int, rankings: list[torch.Tensor]) -> Checked:
    """Check that a sample of rows equals the loop, in ids and f32 scores."""
    ids, scores = torch.as_tensor(result.ids).cpu(), torch.as_tensor(result.scores).cpu()
    if ids.shape != (count, K) or scores.shape != (count, K):
        return Checked(f"the shape is {tuple(ids.shape)} instead of {(count, K)}")

    def reason(row: int) -> str:
        wanted = fused([ranking[row].tolist() for ranking in rankings])
        pairs = list(zip(ids[row].tolist(), scores[row].tolist()))
        right = pairs[: len(wanted)] == wanted and all(item == -1 for item, _ in pairs[len(wanted) :])
        return "" if right else f"row {row} is another ranking than the loop's"

    return check_sample(count, reason)
