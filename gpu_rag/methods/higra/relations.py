"""Relations between aligned entities, and the passages that state them; an inferred one has no passage."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_rag.index.index import Index
from gpu_rag.methods.higra.graph import higra_graph


def stated(index: Index) -> Iterator[tuple[str, str, str, list[int]]]:
    """(subject, label, object, rows of passages) of every relation; nothing where the index has no such graph."""
    if "higra_graph" not in index.layers:
        return
    graph = higra_graph(index)
    names, relations = graph.entities["name"].to_pylist(), graph.relations
    ends = (rows.tolist() for rows in graph.relation_ends)
    for subject, object_, label, passages in zip(
        *ends, relations["label"].to_pylist(), relations["passages"].to_pylist()
    ):
        yield names[subject], label, names[object_], passages
