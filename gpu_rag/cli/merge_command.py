"""The command `gpu-rag merge`: one index of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.change_report import add_options
from gpu_rag.cli.index_command import report_build
from gpu_rag.cli.options import api_key, settings_of
from gpu_rag.cli.progress import Bars

HELP = "Merge indexes into one, equal to a build of all their sources."
EXAMPLE = "gpu-rag merge index-a index-b --out my-index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("indexes", nargs="+", type=Path, metavar="DIR", help="index folders, in any order")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to create")
    add_options(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Merge and report."""
    from gpu_rag import merge
    from gpu_rag.index.saved_settings import saved_settings

    settings = settings_of(options, saved_settings(options.indexes[0]))
    with Bars(options.json_progress) as bars:
        index = merge(options.indexes, options.out, settings=settings, api_key=api_key(settings), progress=bars)
    return report_build(options, index)
