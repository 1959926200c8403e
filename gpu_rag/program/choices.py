"""Choices with mass: what a model chose moves passages up the ranking of a graph walk.

A choice offers options, such as edges, relations or entities, which lead to passages. Over all choices of a question:
  n(p), m(p)  = the summed weights of the chosen options that lead to passage p, and of all offered ones; an option
                weighs 1 / (number of its passages)
  agreement   = n(p) / (m(p) + DOUBT): the share of the occasions to choose p that were taken
  score(p)    = score of the walk + MASS * agreement
Rules do not count as choices, so without a model a ranking stays as the walk gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from gpu_rag.program.decide import RULE
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking

MASS, DOUBT = 0.3, 1.0
PARTS = 1 << 40  # weights are rounded down to multiples of 1 / PARTS: sums are exact in any order
DEPTH = 100  # places of a walk's ranking that choices may reorder


@dataclass
class Choices:
    """The choices of one question, summed over passages."""

    offered: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    def add(
        self, run: Run, options: Sequence[int], chosen: Collection[int], passages_of: Callable[[int], Collection[int]]
    ) -> None:
        """Count a choice, unless the rule made it. chosen: positions; passages_of: the passages that an option leads
        to."""
        if run.decider is RULE:
            return
        for position, option in enumerate(options):
            passages = passages_of(option)
            for passage in passages:
                self.offered[passage] = self.offered.get(passage, 0) + PARTS // len(passages)
                if position in chosen:
                    self.taken[passage] = self.taken.get(passage, 0) + PARTS // len(passages)

    def support(self, passage: int) -> float:
        """The score that choices add to a passage."""
        return MASS * self.taken.get(passage, 0) / (self.offered.get(passage, 0) + DOUBT * PARTS)

    def ranked(self, walked: Ranking, limit: int) -> Ranking:
        """The first `limit` passages of a walk, and of those chosen, by score; ties in the order of the walk, then of
        rows."""
        if not self.taken:
            return Ranking(walked.rows[:limit], walked.scores[:limit])
        scores = dict(zip(walked.rows, walked.scores))
        scores |= {passage: scores.get(passage, 0.0) + self.support(passage) for passage in sorted(self.taken)}
        best = sorted(scores.items(), key=lambda item: -item[1])[:limit]
        return Ranking(tuple(row for row, _ in best), tuple(score for _, score in best))
