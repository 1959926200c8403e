"""gpu-rag eval: methods side by side on questions with known answers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import (
    add_limit,
    add_max_failures,
    add_settings,
    api_key,
    exceeds,
    names,
    numbers,
    say,
    settings_of,
    table,
)
from gpu_rag.cli.progress import Bars
from gpu_rag.report.accounts import graph_ops_line, joined_ops

HELP = "Score methods on questions with gold passages or answers, with bootstrap intervals."
RANKS_AS = {"dual-agent": "hybrid", "higra-agent": "higra-retriever"}  # where no dialogue is held
EXAMPLE = "gpu-rag eval my-index questions.jsonl --method dense,bm25,hybrid,ppr --retrieval-only"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("index", type=Path, metavar="DIR", help="the index folder")
    parser.add_argument(
        "questions", type=Path, metavar="QUESTIONS", help="questions with gold_ids, answers or answer_ids"
    )
    parser.add_argument("--method", default="dense,bm25,hybrid,ppr", metavar="M[,M...]", help="methods to compare")
    parser.add_argument("--retrieval-only", action="store_true", help="no language model: em and f1 are null")
    add_limit(parser)
    parser.add_argument("--at", default="2,5,10", metavar="K,...", help="cut-offs of recall (default 2,5,10)")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write tables and plots as one HTML file")
    add_max_failures(parser, "5%")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Runs every method on every question and scores it."""
    from gpu_rag.api import Index, load_questions
    from gpu_rag.catalog import check_layers, check_passages
    from gpu_rag.evaluation.compare import compare

    rows, rejects = load_questions(options.questions, options.limit)
    at, methods = numbers(options.at), names(options.method)
    index = Index.open(options.index)
    settings = settings_of(options, index.manifest.settings)
    for method in methods:  # all of them before the first one runs
        check_layers(method, index.layers, str(index.path))
        check_passages(method, index.n_passages, str(index.path))
    if options.retrieval_only and (same := [f"{m} ranks as {RANKS_AS[m]}" for m in methods if m in RANKS_AS]):
        say(f"gpu-rag: --retrieval-only leaves out the dialogue: {', '.join(same)}")
    engine = index.engine(settings, api_key=api_key())
    try:
        with Bars() as bars:

            def on_answer(method: str, answer: Any) -> None:
                bars.start(method, len(rows), "questions")
                bars.advance(1)

            engine.on_reply = bars.count_reply

            comparison = compare(
                engine, methods, rows, retrieval_only=options.retrieval_only, at=at, on_answer=on_answer
            )
    finally:
        engine.models.close()
    document = comparison.document
    document["rejects"] = len(rejects)
    if options.report:
        from gpu_rag.report.evaluation import evaluation_page
        from gpu_rag.report.page import write

        document_of = dict(zip(index.passage_ids, index.passage_doc_ids))
        title = f"{options.questions.name} on {options.index.resolve().name}"
        write(options.report, evaluation_page(comparison, rows, document_of, title))
    if not options.json:
        print(score_tables(document, at, options.retrieval_only))
    failed = sum(entry["failed"] for entry in document["methods"].values()) + len(rejects)
    if exceeds(options.max_failures, failed, len(methods) * len(rows) + len(rejects)):
        say(f"gpu-rag: {failed} failures, above --max-failures {options.max_failures}")
        return 3, document
    return 0, document


def _cell(entry: dict[str, Any], name: str) -> str:
    value, ci = entry.get(name), entry["ci95"].get(name)
    if value is None:
        return "-"
    return f"{value:.3f} [{ci[0]:.3f}, {ci[1]:.3f}]" if ci else f"{value:.3f}"


def score_tables(document: dict[str, Any], at: list[int], retrieval_only: bool) -> str:
    """The scores, their paired differences and what ran the graph ops, as text."""
    from gpu_rag.report.evaluation import shown_pairs

    methods = document["methods"]
    named = [*(f"recall@{k}" for k in at), "hit@1", "hit@5", "recall@20", "mrr", "hits@1", "answer_on_path"]
    named += ["answer_on_path_pruned", *([] if retrieval_only else ["em", "f1"])]
    held = [name for name in dict.fromkeys(named) if any(e.get(name) is not None for e in methods.values())]
    measures = held or [f"recall@{k}" for k in at]
    scores = [
        [m, *(_cell(e, name) for name in measures), str(e["failed"]), f"{e['wall_s']:.2f}"] for m, e in methods.items()
    ]
    parts = [
        f"{document['n']} questions; mean and 95 % bootstrap interval",
        table(scores, ["method", *measures, "failed", "wall s"]),
    ]
    if document["paired"]:
        rows = []
        pairs, which = shown_pairs(document)
        for pair in pairs:
            cells = [document["paired"][pair].get(name) for name in measures]
            rows.append([pair, *(f"{c['diff']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}]" if c else "-" for c in cells)])
        parts += [f"paired differences{which}", table(rows, ["methods", *measures])]
    parts.append(f"graph ops: {graph_ops_line(joined_ops(entry['graph_ops'] for entry in methods.values()))}")
    return "\n\n".join(parts)
