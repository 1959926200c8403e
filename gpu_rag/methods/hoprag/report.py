"""HopRAG's graph in the --json of a build: the figures of the paper."""

from __future__ import annotations

from typing import Any

from gpu_rag.index.build import BuildReport


def hop_statistics(stages: dict[str, Any]) -> dict[str, float] | None:
    """Figures of the hop graph from the stages of a build's --json; None if the index has no hop graph.

    vertices; in_questions, out_questions; questions per vertex; edges; degree: edges per vertex (paper: 5.87);
    crossing: share of edges between different documents; uncut: edges before the cut.
    """
    counts = {name: n for stage in stages.values() for name, n in stage["counts"].items() if name.startswith("hop_")}
    if "hop_edges" not in counts:
        return None
    n, n_edges = counts["hop_vertices"], counts["hop_edges"]
    n_questions = {f"{side}_questions": counts[f"hop_{side}_questions"] for side in ("in", "out")}
    return {
        "vertices": n,
        **n_questions,
        "questions": sum(n_questions.values()) / n,
        "edges": n_edges,
        "degree": n_edges / n,
        "crossing": counts["hop_edges_crossing"] / n_edges if n_edges else 0.0,
        "uncut": counts["hop_edges_uncut"],
    }


def figures(report: BuildReport) -> dict[str, Any]:
    """{"hops": ...} for the --json of a build; {} if no hop graph was built."""
    statistics = hop_statistics({name: vars(stage) for name, stage in report.stages.items()})
    return {"hops": statistics} if statistics else {}


def summary(document: dict[str, Any]) -> list[str]:
    """No lines: a build prints nothing about this graph."""
    return []
