"""Relations between aligned entities, and the passages that state them. An inferred relation has no passage."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_rag.index.index import Index
from gpu_rag.methods.higra.graph import higra_graph


def stated(index: Index) -> Iterator[tuple[str, str, str, list[int]]]:
    """(subject, label, object, passage rows) of every relation; nothing if the index has no such graph."""
    if "higra_graph" not in index.stages:
        return
    graph = higra_graph(index)
    names = graph.entities["name"].to_pylist()
    columns = (graph.relations[name].to_pylist() for name in ("subject", "label", "object", "passages"))
    for subject, label, object_, passages in zip(*columns):
        yield names[subject], label, names[object_], passages
