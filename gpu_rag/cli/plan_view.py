"""The option --plan of `index`: a plan as text, and afterwards predicted against actual."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from gpu_rag.cli.options import add_count, table
from gpu_rag.errors import UsageError

TOKENS = ("llm_calls", "prompt_tokens", "generated_tokens")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add --plan and --plan-sample."""
    words = "predict tokens, time, memory and disk from a sample of passages and stop"
    parser.add_argument("--plan", action="store_true", help=words)
    add_count(parser, "--plan-sample", "passages", "passages in the sample of --plan (default at most 2048)")


def check_plan(options: argparse.Namespace) -> None:
    """Raise UsageError for options that would have no effect with, or without, --plan."""
    if options.plan_sample and not options.plan:
        raise UsageError("--plan-sample is for --plan", given=options.plan_sample, do="add --plan, or leave it out")


def index_plan_text(document: Mapping[str, Any]) -> str:
    """The plan of a build as text."""
    rows = []
    for name, stage in document["stages"].items():
        seconds = "up to date" if stage["skipped"] else f"{stage['s']:,.1f}"
        bytes_ = (_mib(stage[key]) for key in ("peak_memory_bytes", "disk_bytes"))
        rows.append([name, seconds, *bytes_, *(f"{stage[key]:,}" for key in TOKENS), stage["grows_with"]])
    counts = ", ".join(f"{document[name]:,} {name}" for name in ("documents", "passages", "characters", "rejects"))
    n = document["extracted"]
    extracted = "" if n in (None, document["passages"]) else f"; {n:,} passages are extracted from"
    known = {name: document[name] for name in ("entities", "relations", "mentions") if document[name] is not None}
    tokens = f"{document['prompt_tokens']:,} prompt and {document['generated_tokens']:,} generated tokens"
    return "\n".join(
        [
            table(rows, ["stage", "s", "peak MiB", "disk MiB", "LLM calls", "prompt", "generated", "grows with"]),
            f"counted: {counts}{extracted}",
            *(f"predicted: {_counts(sizes)}" for sizes in (known, document["kb"]) if sizes),
            f"predicted: {document['wall_s']:,.0f} s, {tokens}, {_mib(document['peak_memory_bytes'])} MiB of memory, "
            f"{_mib(document['disk_bytes'])} MiB of disk and {_mib(document['work_bytes'])} more while it runs",
            *(f"- {note}" for note in document["notes"]),
            f"plan: {document['out']}/plan.json ({document['plan_s']:.1f} s)",
        ]
    )


def _counts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sizes.items())


def comparison(plan: Mapping[str, Any]) -> str:
    """The table of a build that was planned."""
    from gpu_rag.report.runs import PLAN_HEADER, plan_rows

    return "\n".join(["predicted against actual", table(plan_rows(plan), PLAN_HEADER)])


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.1f}" if n_bytes < 2**24 else f"{n_bytes / 2**20:,.0f}"
