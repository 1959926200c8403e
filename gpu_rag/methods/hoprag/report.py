"""HopRAG's graph in the report of a build: the figures of the paper, and how edges were matched."""

from __future__ import annotations

from typing import Any

from gpu_rag.index.build import BuildReport

PAPER_DEGREE = 5.87  # edges per vertex in the paper
MODES = {
    "hop_exact": "every out-question was compared with every in-question",
    "hop_candidates": "out-questions were compared with candidates that share a keyword and bits of hashed projections",
}


def hop_statistics(stages: dict[str, Any]) -> dict[str, float] | None:
    """Figures of the hop graph from the stages of a build's --json; None if the index has no hop graph.

    vertices; in_questions, out_questions; questions per vertex; edges; degree: edges per vertex; crossing: share of
    edges between different documents; uncut: edges before the cut.
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


def section(document: dict[str, Any], page: Any) -> list[str]:
    """The table of `document["hops"]`. page: the module `report.page`, which draws it."""
    stages, statistics = document["stages"], document.get("hops")
    if statistics is None:
        return []
    rows = [
        ["vertices", f"{statistics['vertices']:,}"],
        ["in-coming questions", f"{statistics['in_questions']:,}"],
        ["out-coming questions", f"{statistics['out_questions']:,}"],
        ["questions a vertex", f"{statistics['questions']:.2f}"],
        ["edges", f"{statistics['edges']:,}"],
        ["edges before the cut", f"{statistics['uncut']:,}"],
        [f"edges a vertex (paper: {PAPER_DEGREE})", f"{statistics['degree']:.2f}"],
        ["edges that cross documents", f"{statistics['crossing']:.1%}"],
        ["out-questions whose match was carried over", f"{stages['hop_edges']['reused']:,}"],
    ]
    modes = [text for name, text in MODES.items() if stages["hop_edges"]["counts"].get(name)]
    return [
        page.heading("Hop graph"),
        page.table(["", ""], rows),
        *(page.paragraph(f"Edges: {text}.") for text in modes),
    ]
