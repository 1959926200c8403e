"""Curves from the JSON of `gpu-rag bench --json`: how the processor time of a question grows.

usage: python scripts/plot_bench.py OUT.svg BENCH.json [BENCH.json ...] --by edges|items|batch|hops
       [--ops OP,...] [--at B] [--size N] [--damping D] [--all-peers]

One picture, both axes logarithmic: a line an op, and dashed in the same colour the fastest peer (or all of them). Rows
of several sizes, batches or hops are narrowed by --size, --at (ops that take their whole input at once are kept at
B = 1) and by giving only the files that belong together; of repeated points the first counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from curves import curves_svg

Row = dict[str, Any]
Points = list[tuple[float, float]]
AXES = {
    "edges": ("m", "stored edges"),
    "items": ("n", "nodes, vectors or items"),
    "batch": ("B", "questions in a batch"),
    "hops": ("hops", "hops"),
}


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """The rows of all files; the document is a file's last line."""
    return [row for path in paths for row in json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["rows"]]


def chosen(rows: Sequence[Row], by: str, ops: Sequence[str], at: int, size: int | None, damping: float) -> list[Row]:
    """The rows of one picture, measured ones that have a place on its axis."""
    whole = {op: {row["B"] for row in rows if row["op"] == op} == {1} for op in {row["op"] for row in rows}}
    return [
        row
        for row in rows
        if row["ms"] is not None
        and row.get(AXES[by][0]) is not None
        and (not ops or row["op"] in ops)
        and (by == "batch" or whole[row["op"]] or row["B"] == at)
        and (not whole[row["op"]] or by != "batch")
        and (size is None or row["n"] == size)
        and row["damping"] in (None, damping)
    ]


def lines_of(rows: Sequence[Row], by: str, all_peers: bool) -> tuple[dict[str, Points], dict[str, str]]:
    """(series, like): ms of processor time a question by op and by "op: peer"; like[peer's name] = op."""
    key = AXES[by][0]
    ops: dict[str, dict[float, float]] = defaultdict(dict)
    peers: dict[str, dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        ops[row["op"]].setdefault(row[key], spent(row, "") / row["B"])
        if row["peer"] and row["peer_ms"]:
            peers[row["op"]][row["peer"]].setdefault(row[key], spent(row, "peer_") / row["B"])
    series: dict[str, Points] = {}
    like: dict[str, str] = {}
    for op, points in ops.items():
        series[op] = sorted(points.items())
        for peer in peers[op] if all_peers else fastest(peers[op]):
            series[f"{op}: {peer}"] = sorted(peers[op][peer].items())
            like[f"{op}: {peer}"] = op
    return series, like


def spent(row: Row, whose: str) -> float:
    """Processor time; on a GPU, where there is none, the clock's."""
    return float(row[f"{whose}cpu_ms"] or row[f"{whose}ms"])


def fastest(peers: dict[str, dict[float, float]]) -> list[str]:
    """The peer with the most points, of these the one that is fastest at the last of them; none without peers."""
    return sorted(peers, key=lambda name: (-len(peers[name]), peers[name][max(peers[name])], name))[:1]


def main() -> None:
    """Reads, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--by", choices=AXES, required=True)
    parser.add_argument("--ops", default="")
    parser.add_argument("--at", type=int, default=64)
    parser.add_argument("--size", type=int)
    parser.add_argument("--damping", type=float, default=0.85)
    parser.add_argument("--all-peers", action="store_true")
    options = parser.parse_args()
    wanted = [op for op in options.ops.split(",") if op]
    rows = chosen(read_rows(options.files), options.by, wanted, options.at, options.size, options.damping)
    series, like = lines_of(rows, options.by, options.all_peers)
    where = f"n = {options.size:,}" if options.size else ""
    title = ", ".join(part for part in ("" if options.by == "batch" else f"B = {options.at}", where) if part)
    drawn = curves_svg(title or "all sizes", AXES[options.by][1], "ms of processor time a question", series, like=like)
    options.out.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
