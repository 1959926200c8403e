"""Edge merging: for each out-question the best-matching in-question of another vertex, over the whole corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from gpu_rag.graph.frontier import Described, FrontierQuery, described, score_lists
from gpu_rag.graph.join import JoinIndex, join_index
from gpu_rag.graph.join.candidates import WordBuckets
from gpu_rag.graph.join.pairs import hybrid_best_of, hybrid_scores
from gpu_rag.graph.nearest.pairs import SAMPLE
from gpu_rag.graph.ragged import some_lists
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.stages.search import rows_by_key
from gpu_rag.index.work import Work
from gpu_rag.types import Ragged

EXACT_ROWS = 16_384  # out-questions per unit of resumable work
NEAR_ROWS = 2_048  # the same, for matching among candidates
SAMPLED_FROM = 1 << 17  # in-questions that the sample is compared with at a time


@dataclass(frozen=True)
class Side:
    """The in- or out-questions.

    vectors: f16[Q, D]; keywords: Q lists; vertex: i64[Q]; keys: u64[Q, 2], which identify a question by its vertex's
    id, text, keywords and vector. Rows are ordered by (vertex, text).
    """

    vectors: torch.Tensor
    keywords: Ragged
    vertex: torch.Tensor
    keys: np.ndarray

    @cached_property
    def joined(self) -> JoinIndex:
        """The questions as the right side of joins. A question is never matched with one of its own vertex."""
        return join_index(self.vectors, self.keywords, groups=self.vertex)

    def part(self, rows: torch.Tensor) -> Side:
        """Some rows i64[B], without keys."""
        rows = rows.to(self.vertex.device)
        return Side(self.vectors[rows], some_lists(self.keywords, rows), self.vertex[rows], self.keys[:0])


# An earlier exact state of the stage: keys of in- and out-questions, the best match of each out-question, and its SIM.
Previous = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def carry_over(outs: Side, ins: Side, previous: Previous | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matches of `previous` that are still valid, apart from new in-questions, which they must be compared with.

    A match is invalid if its in-question is gone or changed. Ties go to the lower row, so all are invalid if the
    in-questions that stayed have changed their order. Returns for each out-question the current row of its match (-1:
    it had none, -2: it must be matched with all in-questions), its SIM, and the rows of new in-questions.
    """
    question, sim = np.full(len(outs.keys), -2, np.int64), np.full(len(outs.keys), -np.inf)
    everything = question, sim, np.arange(len(ins.keys))
    if previous is None:
        return everything
    in_keys, out_keys, matched, scores = previous
    old_in = rows_by_key(ins.keys, in_keys)
    stayed = np.flatnonzero(old_in >= 0)
    if (np.diff(old_in[stayed]) < 0).any():
        return everything
    row_now = np.full(len(in_keys) + 1, -2, np.int64)  # the last row is for the match -1
    row_now[old_in[stayed]], row_now[-1] = stayed, -1
    old_out = rows_by_key(outs.keys, out_keys)
    known = old_out >= 0
    question[known] = row_now[matched[old_out[known]]]
    sim[known] = scores[old_out[known]]
    sim[question < 0] = -np.inf
    return question, sim, np.flatnonzero(old_in < 0)


def match_exactly(work: Work, outs: Side, ins: Side, previous: Previous | None) -> tuple[np.ndarray, np.ndarray]:
    """(question i32[n_out], sim f64[n_out]) of each out-question's best match; (-1, -inf) if there is none.

    Ties go to the lowest in-question. Valid matches of `previous` are compared with new in-questions only, the rest
    with all, so the result does not depend on `previous`. Resumes at the block where a run died.
    """
    carried, carried_sim, fresh = carry_over(outs, ins, previous)
    work.report.reused += int((carried > -2).sum())
    new = torch.from_numpy(fresh)
    new_ins = ins if len(new) == len(ins.vertex) else ins.part(new)
    threads = work.settings.models.threads

    def block(rows: np.ndarray) -> np.ndarray:
        question, sim = carried[rows].copy(), carried_sim[rows].copy()
        for chosen, right, right_rows in ((question == -2, ins, None), (question > -2, new_ins, fresh)):
            left = outs.part(torch.from_numpy(rows[chosen]))
            index, score = _best(left, right, threads)
            index = index if right_rows is None else np.where(index < 0, -1, np.append(right_rows, -1)[index])
            old, old_sim = question[chosen], sim[chosen]
            wins = (index >= 0) & ((score > old_sim) | ((score == old_sim) & (index < old)))
            question[chosen], sim[chosen] = np.where(wins, index, old), np.where(wins, score, old_sim)
        return np.stack([np.maximum(question, -1), sim])

    return _in_blocks(work, len(outs.vertex), EXACT_ROWS, block)


