"""gpu-rag verify: is this index whole and sound?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_index, names, say

HELP = "Check an index: checksums, tables against each other, graph invariants."
EXAMPLE = "gpu-rag verify my-index --digest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_index(parser)
    words = "check too that the index has what these methods, or all, need"
    parser.add_argument("--for", dest="methods", metavar="METHOD,...", help=words)
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
        if options.methods is not None:
            broken.extend(_lacking(options.index, names(options.methods)))
        if unknown := unchecked(options.index, checks):
            say(f"gpu-rag: note: no installed method checks {', '.join(unknown)}: their checksums were verified")
    except IndexCorrupt as error:  # where there is no index, or one of another version, nothing is broken
        broken = [str(error)]
    for line in broken:
        say(f"gpu-rag: broken: {line}")
    document = {"ok": not broken, "broken": broken, "digest": digest, "index": str(options.index)}
    text = str(digest) if options.digest else f"{options.index}: sound"
    return int(bool(broken)), document, "" if broken else text


def _lacking(folder: Path, methods: list[str]) -> Iterator[str]:
    """What the index lacks of each method's stages. Raises UsageError for an unknown method."""
    from gpu_rag.errors import MissingLayer
    from gpu_rag.index.manifest import Manifest
    from gpu_rag.methods.registry import ALL, check_stages, methods_over

    manifest = Manifest.read(folder)
    over = methods_over(bool(manifest.sources.get("corpus")))
    for method in (name for given in methods for name in (over if given == ALL else [given])):
        try:
            check_stages(method, tuple(manifest.stages), str(folder), manifest.sources)
        except MissingLayer as error:
            yield str(error)
