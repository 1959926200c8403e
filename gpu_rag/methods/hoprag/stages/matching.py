"""Edge merging: for each out-question the best-matching in-question of another vertex, over the whole corpus.

Many questions are asked by many vertices ("What is in France?"), so each text is compared once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b

import numpy as np

from gpu_rag.graph.frontier import Described, FrontierQuery, described, score_lists
from gpu_rag.graph.join import JoinIndex, join_index
from gpu_rag.graph.join.candidates import LEFT_ROWS, Part, SharedKeywords
from gpu_rag.graph.nearest.pairs import SAMPLE
from gpu_rag.graph.ragged import row_of_value, some_lists
from gpu_rag.index.work import Work
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

EXACT_ROWS = 16_384  # out-questions per unit of resumable work
NEAR_ROWS = 2_048  # the same, for matching among candidates
SAMPLED_FROM = 1 << 17  # in-questions that the sample is compared with at a time


@dataclass(frozen=True)
class Side:
    """The in- or out-questions.

    vectors: f16[Q, D]; keywords: Q lists; vertex: i64[Q]; text: i64[Q], keys of the texts, on the CPU. Rows are
    ordered by (vertex, text), and a vertex has each text once.
    """

    vectors: torch.Tensor
    keywords: Ragged
    vertex: torch.Tensor
    text: np.ndarray

    @cached_property
    def joined(self) -> JoinIndex:
        """The questions as the right side of joins. A question is never matched with one of its own vertex."""
        return join_index(self.vectors, self.keywords, groups=self.vertex)

    def part(self, rows: torch.Tensor) -> Side:
        """Some rows i64[B]."""
        moved = rows.to(self.vertex.device)
        keywords = some_lists(self.keywords, moved)
        return Side(self.vectors[moved], keywords, self.vertex[moved], self.text[rows.numpy()])


def only(lists: Ragged, rows: np.ndarray) -> Ragged:
    """The lists on the CPU, empty but for these rows, i64[B]."""
    sizes, chosen = np.diff(lists.offsets.numpy()), np.zeros(lists.batch, bool)
    chosen[rows] = True
    values = lists.values[torch.from_numpy(np.repeat(chosen, sizes))]
    return Ragged(values, torch.from_numpy(np.append(0, np.where(chosen, sizes, 0).cumsum())))


# An earlier state of the stage, made in the same mode: for each in- and each out-question its earlier row, -1 for a new
# one, see `read_previous`; the best match of each earlier out-question, and its SIM.
Previous = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
# match(work, name, left, left_rows, right, right_rows): for each of some left rows the best of some right rows that is
# of another vertex, and its SIM; (-1, -inf) if there is none. Of equal SIM the lowest row. Rows ascend. name: the
# beginning of the names of its blocks.
Match = Callable[[Work, str, Side, np.ndarray, Side, np.ndarray], tuple[np.ndarray, np.ndarray]]


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
            _keep_better(best, rows, *match_texts(work, name, outs, rows, ins, right_rows, match))
    return best


def match_texts(
    work: Work, name: str, outs: Side, rows: np.ndarray, ins: Side, right_rows: np.ndarray, match: Match
) -> tuple[np.ndarray, np.ndarray]:
    """The result of `match` for these rows, with each text compared once.

    Of the in-questions of one text no row can win but the lowest, or for an out-question of its vertex the next. An
    out-question that several vertices ask is matched for all of them, and once more for the vertex that has its match.
    """
    right_rows = right_rows[_are_first_two(ins.text[right_rows])]
    _, first, of_text, n = np.unique(outs.text[rows], return_index=True, return_inverse=True, return_counts=True)
    vertex = outs.vertex.clone()
    vertex[torch.from_numpy(rows[first[n > 1]]).to(vertex.device)] = -1
    compared = np.sort(first)
    index, sim = match(work, name, replace(outs, vertex=vertex), rows[compared], ins, right_rows)
    place = np.searchsorted(compared, first[of_text])
    index, sim = index[place], sim[place]
    owners = np.append(ins.vertex.cpu().numpy(), -1)
    own = np.flatnonzero(owners[index] == outs.vertex.cpu().numpy()[rows])
    if len(own):
        index[own], sim[own] = match(work, f"{name}-own", outs, rows[own], ins, right_rows)
    return index, sim


def _are_first_two(text: np.ndarray) -> np.ndarray:
    """bool[n]: whether fewer than two rows before a row have its text."""
    order = np.argsort(text, kind="stable")
    chosen = np.ones(len(text), bool)
    chosen[order[2:]] = text[order[2:]] != text[order[:-2]]
    return chosen


def match_exactly(
    work: Work, name: str, outs: Side, rows: np.ndarray, ins: Side, right_rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A `Match` that compares all."""
    right = ins if len(right_rows) == len(ins.vertex) else ins.part(torch.from_numpy(right_rows))
    threads = _threads(work, ins)

    def block(part: np.ndarray) -> np.ndarray:
        index, sim = _best(outs.part(torch.from_numpy(part)), right, threads)
        return np.stack([np.append(right_rows, -1)[index], sim])

    best = np.concatenate([np.zeros((2, 0)), *_in_blocks(work, name, rows, EXACT_ROWS, block)], axis=1)
    return best[0].astype(np.int32), best[1]


