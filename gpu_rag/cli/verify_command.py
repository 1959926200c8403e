"""The command `gpu-rag verify`: check that an index is whole and sound."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_index, names, say

HELP = "Check an index: checksums, tables against each other, graph invariants."
EXAMPLE = "gpu-rag verify my-index --digest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    words = "check too that the index has the stages of these methods; all: of every method"
    parser.add_argument("--for", dest="methods", metavar="METHOD,...", help=words)
    words = "check too that the index lacks all that this receipt of gpu-rag remove lists"
    parser.add_argument("--receipt", type=Path, metavar="FILE", help=words)
    parser.add_argument("--digest", action="store_true", help="print a hash: equal for equal inputs, settings, replies")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Check everything. Exit status 1 names the broken parts."""
    from gpu_rag import verify

    methods = None if options.methods is None else names(options.methods)
    checked = verify(options.index, methods=methods, receipt=options.receipt)
    if checked.unchecked:
        say(f"gpu-rag: note: no installed method checks {', '.join(checked.unchecked)}: their checksums were verified")
    for line in checked.broken:
        say(f"gpu-rag: broken: {line}")
    document = {"ok": checked.ok, "broken": checked.broken, "digest": checked.digest, "index": str(options.index)}
    receipt = f"; nothing that {options.receipt} lists is in it" if options.receipt else ""
    text = str(checked.digest) if options.digest else f"{options.index}: sound{receipt}"
    return int(not checked.ok), document, text if checked.ok else ""
