"""Find simple paths through the topics of a question, in a given order, hop by hop from every topic, with a beam.

For topics t_1 .. t_k of a question, a path is a simple path (no repeated node, edge direction ignored) that meets the
topics in this order, where
- an inner segment, t_i to t_(i+1), has 1 to 2 D hops: D from each side;
- an end is closed (the path begins at t_1, ends at t_k) or open: 1 to D hops beyond that topic. A single topic without
  an open end counts as open after it;
- the whole path has more than `least` and at most `longest` hops.

A program makes the paths in these steps; `search_paths` is this program with one function for pruning:

    hops = [start_paths(graph, topics)]
    for _ in range(D):
        hops.append(prune(expand_paths(graph, hops[-1], topics)))
    parts = prune(path_parts(graph, topics, hops, ends))
    whole = None
    for step in range(n_steps(topics)):
        whole = prune(chain_paths(whole, parts, topics, step, ends, window))

`prune` is `score_paths` with a beam: the best paths of each topic, then of each part, then of each question. Without a
beam the result is every such path, each once. All results are integers in one order, by (group, nodes), so ties are
resolved the same way everywhere: the path with the smaller nodes comes first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.errors import BadInput
from gpu_rag.graph.common.arrays import shortened
from gpu_rag.graph.common.segments import are_first
from gpu_rag.graph.common.threads import check_threads, run_parts
from gpu_rag.graph.common.trusted import is_trusted
from gpu_rag.graph.csr import check_csr, is_symmetric, row_of_entry
from gpu_rag.graph.ego import CheckedGraph, ego_balls, reached
from gpu_rag.graph.paths.joins import Ends, Window, chain_paths, checked_ends, n_steps, path_parts
from gpu_rag.graph.paths.scores import score_paths
from gpu_rag.graph.paths.sets import MAX_HOPS, PathGraph, PathSet, check_count, check_depth, check_paths, check_topics
from gpu_rag.graph.ragged import arrays_of, expand, keys_of, ragged_of_keys, row_of_value, some_lists
from gpu_rag.lazy import torch
from gpu_rag.types import CSR, Ragged

__all__ = [
    "MAX_HOPS", "Ends", "PathGraph", "PathSet", "Window", "chain_paths", "expand_paths", "n_steps", "path_graph",
    "path_parts", "score_paths", "search_paths", "start_paths",
]  # fmt: skip

NO_KEY = 2**62  # above every key of a question and a node
MAX_PATHS = 1 << 26  # default maximum paths of one call
_PATHS = 4096  # paths that a thread takes at a time


def path_graph(csr: CSR) -> PathGraph:
    """Check `csr` once and number its edges. Pass the result to the ops.

    csr: a symmetric adjacency (both directions stored; `csr_from_edges` makes one); weights are ignored, loops are in
    no path. It may be the block-diagonal CSR of `induced_subgraphs`, with local nodes as topics. The edge between u < v
    has one number, its rank by (u, v), in both directions. O(E log E). Raises BadInput.

    Path 0 - 1 - 2: edge 0 is 0 - 1, edge 1 is 1 - 2.
    """
    check_csr(csr)
    pattern = CSR(csr.indptr, csr.indices)
    if not is_symmetric(pattern):
        raise BadInput("paths ignore direction", given="a CSR that is not symmetric", expected="both directions stored")
    rows, columns = row_of_entry(csr), csr.indices.long()
    low, high = torch.minimum(rows, columns), torch.maximum(rows, columns)
    _, edge = torch.unique(torch.where(low < high, low * csr.n + high, -1), return_inverse=True)
    loops = int((low == high).any())  # all loops share the first number: it becomes -1
    return PathGraph(pattern, (edge - loops).int())


def start_paths(graph: PathGraph, topics: Ragged) -> PathSet:
    """The paths without hops: one for each topic. topics: Ragged of i32/i64 nodes, the ordered topics of each question,
    each once.

    group is the position of the topic in topics.values. Raises BadInput.
    """
    check_topics(graph, topics)
    question = row_of_value(topics)
    group = torch.arange(question.shape[0], device=graph.device)
    nodes = topics.values.int()[:, None]
    return PathSet(group, question, nodes, nodes.new_zeros(nodes.shape[0], 0))


def expand_paths(
    graph: PathGraph,
    paths: PathSet,
    topics: Ragged,
    *,
    max_paths: int = MAX_PATHS,
    implementation: str = "auto",
    threads: int = 1,
) -> PathSet:
    """Extend every path by one hop, to a node that is neither on the path nor a topic of its question.

    paths: P paths of one length h, from `start_paths`, `expand_paths` or `score_paths`. A direct edge to the
    neighbouring topic is found by `path_parts`. max_paths: raises BadInput, before any work, if the degrees at the ends
    of the paths sum to more. implementation: numba | torch | auto, all give the same integers. threads: groups of 4,096
    paths at once (numba). Returns PathSet with h + 1 hops, ascending by (group, nodes). Time: the edges at the ends,
    times h. Memory: the result; torch: the edges in pieces. Raises BadInput, UsageError, MissingBackend.

    Star 0 - 1, 0 - 2, 0 - 3 with topics [0, 3]: from 0 the paths [0, 1], [0, 2]; from 3 none, because 0 is a topic.
    """
    check_topics(graph, topics)
    check_paths(paths, topics.batch, graph.device)
    check_threads(threads)
    n_steps = _count_steps(graph, paths)
    check_count(n_steps, max_paths, "end")
    if pick_implementation(graph.device, implementation, "expand_paths") == "numba":
        return _extended_by_numba(graph, paths, topics, threads)
    parent, entry = _steps_by_torch(graph, paths, topics, n_steps)
    nodes = torch.cat([paths.nodes[parent], graph.csr.indices[entry][:, None]], 1)
    edges = torch.cat([paths.edges[parent], graph.edge[entry][:, None]], 1)
    return PathSet(paths.group[parent], paths.question[parent], nodes, edges)


def _count_steps(graph: PathGraph, paths: PathSet) -> int:
    """The sum of the degrees at the ends of paths of one length. Raises BadInput for other paths."""
    trust = is_trusted(graph.device)
    if not trust and bool((paths.nodes < 0).any()):
        raise BadInput("paths have different lengths", given="padding", expected="the paths of one hop")
    if not trust and paths.size and int(paths.nodes.max()) >= graph.n:
        raise BadInput("a path leaves the graph", given=f"node {int(paths.nodes.max())}", expected=f"< {graph.n}")
    last = paths.nodes[:, -1].long()
    return int((graph.csr.indptr[last + 1] - graph.csr.indptr[last]).sum())


def _steps_by_torch(
    graph: PathGraph, paths: PathSet, topics: Ragged, n_steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(path i64[Q], entry i64[Q]) of every possible step, by (path, entry), among n_steps."""
    n = max(graph.n, 1)
    topic_keys = keys_of(topics, n).sort().values
    last = paths.nodes[:, -1].long()
    parents, entries = [last[:0]], [last[:0]]
    for owner, entry in expand(graph.csr.indptr[last], graph.csr.indptr[last + 1], n_steps):
        node = graph.csr.indices[entry]
        free = (paths.nodes[owner] != node[:, None]).all(1)
        key = paths.question[owner] * n + node
        free &= torch.searchsorted(topic_keys, key) == torch.searchsorted(topic_keys, key, right=True)
        rows = free.nonzero()[:, 0]
        parents.append(owner[rows])
        entries.append(entry[rows])
    return torch.cat(parents), torch.cat(entries)


