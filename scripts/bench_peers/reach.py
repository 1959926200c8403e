"""Peers of `gpu-rag bench` for the case `reach`: other libraries at the same work."""

from __future__ import annotations

from functools import partial

from gpu_rag.bench.case import Peer, alone, peer
from gpu_rag.graph.reach.bench import Labelled, Question, Questions, by_scipy


@peer("scipy CSR a relation")
def by_matrices(labelled: Labelled, questions: Questions) -> Peer:
    return alone(questions, partial(by_scipy, labelled))


@peer("Python dict")
def by_dict(labelled: Labelled, questions: Questions) -> Peer:
    """A dictionary from (node, relation) to neighbours."""
    beside: dict[tuple[int, int], list[int]] = {}
    for a, relation, b in zip(*(column.tolist() for column in labelled.edges)):
        beside.setdefault((a, relation), []).append(b)
        beside.setdefault((b, relation), []).append(a)

    def walk(question: Question) -> list[int]:
        nodes, chain = question
        reached = set(nodes)
        for relation in chain:
            reached = {u for v in reached for u in beside.get((v, relation), ())}
        return sorted(reached)

    return alone(questions, walk)


PEERS = (by_matrices, by_dict)
