"""The command `gpu-rag eval`: methods side by side on questions with known answers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import (
    add_index,
    add_limit,
    add_limits,
    add_progress,
    add_settings,
    add_where,
    api_key,
    exit_status,
    names,
    numbers,
    say,
    say_method,
    settings_of,
    table,
)
from gpu_rag.cli.progress import Bars
from gpu_rag.errors import UsageError
from gpu_rag.methods.registry import AUTO, marked, method_of
from gpu_rag.report.accounts import fallbacks_line, graph_ops_line, joined_ops, rerank_lines, server_lines

HELP = "Score methods on questions with gold passages or answers, with bootstrap intervals."
EXAMPLE = f"gpu-rag eval my-index questions.jsonl --method {','.join(marked('compared'))} --retrieval-only"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    parser.add_argument("questions", type=Path, metavar="QUESTIONS", help="with gold_ids, answers or answer_ids")
    words = "methods to compare; all: all that the index serves (default auto: what tune found, else the best)"
    parser.add_argument("--method", default=AUTO, metavar="M[,M...]", help=words)
    parser.add_argument("--retrieval-only", action="store_true", help="no reader: em and f1 are null")
    parser.add_argument("--judge", action="store_true", help="a model judges answers too (eval.judge, or models.llm)")
    words = "show at which stage gold passages are lost although an oracle makes all choices"
    parser.add_argument("--ceiling", action="store_true", help=words)
    words = "who decides: rule, model, or oracle:P[:DECISION], which knows the gold and is right with probability P"
    parser.add_argument("--decider", default="", metavar="D", help=words)
    words = "keep model replies, and never ask twice; without it, --report keeps verdicts beside its file"
    parser.add_argument("--replies", type=Path, metavar="FILE.sqlite", help=words)
    add_where(parser)
    add_limit(parser)
    parser.add_argument("--at", default="2,5,10", metavar="K,...", help="cut-offs of recall (default 2,5,10)")
    words = "write tables and plots as one HTML file"
    parser.add_argument("--report", type=Path, metavar="FILE.html", help=words)
    add_limits(parser, "5%")
    add_progress(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Run every method on every question, and score it."""
    from gpu_rag import Index, evaluate, load_questions
    from gpu_rag.engine import method_for, methods_for
    from gpu_rag.evaluation.judge import unread
    from gpu_rag.sources.questions import n_questions_lost

    if options.report and options.report.is_dir():
        raise UsageError("--report is a folder", given=options.report, expected="a file such as eval.html")
    rows, rejects = load_questions(options.questions, options.limit)
    at, index = numbers(options.at), Index.open(options.index)
    methods = methods_for(index, names(options.method))
    settings = settings_of(options, index.manifest.defaults())
    for method in methods:
        say_method(method, method_for(index, method))
    same = [f"{method} ranks as {other}" for method in methods if (other := method_of(method).ranks_as)]
    if options.retrieval_only and same:
        say(f"gpu-rag: --retrieval-only leaves out the dialogue: {', '.join(same)}")
    if not options.retrieval_only and settings.models.llm == "none" and any(row.answers for row in rows):
        say("gpu-rag: answers are not scored, since no model that can answer is set: --set models.llm=...")
    beside = options.report.with_name(options.report.name + ".replies.sqlite") if options.report else None
    if options.judge and not options.retrieval_only and options.replies is None and beside is None:
        say("gpu-rag: verdicts are not kept: another run asks again; --replies FILE or --report FILE.html keeps them")
    with Bars(options.json_progress) as bars:
        comparison = evaluate(
            index, rows, methods=methods, retrieval_only=options.retrieval_only, at=at, where=options.where or "",
            ceiling=options.ceiling, decider=options.decider, judge=options.judge, replies=options.replies,
            judge_replies=options.replies or beside, settings=settings, api_key=api_key(settings), progress=bars,
        )  # fmt: skip
    document = comparison.document
    document["rejects"] = len(rejects)
    if options.report:
        from gpu_rag.report.evaluation import evaluation_page
        from gpu_rag.report.page import write

        document_of = dict(zip(index.passage_ids, index.passage_doc_ids))
        title = f"{options.questions.name} on {options.index.resolve().name}"
        write(options.report, evaluation_page(comparison, rows, document_of, title))
    for doubt in document.get("judge", {"doubts": ()})["doubts"]:
        if document["judge"]["capable"]:
            say(f"gpu-rag: the verdicts of this judge are not to be trusted: {doubt}")
        elif options.json:  # the tables have it already
            say(f"gpu-rag: no judge: {doubt}")
    text = score_tables(document, at, options.retrieval_only)
    n_rejected = n_questions_lost(rejects)
    failed = sum(entry["failed"] for entry in document["methods"].values()) + n_rejected
    lost, n_judged = unread(document)
    losses = [
        (failed, len(methods) * len(rows) + n_rejected, f"{failed} failures"),
        (lost, n_judged, f"{lost} of {n_judged} answers have no verdict"),
    ]
    fallbacks = [(entry["fallbacks"], entry["replies_read"]) for entry in document["methods"].values()]
    return exit_status(options, losses, fallbacks), document, text


