"""Bubble expansion after the fixpoint, in torch on any device: distances first, then events, ranks and trees.

The host waits twice, apart from the fixpoint: for the number of events and the path length, and for the number of
trees; if a question has very many equal trees, once more each time that more events are examined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from gpu_rag_kernels.bubble import UNREACHED, minplus_relax

from gpu_rag.graph.common.segments import are_first, lexsort
from gpu_rag.graph.csr import row_of_entry, transpose
from gpu_rag.graph.ragged import places_of, row_of_value
from gpu_rag.types import Blocks, Ragged

LOW = (1 << 32) - 1
MEETING, INSIDE, ALONE = 0, 1, 2
MAX_GROUPS = 16


AT_ONCE = 1 << 24  # places of trees processed together
_MIX = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # constants of splitmix64, as i64

Column = TypeVar("Column")


@dataclass(frozen=True)
class Candidates(Generic[Column]):
    """Candidates, question after question: counts i64[B], the number for each question; rows i64 of all trees,
    concatenated, ascending in each; sizes i64[C] of the trees; groups, distance, kind as in `Bubbles`, i64[C]."""

    counts: Column
    rows: Column
    sizes: Column
    groups: Column
    distance: Column
    kind: Column


@dataclass(frozen=True)
class _Events:
    """Candidate events: i64 each. question (B for none); d, v, g; u: -1 for a meeting, else the node met inside g, with
    its distance du; arrived: the groups whose paths make the tree, as bits; covered: the groups with an anchor in it.
    """

    question: torch.Tensor
    d: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    du: torch.Tensor
    u: torch.Tensor
    arrived: torch.Tensor
    covered: torch.Tensor


def fixpoint(
    blocks: Blocks, costs: torch.Tensor, anchors: Ragged, groups: Ragged, n_groups: int | None = None
) -> torch.Tensor:
    """distance << 32 | predecessor of every group and row, i64[largest group + 1, T]; see `minplus_relax`."""
    if n_groups is None:
        n_groups = int(groups.values.max()) + 1 if groups.values.numel() else 0
    state = torch.full((n_groups, blocks.csr.n), UNREACHED, dtype=torch.int64, device=costs.device)
    state[groups.values.long(), anchors.values] = anchors.values
    return minplus_relax(transpose(blocks.csr), costs, state)


def trees_by_torch(
    blocks: Blocks, costs: torch.Tensor, anchors: Ragged, groups: Ragged, limit: int, cover_first: bool,
    n_groups: int | None = None,
) -> Candidates[torch.Tensor]:  # fmt: skip
    """The candidates of every question; `anchors` are rows of blocks.csr."""
    state = fixpoint(blocks, costs, anchors, groups, n_groups)
    (n_groups, n), batch, device = state.shape, anchors.batch, state.device
    if not state.numel():
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Candidates(torch.zeros(batch, dtype=torch.int64, device=device), none, none, none, none, none)
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    are_anchors = torch.zeros(state.shape, dtype=torch.bool, device=device)
    are_anchors[groups.values.long(), anchors.values] = True
    anchor_bits = (are_anchors.long() << torch.arange(n_groups, device=device)[:, None]).sum(0)
    pred = torch.where(state == UNREACHED, torch.arange(n, device=device), state & LOW)
    root, on_path, depth = _followed(pred, anchor_bits)
    events, longest = _events(blocks, state, pred, root, on_path, depth, anchor_bits, block, batch)
    order = _order(events, cover_first)
    events = _Events(*(column[order] for column in vars(events).values()))
    first = torch.searchsorted(events.question, torch.arange(batch + 1, device=device))
    return _Trees(events, first, pred, longest, limit).candidates(anchors, anchor_bits)


def _followed(pred: torch.Tensor, anchor_bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The anchor at the end of each path, the groups with an anchor on it, and its hops: i64[M, T] each."""
    on_path, depth = (
        anchor_bits.expand(pred.shape[0], -1),
        (pred != torch.arange(pred.shape[1], device=pred.device)).long(),
    )
    for _ in range(pred.shape[1].bit_length()):
        on_path = on_path | on_path.gather(1, pred)
        depth = depth + depth.gather(1, pred)
        following = pred.gather(1, pred)
        if pred.device.type == "cpu" and torch.equal(following, pred):
            break
        pred = following
    return pred, on_path, depth


