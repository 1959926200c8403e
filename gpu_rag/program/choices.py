"""Choices with mass: the options that a model chose move passages up a ranking if the graph agrees.

A choice offers options, such as edges, relations or entities, which lead to passages. Over all choices of a question:
  n(p), m(p)  = the summed weights of the chosen options that lead to passage p, and of all offered ones; an option
                weighs 1 / (number of its passages)
  agreement   = n(p) / (m(p) + 1): the share of the occasions to choose p that were taken
  lean        = of one choice, the mean over its pairs of a chosen option and one passed over: 1 where the chosen one
                leads to a passage that is higher in the ranking without a model, -1 where lower, 0 where neither
  trust       = (sum of leans / (number of leans + 1) - CHANCE) / (SURE - CHANCE), within 0 and 1. A choice of just the
                nearest options, which says nothing new, counts at most as often as other choices do: of more such
                leans, their mean counts that often
  score(p)    = score with the model + MASS * trust * agreement / max(1, sum of all agreements); without trust, the
                score without the model
A model that chooses at random has leans around 0, so it is not trusted, however many its choices are. A model that is
right mostly chooses passages that the graph ranks high; it is then also followed where the graph ranks low. Weak models
like what is shown first; since options are shown in a random order, that is a random choice. The graph also ranks high
what the nearest options lead to, so a model that takes only these is not trusted. A model that takes something nearly
everywhere spreads the mass so thin that it moves nothing. Rules do not count as choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from gpu_rag.program.decide import RULE
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking
from gpu_rag.runtime.trace import Context

MASS, CHANCE, SURE = 0.6, 0.1, 0.2
PARTS = 1 << 40  # weights are rounded down to multiples of 1 / PARTS: sums are exact in any order
DEPTH = 100  # places of a walk's ranking that choices may reorder


@dataclass
class Choices:
    """The choices of one question. made: for each choice, the passages of its options and the chosen positions."""

    made: list[tuple[list[Collection[int]], frozenset[int]]] = field(default_factory=list)

    def add(
        self, run: Run, options: Sequence[int], chosen: Collection[int], passages_of: Callable[[int], Collection[int]]
    ) -> None:
        """Count a choice, unless the rule made it. options: nearest first; chosen: positions; passages_of: the passages
        that an option leads to."""
        if run.decider is not RULE:
            self.made.append(([passages_of(option) for option in options], frozenset(chosen)))

    def agreement(self) -> dict[int, float]:
        """The agreement on each passage that a chosen option leads to, by ascending row."""
        offered: dict[int, int] = {}
        summed: dict[int, int] = {}
        for options, chosen in self.made:
            for position, passages in enumerate(options):
                for passage in passages:
                    offered[passage] = offered.get(passage, 0) + PARTS // len(passages)
                    if position in chosen:
                        summed[passage] = summed.get(passage, 0) + PARTS // len(passages)
        return {passage: n / (offered[passage] + PARTS) for passage, n in sorted(summed.items())}

    def trust(self, ranking: Sequence[int]) -> float:
        """The trust in the choices by a ranking of passages without a model; 0 without choices."""
        place = {passage: i for i, passage in enumerate(ranking)}
        new, near = list[float](), list[float]()
        for options, chosen in self.made:
            if 0 < len(chosen) < len(options):
                (near if max(chosen) < len(chosen) else new).append(_lean(options, chosen, place))
        n = min(len(near), len(new))
        total = math.fsum(new) + n * math.fsum(near) / max(1, len(near))
        share = (total / (len(new) + n + 1) - CHANCE) / (SURE - CHANCE)
        return min(1.0, max(0.0, share))

    def ranked(self, plain: Ranking, walked: Ranking, limit: int) -> Ranking:
        """The best `limit` passages by score; ties in the order of the walk, then by row. plain, walked: rankings
        without and with the model."""
        trust = self.trust(plain.rows)
        if not trust:
            return Ranking(plain.rows[:limit], plain.scores[:limit])
        scores, agreements = dict(zip(walked.rows, walked.scores)), self.agreement()
        mass = MASS * trust / max(1.0, math.fsum(agreements.values()))
        for passage, agreement in agreements.items():
            scores[passage] = scores.get(passage, 0.0) + mass * agreement
        best = sorted(scores.items(), key=lambda item: -item[1])[:limit]
        return Ranking(tuple(row for row, _ in best), tuple(score for _, score in best))


def by_rules(run: Run) -> Run:
    """The run without a model; its decisions are neither noted nor reported."""
    return replace(run, ctx=Context(run.ctx.question), decider=RULE, on_saw=None, on_choice=None)


def _lean(options: Sequence[Collection[int]], chosen: Collection[int], place: dict[int, int]) -> float:
    """The lean of one choice. An option has the place of its best passage, after all others if none is ranked."""
    places = [min((place.get(passage, len(place)) for passage in passages), default=len(place)) for passages in options]
    rejected = [rank for position, rank in enumerate(places) if position not in chosen]
    pairs = sum((rank > places[i]) - (rank < places[i]) for i in chosen for rank in rejected)
    return pairs / (len(chosen) * len(rejected))
