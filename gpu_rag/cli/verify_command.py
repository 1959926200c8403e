"""gpu-rag verify: is this index whole and sound?"""

from __future__ import annotations

import argparse
from typing import Any

from gpu_rag.cli.options import add_index, say

HELP = "Check an index: checksums, tables against each other, graph invariants."
EXAMPLE = "gpu-rag verify my-index --digest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_index(parser)
    parser.add_argument("--digest", action="store_true", help="print a hash: equal for equal inputs, settings, replies")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Checks everything; exit status 1 names what is broken."""
    from gpu_rag.errors import IndexCorrupt
    from gpu_rag.index.manifest import Manifest
    from gpu_rag.index.verify import unchecked, verify
    from gpu_rag.methods.registry import stage_checks

    digest: str | None = None
    try:
        digest = Manifest.read(options.index).digest()
        checks = stage_checks()
        broken = verify(options.index, checks)
        if unknown := unchecked(options.index, checks):
            say(f"gpu-rag: note: no installed method checks {', '.join(unknown)}: their checksums were verified")
    except IndexCorrupt as error:  # where there is no index, or one of another version, nothing is broken
        broken = [str(error)]
    for line in broken:
        say(f"gpu-rag: broken: {line}")
    document = {"ok": not broken, "broken": broken, "digest": digest, "index": str(options.index)}
    text = str(digest) if options.digest else f"{options.index}: sound"
    return int(bool(broken)), document, "" if broken else text
