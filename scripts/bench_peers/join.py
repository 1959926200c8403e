"""Peers of `gpu-rag bench` for the cases of `join`: other libraries at the same work."""

from __future__ import annotations

from typing import Any

from gpu_rag.bench.case import MOST_TILED, Peer, peer
from gpu_rag.graph.join.bench import Side, _matrix, _scores


@peer("numpy + scipy")
def by_numpy(left: Side, right: Side) -> Peer:
    """The whole matrix of scores by numpy and a sparse product, then argmax, a tile of rows at a time."""
    right_words, left_words, vectors = _matrix(right[1]), _matrix(left[1]), right[0].numpy()

    def inputs(start: int, count: int) -> tuple[Any, Any]:
        return left[0][start : start + count].numpy(), left_words[start : start + count]

    def run(given: tuple[Any, Any]) -> tuple[Any, Any]:
        scores = _scores(*given, vectors, right_words)
        return scores.argmax(1), scores.max(1)

    return Peer("", inputs, run, most=MOST_TILED)
