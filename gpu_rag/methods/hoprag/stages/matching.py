"""Edge merging: for each out-question the best-matching in-question of another vertex, over the whole corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b

import numpy as np

from gpu_rag.graph.frontier import Described, FrontierQuery, described, score_lists
from gpu_rag.graph.join import JoinIndex, join_index
from gpu_rag.graph.join.candidates import LEFT_ROWS, Part, SharedKeywords
from gpu_rag.graph.nearest.pairs import SAMPLE
from gpu_rag.graph.ragged import some_lists
from gpu_rag.index.work import Work
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

EXACT_ROWS = 16_384  # out-questions per unit of resumable work
NEAR_ROWS = 2_048  # the same, for matching among candidates
SAMPLED_FROM = 1 << 17  # in-questions that the sample is compared with at a time


@dataclass(frozen=True)
class Side:
    """The in- or out-questions.

    vectors: f16[Q, D]; keywords: Q lists; vertex: i64[Q]. Rows are ordered by (vertex, text).
    """

    vectors: torch.Tensor
    keywords: Ragged
    vertex: torch.Tensor

    @cached_property
    def joined(self) -> JoinIndex:
        """The questions as the right side of joins. A question is never matched with one of its own vertex."""
        return join_index(self.vectors, self.keywords, groups=self.vertex)

    def part(self, rows: torch.Tensor) -> Side:
        """Some rows i64[B]."""
        rows = rows.to(self.vertex.device)
        return Side(self.vectors[rows], some_lists(self.keywords, rows), self.vertex[rows])


# An earlier state of the stage, made in the same mode: for each in- and each out-question its earlier row, -1 for a new
# one, see `read_previous`; the best match of each earlier out-question, and its SIM.
Previous = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
# match(work, name, left, right): the best right row i64 of each left row, and SIM f64; (-1, -inf) if there is none. Of
# equal SIM the lowest row. name: the beginning of the names of its blocks.
Match = Callable[[Work, str, Side, Side], tuple[np.ndarray, np.ndarray]]


def carry_over(previous: Previous) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matches of `previous` that are still valid, apart from new in-questions, which they must be compared with.

    A match is invalid if its in-question is gone or changed. Ties go to the lower row, so all are invalid if the
    in-questions that stayed have changed their order. Returns for each out-question the current row of its match (-1:
    it had none, -2: it must be matched with all in-questions), its SIM, and the rows of new in-questions.
    """
    old_in, old_out, matched, scores = previous
    question, sim = np.full(len(old_out), -2, np.int64), np.full(len(old_out), -np.inf)
    stayed, known = np.flatnonzero(old_in >= 0), old_out >= 0
    if (np.diff(old_in[stayed]) < 0).any():
        return question, sim, np.arange(len(old_in))
    row_now = np.full(max(old_in.max(initial=-1), matched.max(initial=-1)) + 2, -2, np.int64)
    row_now[old_in[stayed]], row_now[-1] = stayed, -1  # the last row is for the match -1
    question[known] = row_now[matched[old_out[known]]]
    sim[known] = scores[old_out[known]]
    sim[question < 0] = -np.inf
    return question, sim, np.flatnonzero(old_in < 0)


def best_matches(
    work: Work, outs: Side, ins: Side, previous: Previous | None, match: Match
) -> tuple[np.ndarray, np.ndarray]:
    """(question i32[n_out], sim f64[n_out]) of each out-question's best match; (-1, -inf) if there is none.

    Ties go to the lowest in-question. Valid matches of `previous` are compared with new in-questions only, the rest
    with all, so the result does not depend on `previous`. Resumes at the block where a run died.
    """
    everything = np.arange(len(ins.vertex))
    question, sim, fresh = np.full(len(outs.vertex), -2), np.full(len(outs.vertex), -np.inf), everything
    if previous is not None:
        question, sim, fresh = carry_over(previous)
    work.report.reused += int((question > -2).sum())
    best = np.maximum(question, -1).astype(np.int32), sim
    for is_left, right_rows in ((question == -2, everything), (question > -2, fresh)):
        rows = np.flatnonzero(is_left)
        if len(rows) and len(right_rows):
            name = f"{len(rows)}-{blake2b(rows.tobytes() + right_rows.tobytes(), digest_size=16).hexdigest()}"
            left, right = (
                some if len(own) == len(some.vertex) else some.part(torch.from_numpy(own))
                for some, own in ((outs, rows), (ins, right_rows))
            )
            index, score = match(work, name, left, right)
            _keep_better(best, rows, np.append(right_rows, -1)[index], score)
    return best


