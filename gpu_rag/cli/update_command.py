"""The command `gpu-rag update`: read the sources of an index again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.change_report import add_options, change
from gpu_rag.cli.options import add_index

HELP = "Read the sources of an index again: new, changed and missing files."
EXAMPLE = "gpu-rag update my-index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    words = "a further source, or the new place of a source of this name"
    parser.add_argument("sources", nargs="*", type=Path, metavar="SOURCE", help=words)
    add_options(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Update and report."""
    from gpu_rag import update

    return change(options, lambda **given: update(options.index, options.sources, **given))