def score_tables(document: dict[str, Any], at: list[int], retrieval_only: bool) -> str:
    """The scores, their paired differences and the implementations of the graph ops, as text."""
    from gpu_rag.report.evaluation import difference_rows, score_rows

    methods = document["methods"]
    named = [
        *(f"recall@{k}" for k in at),
        f"whole@{at[len(at) // 2]}",
        "hit@1",
        "hit@5",
        "recall@20",
        "mrr",
        "hits@1",
        "answer_on_path",
    ]
    named += ["answer_on_path_pruned", *([] if retrieval_only else ["em", "f1", "truthful", "judge"])]
    measures = [name for name in dict.fromkeys(named) if any(e.get(name) is not None for e in methods.values())]
    is_scored, measures = bool(measures), measures or [f"recall@{k}" for k in at]
    ends = [[str(entry["failed"]), f"{entry['wall_s']:.2f}"] for entry in methods.values()]
    scores = [[*row, *end] for row, end in zip(score_rows(document, measures), ends)]
    parts = [
        f"{document['n']} questions; mean and 95 % bootstrap interval",
        table(scores, ["method", *measures, "failed", "wall s"]),
    ]
    if not is_scored:
        parts.append("nothing is scored: recall needs gold_ids; em and f1 need answers, and a model that can answer")
    if missed := document.get("gold_missed"):
        parts.append(
            f"gold that is no node, scored as missed: {missed['answers']} answers of {missed['questions']} questions"
        )
    if document["paired"]:
        rows, which = difference_rows(document, measures)
        parts += [f"paired differences{which}", table(rows, ["methods", *measures])]
    if "ceiling" in document:
        parts += ["ceiling: the share of gold that is left at each stage if an oracle makes all choices",
                  ceiling_table(document["ceiling"])]  # fmt: skip
    for name, entry in methods.items():
        if entry.get("by_rule"):
            parts.append(f"{name}: decisions without gold, taken by rule: {', '.join(entry['by_rule'])}")
        if shares := entry.get("choice_shares"):
            rows = [[choice, f"{n['n']:,}", *(f"{n[by]:.2f}" for by in CHOOSERS)] for choice, n in shares.items()]
            parts += [f"{name}: share of choices that lead to gold", table(rows, ["choice", "choices", *CHOOSERS])]
    if "judge" in document:
        parts.append(judge_line(document))
    for name, entry in methods.items():
        if entry["replies_read"]:
            parts.append(f"{name}, {fallbacks_line(entry['fallbacks'], entry['replies_read'])}")
        parts += rerank_lines(entry, f"{name}, ")
    parts.append(f"graph ops: {graph_ops_line(joined_ops(entry['graph_ops'] for entry in methods.values()))}")
    if lines := server_lines(document):
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


CHOOSERS = ("right", "rule", "chance")  # the model, the rule, and a random option


def ceiling_table(ceiling: dict[str, Any]) -> str:
    """The ceiling of each method, a column for each stage."""
    names = dict.fromkeys(["index", "graph", *(name for entry in ceiling.values() for name in entry)])
    columns = [name for name in names if name != "failed" or any(entry.get("failed") for entry in ceiling.values())]
    cells = {method: [entry.get(name) for name in columns] for method, entry in ceiling.items()}
    rows = [[m, *("-" if value is None else f"{value:.3f}" for value in row)] for m, row in cells.items()]
    return table(rows, ["method", *columns])


def judge_line(document: dict[str, Any]) -> str:
    """A line on the judge: its name, the answers settled without a call, its results on answers of known verdict."""
    from gpu_rag.evaluation.judge import KINDS

    judge, entries = document["judge"], document["methods"].values()
    if not judge["capable"]:
        return f"judge: none, {judge['doubts'][0]}"
    right = [f"{result['right']} of {result['n']} {KINDS[kind]}" for kind, result in judge["check"].items()]
    ruled = sum(entry["judge_exact"] + entry["judge_unanswered"] for entry in entries) / len(entries)
    lost = sum(entry["judge_malformed"] + entry["judge_failed"] for entry in entries)
    return (
        f"judge: {judge['model']}, right about {', '.join(right)}; {100 * ruled:.0f} % of the answers needed no judge, "
        f"{lost} got no verdict"
    )
