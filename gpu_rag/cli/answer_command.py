"""The command `gpu-rag answer`: answer a file of questions. A job that was killed can be continued."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import (
    add_index,
    add_limit,
    add_limits,
    add_method,
    add_progress,
    add_settings,
    add_where,
    api_key,
    exit_status,
    say,
    say_method,
    settings_of,
)
from gpu_rag.cli.progress import Bars
from gpu_rag.jobs import STATUSES
from gpu_rag.methods.registry import DEFAULT
from gpu_rag.report.accounts import fallbacks_line, graph_ops_line, idle_line, rerank_lines, server_lines

HELP = "Answer a file of questions; running it again continues where it stopped."
EXAMPLE = f"gpu-rag answer my-index questions.jsonl --method {DEFAULT} --out answers.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    words = ".jsonl {id, question}, .txt, .csv, an OpenAI batch file, or a benchmark's; gold in it reaches no method"
    parser.add_argument("questions", type=Path, metavar="QUESTIONS", help=words)
    add_method(parser)
    words = "one durable row a question, in the style of QUESTIONS"
    parser.add_argument("--out", required=True, type=Path, metavar="ANSWERS.jsonl", help=words)
    parser.add_argument("--driver", choices=["rounds", "streaming"], help="how questions are driven (default rounds)")
    words = "ask questions again that were set aside because the process died over them"
    parser.add_argument("--retry-set-aside", action="store_true", help=words)
    words = "answer questions again where a reply of the model could not be read"
    parser.add_argument("--retry-unread", action="store_true", help=words)
    add_where(parser)
    add_limit(parser)
    add_limits(parser, "5%")
    add_progress(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Answer the questions that have no answer yet. Returns (exit status, document, summary)."""
    from gpu_rag import Index
    from gpu_rag.sources.questions import n_questions_lost

    index = Index.open(options.index)
    flags = {"runtime": {"driver": options.driver}} if options.driver else {}
    settings = settings_of(options, index.manifest.defaults(), flags)
    given = {"method": options.method, "where": options.where or "", "limit": options.limit, "settings": settings}
    given["api_key"] = api_key(settings)
    given |= {"retry_set_aside": options.retry_set_aside, "retry_unread": options.retry_unread}
    with Bars(options.json_progress) as bars:
        job = index.answer_file(options.questions, options.out, progress=bars, **given)
    say(*job.notes)
    document = job.document
    say_method(options.method, document["method"])
    n_rejected = n_questions_lost(job.rejects)
    n_lost, words = document["failed"] + n_rejected, f"{document['failed']} questions failed, {n_rejected} rejected"
    losses = [(n_lost, document["n"] + n_rejected, words)]
    fallbacks = [(document["fallbacks"], document["usage"]["replies_read"])]
    return exit_status(options, losses, fallbacks), document, _summary(document)


def _summary(document: dict[str, Any]) -> str:
    usage = document["usage"]
    return "\n".join(
        [
            f"{document['n']} questions: {', '.join(f'{document[status]} {status}' for status in STATUSES)} "
            f"({document['kept']} from an earlier run)",
            f"LLM: {usage['llm_calls']:,} calls, {usage['prompt_tokens']:,} prompt tokens "
            f"({usage['cached_tokens']:,} cached), {usage['generated_tokens']:,} generated; "
            f"{usage['malformed']} replies malformed, {usage['cut']:,} evidence tokens cut",
            fallbacks_line(document["fallbacks"], usage["replies_read"]),
            f"seconds: LLM {usage['llm_s']:.1f}, embedding {usage['embed_s']:.1f}, graph {usage['graph_s']:.1f}, "
            f"wall {document['wall_s']:.1f}",
            *rerank_lines(document),
            idle_line(document["llm"]),
            f"graph ops: {graph_ops_line(document['graph_ops'])}",
            *server_lines(document),
            f"answers: {document['out']}",
        ]
    )
