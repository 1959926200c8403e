"""The bookkeeping of HopRAG's traversal (its algorithm 1): a queue, a count a vertex, the final pruning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Walk:
    """One question's traversal. queue: vertices to hop from in this round, in order; counts: visits of each vertex,
    in the order of first visits."""

    queue: list[int]
    counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = dict.fromkeys(self.queue, 1)

    def hop(self, targets: Sequence[int | None]) -> None:
        """One round: vertex i of the queue hops to targets[i], or (None) nowhere.

        A target's count grows by one for each hop; it enters the next round's queue only if it was never counted
        before, so once.
        """
        following = []
        for target in targets:
            if target is None:
                continue
            if target not in self.counts:
                following.append(target)
            self.counts[target] = self.counts.get(target, 0) + 1
        self.queue = following


def helpfulness(counts: Mapping[int, int], similarity: Mapping[int, float]) -> dict[int, float]:
    """H(v) = (SIM(v, q) + counts[v] / sum of all counts) / 2 of every counted vertex; HopRAG's equation 2."""
    total = sum(counts.values())
    return {v: (similarity[v] + n / total) / 2 for v, n in counts.items()}


def pruned(scores: Mapping[int, float], passage_of: Mapping[int, int], k: int) -> list[tuple[int, float]]:
    """The k best (passage, H), best first, equal ones by lower passage; a passage counts as its best vertex does."""
    best: dict[int, float] = {}
    for vertex, score in scores.items():
        passage = passage_of[vertex]
        best[passage] = max(score, best.get(passage, score))
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))[:k]
