"""Peers of `gpu-rag bench` for the cases of `reach`: other libraries at the same work."""

from __future__ import annotations

from functools import partial

from gpu_rag.bench.case import Peer, alone, peer
from gpu_rag.graph.reach.bench import Labelled, Questions, by_scipy

NAMES = {
    "reach": ("scipy CSR a relation", "Python dict"),
    "intersect": ("scipy + numpy intersect1d", "Python dict and sets"),
}


def peers(op: str, one: Labelled, questions: Questions) -> list[Peer]:
    """Both peers of an op, under its names."""
    return [peer(name)(make)(one, questions) for name, make in zip(NAMES[op], (_scipy, _python))]


def _scipy(one: Labelled, questions: Questions) -> Peer:
    return alone(questions, partial(by_scipy, one))


def _python(one: Labelled, questions: Questions) -> Peer:
    walk = one.by_dict()
    return alone(questions, lambda question: sorted(set.intersection(*(walk(*topic) for topic in question))))
