"""gpu-rag ask: one question, one answer with its evidence."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.options import add_index, add_settings, add_where, api_key, settings_of
from gpu_rag.cli.terminal import has_styles
from gpu_rag.methods.registry import DEFAULT

if TYPE_CHECKING:
    from rich.text import Text

HELP = "Ask one question."
EXAMPLE = f'gpu-rag ask my-index "Who taught the composer of the Eroica?" --method {DEFAULT} --explain'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_index(parser)
    parser.add_argument("question", metavar="QUESTION", help="the question")
    parser.add_argument("--method", default=DEFAULT, metavar="M", help=f"a method (default {DEFAULT})")
    parser.add_argument("--explain", action="store_true", help="print the decisions and the paths too")
    add_where(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str | Text]:
    """Answers and prints."""
    from gpu_rag.api import Index
    from gpu_rag.cli.trace_text import styled, trace_text
    from gpu_rag.errors import UsageError
    from gpu_rag.jobs import row_of
    from gpu_rag.types import Question

    if not options.question.strip():
        raise UsageError("the question is empty", expected="a question")
    index = Index.open(options.index)
    settings = settings_of(options, index.manifest.defaults())
    engine = index.engine(settings, api_key=api_key(settings))
    with closing(engine.models):
        question = Question("ask", options.question)
        (answer,) = engine.run(options.method, [question], support=True, where=options.where or "").answers
    row = row_of(answer)
    text = trace_text(row, decisions=options.explain)
    return int(answer.status == "failed"), row, styled(text, row) if has_styles() else text
