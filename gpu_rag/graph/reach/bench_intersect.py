"""The case `intersect`: what two topics of a question both lead to, each along two (or `--hops`) relations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels.dispatch import pick_implementation

from gpu_rag.bench.case import MOST_ALONE, Case, Config, Peer
from gpu_rag.graph.common.typed import TypedGraph
from gpu_rag.graph.reach import intersect, reachable
from gpu_rag.graph.reach.bench import (
    STARTS,
    STEPS,
    Labelled,
    Question,
    check_lists,
    edges_followed,
    either_way,
    labelled_graphs,
    matrices_of,
    neighbour_lists,
    reached_by_loop,
    rows_of_matrices,
    walked_in_python,
)
from gpu_rag.types import Ragged

RELATIONS = 4  # few, so that sets are large enough to meet

Pair = tuple[Question, Question]


def cases(config: Config) -> Iterator[Case]:
    """Every edge gets one of 4 relations. The second topic is so chosen that the two meet, where they can."""
    for one in labelled_graphs(config, RELATIONS):
        for hops in config.hops or STEPS:
            chains = torch.randint(RELATIONS, (2, config.pool, hops), generator=one.generator)
            first = one.nodes(config.pool, STARTS)
            second = one.nodes(config.pool, STARTS)
            meeting = _any_of(_walked(one.graph, first, chains[0]), first[:, 0], one.generator)
            back = _walked(one.graph, meeting[:, None], chains[1].flip(1))
            second[:, 0] = _any_of(back, second[:, 0], one.generator)
            yield _case(one, torch.stack([first, second]), chains, config)


def _walked(graph: TypedGraph, starts: torch.Tensor, chains: torch.Tensor) -> Ragged:
    return reachable(graph, *either_way(starts, chains, graph.device))


def _any_of(lists: Ragged, otherwise: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A value of each list at random; of an empty one the other value."""
    sizes, first = lists.offsets.diff().cpu(), lists.offsets[:-1].cpu()
    place = (torch.rand(sizes.shape, generator=generator, dtype=torch.float64) * sizes).long()
    values = torch.cat([lists.values.long().cpu(), otherwise[:1]])  # so that there is always one
    return torch.where(sizes > 0, values[(first + place).clamp(max=len(values) - 1)], otherwise)


def _case(one: Labelled, starts: torch.Tensor, chains: torch.Tensor, config: Config) -> Case:
    """starts i64[2, pool, STARTS], chains i64[2, pool, hops]: of the first and of the second topic."""
    graph, edges, n = one.graph, one.edges, one.csr.n

    def inputs(start: int, count: int) -> tuple[Ragged, Ragged, Ragged]:
        span = slice(start, start + count)
        return either_way(starts[:, span].flatten(0, 1), chains[:, span].flatten(0, 1), graph.device)

    def pairs(start: int, count: int) -> list[Pair]:
        span = slice(start, start + count)
        topics = [list(zip(starts[i, span].tolist(), chains[i, span].tolist())) for i in (0, 1)]
        return list(zip(*topics))

    def run(asked: tuple[Ragged, Ragged, Ragged]) -> Ragged:
        return intersect(*_halves(reachable(graph, *asked, threads=config.threads)))

    def wanted(a: Question, b: Question) -> np.ndarray:
        return np.intersect1d(reached_by_loop(edges, *a), reached_by_loop(edges, *b))

    hops = chains.shape[2]
    followed = 2 * edges_followed(edges, n, RELATIONS, STARTS, hops)
    return Case(
        "intersect",
        pick_implementation(graph.device),
        {"graph": one.name, "n": n, "m": one.csr.m, "hops": hops},
        inputs,
        run,
        lambda result, count: check_lists(result, count, lambda b: wanted(*pairs(b, 1)[0]), "shares"),
        lambda batch: round(batch * (8 * followed + 32 * STARTS)),
        lambda batch: 9 * n * config.threads + round(128 * batch * followed),
        lambda: [_scipy(one, pairs), _python(one, pairs)],
    )


def _halves(lists: Ragged) -> tuple[Ragged, Ragged]:
    """The first half of the lists, and the second."""
    half = lists.batch // 2
    middle = lists.offsets[half]
    return (
        Ragged(lists.values[:middle], lists.offsets[: half + 1]),
        Ragged(lists.values[middle:], lists.offsets[half:] - middle),
    )


def _scipy(one: Labelled, pairs: Any) -> Peer:
    """Rows of one sparse matrix a relation, and numpy for what two sets share."""
    matrices = matrices_of(one.edges, one.csr.n, RELATIONS)

    def run(asked: list[Pair]) -> list[list[int]]:
        walked = ([rows_of_matrices(matrices, *topic) for topic in pair] for pair in asked)
        return [np.intersect1d(a, b, assume_unique=True).tolist() for a, b in walked]

    return Peer("scipy + numpy intersect1d", pairs, run, most=MOST_ALONE, alone=True)


def _python(one: Labelled, pairs: Any) -> Peer:
    """A dictionary of (node, relation) to its neighbours, and sets."""
    beside = neighbour_lists(one.edges)

    def run(asked: list[Pair]) -> list[list[int]]:
        return [sorted(walked_in_python(beside, *a) & walked_in_python(beside, *b)) for a, b in asked]

    return Peer("Python dict and sets", pairs, run, most=MOST_ALONE, alone=True)