def _events(
    blocks: Blocks, state: torch.Tensor, pred: torch.Tensor, root: torch.Tensor, on_path: torch.Tensor,
    depth: torch.Tensor, anchor_bits: torch.Tensor, block: torch.Tensor, batch: int,
) -> tuple[_Events, int]:  # fmt: skip
    """All events, and the hops of the longest path. Meetings: a group reaches a node after another group, from a
    different node (or the node is an anchor). Inside: the first event at which the parts of two anchors of one group
    touch."""
    n = state.shape[1]
    arrival, g = torch.sort(state | LOW, dim=0, stable=True)  # by (distance, group): the group is the row
    reached = arrival != UNREACHED
    before = pred.gather(0, g)
    bits = torch.where(reached, 1 << g, 0)
    covered = torch.where(reached, on_path.gather(0, g), 0)
    for r in range(1, state.shape[0]):
        bits[r] |= bits[r - 1]
        covered[r] |= covered[r - 1]
    meets = reached & ((anchor_bits > 0) | (before.cummin(0).values != before.cummax(0).values))
    meets[:1] = False
    node, neighbour = row_of_entry(blocks.csr), blocks.csr.indices.long()
    key = torch.where(state == UNREACHED, UNREACHED, (state >> 32 << 32) | torch.arange(n, device=state.device))
    touch = (key[:, neighbour] < key[:, node]) & (key[:, node] != UNREACHED) & (root[:, neighbour] != root[:, node])
    n_meet, n_touch, longest = torch.stack([meets.sum(), touch.sum(), depth.amax()]).tolist()
    places = places_of(meets.view(-1), n_meet)
    rank, v = places // n, places % n
    none = torch.full_like(v, -1)
    meetings = _Events(
        block[v], arrival[rank, v] >> 32, v, g[rank, v], none, none, bits[rank, v], covered[rank, v]
    )  # fmt: skip
    places = places_of(touch.view(-1), n_touch)
    group, entry = places // max(blocks.csr.m, 1), places % max(blocks.csr.m, 1)
    v, u = node[entry], neighbour[entry]
    low, high = torch.minimum(root[group, u], root[group, v]), torch.maximum(root[group, u], root[group, v])
    pair = (group * n + high) * n + low
    order = lexsort(key[group, u], key[group, v], pair)
    pair = pair[order]
    is_repeat = torch.zeros_like(pair, dtype=torch.bool)
    is_repeat[1:] = pair[1:] == pair[:-1]
    group, v, u = group[order], v[order], u[order]
    inside = _Events(
        torch.where(is_repeat, batch, block[v]), key[group, v] >> 32, v, group, key[group, u] >> 32, u, 1 << group,
        on_path[group, v] | on_path[group, u],
    )  # fmt: skip
    return _Events(*map(torch.cat, zip(vars(meetings).values(), vars(inside).values(), strict=True))), longest


def _order(events: _Events, cover_first: bool) -> torch.Tensor:
    """The order by (question, [uncovered groups,] distance, node, group, du, u); a meeting has du = -1."""
    missing = MAX_GROUPS - _n_bits(events.covered) if cover_first else torch.zeros_like(events.g)
    inner = ((events.du + 1) << 32) | (events.u + 1)
    return lexsort(inner, (events.v << 5) | events.g, (events.question << 6 | missing) << 31 | events.d)


def _n_bits(x: torch.Tensor) -> torch.Tensor:
    """The number of ones among the lowest 16 bits of whole numbers that have no others."""
    x = x - (x >> 1 & 0x5555)
    x = (x & 0x3333) + (x >> 2 & 0x3333)
    x = x + (x >> 4) & 0x0F0F
    return x + (x >> 8) & 0x1F