def _threads(work: Work, side: Side) -> int:
    return work.settings.models.op_threads(side.vectors.device.type)


def _best(left: Side, right: Side, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """(index i64, SIM f64) of the best row of the right side, exact; (-1, -inf) if there is none."""
    index, score = right.joined.best(left.vectors, left.keywords, groups=left.vertex, threads=threads)
    return index.cpu().numpy(), score.cpu().numpy()


def match_nearly(
    work: Work, name: str, outs: Side, rows: np.ndarray, ins: Side, right_rows: np.ndarray, *, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A `Match` that compares only questions that share a keyword, see `SharedKeywords`. SIM is exact. bits: the
    `bucket_bits` of the distinct texts of all questions."""
    shared, n = SharedKeywords(only(outs.keywords, rows), only(ins.keywords, right_rows), bits), len(outs.vertex)
    work.progress.start("hop_edges", len(rows) + shared.n_common, "look-ups")
    things, threads = described(ins.vectors, ins.keywords, 2**31), _threads(work, ins)

    def rare(part: np.ndarray) -> np.ndarray:
        own, best = torch.from_numpy(part), _no_matches(len(part))
        left = outs.part(own)
        for i, j in shared.rare_pairs(int(part[0]), int(part[-1]) + 1):
            i = torch.searchsorted(own, i + own[0])
            other = left.vertex[i] != ins.vertex[j]
            _keep_better(best, np.arange(len(part)), *_best_of_pairs(left, things, i[other], j[other]))
        return np.stack(best)

    def common(block: list[Part]) -> np.ndarray:
        best = _no_matches(n)
        for part in block:
            i, j = shared.rows_of(part, outs.vectors, ins.vectors)
            right = ins.part(j)
            for chosen in i.split(LEFT_ROWS):
                index, sim = _best(outs.part(chosen), right, threads)
                _keep_better(best, chosen.numpy(), np.append(j.numpy(), -1)[index], sim)
            work.progress.advance(len(i))
        found = np.flatnonzero(best[0] >= 0)
        return np.stack([found, best[0][found], best[1][found]])

    best = _no_matches(n)
    for part, found in zip(_parts(rows, NEAR_ROWS), _in_blocks(work, name, rows, NEAR_ROWS, rare)):
        _keep_better(best, part, found[0].astype(np.int64), found[1])
    for number, block in enumerate(shared.common_blocks()):
        chosen, index, sim = work.array_block(f"{name}-words-{number}", partial(common, block))
        _keep_better(best, chosen.astype(np.int64), index, sim)
    return best[0][rows], best[1][rows]


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
    """The number of SAMPLE out-questions whose exact match shares a keyword with them, and of those among these that
    have its SIM in `sim`, f64 of all out-questions."""
    rows = torch.linspace(0, max(len(sim) - 1, 0), min(SAMPLE, len(sim)), dtype=torch.float64).long()
    left, n, best = outs.part(rows), len(ins.vertex), _no_matches(len(rows))
    if not n:
        return 0, 0
    threads = _threads(work, ins)
    for start in range(0, n, SAMPLED_FROM):
        right = ins.part(torch.arange(start, min(start + SAMPLED_FROM, n)))
        index, score = _best(left, right, threads)
        _keep_better(best, np.arange(len(rows)), np.where(index < 0, -1, index + start), score)
    of_match = some_lists(ins.keywords, torch.from_numpy(np.maximum(best[0], 0)).long())
    words, matched = (row_of_value(lists) << 32 | lists.values for lists in (left.keywords, of_match))
    n_shared = (words[torch.isin(words, matched)] >> 32).bincount(minlength=len(rows)).numpy()
    shares = (best[0] >= 0) & (n_shared > 0)
    return int(shares.sum()), int((shares & (sim[rows.numpy()] >= best[1])).sum())


def _in_blocks(
    work: Work, name: str, rows: np.ndarray, step: int, make: Callable[[np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:
    for number, part in enumerate(_parts(rows, step)):
        yield work.array_block(f"{name}-{step}-{number}", partial(make, part))
        work.progress.advance(len(part))


def _parts(rows: np.ndarray, step: int) -> list[np.ndarray]:
    return np.split(rows, range(step, len(rows), step))
