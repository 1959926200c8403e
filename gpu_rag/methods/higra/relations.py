"""Relations between aligned entities, and the passages that state them. An inferred relation has no passage."""

from __future__ import annotations

from bisect import bisect_left

from gpu_rag.index.checks import stating
from gpu_rag.index.index import Index
from gpu_rag.index.names import TextColumn
from gpu_rag.methods.higra.graph import higra_graph


def stated(index: Index, subject: str, label: str, object_: str) -> set[int] | None:
    """Passage rows that state a relation of normalised names; None if the index has no such graph or relation."""
    if "higra_graph" not in index.stages:
        return None
    graph = higra_graph(index)
    ids: TextColumn[str] = TextColumn(graph.entities["id"])

    def named(name: str) -> range:  # an id is a name; ids of several entities with one name go on after two spaces
        return range(bisect_left(ids, name), bisect_left(ids, f"{name}  \U0010ffff"))

    return stating(graph.relations, label, named(subject), named(object_))