def _extended_by_numba(graph: PathGraph, paths: PathSet, topics: Ragged, threads: int) -> PathSet:
    """The paths of `expand_paths`, each written once; space for other entries is reserved and never written."""
    from gpu_rag_kernels.paths.numba import extend

    indptr, indices, number = (a.contiguous().numpy() for a in (graph.csr.indptr, graph.csr.indices, graph.edge))
    shorter = paths.columns
    wanted, offsets = arrays_of(topics, wide=True)
    hops, step = paths.edges.shape[1], max(paths.size, 1) if threads == 1 else _PATHS

    def part(first: int) -> list[np.ndarray]:
        last = min(first + step, paths.size)
        ends = shorter[2][first:last, -1]
        space = int((indptr[ends + 1] - indptr[ends]).sum()) + 1  # one more: a rejected step is overwritten
        longer = (
            np.empty(space, np.int64), np.empty(space, np.int64), np.empty((space, hops + 2), np.int32),
            np.empty((space, hops + 1), np.int32),
        )  # fmt: skip
        size = extend(indptr, indices, number, shorter, wanted, offsets, first, last, longer)
        return [shortened(rows, size) for rows in longer]

    done = run_parts(part, range(0, paths.size, step), threads)
    if not done:
        return PathSet(
            paths.group, paths.question, paths.nodes.new_empty(0, hops + 2), paths.nodes.new_empty(0, hops + 1)
        )
    columns = (pieces[0] if len(pieces) == 1 else np.concatenate(pieces) for pieces in zip(*done))
    return PathSet(*map(torch.from_numpy, columns))


