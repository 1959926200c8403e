"""The command `gpu-rag tune`: let a method learn from your own questions; the result is kept in the index."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_index, add_limit, add_settings, names, settings_of, table

HELP = "Let a method learn from questions with gold: weights, the best method for an index, or examples for prompts."
EXAMPLE = "gpu-rag tune my-index questions.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    from gpu_rag.methods.registry import named_hooks

    able = [*named_hooks("tune")]
    add_index(parser)
    words = "at least 50 with gold_ids; for a method over a knowledge base 20 with answer_ids"
    parser.add_argument("questions", type=Path, metavar="QUESTIONS", help=words)
    words = f"the method that learns: {', '.join(able)} (default {able[0] if able else 'none'})"
    parser.add_argument("--method", choices=able, default=able[0] if able else None, help=words)
    words = "methods to choose among, where the choice is learnt (default: all that the index serves)"
    parser.add_argument("--among", metavar="M[,M...]", help=words)
    add_limit(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Learn, score the result, and keep it."""
    from gpu_rag import Index, load_questions
    from gpu_rag.index.tuned import keep
    from gpu_rag.methods.registry import check_stages, named_hooks

    rows, rejects = load_questions(options.questions, options.limit)
    index = Index.open(options.index)
    among = names(options.among) if options.among else None
    for method in (options.method, *(among or ())):
        check_stages(method, index.stages, str(index.path), index.manifest.sources)
    engine = index.engine(settings_of(options, index.manifest.defaults()))
    with closing(engine.models):
        learnt = named_hooks("tune")[options.method]()(engine, rows, among)
    path = str(keep(index.path, **learnt.kept)) if learnt.kept else None
    document = {**learnt.document, "rejects": len(rejects), "out": path}
    shown = [part if isinstance(part, str) else table(*part) for part in learnt.shown]
    return 0, document, "\n\n".join([*shown, *([f"kept in {path}"] if path else [])])
