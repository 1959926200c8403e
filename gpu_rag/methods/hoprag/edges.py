"""Directed edges with strengths: one of parallel edges, and the cut to a budget."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def edge_budget(n: int, factor: float) -> int:
    """How many edges n vertices may keep: floor(factor n log2 n); none for n < 2."""
    return math.floor(factor * n * math.log2(n)) if n > 1 else 0


def strongest_parallel(source: Array, target: Array, strength: Array) -> Array:
    """Rows i64[K] of one edge a pair (source, target), the strongest, of equal ones the first given.

    source, target: integers [M]; strength: f64[M], no NaN. Returned in order of (source, target).

    Edges 0->1 of strengths .5 and .7 and 0->2 of .6: rows 1 and 2.
    """
    order = np.lexsort((np.arange(len(source)), -strength, target, source))
    s, t = source[order], target[order]
    first = np.ones(len(order), bool)
    first[1:] = (s[1:] != s[:-1]) | (t[1:] != t[:-1])
    return order[first]


def cut_to_budget(source: Array, target: Array, strength: Array, budget: int) -> Array:
    """Rows i64[K], ascending, of the edges that stay: the `budget` strongest of all, and the strongest of each source.

    So no vertex loses its last out-edge, and as many as the budget's edges and one a vertex may stay. Strength falls
    from edge to edge; of equal ones the lower (source, target) comes first. Arguments as `strongest_parallel`, each
    pair once; budget >= 0.

    Edges 0->1 (.9), 0->2 (.8), 1->2 (.1) with budget 1: 0->1 by strength and 1->2, the last of vertex 1.
    """
    order = np.lexsort((target, source, -strength))
    kept = np.zeros(len(order), bool)
    kept[order[:budget]] = True
    _, first = np.unique(source[order], return_index=True)
    kept[order[first]] = True
    return np.flatnonzero(kept)


def edges_of_matches(
    question: Array, sim: Array, out_vertex: Array, in_vertex: Array, n: int, factor: float
) -> tuple[dict[str, Array], int]:
    """HopRAG's edges from the best match of every out-question, and how many there were before the cut.

    question: integers [Q], the in-question that each out-question matches best, -1 for none; sim: f64[Q]. out_vertex,
    in_vertex: the vertex of each out- and in-question, of n. An edge leads from the one to the other. Of parallel ones
    the strongest stays, of equal ones that of the lowest in-question, then the lowest out-question; then the cut to
    `edge_budget(n, factor)`. Returns columns source, target, question, out_question, sim, by (source, target).
    """
    out_question = np.flatnonzero(question >= 0)
    out_question = out_question[np.argsort(question[out_question], kind="stable")]
    columns = {
        "source": out_vertex[out_question],
        "target": in_vertex[question[out_question]],
        "question": question[out_question],
        "out_question": out_question,
        "sim": sim[out_question],
    }
    merged = strongest_parallel(columns["source"], columns["target"], columns["sim"])
    columns = {name: column[merged] for name, column in columns.items()}
    kept = cut_to_budget(columns["source"], columns["target"], columns["sim"], edge_budget(n, factor))
    return {name: column[kept] for name, column in columns.items()}, len(merged)