def search_paths(
    graph: PathGraph,
    topics: Ragged,
    depth: int,
    ends: Ends,
    window: Window,
    prune: Callable[[PathSet], PathSet] = lambda paths: paths,
    *,
    implementation: str = "auto",
    threads: int = 1,
) -> PathSet:
    """Run the whole search of B questions, as in the module: PathSet of whole paths, group = question.

    depth: D >= 1. prune: keeps some of the given paths, in their order; it is called after each hop, on the parts, and
    after each step of the chain. Without it the result is all paths. implementation, threads: as in `expand_paths`.
    Raises BadInput, UsageError, MissingBackend.

    Square 0 - 1 - 2 - 3 - 0, topics [0, 2], depth 1, closed ends, window (0, 2]: [0, 1, 2] and [0, 3, 2].
    """
    check_depth(depth)
    hops = [start_paths(graph, topics)]
    for _ in range(depth):
        hops.append(prune(expand_paths(graph, hops[-1], topics, implementation=implementation, threads=threads)))
    parts = prune(path_parts(graph, topics, hops, ends))
    whole: PathSet | None = None
    for step in range(n_steps(topics)):
        whole = prune(chain_paths(whole, parts, topics, step, ends, window))
    return parts.rows(slice(0)) if whole is None else whole


def nodes_on_paths(
    graph: PathGraph, topics: Ragged, depth: int, ends: Ends, *, implementation: str = "auto", threads: int = 1
) -> Ragged:
    """The nodes that `search_paths` with this depth can use: Ragged of i32 nodes, ascending, each once.

    v is kept for a question if d(a, v) + d(v, b) <= 2 D for neighbours a, b in its order, or if v is within D hops of a
    topic with an open end; d counts hops in any direction. The topics are always kept. No path is lost:
    `induced_subgraphs` of the result has all of them. Intended for the subgraph of a question (blocks), because balls
    of up to 2 D hops are made. graph, topics, ends: as in `search_paths`. implementation, threads: as in `ego_balls`.
    Memory: 2 D + 1 balls for each topic. Raises BadInput, UsageError, MissingBackend.

    Path 0 - 1 - 2 - 3 and 1 - 4, topics [0, 2], D = 1, closed ends: [0, 1, 2].
    """
    check_topics(graph, topics)
    check_depth(depth)
    question, ended, n = row_of_value(topics), _ended(topics, ends), max(graph.n, 1)
    if pick_implementation(graph.device, implementation, "ego_balls") == "torch":
        row, node, kept = _on_paths(graph, topics, ended, depth)
        all_keys = torch.where(kept, row * n + node, NO_KEY).sort().values
        return ragged_of_keys(all_keys[are_first(all_keys) & (all_keys < NO_KEY)], topics.batch, n)
    seeds = Ragged(topics.values, torch.arange(question.shape[0] + 1, device=graph.device))
    pattern = CheckedGraph(graph.csr)
    balls = [
        ego_balls(pattern, seeds, radius, implementation=implementation, threads=threads)
        for radius in range(2 * depth + 1)
    ]
    has_next, ended = (question[:-1] == question[1:]).nonzero()[:, 0], ended.nonzero()[:, 0]
    keys = [question * n + topics.values, _keys(some_lists(balls[depth], ended), question[ended], n)]
    for radius, ball in enumerate(balls):
        other = balls[2 * depth - radius]
        keys.append(_keys(_shared(some_lists(ball, has_next), some_lists(other, has_next + 1)), question[has_next], n))
    return ragged_of_keys(torch.unique(torch.cat(keys)), topics.batch, n)


