"""Curves from the JSON of `gpu-rag bench --json`: milliseconds a question against B, and against edges at one B.

usage: python scripts/plot_bench.py OUT_PREFIX BENCH.json [BENCH.json ...] [--op pagerank] [--damping 0.85] [--at 64]

Writes OUT_PREFIX-batch.svg and, where the rows have several sizes, OUT_PREFIX-edges.svg.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpu_rag.report.curves import curves_svg

Lines = dict[str, list[tuple[float, float]]]


def per_question(rows: list[dict[str, Any]], key: str) -> Lines:
    """ms a question by `key` ("B" or "m"), a line for gpu-rag and one for each peer; of repeated rows the first."""
    lines: dict[str, dict[float, float]] = defaultdict(dict)
    for row in rows:
        if row["ms"] is None:
            continue
        lines["gpu-rag"].setdefault(row[key], row["ms"] / row["B"])
        if row["peer"] and row["peer_ms"]:
            lines[row["peer"]].setdefault(row[key], row["peer_ms"] / row["B"])
    return {name: list(points.items()) for name, points in lines.items()}


def main() -> None:
    """Reads, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--op", default="pagerank")
    parser.add_argument("--damping", type=float, default=0.85)
    parser.add_argument("--at", type=int, default=64)
    options = parser.parse_args()
    rows = [row for path in options.files for row in json.loads(path.read_text().splitlines()[-1])["rows"]]
    rows = [row for row in rows if row["op"] == options.op and row.get("damping") == options.damping]
    title = f"{options.op}, damping {options.damping}"
    first = [row for row in rows if row["n"] == rows[0]["n"] and row["graph"] == rows[0]["graph"]]
    graph = f"{title}, {rows[0]['graph']} graph of {rows[0]['n']:,} nodes"
    drawn = curves_svg(graph, "questions in a batch", "ms a question", per_question(first, "B"))
    Path(f"{options.prefix}-batch.svg").write_text(drawn, encoding="utf-8")
    at = [row for row in rows if row["B"] == options.at]
    if len({row["m"] for row in at}) > 1:
        drawn = curves_svg(f"{title}, B = {options.at}", "stored edges", "ms a question", per_question(at, "m"))
        Path(f"{options.prefix}-edges.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
