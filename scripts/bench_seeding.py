"""CPU seconds that `ppr` needs to seed a tile of 64 questions, as it does now and as dense arrays on the host did.

usage: python scripts/bench_seeding.py [N_ENTITIES ...]      prints a CSV
dense_s, sparse_s, ratio: without a GPU. host_dense_s, host_sparse_s, host_ratio: what a host with a GPU does, up to its
copy to the device, where the softmax over passages and all that follows is taken.
Seeding is all between the nearest facts, cosines and words of the questions and the call of PageRank. The dense way is
the formula of `gpu_rag.program.walk` over every entity, in f64 by NumPy, as it was until 23 November 2026. Both are of
one thread, the least of three; their priors are compared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_device
from gpu_rag.graph.pagerank import Restarts
from gpu_rag.program.walk import fact_weights, listed, mixed, restart, restarts_of, scaled, seeds_of
from gpu_rag.types import TopK

BATCH, FACTS, NAMES, WORDS = 64, 5, 3, 20


class Questions:
    """What a tile of questions brings along: nearest facts, entities that are named, passages by words, cosines."""

    def __init__(self, n_entities: int):
        g = np.random.default_rng(0)
        self.n, self.p = n_entities, n_entities // 5
        self.ends = tuple(g.integers(0, self.n, 2 * self.n) for _ in range(2))
        ids = g.integers(0, 2 * self.n, (BATCH, FACTS)).astype(np.int32)
        self.facts = TopK(torch.from_numpy(ids), torch.from_numpy(g.random((BATCH, FACTS), np.float32)))
        self.named = [sorted(set(g.integers(0, self.n, NAMES).tolist())) for _ in range(BATCH)]
        self.counts = g.integers(1, 9, self.n)
        self.words = np.argsort(g.random((BATCH, 1000)), 1)[:, :WORDS], scaled(g.random((BATCH, WORDS)))
        self.near = torch.from_numpy(g.random((BATCH, self.p), np.float32))


def host_sparse(q: Questions) -> tuple[torch.Tensor, ...]:
    """The way of today: what goes to the device."""
    return to_device("cpu", *q.words, *listed(q.named, q.counts))


def sparse(q: Questions) -> Restarts:
    """All of it."""
    rows, weights, nodes, named = host_sparse(q)
    ends = to_device("cpu", *q.ends)
    seeds = mixed(fact_weights((ends[0], ends[1]), q.facts), seeds_of(nodes, named), 0.5)
    return restarts_of(seeds, restart(q.near, rows, weights), 0.5)


def host_dense(q: Questions) -> list[torch.Tensor]:
    """Every step over all entities: what went to the device."""
    rows = np.arange(BATCH)[:, None]
    total, count = np.zeros((BATCH, q.n)), np.zeros((BATCH, q.n))
    ids, cosine = q.facts.ids.numpy(), q.facts.scores.numpy()
    subjects, objects = (side[ids] for side in q.ends)
    for side, counted in ((subjects, np.ones(ids.shape)), (objects, (objects != subjects).astype(float))):
        np.add.at(total, (rows, side), cosine * counted)
        np.add.at(count, (rows, side), counted)
    by_fact, named = scaled(total / np.maximum(count, 1)), np.zeros((BATCH, q.n))
    for row, entities in enumerate(q.named):
        named[row, entities] = 1 / np.maximum(q.counts[entities], 1)
    weights = scaled(0.5 * by_fact + 0.5 * scaled(named))
    words = np.zeros((BATCH, q.p))
    words[rows, q.words[0]] = q.words[1]
    share = np.where(words.sum(1, keepdims=True) > 0, 0.2, 0.0)
    masses = np.where(weights.sum(1, keepdims=True) > 0, 0.5, 0.0)
    parts = 1 - share, share * words, masses * weights, 1 - masses
    return [torch.from_numpy(part.astype(np.float32)) for part in parts]


def dense(q: Questions) -> torch.Tensor:
    """All of it."""
    near, by_words, first, rest = host_dense(q)
    return torch.cat([first, rest * (near * torch.softmax(q.near, dim=1) + by_words)], dim=1)


def least_s(call: Callable[[], Any]) -> float:
    """CPU seconds of the fastest of three calls."""
    taken = []
    for _ in range(3):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def main(sizes: list[int]) -> None:
    torch.set_num_threads(1)
    print("entities,passages,dense_s,sparse_s,ratio,host_dense_s,host_sparse_s,host_ratio")
    for n in sizes or [10_000, 100_000, 1_000_000]:
        q = Questions(n)
        found, expected = sparse(q), dense(q)
        whole = torch.zeros(BATCH, n + q.p)
        whole[:, n:] = found.last
        whole.scatter_add_(1, found.nodes, found.mass)
        assert torch.allclose(whole, expected, rtol=1e-6, atol=1e-9)
        del whole, expected
        ways = (dense, sparse), (host_dense, host_sparse)
        rows = [[least_s(lambda way=way, q=q: way(q)) for way in pair] for pair in ways]  # type: ignore[misc]
        figures = [f"{before:.6f},{now:.6f},{before / now:.0f}" for before, now in rows]
        print(f"{n},{q.p},{','.join(figures)}", flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
