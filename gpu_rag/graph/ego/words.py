"""Balls of many questions as bits, 64 questions a word: the way of a GPU, where a hop is one pass over the entries."""

from __future__ import annotations

from typing import Any

import torch
from gpu_rag_kernels import ego as ego_loops
from torch.utils.weak import WeakTensorKeyDictionary

from gpu_rag.graph.common.segments import offsets_of
from gpu_rag.graph.csr import transpose
from gpu_rag.graph.ragged import pieces_of, places_of, row_of_value
from gpu_rag.types import CSR, Ragged

WORD = 64  # questions
TILE = 4 * WORD  # questions searched together: four words a node, three arrays of them

_pulls: Any = WeakTensorKeyDictionary()  # by indices, (indptr, pull): a graph is turned once


def pull_of(graph: CSR) -> CSR:
    """The pattern whose row v lists the nodes with an entry in column v."""
    cached = _pulls.get(graph.indices)
    if cached is None or cached[0] is not graph.indptr:  # other graphs may share the columns
        cached = _pulls[graph.indices] = graph.indptr, transpose(CSR(graph.indptr, graph.indices))
    pull: CSR = cached[1]
    return pull


def balls_by_words(
    graph: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None, *, implementation: str = "auto"
) -> Ragged:
    """The balls of `ego_balls` without a limit, for checked input. implementation: of the kernel `msbfs_or`.

    Memory: 96 N bytes, and 128 for each node that 64 questions reach. The host waits once, and five times a tile.
    """
    pull = pull_of(graph)
    tiles = [tile for _, tile in pieces_of(seeds, TILE)]
    parts = [_listed(_search(pull, tile, radius, allowed, implementation), tile.batch) for tile in tiles]
    values = torch.cat([seeds.values[:0].int(), *(part.values for part in parts)])
    sizes = torch.cat([seeds.offsets[:0], *(part.offsets.diff() for part in parts)])
    return Ragged(values, offsets_of(sizes))


def _search(pull: CSR, seeds: Ragged, radius: int, allowed: torch.Tensor | None, implementation: str) -> torch.Tensor:
    """i64[N, W]: bit q % 64 of word q // 64 of a node says that it is in ball q."""
    width = (seeds.batch + WORD - 1) // WORD
    question = row_of_value(seeds)
    place = (seeds.values.long() * seeds.batch + question).sort().values
    once = torch.ones_like(place)
    once[1:] = place[1:] != place[:-1]  # each pair once: bits are added up
    node, question = place // seeds.batch, place % seeds.batch
    seen = torch.zeros(pull.n * width, dtype=torch.int64, device=node.device)
    seen.scatter_add_(0, node * width + question // WORD, once << (question % WORD))
    seen = seen.view(pull.n, width)
    front = seen
    for _ in range(radius):
        fresh, after = ego_loops.msbfs_or(pull, front, seen, implementation=implementation)
        if allowed is not None:
            fresh = torch.where(allowed[:, None], fresh, 0)
            after = seen | fresh
        front, seen = fresh, after
    return seen


def _listed(seen: torch.Tensor, batch: int) -> Ragged:
    """The nodes of each question, ascending."""
    values, sizes = [], []
    bits = torch.arange(8, dtype=torch.uint8, device=seen.device)
    touched_by = (seen != 0).sum(0).tolist()
    for first, n_touched in zip(range(0, batch, WORD), touched_by):
        word = seen[:, first // WORD]
        touched = places_of(word != 0, n_touched)
        eighths = word[touched].view(torch.uint8).view(-1, 8).T  # bit q is bit q % 8 of byte q // 8
        inside = ((eighths[:, None] >> bits[:, None]) & 1).flatten(0, 1)[: min(WORD, batch - first)]
        values.append(touched[inside.nonzero()[:, 1]].int())
        sizes.append(inside.sum(1, dtype=torch.int64))
    return Ragged(torch.cat(values), offsets_of(torch.cat(sizes)))
