"""Which nodes of a graph can lie on a path between the topics of a question: the reduction before path search."""

from __future__ import annotations

import torch

from gpu_rag.graph.ego import CheckedGraph, ego_balls
from gpu_rag.graph.paths.joins import Ends, checked_ends
from gpu_rag.graph.paths.sets import PathGraph, check_depth, check_topics
from gpu_rag.graph.ragged import ragged_of_keys, row_of_value, some_lists
from gpu_rag.graph.reach import intersect
from gpu_rag.types import Ragged


def nodes_on_paths(
    graph: PathGraph, topics: Ragged, depth: int, ends: Ends, *, implementation: str = "auto", threads: int = 1
) -> Ragged:
    """The nodes that `search_paths` of this depth can use: Ragged of i32 nodes, ascending, each once.

    v is kept for a question where d(a, v) + d(v, b) <= 2 D for neighbours a, b of its order, or where v is within D
    hops of a topic whose end is open; d counts hops in any direction. The topics themselves are always kept. No path
    is lost: `induced_subgraphs` of the result has all of them. Meant for the subgraph of a question (blocks), since
    balls of up to 2 D hops are made. graph, topics, ends: as in `search_paths`. implementation, threads: as in
    `ego_balls`. Memory: 2 D + 1 balls a topic. Raises BadInput, UsageError, MissingBackend.

    Path 0 - 1 - 2 - 3 and 1 - 4, topics [0, 2], D = 1, closed ends: [0, 1, 2].
    """
    check_topics(graph, topics)
    check_depth(depth)
    opens, closes = checked_ends(topics, ends)
    question, n = row_of_value(topics), max(graph.n, 1)
    place = torch.arange(question.shape[0], device=graph.device)
    seeds = Ragged(topics.values, torch.arange(question.shape[0] + 1, device=graph.device))
    pattern = CheckedGraph(graph.csr)
    balls = [
        ego_balls(pattern, seeds, radius, implementation=implementation, threads=threads)
        for radius in range(2 * depth + 1)
    ]
    here = (question[:-1] == question[1:]).nonzero()[:, 0]
    ended = opens[question] & (place == topics.offsets[question])
    ended |= closes[question] & (place + 1 == topics.offsets[question + 1])
    ended = ended.nonzero()[:, 0]
    keys = [question * n + topics.values, _keys(some_lists(balls[depth], ended), question[ended], n)]
    for radius, ball in enumerate(balls):
        other = balls[2 * depth - radius]
        both = intersect(some_lists(ball, here), some_lists(other, here + 1), implementation=implementation)
        keys.append(_keys(both, question[here], n))
    return ragged_of_keys(torch.unique(torch.cat(keys)), topics.batch, n)


def _keys(lists: Ragged, question: torch.Tensor, n: int) -> torch.Tensor:
    return question[row_of_value(lists)] * n + lists.values
