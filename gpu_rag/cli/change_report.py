"""Options and report that the commands add, update and remove share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.index_command import build_document, build_status, kinds_of_rejects, removed_line
from gpu_rag.cli.options import add_limits, add_progress, add_settings, api_key, settings_of
from gpu_rag.cli.progress import Bars
from gpu_rag.cli.terminal import on_one_line

if TYPE_CHECKING:
    from gpu_rag import Change

MAX_IDS = 5  # of copies, that are shown


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --max-failures, --json-progress, --profile and --set."""
    add_limits(parser, "0")
    add_progress(parser)
    add_settings(parser)


def change(options: argparse.Namespace, make: Callable[..., Change]) -> tuple[int, dict[str, Any], str]:
    """Make a change with the settings of the command, and report it."""
    from gpu_rag.index.manifest import mend_manifest
    from gpu_rag.index.saved_settings import saved_settings
    from gpu_rag.index.stages.rejected import read_rejects

    mend_manifest(options.index)  # before its settings are read
    settings = settings_of(options, saved_settings(options.index))
    rejects = options.index / "rejects.jsonl"
    before = set(map(hash, read_rejects(rejects))) if rejects.exists() else set()
    with Bars(options.json_progress) as bars:
        made = make(settings=settings, api_key=api_key(settings), progress=bars)
    report = made.index.report
    assert report is not None
    built, n_made = build_document(report), sum(not stage.skipped for stage in report.stages.values())
    document = {name: getattr(made, name) for name in ("added", "changed", "removed", "copies")}
    document |= {name: built[name] for name in ("documents", "passages", "rejects", "extraction", "fallbacks")}
    document |= {"receipt": made.receipt and str(made.receipt), "stages_made": n_made}
    document |= {"wall_s": report.wall_s, "out": str(report.out)}
    lines = [
        f"{made.added:,} documents added, {made.changed:,} changed, {made.removed:,} removed; "
        f"{document['documents']:,} documents, {document['passages']:,} passages, {document['rejects']:,} rejects",
        f"index: {report.out} ({report.wall_s:.1f} s; {n_made} of {len(report.stages)} stages made again)",
    ]
    if made.copies:
        ids = f"{', '.join(made.copy_ids[:MAX_IDS])}{', ...' * (made.copies > MAX_IDS)}"
        lines.append(
            on_one_line(f"still in the index, from another file or with the same text: {made.copies:,} ({ids})")
        )
    if new := [reject for reject in read_rejects(rejects) if hash(reject) not in before]:
        lines += [f"new rejects: {len(new):,}; all in {rejects}", *kinds_of_rejects(new)]
    lines += [f"receipt: {made.receipt}"] if made.receipt else removed_line(report.out)
    return build_status(options, report, built), document, "\n".join(lines)
