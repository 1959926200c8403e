"""The batched steps of HydraRAG: names and passages, evidence subgraphs, path search, pruning, the web.

A search is a loop of the program (`graphs`), so that every scoring is a step of its own and is booked as one. A
QuestionGraph and Walks stay on the device and are only passed on. `best_paths` is where paths come out, at most k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpu_rag.errors import BadInput

TILE = 16  # questions whose graphs are searched at once
Q = TypeVar("Q")
A = TypeVar("A")


def each_alone(run: Callable[[list[Q]], list[A]], queries: list[Q]) -> list[A | BadInput]:
    """run(queries); where that has too many paths, every query for itself, so that only those too large fail."""
    try:
        return [*run(queries)]
    except BadInput as error:
        if len(queries) == 1:
            return [error]
        return [found for one in queries for found in each_alone(run, [one])]
