"""gpu-rag demo: the sample corpus from index to explained answers, with the packaged models."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_settings, api_key, settings_of
from gpu_rag.cli.progress import Bars

HELP = "Index the sample corpus, compare four methods, answer ten questions and show the evidence."
EXAMPLE = "gpu-rag demo --out demo-index"
METHODS = ("dense", "bm25", "hybrid", "ppr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    folder = Path("demo-index")
    parser.add_argument("--out", type=Path, default=folder, metavar="DIR", help=f"the index folder ({folder})")
    parser.add_argument("--questions", type=int, default=10, metavar="N", help="how many questions to answer (10)")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """The main job, start to end."""
    from gpu_rag.api import Index, build, load_questions
    from gpu_rag.cli.eval_command import score_tables
    from gpu_rag.evaluation.compare import compare
    from gpu_rag.sample import corpus_path, questions_path

    started = time.perf_counter()
    show: Any = (lambda text: None) if options.json else print
    settings = settings_of(options)
    show("1. Indexing the sample corpus: reading, embedding, pattern extraction, graph")
    with Bars() as bars:
        report = build(corpus_path(), options.out, methods=METHODS, settings=settings, progress=bars)
    counts = {name: report.count(name) for name in ("passages", "entities", "relations", "mentions")}
    show("   " + ", ".join(f"{n:,} {name}" for name, n in counts.items()) + f" in {report.wall_s:.1f} s\n")
    rows, _ = load_questions(questions_path())
    index = Index.open(options.out)
    replies = options.out.with_name(options.out.name + ".replies.sqlite")
    engine = index.engine(settings, replies=replies, api_key=api_key(settings))
    with closing(engine.models):
        show(f"2. Retrieval on {len(rows)} questions of 2 to 4 hops: does the graph help here?")
        comparison = compare(engine, METHODS, rows, retrieval_only=True)
        show(score_tables(comparison.document, [2, 5, 10], True) + "\n")
        answers = _answer(engine, rows[: options.questions], show)
    wall_s = time.perf_counter() - started
    document = {"counts": counts, "eval": comparison.document, "answers": answers, "wall_s": wall_s}
    return 0, document, _closing(options.out, wall_s)


def _answer(engine: Any, rows: list[Any], show: Any) -> list[dict[str, Any]]:
    from gpu_rag.cli.trace_text import trace_text
    from gpu_rag.evaluation.metrics import exact_match, token_f1
    from gpu_rag.jobs import row_of

    show(f"3. Answering {len(rows)} questions by ppr with {engine.models.describe('llm')['name']}\n")
    result = engine.run("ppr", [row.question for row in rows], support=True)
    done = []
    for answer, row in zip(result.answers, rows):
        record = row_of(answer)
        record["gold"] = list(row.answers)
        show(trace_text(record, decisions=False, evidence=3))
        show(f"gold      {row.answers[0]}\n")
        done.append(record)
    em = sum(exact_match(a.text, r.answers) for a, r in zip(result.answers, rows)) / max(len(rows), 1)
    f1 = sum(token_f1(a.text, r.answers) for a, r in zip(result.answers, rows)) / max(len(rows), 1)
    show(f"   exact match {em:.2f}, F1 {f1:.2f} in {result.wall_s:.1f} s")
    return done


def _closing(out: Path, wall_s: float) -> str:
    return "\n".join(
        [
            f"Done in {wall_s:.0f} s. The index is in {out}. Next:",
            f'  gpu-rag ask {out} "Your question" --explain',
            "  gpu-rag index YOUR_CORPUS --out my-index",
            "With a better model (any OpenAI-compatible server on your machine, such as vLLM, or a model folder):",
            f'  gpu-rag ask {out} "Your question" --set models.llm=http://127.0.0.1:8000/v1#MODEL',
            "  gpu-rag index YOUR_CORPUS --out my-index --set index.extractor=llm --set models.llm=FOLDER",
        ]
    )
