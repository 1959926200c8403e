"""The command `gpu-rag explain`: the decisions, paths and evidence of one answer, in words."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput

HELP = "Explain one answer of an answers file."
EXAMPLE = "gpu-rag explain answers.jsonl q07 --index my-index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("answers", type=Path, metavar="ANSWERS.jsonl", help="a file made by gpu-rag answer")
    parser.add_argument("id", metavar="ID", help="the question's id")
    words = "look files, pages and lines up in this index, not in the row"
    parser.add_argument("--index", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Find the row, and put it in words."""
    from gpu_rag.cli.trace_text import trace_text
    from gpu_rag.jobs import read_rows

    known = []
    for row in read_rows(options.answers):
        if row["id"] == options.id:
            if options.index:
                _look_up(row, options.index)
            return 0, row, trace_text(row)
        known.append(row["id"])
    expected = f"one of {', '.join(known[:5])} ... ({len(known)} rows)"
    raise BadInput("no answer has this id", given=options.id, expected=expected)


def _look_up(row: dict[str, Any], folder: Path) -> None:
    """Fill in the place of each passage in the index. Raises BadInput for one that the index lacks or has changed."""
    from gpu_rag.index.index import Index

    index = Index.open(folder)
    for item in row["evidence"]:
        number = index.rows_of_passages.get(item["passage_id"])
        if number is None or index.passage_rows([number])[0]["text"] != item["text"]:
            raise BadInput(
                "the answer quotes texts that this index lacks",
                given=f"passage {item['passage_id']} and {folder}",
                expected="the index that the answer was made with",
                do="leave --index out, or run gpu-rag verify-answers",
            )
        item["file"], item["place"] = index.places([number])[0]