def _shared(a: Ragged, b: Ragged) -> Ragged:
    """The common values of list r of `a` and list r of `b`, ascending without repeats, on the CPU."""
    from gpu_rag_kernels.paths.numba import intersect_lists

    ours, theirs = (arrays_of(lists, wide=True) for lists in (a, b))
    out, ends = np.empty(min(len(ours[0]), len(theirs[0])), np.int64), np.zeros(a.batch + 1, np.int64)
    intersect_lists(*ours, *theirs, out, ends)
    return Ragged(torch.from_numpy(out[: ends[-1]].copy()), torch.from_numpy(ends))


def are_on_paths(
    graph: PathGraph, topics: Ragged, depth: int, ends: Ends, threads: int, allowed: torch.Tensor | None = None
) -> torch.Tensor:
    """Whether some question keeps each node in `nodes_on_paths`: bool[N]. allowed: bool[N] on a device, the nodes that
    paths may have, including topics."""
    flags = torch.zeros(graph.n + 1, dtype=torch.bool, device=graph.device)
    if graph.device.type == "cpu":
        flags[nodes_on_paths(graph, topics, depth, ends, threads=threads).values.long()] = True
        return flags[:-1]
    _, node, kept = _on_paths(graph, topics, _ended(topics, ends), depth, allowed)
    flags[torch.where(kept, node, graph.n)] = True
    return flags[:-1]


def _ended(topics: Ragged, ends: Ends) -> torch.Tensor:
    """The first and last topics beyond which a path may go: bool[T]."""
    (opens, closes), question = checked_ends(topics, ends), row_of_value(topics)
    place = torch.arange(question.shape[0], device=question.device)
    ended = opens[question] & (place == topics.offsets[question])
    return ended | (closes[question] & (place + 1 == topics.offsets[question + 1]))


def _on_paths(
    graph: PathGraph, topics: Ragged, ended: torch.Tensor, depth: int, allowed: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(question, node, whether it is kept) of every node within 2 D hops of a topic, by one search from all topics."""
    question, n = row_of_value(topics), max(graph.n, 1)
    singletons = torch.arange(question.shape[0] + 1, device=graph.device)
    ball = reached(graph.csr, Ragged(topics.values, singletons), min(2 * depth, graph.n), allowed=allowed)
    topic, node, last = ball.keys // n, ball.keys % n, max(ball.keys.shape[0] - 1, 0)
    kept = (ball.hop == 0) | (ended[topic] & (ball.hop <= depth))
    if ball.keys.shape[0]:
        follows = torch.zeros_like(ended)  # whether the next topic is of the same question
        follows[:-1] = question[:-1] == question[1:]
        position = torch.searchsorted(ball.keys, ball.keys + n).clamp_(max=last)  # the same node from the next topic
        kept |= follows[topic] & (ball.keys[position] == ball.keys + n) & (ball.hop + ball.hop[position] <= 2 * depth)
    return question[topic], node, kept


def _keys(lists: Ragged, question: torch.Tensor, n: int) -> torch.Tensor:
    return question[row_of_value(lists)] * n + lists.values
