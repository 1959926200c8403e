"""gpu-rag tune: weights of `fused`, the method for `auto`, examples of `hybgrag`, from questions of one's own."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.eval_command import RANKS_AS
from gpu_rag.cli.options import add_index, add_limit, add_settings, names, settings_of, table
from gpu_rag.errors import UsageError

if TYPE_CHECKING:
    from gpu_rag import Index
    from gpu_rag.sources.questions import QuestionRow

HELP = "Fit fused to questions with gold, find the best method for auto, or collect examples for hybgrag."
EXAMPLE = "gpu-rag tune my-index questions.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_index(parser)
    words = "at least 50 with gold_ids; for hybgrag 20 with answer_ids"
    parser.add_argument("questions", type=Path, metavar="QUESTIONS", help=words)
    words = "auto (default): weights, and the best method; fused: weights alone; hybgrag: examples for its prompts"
    parser.add_argument("--method", choices=["auto", "fused", "hybgrag"], default="auto", help=words)
    words = "methods that auto may be, beside fused (default: all that the index serves)"
    parser.add_argument("--among", metavar="M[,M...]", help=words)
    add_limit(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Fits, judges and keeps."""
    from gpu_rag import Index, load_questions
    from gpu_rag.evaluation.tune import tune
    from gpu_rag.index.tuned import keep
    from gpu_rag.methods.registry import check_stages, lacks, method_names, needs

    rows, rejects = load_questions(options.questions, options.limit)
    index = Index.open(options.index)
    if options.method == "hybgrag":
        return _examples(options, index, rows, len(rejects))
    able = [name for name in method_names() if not lacks(name, index.stages) and "kb" not in needs(name)]
    able = [name for name in able if name not in ("fused", "auto", *RANKS_AS)]
    methods = ["ppr"] if options.method == "fused" else names(options.among) if options.among else able
    for method in ("fused", *methods):
        check_stages(method, index.stages, str(index.path), index.manifest.sources)
    engine = index.engine(settings_of(options, index.manifest.defaults()))
    with closing(engine.models):
        found = tune(engine, rows, methods)
    auto = {"auto": {"method": found.method}} if options.method == "auto" else {}
    path = keep(index.path, fused={",".join(found.document["lists"]): found.weights}, **auto)
    document = {**found.document, "rejects": len(rejects), "out": str(path)}
    if not auto:
        document.update(method=None)
    return 0, document, _text(document)


def _examples(options: argparse.Namespace, index: Index, rows: list[QuestionRow], rejects: int) -> Any:
    from gpu_rag.evaluation.tune_kb import collect
    from gpu_rag.index.tuned import keep
    from gpu_rag.methods.registry import check_stages

    if options.among:
        raise UsageError("--among is of the method for auto", given="--method hybgrag", do="leave --among out")
    check_stages("hybgrag", index.stages, str(index.path), index.manifest.sources)
    engine = index.engine(settings_of(options, index.manifest.defaults()))
    with closing(engine.models):
        found = collect(engine, rows)
    path = None if found.examples is None else str(keep(index.path, hybgrag=found.examples))
    document = {**found.document, "rejects": rejects, "out": path}
    gain = document["gain"]
    lines = [[name, *(f"{document[when][name]:.3f}" for when in ("before", "after"))] for name in gain]
    for line, pair in zip(lines, gain.values()):
        line.append(f"{pair['diff']:+.3f} [{pair['low']:+.3f}, {pair['high']:+.3f}]")
    counts = ", ".join(f"{n} {name}" for name, n in document["collected"].items())
    text = [
        f"{document['n']} questions: {counts}; judged on {document['judged']}, by examples of the others",
        table(lines, ["measure", "without", "with examples", "difference, 95 % interval"]),
        f"kept in {path}" if path else "no examples are kept: answers are no better with them",
    ]
    return 0, document, "\n\n".join(text)


def _text(document: dict[str, Any]) -> str:
    measures = list(document["recall"]["fused"])
    rows = [[name, *(f"{found[m]:.3f}" for m in measures)] for name, found in document["recall"].items()]
    pairs = [
        [f"{name} - ppr", *(f"{pair['diff']:+.3f} [{pair['low']:+.3f}, {pair['high']:+.3f}]" for pair in gain.values())]
        for name, gain in document["gain"].items()
    ]
    at_5 = document["gain"]["fused"]["recall@5"]
    lines = [
        f"{document['n']} questions; fused and auto are cross-validated",
        table(rows, ["method", *measures]),
        table(pairs, ["difference, 95 % interval", *measures]),
        "fused: the weights of the package fit best and stay"
        if not document["changed"]
        else "fused: weights of these questions",
    ]
    if at_5["low"] <= 0:
        lines.append("no gain of fused over ppr can be shown on these questions")
    if document["method"]:
        lines.append(f"auto: {document['method']}")
    return "\n\n".join([*lines[:3], "\n".join([*lines[3:], f"kept in {document['out']}"])])