@dataclass(frozen=True)
class _Trees:
    """The trees of ordered events; first i64[B + 1]; pred i64[M, T]; longest: most hops of a path; limit: maximum
    number of trees."""

    events: _Events
    first: torch.Tensor
    pred: torch.Tensor
    longest: int
    limit: int

    @cached_property
    def jumps(self) -> list[torch.Tensor]:
        """The place group * T + row of each place after 1, 2, 4, ... hops, up to the longest path: i64[M * T + 1] each.
        The last place stands for no path."""
        n_groups, n = self.pred.shape
        starts = torch.arange(n_groups, device=self.pred.device)[:, None] * n
        jump, jumps = torch.cat([(self.pred + starts).flatten(), starts.new_full((1,), n_groups * n)]), []
        for _ in range(self.longest.bit_length()):
            jumps.append(jump)
            jump = jump[jump]
        return jumps

    def candidates(self, anchors: Ragged, anchor_bits: torch.Tensor) -> Candidates[torch.Tensor]:
        """The first distinct trees of each question; if it has no event, each anchor by itself, in order."""
        n, batch, device = self.pred.shape[1], anchors.batch, self.pred.device
        keys = (row_of_value(anchors) * n + anchors.values).sort().values
        is_single = (self.first.diff() == 0)[keys // n] & are_first(keys)
        tried, n_events = 16 * self.limit + 64, self.events.v.shape[0]
        while True:
            slot = self.first[:-1, None] + torch.arange(min(tried, n_events), device=device)
            valid = slot < self.first[1:, None]
            rows = torch.where(valid, slot, 0).view(-1)
            size, marks = self._marked(rows)
            new = _are_first(marks, valid)
            kept = new & (new.cumsum(1) <= self.limit)
            enough = (new.sum(1) >= self.limit) | (self.first.diff() <= tried)
            sizes = [(~enough).sum(), kept.sum(), (size.view(kept.shape) * kept).sum(), is_single.sum()]
            n_open, n_kept, n_nodes, n_alone = torch.stack(sizes).tolist()
            if not n_open:
                break
            tried *= 4
        chosen = rows[places_of(kept.view(-1), n_kept)]
        single = keys[places_of(is_single, n_alone)]
        events, row = self.events, single % n
        zero = torch.zeros_like(row)
        kind = torch.where(events.u[chosen] >= 0, INSIDE, MEETING)
        question = torch.cat([events.question[chosen], single // n])
        order = torch.argsort(question, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0], device=device)
        nodes, is_first = self._nodes(chosen)
        whole = (place[:n_kept, None] * n + nodes).view(-1)[places_of(is_first.view(-1), n_nodes)]
        whole = torch.cat([whole, place[n_kept:] * n + row]).sort().values
        starts = torch.arange(order.shape[0] + 1, device=device) * n
        columns = (events.covered[chosen], anchor_bits[row]), (events.d[chosen], zero), (kind, zero + ALONE)
        return Candidates(
            torch.searchsorted(question[order], torch.arange(batch + 1, device=device)).diff(), whole % n,
            torch.searchsorted(whole, starts).diff(), *(torch.cat(pair)[order] for pair in columns),
        )  # fmt: skip

    def _nodes(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows i64[P, L], ascending, bool[P, L]: the first occurrence of a node) of the trees of events."""
        (n_groups, n), events = self.pred.shape, self.events
        groups, u = torch.arange(n_groups, device=rows.device), events.u[rows, None]
        has_path = (events.arrived[rows, None] >> groups) & 1
        place = torch.where(has_path > 0, groups * n + events.v[rows, None], n_groups * n)
        place = torch.cat([place, torch.where(u < 0, n_groups * n, events.g[rows, None] * n + u)], 1)
        for jump in self.jumps:
            place = torch.cat([place, jump[place]], 1)
        whole = torch.where(place < n_groups * n, place % n, -1).sort(1).values
        is_first = whole >= 0
        is_first[:, 1:] &= whole[:, 1:] != whole[:, :-1]
        return whole, is_first

    def _marked(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(number of nodes i64[P], i64[P, 2]: sums of mixed bits of each node) of events: equal trees agree."""
        step = max(1, AT_ONCE // ((self.pred.shape[0] + 1) << self.longest.bit_length()))
        sizes, marks = [rows[:0]], [rows.new_zeros(0, 2)]
        for part in rows.split(step):
            nodes, new = self._nodes(part)
            sizes.append(new.sum(1))
            marks.append(torch.stack([torch.where(new, _mixed(nodes + seed), 0).sum(1) for seed in (1, 1 << 40)], 1))
        return torch.cat(sizes), torch.cat(marks)


def _are_first(marks: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """The first of equal marks i64[B * K, 2] in each row, among the valid ones: bool[B, K]."""
    batch, width = valid.shape
    row = torch.arange(batch, device=valid.device).repeat_interleave(width, output_size=batch * width)
    order = lexsort(marks[:, 1], marks[:, 0], row * 2 + ~valid.view(-1))
    marks, row = marks[order], row[order]
    fresh = are_first(row, marks[:, 0], marks[:, 1])
    first = torch.empty_like(fresh)
    first[order] = fresh
    return first.view(batch, width) & valid


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """splitmix64 of i64 values, as i64 (Steele, Lea and Flood 2014)."""
    x = x * _MIX[0]
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _MIX[1]
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _MIX[2]
    return x ^ ((x >> 31) & (2**33 - 1))
