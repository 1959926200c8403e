"""Bubble expansion after the fixpoint, in torch on any device: distances first, then events, ranks and trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gpu_rag_kernels.bubble import UNREACHED, minplus_relax

from gpu_rag.graph.common.segments import lexsort
from gpu_rag.graph.csr import row_of_entry, transpose
from gpu_rag.graph.ragged import row_of_value
from gpu_rag.types import Blocks, Ragged

LOW = (1 << 32) - 1
MEETING, INSIDE, ALONE = 0, 1, 2
MOST_GROUPS = 16


@dataclass(frozen=True)
class Found:
    """Candidates of one question after the other: counts i64[B], how many each has; rows i64 of all trees in a row,
    ascending in each; sizes i64[C] of the trees; groups, distance, kind as in `Bubbles`, i64[C]."""

    counts: np.ndarray
    rows: np.ndarray
    sizes: np.ndarray
    groups: np.ndarray
    distance: np.ndarray
    kind: np.ndarray


@dataclass(frozen=True)
class _Events:
    """Candidate events, unsorted: i64 each. question; d, v, g; u: -1 for a meeting, else the node met inside g, with
    its distance du; arrived: the groups whose paths make the tree, as bits; covered: those with an anchor in it."""

    question: torch.Tensor
    d: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    du: torch.Tensor
    u: torch.Tensor
    arrived: torch.Tensor
    covered: torch.Tensor


def fixpoint(blocks: Blocks, costs: torch.Tensor, anchors: Ragged, groups: Ragged) -> torch.Tensor:
    """i64[M, T]: distance << 32 | predecessor of every group and row, M the largest group + 1; see `minplus_relax`."""
    n_groups = int(groups.values.max()) + 1 if groups.values.numel() else 0
    state = torch.full((n_groups, blocks.csr.n), UNREACHED, dtype=torch.int64, device=costs.device)
    state[groups.values.long(), anchors.values] = anchors.values
    return minplus_relax(transpose(blocks.csr), costs, state)


def trees_by_torch(
    blocks: Blocks, costs: torch.Tensor, anchors: Ragged, groups: Ragged, limit: int, cover_first: bool
) -> list[Found]:
    """The candidates of every question; `anchors` are rows of blocks.csr."""
    state = fixpoint(blocks, costs, anchors, groups)
    block = row_of_value(Ragged(blocks.global_ids, blocks.offsets))
    anchor_bits = torch.zeros(blocks.csr.n, dtype=torch.int64, device=costs.device)
    for g in range(state.shape[0]):
        anchor_bits[anchors.values[groups.values == g]] |= 1 << g
    pred = torch.where(state == UNREACHED, torch.arange(blocks.csr.n, device=state.device), state & LOW)
    root, on_path = _followed(pred, anchor_bits)
    meetings = _meetings(state, pred, on_path, anchor_bits, block)
    touches = _inside(blocks, state, root, on_path, block)
    events = _Events(*map(torch.cat, zip(vars(meetings).values(), vars(touches).values(), strict=True)))
    order = _order(events, cover_first)
    columns = list(torch.stack([*vars(events).values()])[:, order].cpu().numpy())
    first = np.searchsorted(columns[0], np.arange(anchors.batch + 1))
    parents, bits = pred.cpu().numpy(), anchor_bits.cpu().numpy()
    at, nodes = anchors.offsets.tolist(), anchors.values.cpu().numpy()
    return [
        _candidates([c[first[b] : first[b + 1]] for c in columns[1:]], parents, limit)
        if first[b] < first[b + 1]
        else _alone(np.unique(nodes[at[b] : at[b + 1]]), bits)
        for b in range(anchors.batch)
    ]


def _followed(pred: torch.Tensor, anchor_bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The anchor at the end of each path, and the groups that have an anchor on it: i64[M, T] both."""
    on_path = anchor_bits.expand(pred.shape[0], -1)
    while True:
        on_path = on_path | on_path.gather(1, pred)
        following = pred.gather(1, pred)
        if torch.equal(following, pred):
            return pred, on_path
        pred = following


