"""The batched steps of HydraRAG: names and passages, evidence subgraphs, path search, pruning, the web.

The search is a loop in the program (`graphs`), so each scoring is a separate step and is counted as one. QuestionGraph
and Walks stay on the device and are only passed on. Paths leave the device in `best_paths`, at most k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpu_rag.errors import BadInput

TILE = 16  # questions whose graphs are searched together
Q = TypeVar("Q")
A = TypeVar("A")


def each_alone(run: Callable[[list[Q]], list[A]], queries: list[Q]) -> list[A | BadInput]:
    """run(queries). If the batch has too many paths, each query runs alone, so that only the too large ones fail."""
    try:
        return [*run(queries)]
    except BadInput as error:
        if len(queries) == 1:
            return [error]
        return [answer for query in queries for answer in each_alone(run, [query])]
