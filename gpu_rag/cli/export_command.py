"""The command `gpu-rag export`: the index as files that other programs read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_index, say

HELP = "Export an index as Parquet tables, one GraphML graph, or one graph for PyG."
EXAMPLE = "gpu-rag export my-index --format graphml --out graph.graphml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    formats, words = ["parquet", "graphml", "pyg"], "parquet, pyg: a folder; graphml: a file"
    parser.add_argument("--format", required=True, choices=formats, help=words)
    parser.add_argument("--out", required=True, type=Path, metavar="PATH", help="where to write; must not exist")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Export the index, and list the files."""
    from gpu_rag import Index

    index = Index.open(options.index)
    written = index.export(options.format, options.out)
    if options.format == "pyg" and "kb" in index.stages:
        say("gpu-rag: the knowledge base is not in the graph for PyG; --format parquet and graphml have it")
    document = {"format": options.format, "files": [{"path": str(p), "bytes": p.stat().st_size} for p in written]}
    return 0, document, "\n".join(map(str, written))
