"""The command `gpu-rag add`: add files to an index."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.change_report import add_options, change
from gpu_rag.cli.options import add_index

HELP = "Add files to an index; what was removed from these files comes back."
EXAMPLE = "gpu-rag add my-index report.pdf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file or folder, as for index")
    add_options(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Add and report."""
    from gpu_rag import add

    return change(options, lambda **given: add(options.index, options.files, **given))
