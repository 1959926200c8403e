"""Simple paths by networkx, and the rules of `graph.paths` for one of them, written from their definition."""

import itertools
from collections.abc import Sequence

import networkx as nx

FAR = 10**6


def all_paths(graph: nx.Graph, most: int) -> list[list[int]]:
    """Every simple path of at most `most` hops, in both directions, ascending."""
    found = [[node] for node in graph]
    for a, b in itertools.permutations(graph, 2):
        found += nx.all_simple_paths(graph, a, b, cutoff=most)
    return sorted(found)


def goes_on(topics: Sequence[int], opens: bool, closes: bool) -> bool:
    """Whether paths go on after the last topic: those of one topic without an open end do."""
    return closes or (len(topics) == 1 and not opens)


def holds(
    path: Sequence[int], topics: Sequence[int], opens: bool, closes: bool, window: tuple[int, int], depth: int
) -> bool:
    """Segments of 1 to 2 D hops between topics in their order, open ends of 1 to D hops, length in (least, longest]."""
    if not window[0] < len(path) - 1 <= window[1] or not set(topics) <= set(path):
        return False
    at = [path.index(topic) for topic in topics]
    before, after = at[0], len(path) - 1 - at[-1]
    inner = all(1 <= b - a <= 2 * depth for a, b in itertools.pairwise(at))
    ends = ((before, opens), (after, goes_on(topics, opens, closes)))
    return inner and all(1 <= hops <= depth if is_open else hops == 0 for hops, is_open in ends)


def nodes_kept(graph: nx.Graph, topics: Sequence[int], opens: bool, closes: bool, depth: int) -> list[int]:
    """The nodes that such a path may go through, by distances alone."""
    away = {topic: nx.single_source_shortest_path_length(graph, topic) for topic in topics}
    sides = topics[:1] * opens + topics[-1:] * goes_on(topics, opens, closes)

    def may_be_on(v: int) -> bool:
        between = (away[a].get(v, FAR) + away[b].get(v, FAR) for a, b in itertools.pairwise(topics))
        return (
            v in topics or any(far <= 2 * depth for far in between) or any(away[t].get(v, FAR) <= depth for t in sides)
        )

    return [v for v in sorted(graph) if may_be_on(v)]
