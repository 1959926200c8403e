"""The command `gpu-rag add`: add files, or documents from standard input, to an index."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_rag.cli.change_report import add_options, change
from gpu_rag.cli.options import add_index
from gpu_rag.errors import BadInput
from gpu_rag.sources.rows import RowError, decode_utf8
from gpu_rag.text.strict_json import JsonError, loads

HELP = "Add files to an index; documents removed from these files come back."
WORDS = "file or folder, as for index; -: JSON Lines of {id, text} from standard input, which the index keeps"
EXAMPLE = "gpu-rag add my-index report.pdf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=WORDS)
    add_options(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Add and report."""
    from gpu_rag import add

    corpus: Any = options.files
    if options.files == [Path("-")]:
        corpus = _documents(sys.stdin.buffer)
    return change(options, lambda **given: add(options.index, corpus, **given))


def _documents(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The documents of JSON Lines. Raises BadInput, which names the line."""
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = loads(decode_utf8(line))
        except (JsonError, RowError) as error:
            raise BadInput("a line is not JSON", given=f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise BadInput("a line is not a document", given=f"line {number}", expected='{"id": ..., "text": ...}')
        rows.append(row)
    return rows
