"""Join paths: parts between neighbouring topics from the hops of both, and whole paths from parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import check_form
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.paths.sets import (
    MAX_HOPS,
    NO_END,
    PathGraph,
    PathSet,
    check_count,
    check_paths,
    in_order,
    padded,
)
from gpu_rag.graph.ragged import check_ragged, check_tensors, expand, places_of, row_of_value
from gpu_rag.lazy import torch
from gpu_rag.types import Ragged

MAX_PAIRS = 1 << 26  # default maximum pairs of one call


@dataclass(frozen=True)
class Ends:
    """Open ends. first, last: bool[B], whether the path goes on before the first and after the last topic."""

    first: torch.Tensor
    last: torch.Tensor


@dataclass(frozen=True)
class Window:
    """Length bounds: a whole path of question b has more than least[b] and at most longest[b] hops: i64[B] each."""

    least: torch.Tensor
    longest: torch.Tensor


def n_steps(topics: Ragged) -> int:
    """The number of steps of `chain_paths`: a question with k topics has k + 1 places for parts, with both ends."""
    return int(topics.offsets.diff().max()) + 1 if topics.batch and topics.values.numel() else 0


def path_parts(
    graph: PathGraph,
    topics: Ragged,
    hops: Sequence[PathSet],
    ends: Ends,
    *,
    max_pairs: int = MAX_PAIRS,
) -> PathSet:
    """The parts of whole paths, each in the direction of the topic order.

    hops: the paths of 0, 1, .. D hops from each topic (`start_paths`, then `expand_paths`, pruned or not). Returns
    PathSet with group = topics.offsets[b] + b + s for part s of question b. Part s = 0 comes before the first topic and
    s = k after the last (paths of 1..D hops, only if that end is open). Other parts lead from topic s to topic s + 1,
    counted from 1: the edge between them, or f hops from the first topic and f or f - 1 hops from the second that end
    in one node and share no other node. So each is found once. Edge numbers are only copied. max_pairs: raises BadInput
    if more pairs than this would have to be tried. Raises BadInput.
    """
    check_ragged(topics, "topics", n=graph.n, device=graph.device)
    check_ends(topics, ends)
    for paths in hops:
        check_paths(paths, topics.batch, graph.device)
    if not hops or any(paths.edges.shape[1] != h for h, paths in enumerate(hops)):
        raise BadInput("hops are not in order", given=[p.edges.shape[1] for p in hops], expected="0, 1, 2, ..")
    first, last = checked_ends(topics, ends)
    question = row_of_value(topics)
    place = torch.arange(question.shape[0], device=graph.device)
    slot = place + question  # slot of the part before each topic; the next slot is the part after it
    opens = (place == topics.offsets[question]) & first[question]
    closes = (place + 1 == topics.offsets[question + 1]) & last[question]
    beyond = [(hops[h], side[hops[h].group]) for h in range(1, len(hops)) for side in (opens, closes)]
    backs = [(hops[h], hops[other_hops]) for h in range(1, len(hops)) for other_hops in sorted({max(h - 1, 1), h})]
    joints = [_meeting(left, right, slot, graph.n) for left, right in backs]
    direct = _next_to(graph, topics)
    counts = [count_of(*direct), *(count_of(j.first, j.last) for j in joints), *(mask.sum() for _, mask in beyond)]
    n_direct, *sizes = torch.stack(counts).tolist()  # one wait for the device; a second one follows for the kept pairs
    tried = [joint.tried(n, max_pairs) for joint, n in zip(joints, sizes)]
    pieces = (place[:0], place[:0]), *expand(*direct, n_direct)
    owner, entry = (torch.cat(column) for column in zip(*pieces))
    hit = graph.csr.indices[entry] == topics.values[(owner + 1).clamp_max(max(question.shape[0] - 1, 0))]
    n_hits, *kept = torch.stack([hit.sum(), *(free.sum() for _, _, free in tried)]).tolist()
    places = places_of(hit, n_hits)
    row, entry = owner[places], entry[places]
    nodes = torch.stack([topics.values[row], topics.values[row + 1]], 1).int()
    parts = [PathSet(slot[row] + 1, question[row], nodes, graph.edge[entry][:, None])]
    for i, ((paths, mask), n) in enumerate(zip(beyond, sizes[len(joints) :])):
        ended = paths.rows(places_of(mask, n))
        if i % 2:
            parts.append(replace(ended, group=slot[ended.group] + 1))
        else:
            parts.append(PathSet(slot[ended.group], ended.question, ended.nodes.flip(1), ended.edges.flip(1)))
    for (left, right), pairs, n in zip(backs, tried, kept):
        parts.append(_met(left, right, pairs, n, slot))
    return in_order(_together([paths for paths in parts if paths.size] or parts[:1], empty=0))


def _met(left: PathSet, right: PathSet, pairs: Sequence[torch.Tensor], n: int, slot: torch.Tensor) -> PathSet:
    """The n pairs that share no other node, as parts: a path from one topic, then one from the next, turned round.
    pairs: rows of left, rows of right, and which pairs these are."""
    places = places_of(pairs[2], n)
    ours, theirs = pairs[0][places], pairs[1][places]
    nodes = torch.cat([left.nodes[ours], right.nodes[theirs].flip(1)[:, 1:]], 1)
    edges = torch.cat([left.edges[ours], right.edges[theirs].flip(1)], 1)
    return PathSet(slot[left.group[ours]] + 1, left.question[ours], nodes, edges)


def check_ends(topics: Ragged, ends: Ends) -> None:
    """Raise BadInput unless `ends` are flags for these questions."""
    for name, side in (("first", ends.first), ("last", ends.last)):
        check_form(side, f"ends.{name} does not fit", ["bool"], [topics.batch], topics.offsets.device)


def checked_ends(topics: Ragged, ends: Ends) -> tuple[torch.Tensor, torch.Tensor]:
    """(first, last) of the checked ends; a single topic without an open end is open after it."""
    check_ends(topics, ends)
    return ends.first, ends.last | (~ends.first & (topics.offsets.diff() == 1))


def count_of(first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The number of entries that `expand` makes of them: i64[]."""
    return (last - first).sum()


