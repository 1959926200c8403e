"""The command `gpu-rag remove`: remove documents from an index, and write a receipt."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.change_report import add_options, change
from gpu_rag.cli.options import add_index, add_list, add_where

HELP = "Remove documents from an index: no byte of its folder keeps their texts, and a receipt shows it."
EXAMPLE = "gpu-rag remove my-index --doc report.pdf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    add_list(parser, "--doc", "ID", "a document by its id", dest="documents", type=str)
    add_list(parser, "--file", "F", "a file or folder of the corpus", dest="files")
    add_list(parser, "--source", "NAME", "a named source", dest="named", type=str)
    add_where(parser)
    parser.add_argument("--forget", action="store_true", help="erase their vectors from this machine's cache too")
    words = "write the receipt here (default: a file in DIR/receipts)"
    parser.add_argument("--receipt", type=Path, metavar="FILE", help=words)
    add_options(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Remove and report."""
    from gpu_rag import remove

    names = ("documents", "files", "named", "forget", "receipt")
    chosen = {name: getattr(options, name) for name in names} | {"where": options.where or ""}
    return change(options, lambda **given: remove(options.index, **chosen, **given))
