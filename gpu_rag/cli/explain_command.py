"""gpu-rag explain: the decisions, paths and evidence of one answer, in words."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "Explain one answer of an answers file."
EXAMPLE = "gpu-rag explain answers.jsonl q07"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("answers", type=Path, metavar="ANSWERS.jsonl", help="a file made by gpu-rag answer")
    parser.add_argument("id", metavar="ID", help="the question's id")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Finds the row and prints it."""
    from gpu_rag.cli.story import story
    from gpu_rag.errors import BadInput
    from gpu_rag.jobs import read_rows

    known = []
    for row in read_rows(options.answers):
        if row["id"] == options.id:
            if not options.json:
                print(story(row))
            return 0, row
        known.append(row["id"])
    raise BadInput(
        "no answer has this id", given=options.id, expected=f"one of {', '.join(known[:5])} ... ({len(known)} rows)"
    )