def match_exactly(work: Work, name: str, left: Side, right: Side) -> tuple[np.ndarray, np.ndarray]:
    """A `Match` that compares all."""
    threads = work.settings.models.threads

    def block(rows: np.ndarray) -> np.ndarray:
        return np.stack(_best(left.part(torch.from_numpy(rows)), right, threads))

    return _in_blocks(work, name, len(left.vertex), EXACT_ROWS, block)


def _best(left: Side, right: Side, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """(index i64, SIM f64) of the best row of the right side, exact; (-1, -inf) if there is none."""
    index, score = right.joined.best(left.vectors, left.keywords, groups=left.vertex, threads=threads)
    return index.cpu().numpy(), score.cpu().numpy()


def match_nearly(work: Work, name: str, outs: Side, ins: Side, *, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A `Match` that compares only questions that share a keyword, see `SharedKeywords`. SIM is exact. bits: the
    `bucket_bits` of all questions."""
    shared, n = SharedKeywords(outs.keywords, ins.keywords, bits), len(outs.vertex)
    work.progress.start("hop_edges", n + shared.n_common, "look-ups")
    things = described(ins.vectors, ins.keywords, 2**31)

    def rare(rows: np.ndarray) -> np.ndarray:
        first, last = int(rows[0]), int(rows[-1]) + 1
        left, best = outs.part(torch.arange(first, last)), _no_matches(len(rows))
        for i, j in shared.rare_pairs(first, last):
            other = left.vertex[i] != ins.vertex[j]
            _keep_better(best, np.arange(len(rows)), *_best_of_pairs(left, things, i[other], j[other]))
        return np.stack(best)

    def common(block: list[Part]) -> np.ndarray:
        best = _no_matches(n)
        for part in block:
            i, j = shared.rows_of(part, outs.vectors, ins.vectors)
            right = ins.part(j)
            for rows in i.split(LEFT_ROWS):
                index, sim = _best(outs.part(rows), right, work.settings.models.threads)
                _keep_better(best, rows.numpy(), np.append(j.numpy(), -1)[index], sim)
            work.progress.advance(len(i))
        rows = np.flatnonzero(best[0] >= 0)
        return np.stack([rows, best[0][rows], best[1][rows]])

    best = _in_blocks(work, name, n, NEAR_ROWS, rare)
    for number, block in enumerate(shared.common_blocks()):
        rows, index, sim = work.array_block(f"{name}-words-{number}", partial(common, block))
        _keep_better(best, rows.astype(np.int64), index, sim)
    return best


def _no_matches(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(n, -1, np.int32), np.full(n, -np.inf)


def _keep_better(best: tuple[np.ndarray, np.ndarray], rows: np.ndarray, index: np.ndarray, sim: np.ndarray) -> None:
    """Put matches of distinct rows into `best` where their SIM is larger, or equal with a lower in-question."""
    known, known_sim = best[0][rows], best[1][rows]
    wins = (sim > known_sim) | ((sim == known_sim) & (index < known))
    best[0][rows[wins]], best[1][rows[wins]] = index[wins], sim[wins]


def _best_of_pairs(left: Side, things: Described, i: torch.Tensor, j: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(index i64, SIM f64) of each left row's best in-question among the pairs (i, j), by ascending i; of equal SIM the
    lowest j, (-1, -inf) if there is none."""
    lists = Ragged(j, torch.searchsorted(i, torch.arange(len(left.vertex) + 1)))
    sim = score_lists(FrontierQuery(left.vectors.float(), left.keywords), things, lists)
    best = sim.new_full(left.vertex.shape, -torch.inf).scatter_reduce(0, i, sim, "amax")
    wins = sim == best[i]
    index = torch.full(left.vertex.shape, things.n).scatter_reduce(0, i[wins], j[wins], "amin")
    return torch.where(best > -torch.inf, index, -1).numpy(), best.numpy()


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
    work: Work, name: str, n: int, step: int, make: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    parts = [np.zeros((2, 0))]
    for number, start in enumerate(range(0, n, step)):
        rows = np.arange(start, min(start + step, n))
        parts.append(work.array_block(f"{name}-{step}-{number}", partial(make, rows)))
        work.progress.advance(len(rows))
    question, sim = np.concatenate(parts, axis=1)
    return question.astype(np.int32), sim