def _meetings(
    state: torch.Tensor, pred: torch.Tensor, on_path: torch.Tensor, anchor_bits: torch.Tensor, block: torch.Tensor
) -> _Events:
    """Events at which a group reaches a node after another one, from elsewhere (or the node is an anchor)."""
    arrival, g = torch.sort(state | LOW, dim=0, stable=True)  # by (distance, group): the group is the row
    reached = arrival != UNREACHED
    before = pred.gather(0, g)
    least, most = (before.cummin(0).values, before.cummax(0).values) if len(state) else (before, before)
    bits = torch.where(reached, 1 << g, 0)
    covered = torch.where(reached, on_path.gather(0, g), 0)
    for r in range(1, state.shape[0]):
        bits[r] |= bits[r - 1]
        covered[r] |= covered[r - 1]
    wanted = reached & ((anchor_bits > 0) | (least != most))
    wanted[:1] = False
    rank, v = wanted.nonzero(as_tuple=True)
    none = torch.full_like(v, -1)
    return _Events(block[v], arrival[rank, v] >> 32, v, g[rank, v], none, none, bits[rank, v], covered[rank, v])


def _inside(
    blocks: Blocks, state: torch.Tensor, root: torch.Tensor, on_path: torch.Tensor, block: torch.Tensor
) -> _Events:
    """For every pair of anchors of one group: the first event at which their parts of its bubble touch."""
    v, u = row_of_entry(blocks.csr), blocks.csr.indices.long()
    key = torch.where(state == UNREACHED, UNREACHED, (state >> 32 << 32) | torch.arange(len(block), device=v.device))
    touch = (key[:, u] < key[:, v]) & (key[:, v] != UNREACHED) & (root[:, u] != root[:, v])
    g, entry = touch.nonzero(as_tuple=True)
    v, u = v[entry], u[entry]
    low, high = torch.minimum(root[g, u], root[g, v]), torch.maximum(root[g, u], root[g, v])
    order = lexsort(key[g, u], key[g, v], low, (g << 32) | high)
    pair = torch.stack([g, low, high])[:, order]
    fresh = torch.ones(order.shape[0], dtype=torch.bool, device=order.device)
    fresh[1:] = (pair[:, 1:] != pair[:, :-1]).any(0)
    kept = order[fresh]
    g, v, u = g[kept], v[kept], u[kept]
    covered = on_path[g, v] | on_path[g, u]
    return _Events(block[v], key[g, v] >> 32, v, g, key[g, u] >> 32, u, 1 << g, covered)


def _order(events: _Events, cover_first: bool) -> torch.Tensor:
    """By (question, [groups that are not covered,] distance, node, group, du, u); a meeting has du = -1."""
    missing = torch.zeros_like(events.g)
    if cover_first:
        for g in range(MOST_GROUPS):
            missing += 1 - ((events.covered >> g) & 1)
    inner = ((events.du + 1) << 32) | (events.u + 1)
    return lexsort(inner, (events.v << 5) | events.g, events.d, (events.question << 6) | missing)


def _candidates(events: list[np.ndarray], pred: np.ndarray, limit: int) -> Found:
    """The first `limit` distinct trees of one question's events, in order."""
    trees: dict[tuple[int, ...], int] = {}
    for i, (_, v, g, _, u, arrived, _) in enumerate(zip(*events)):
        groups = [k for k in range(MOST_GROUPS) if int(arrived) >> k & 1]
        paths = [(int(g), int(v)), (int(g), int(u))] if u >= 0 else [(k, int(v)) for k in groups]
        nodes: set[int] = set()
        for k, node in paths:
            nodes.add(node)
            while pred[k, node] != node:
                node = int(pred[k, node])
                nodes.add(node)
        trees.setdefault(tuple(sorted(nodes)), i)
        if len(trees) == limit:
            break
    at = list(trees.values())
    rows = np.array([node for tree in trees for node in tree], np.int64)
    sizes = np.array([len(tree) for tree in trees], np.int64)
    kind = np.where(events[4][at] >= 0, INSIDE, MEETING)
    return Found(np.array([len(trees)]), rows, sizes, events[6][at], events[0][at], kind)


def _alone(anchors: np.ndarray, anchor_bits: np.ndarray) -> Found:
    """Every anchor by itself, in ascending order."""
    n = len(anchors)
    ones, distance = np.ones(n, np.int64), np.zeros(n, np.int64)
    return Found(np.array([n]), anchors, ones, anchor_bits[anchors], distance, np.full(n, ALONE))