def _best(left: Side, right: Side, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """(index i64, SIM f64) of the best row of the right side, exact; (-1, -inf) if there is none."""
    index, _ = right.joined.best(left.vectors, left.keywords, groups=left.vertex, threads=threads)
    matched = (index >= 0).nonzero()[:, 0]
    score = torch.full(index.shape, -torch.inf, dtype=torch.float64, device=index.device)
    score[matched] = hybrid_scores(left.vectors, left.keywords, right.vectors, right.keywords, matched, index[matched])
    return index.cpu().numpy(), score.cpu().numpy()


def match_nearly(work: Work, outs: Side, ins: Side) -> tuple[np.ndarray, np.ndarray]:
    """Variant of `match_exactly` that compares each out-question only with candidates, see `WordBuckets`, and carries
    nothing over. SIM is exact."""
    with storage_errors(work.partial):
        work.partial.mkdir(parents=True, exist_ok=True)
        buckets = WordBuckets(ins.vectors, ins.keywords, work.partial)
    things = described(ins.vectors, ins.keywords, 2**31)

    def block(rows: np.ndarray) -> np.ndarray:
        left = outs.part(torch.from_numpy(rows))
        i, j = buckets.pairs(left.vectors, left.keywords)
        other = left.vertex[i] != ins.vertex[j]
        i, j = _nearly_best(left, things, i[other], j[other])
        used, j = j.unique(return_inverse=True)
        right = ins.part(used)
        index, score = hybrid_best_of(left.vectors, left.keywords, right.vectors, right.keywords, i, j)
        return np.stack([np.append(used.numpy(), -1)[index.numpy()], score.numpy()])

    return _in_blocks(work, len(outs.vertex), NEAR_ROWS, block)


def _nearly_best(left: Side, things: Described, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs (i, j) whose SIM in f32 is the largest of their out-question i. The given i ascend."""
    lists = Ragged(j, torch.searchsorted(i, torch.arange(len(left.vertex) + 1)))
    sim = score_lists(FrontierQuery(left.vectors.float(), left.keywords), things, lists)
    best = sim.new_full(left.vertex.shape, -torch.inf).scatter_reduce(0, i, sim, "amax")
    near = sim == best[i]
    return i[near], j[near]


def sampled_matches(work: Work, outs: Side, ins: Side, sim: np.ndarray) -> tuple[int, int]:
    """The number of SAMPLE out-questions that have an exact match, and how many of these have its SIM in `sim`, f64 of
    all out-questions."""
    rows = torch.linspace(0, max(len(sim) - 1, 0), min(SAMPLE, len(sim)), dtype=torch.float64).long()
    left, best, n = outs.part(rows), np.full(len(rows), -np.inf), len(ins.vertex)
    for start in range(0, n, SAMPLED_FROM):
        right = ins.part(torch.arange(start, min(start + SAMPLED_FROM, n)))
        best = np.maximum(best, _best(left, right, work.settings.models.threads)[1])
    matched = best > -np.inf
    return int(matched.sum()), int((matched & (sim[rows.numpy()] >= best)).sum())


def _in_blocks(
    work: Work, n: int, step: int, make: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    parts = [np.zeros((2, 0))]
    for number, start in enumerate(range(0, n, step)):
        rows = np.arange(start, min(start + step, n))
        parts.append(work.array_block(str(number), partial(make, rows)))
        work.progress.advance(len(rows))
    question, sim = np.concatenate(parts, axis=1)
    return question.astype(np.int32), sim
