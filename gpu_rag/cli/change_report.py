"""Options and report that the commands add, update and remove share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.index_command import build_document, build_status
from gpu_rag.cli.options import add_limits, add_progress, add_settings, api_key, settings_of
from gpu_rag.cli.progress import Bars

if TYPE_CHECKING:
    from gpu_rag import Change


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --max-failures, --json-progress, --profile and --set."""
    add_limits(parser, "0")
    add_progress(parser)
    add_settings(parser)


def change(options: argparse.Namespace, make: Callable[..., Change]) -> tuple[int, dict[str, Any], str]:
    """Make a change with the settings of the command, and report it."""
    from gpu_rag.index.manifest import mend_manifest
    from gpu_rag.index.saved_settings import saved_settings

    mend_manifest(options.index)  # before its settings are read
    settings = settings_of(options, saved_settings(options.index))
    with Bars(options.json_progress) as bars:
        made = make(settings=settings, api_key=api_key(settings), progress=bars)
    report = made.index.report
    assert report is not None
    counts = {"added": made.added, "changed": made.changed, "removed": made.removed, "copies": made.copies}
    document = build_document(report) | counts | {"receipt": made.receipt and str(made.receipt)}
    n_made = sum(not stage.skipped for stage in report.stages.values())
    lines = [
        f"{made.added:,} documents added, {made.changed:,} changed, {made.removed:,} removed; "
        f"{document['documents']:,} documents, {document['passages']:,} passages, {document['rejects']:,} rejects",
        f"index: {report.out} ({report.wall_s:.1f} s; {n_made} of {len(report.stages)} stages made anew)",
    ]
    lines += [f"in another file too, and read from it now: {made.copies:,} documents"] if made.copies else []
    lines += [f"receipt: {made.receipt}"] if made.receipt else []
    return build_status(options, report, document), document, "\n".join(lines)
