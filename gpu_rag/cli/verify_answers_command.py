"""The command `gpu-rag verify-answers`: compare every answer with the index, the replies and the corpus."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_list, say

HELP = "Check answers offline: quotations, offsets, paths, marks and status against the index, answers against replies."
EXAMPLE = "gpu-rag verify-answers answers.jsonl my-index --corpus corpus.jsonl"
MAX_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("answers", type=Path, metavar="ANSWERS.jsonl", help="a file made by gpu-rag answer")
    parser.add_argument("index", type=Path, metavar="DIR", help="the index of these answers")
    add_list(parser, "--corpus", "PATH", "compare quotations with the corpus too: the paths given to gpu-rag index")


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Check everything. Exit status 1 names each row and the difference."""
    from gpu_rag import verify_answers

    checked = verify_answers(options.answers, options.index, corpus=options.corpus)
    differences, checker = checked.differences, checked.checker
    for difference in differences[:MAX_SHOWN]:
        say(f"gpu-rag: differs: {difference.id}: {difference.where}: {difference.what}")
    if len(differences) > MAX_SHOWN:
        say(f"gpu-rag: {len(differences) - MAX_SHOWN:,} more differences; --json lists all")
    if checked.same_index is False:
        say("the answers were made with another state of this index")
    document = {
        "ok": not differences,
        "rows": checker.n_rows,
        "evidence": checker.n_evidence,
        "edges": checker.n_edges,
        "unchecked": checker.n_unchecked,
        "without_digest": checker.n_without_digest,
        "differences": [dict(vars(difference)) for difference in differences],
        "same_index": checked.same_index,
        "answers": str(options.answers),
        "index": str(options.index),
        "corpus": [str(path) for path in options.corpus],
    }
    against = f"{options.index} and the corpus" if options.corpus else str(options.index)
    counts = f"{checker.n_rows:,} rows, {checker.n_evidence:,} quotations, {checker.n_edges:,} edges"
    summary = f"{options.answers}: {counts}, all as in {against}"
    if checker.n_unchecked:
        summary += f"; {checker.n_unchecked:,} answers are unchecked: their replies are not beside the file"
    if checker.n_without_digest:
        summary += f"; {checker.n_without_digest:,} rows have no digest"
    return int(bool(differences)), document, "" if differences else summary
