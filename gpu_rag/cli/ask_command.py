"""The command `gpu-rag ask`: one question, one answer with its evidence."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.options import (
    add_count,
    add_index,
    add_method,
    add_settings,
    add_where,
    api_key,
    say,
    say_method,
    settings_of,
)
from gpu_rag.cli.terminal import has_styles
from gpu_rag.methods.registry import DEFAULT

if TYPE_CHECKING:
    from rich.text import Text

HELP = "Ask one question."
EXAMPLE = f'gpu-rag ask my-index "Who taught the composer of the Eroica?" --method {DEFAULT} --explain'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    parser.add_argument("question", metavar="QUESTION", help="the question")
    add_method(parser)
    add_count(parser, "-k", "passages", "how many passages (default: reader.passages, 5)")
    parser.add_argument("--explain", action="store_true", help="print the decisions and the paths too")
    add_where(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str | Text]:
    """Answer the question. Returns (exit status, document, text)."""
    from gpu_rag import Index
    from gpu_rag.cli.trace_text import styled, trace_text
    from gpu_rag.jobs import row_of

    index = Index.open(options.index)
    settings = settings_of(options, index.manifest.defaults())
    question = {"id": "ask", "question": options.question}
    given = {"method": options.method, "k": options.k, "where": options.where or "", "settings": settings}
    with index:
        answer = index.ask(question, api_key=api_key(settings), **given)
    say_method(options.method, answer.method)
    row = row_of(answer)
    text = trace_text(row, decisions=options.explain)
    if answer.status == "retrieved":
        say("gpu-rag: for an answer, add --set models.llm=http://HOST:PORT/v1#MODEL or a model folder: docs/models.md")
    return int(answer.status == "failed"), row, styled(text, row) if has_styles() else text
