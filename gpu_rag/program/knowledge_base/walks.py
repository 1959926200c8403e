"""One way through a knowledge base for each of many chains of relations: the edges behind a reasoning path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_rag.graph.ragged import expand, ragged_of_lists
from gpu_rag.graph.reach import EITHER, intersect, reachable
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.types import Ragged

__all__ = ["Walk", "walk_nodes"]


@dataclass(frozen=True)
class Walk:
    """A way to be found: from one of `starts` along `chain`, each step either way, to `end`."""

    starts: tuple[int, ...]
    chain: tuple[int, ...]
    end: int


def walk_nodes(kb: KnowledgeBase, walks: Sequence[Walk], threads: int = 1) -> list[tuple[int, ...]]:
    """The nodes of one way for each walk, of the lowest row at every step from the start; () where there is none.

    Backward sets B_L = {end}, B_(i-1) = nodes one step of relation i from B_i; then forward, the lowest node that is
    both a neighbour and in B_i. Batched over the walks, step by step.
    """
    longest = max((len(walk.chain) for walk in walks), default=0)
    back = [ragged_of_lists([[walk.end] for walk in walks], kb.device)]
    for step in range(longest):  # aligned at the end: a shorter chain has no relation left and stays
        relations = [walk.chain[-1 - step : len(walk.chain) - step] for walk in walks]
        back.append(_stepped(kb, back[-1], relations, threads))
    ways: list[list[int]] = [[] for _ in walks]
    at = ragged_of_lists([sorted(set(walk.starts)) for walk in walks], kb.device)
    for step in range(longest + 1):
        left = [len(walk.chain) - step for walk in walks]  # steps to go; below 0: the walk is at its end
        allowed = _picked(back, left, kb.device)
        both = intersect(at, allowed)
        lowest = _lowest(both)
        for way, node, more in zip(ways, lowest, left):
            if node >= 0 and more >= 0:
                way.append(node)
        here = [[node] if node >= 0 else [] for node in lowest]
        relations = [walk.chain[step : step + 1] for walk in walks]
        at = _stepped(kb, ragged_of_lists(here, kb.device), relations, threads)
    return [tuple(way) if len(way) == len(walk.chain) + 1 else () for way, walk in zip(ways, walks)]


def _stepped(kb: KnowledgeBase, nodes: Ragged, relations: Sequence[Sequence[int]], threads: int) -> Ragged:
    """One step of each list's relation; a list without one stays where it is."""
    chain = ragged_of_lists(relations, kb.device)
    either = Ragged(torch.full_like(chain.values, EITHER), chain.offsets)
    found = reachable(kb.typed, nodes, chain, either, threads=threads)
    return Ragged(found.values.long(), found.offsets)


def _picked(lists: Sequence[Ragged], which: Sequence[int], device: str | torch.device) -> Ragged:
    """List b of lists[which[b]]; none where that is negative."""
    sizes = torch.tensor([0, *(one.values.shape[0] for one in lists)], device=device).cumsum(0)
    offsets = torch.stack([one.offsets + size for one, size in zip(lists, sizes)])
    values = torch.cat([one.values for one in lists])
    chosen, row = torch.tensor(which, dtype=torch.int64, device=device), torch.arange(len(which), device=device)
    first = offsets[chosen.clamp(min=0), row]
    last = torch.where(chosen >= 0, offsets[chosen.clamp(min=0), row + 1], first)
    ends = torch.zeros(len(which) + 1, dtype=torch.int64, device=device)
    ends[1:] = (last - first).cumsum(0)
    return Ragged(torch.cat([values[:0], *(values[place] for _, place in expand(first, last))]), ends)


def _lowest(lists: Ragged) -> list[int]:
    """The first value of each ascending list, -1 of an empty one."""
    lowest = torch.full((lists.batch,), -1, dtype=torch.int64, device=lists.offsets.device)
    held = lists.offsets.diff() > 0
    lowest[held] = lists.values[lists.offsets[:-1][held]].long()
    return [int(node) for node in lowest.tolist()]