def _next_to(graph: PathGraph, topics: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """(first, last) i64[T]: the entries of each topic with a next topic in its question; else an empty range."""
    question, topic = row_of_value(topics), topics.values.long()
    follows = torch.zeros_like(question, dtype=torch.bool)
    follows[:-1] = question[:-1] == question[1:]
    first = graph.csr.indptr[topic]
    return first, torch.where(follows, graph.csr.indptr[topic + 1], first)


@dataclass(frozen=True)
class _Joint:
    """Rows of `left` [P, U] and `right` [Q, V], padded with -1: row i meets rows order[j], first[i] <= j < last[i]."""

    left: torch.Tensor
    right: torch.Tensor
    order: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor

    def tried(self, count: int, max_pairs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(i, j, whether they have no common node) of all `count` pairs. Raises BadInput for more than `max_pairs`."""
        check_count(count, max_pairs, "joints")
        firsts, seconds, frees = [self.order[:0]], [self.order[:0]], [self.order[:0] > 0]
        for left, place in expand(self.first, self.last, count):
            other = self.order[place]
            free = torch.ones_like(left, dtype=torch.bool)
            for column in self.right.T:
                node = column[other]
                free &= ((self.left[left] != node[:, None]) | (node < 0)[:, None]).all(1)
            for pieces, piece in zip((firsts, seconds, frees), (left, other, free)):
                pieces.append(piece)
        return torch.cat(firsts), torch.cat(seconds), torch.cat(frees)


def _joint(left: torch.Tensor, wanted: torch.Tensor, right: torch.Tensor, offered: torch.Tensor) -> _Joint:
    """The joint of rows with wanted[i] = offered[j]."""
    offered, order = torch.sort(offered, stable=True)
    first, last = torch.searchsorted(offered, wanted), torch.searchsorted(offered, wanted, right=True)
    return _Joint(left, right, order, first, last)


def _meeting(left: PathSet, right: PathSet, slot: torch.Tensor, n: int) -> _Joint:
    """The joint of paths of `left` from a topic with paths of `right` from the next topic that end in the same node."""
    follows = torch.zeros(slot.shape[0], dtype=torch.bool, device=slot.device)  # whether a topic is not the first
    follows[1:] = slot[1:] == slot[:-1] + 1
    wanted = (left.group + 1) * n + left.nodes[:, -1]
    offered = torch.where(follows[right.group], right.group * n + right.nodes[:, -1], -1)  # -1: nobody wants it
    return _joint(left.nodes[:, :-1], wanted, right.nodes[:, :-1], offered)


def _together(sets: Sequence[PathSet], empty: int | None = None) -> PathSet:
    """The paths of all sets; if there are none, an empty set with `empty` hops, if given."""
    hops = max(paths.edges.shape[1] for paths in sets)
    wide = [padded(paths, hops) for paths in sets]
    joined = PathSet(
        torch.cat([p.group for p in wide]), torch.cat([p.question for p in wide]),
        torch.cat([p.nodes for p in wide]), torch.cat([p.edges for p in wide]),
    )  # fmt: skip
    if empty is None or joined.size:
        return joined
    return PathSet(joined.group, joined.question, joined.nodes[:, : empty + 1], joined.edges[:, :empty])


def chain_paths(
    whole: PathSet | None,
    parts: PathSet,
    topics: Ragged,
    step: int,
    ends: Ends,
    window: Window,
    *,
    max_pairs: int = MAX_PAIRS,
) -> PathSet:
    """Add one more part for every question: step 0 gives the beginnings (whole = None), step s adds part s.

    parts: from `path_parts`, pruned or not. A path and a part are joined if they share the topic between them and no
    other node, and together have at most longest[b] hops. A closed end adds nothing; a question without part s keeps
    its paths. After its last part a question keeps the paths with more than least[b] hops. Returns PathSet with group =
    question, ascending by (question, nodes). max_pairs: as in `path_parts`. Raises BadInput.
    """
    check_tensors(topics, "topics", None)
    check_ends(topics, ends)
    _check_window(window, topics)
    check_paths(parts, topics.batch, topics.offsets.device)
    if step < 0 or (step > 0 and whole is None):
        raise BadInput("a chain has no beginning", given=f"step {step}", expected="step 0 first")
    if step > 0 and whole is not None:
        check_paths(whole, topics.batch, topics.offsets.device)
    opens, closes = checked_ends(topics, ends)
    size = topics.offsets.diff()
    is_added = parts.group == topics.offsets[parts.question] + parts.question + step
    if step == 0 or whole is None:
        sets = _beginnings(parts, is_added, topics, (size > 0) & ~opens)
    else:
        size_of = size[whole.question]
        is_whole = (size_of < step) | ((size_of == step) & ~closes[whole.question])
        sets = _continued(whole, is_whole, parts, is_added, max_pairs)
    longer = _together(sets)
    length = longer.lengths
    allowed = length <= window.longest[longer.question]
    allowed &= (length > window.least[longer.question]) | (size[longer.question] > step)
    widest = torch.where(allowed, length, 0).amax() if longer.size else allowed.sum()
    n_allowed, hops = torch.stack([allowed.sum(), widest]).tolist()
    kept = longer.rows(places_of(allowed, n_allowed))
    return in_order(PathSet(kept.group, kept.question, kept.nodes[:, : hops + 1], kept.edges[:, :hops]))


def _beginnings(parts: PathSet, is_added: torch.Tensor, topics: Ragged, is_closed: torch.Tensor) -> list[PathSet]:
    """The parts marked in bool[P], and the first topic alone for the questions marked in bool[B]."""
    n_added, n_closed = torch.stack([is_added.sum(), is_closed.sum()]).tolist()
    added, closed = parts.rows(places_of(is_added, n_added)), places_of(is_closed, n_closed)
    topic = topics.values[topics.offsets[closed]].int()[:, None]
    return [replace(added, group=added.question), PathSet(closed, closed, topic, topic[:, :0])]


def _continued(
    whole: PathSet, is_whole: torch.Tensor, parts: PathSet, is_added: torch.Tensor, max_pairs: int
) -> list[PathSet]:
    """The paths marked in bool[W] as they are, and the others joined with the parts marked in bool[P]."""
    longest = whole.edges.shape[1]
    length = torch.where(is_whole, longest + 1, whole.lengths)  # the last class: paths that are kept
    by_length = torch.zeros(longest + 2, dtype=torch.int64, device=length.device)
    by_length.index_add_(0, length, torch.ones_like(length))
    n_added, *n_by_length, n_kept = torch.cat([is_added.sum()[None], by_length]).tolist()
    added = parts.rows(places_of(is_added, n_added))
    lefts = [(h, whole.rows(places_of(length == h, n))) for h, n in enumerate(n_by_length) if n]
    return [whole.rows(places_of(is_whole, n_kept)), *_extended(lefts, added, max_pairs)]


def _check_window(window: Window, topics: Ragged) -> None:
    """Raise BadInput unless `window` and the lists of the topics are sound."""
    for name, side in (("least", window.least), ("longest", window.longest)):
        check_form(side, f"window.{name} does not fit", ["i64"], [topics.batch], topics.offsets.device)
    if is_trusted(topics.offsets.device):
        return
    check_ragged(topics, "topics", n=NO_END)
    if not bool((window.longest > MAX_HOPS).any()):
        return
    given = f"longest={int(window.longest.max())}"
    raise BadInput("paths are too long", given=given, expected=f"at most {MAX_HOPS} hops")


def _extended(lefts: Sequence[tuple[int, PathSet]], parts: PathSet, max_pairs: int) -> list[PathSet]:
    """Every path joined with every part of its question. lefts: the paths by their number of hops."""
    if not lefts:
        return []
    joints = [_joint(p.nodes[:, :h], p.question, parts.nodes[:, 1:], parts.question) for h, p in lefts]
    sizes = torch.stack([count_of(joint.first, joint.last) for joint in joints]).tolist()
    tried = [joint.tried(n, max_pairs) for joint, n in zip(joints, sizes)]
    sizes, longer = torch.stack([free.sum() for _, _, free in tried]).tolist(), []
    for (hops, left), (ours, theirs, free), n in zip(lefts, tried, sizes):
        places = places_of(free, n)
        ours, theirs = ours[places], theirs[places]
        nodes = torch.cat([left.nodes[ours][:, : hops + 1], parts.nodes[theirs][:, 1:]], 1)
        edges = torch.cat([left.edges[ours][:, :hops], parts.edges[theirs]], 1)
        longer.append(PathSet(left.question[ours], left.question[ours], nodes, edges))
    return longer
