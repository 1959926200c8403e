"""gpu-rag answer: a file of questions into a file of answers, as a job that can be killed and continued."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from gpu_rag.cli.options import add_limit, add_max_failures, add_settings, api_key, exceeds, say, settings_of
from gpu_rag.cli.plan_view import Foretold, add_plan, check_plan, comparison, plan_answers, without_vector_cache
from gpu_rag.cli.progress import Bars

HELP = "Answer a file of questions; running it again continues where it stopped."
EXAMPLE = "gpu-rag answer my-index questions.jsonl --method ppr --out answers.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("index", type=Path, metavar="DIR", help="the index folder")
    parser.add_argument(
        "questions", type=Path, metavar="QUESTIONS", help=".jsonl {id, question}, or an OpenAI batch file"
    )
    parser.add_argument("--method", required=True, metavar="M", help="dense | bm25 | hybrid | ppr")
    parser.add_argument("--out", required=True, type=Path, metavar="ANSWERS.jsonl", help="one durable row a question")
    parser.add_argument("--driver", choices=["rounds"], help="how questions are driven (default rounds)")
    add_limit(parser)
    add_plan(parser, "questions", 5)
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write costs and batches as one HTML file")
    add_max_failures(parser, "5%")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Answers what is not yet answered, and reports."""
    from gpu_rag.api import Index, load_questions
    from gpu_rag.catalog import check_layers
    from gpu_rag.engine import check_unique
    from gpu_rag.jobs import AnswersFile, row_of, summary

    check_plan(options)
    started = time.perf_counter()
    rows, rejects = load_questions(options.questions, options.limit)
    check_unique([row.question for row in rows])
    index = Index.open(options.index)
    flags = {"runtime": {"driver": options.driver}} if options.driver else {}
    settings = settings_of(options, index.manifest.settings, flags)
    check_layers(options.method, index.layers, str(index.path))  # before a model is loaded or a file written
    replies = _beside(options.out, ".replies.sqlite")
    foretold = Foretold(options.out, replies)
    engine = index.engine(
        without_vector_cache(settings) if options.plan else settings, replies=replies, api_key=api_key()
    )
    try:
        if options.plan:
            return plan_answers(options, engine, [row.question for row in rows])
        _write_rejects(_beside(options.out, ".rejects.jsonl"), rejects)
        foretold.begin()
        config = engine.config(options.method)
        with AnswersFile(options.out, config, style=rows[0].style) as answers, Bars() as bars:
            todo = [row.question for row in rows if row.question.id not in answers.done]
            bars.start("questions", len(todo), "questions")

            def take(answer: Any) -> None:
                answers.add(answer)
                bars.advance(1)

            engine.on_reply = bars.count_reply

            result = engine.run(options.method, todo, on_answer=take)
            bars.finish("questions", skipped=False)
            kept = [answers.done[row.question.id] for row in rows if row.question.id in answers.done]
    finally:
        engine.models.close()
    written = [*kept, *(row_of(answer) for answer in result.answers)]
    document = summary(written)
    document.update(asked=len(todo), kept=len(kept), rejects=len(rejects), method=options.method)
    document.update(wall_s=time.perf_counter() - started, out=str(options.out), batches=batch_sizes(result.stats))
    document.update(foretold.compare(config, result.answers, document["wall_s"]))
    if options.report:
        from gpu_rag.report.page import write
        from gpu_rag.report.runs import answer_page

        write(options.report, answer_page(document, written))
    if not options.json:
        print(_summary(document))
    if exceeds(options.max_failures, document["failed"] + len(rejects), document["n"] + len(rejects)):
        say(f"gpu-rag: {document['failed']} questions failed, {len(rejects)} rejected, above {options.max_failures}")
        return 3, document
    return 0, document


def batch_sizes(stats: Any) -> dict[str, Any]:
    """How well calls were batched, a verb each."""
    return {
        verb: {"calls": s.n_calls, "batches": s.n_batches, "largest": s.largest_batch, "s": s.s}
        for verb, s in stats.verbs.items()
    }


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _write_rejects(path: Path, rejects: list[Any]) -> None:
    if not rejects:
        path.unlink(missing_ok=True)
        return
    say(f"{len(rejects)} rows of the questions file could not be read: {path}")
    path.write_text("".join(json.dumps(vars(reject)) + "\n" for reject in rejects), encoding="utf-8")


def _summary(document: dict[str, Any]) -> str:
    usage = document["usage"]
    return "\n".join(
        [
            f"{document['n']} questions: {document['answered']} answered, {document['unsupported']} unsupported, "
            f"{document['failed']} failed ({document['kept']} from an earlier run)",
            f"LLM: {usage['llm_calls']:,} calls, {usage['prompt_tokens']:,} prompt tokens "
            f"({usage['cached_tokens']:,} cached), {usage['generated_tokens']:,} generated; "
            f"{usage['malformed']} replies malformed, {usage['cut']:,} evidence tokens cut",
            f"seconds: LLM {usage['llm_s']:.1f}, embedding {usage['embed_s']:.1f}, graph {usage['graph_s']:.1f}, "
            f"wall {document['wall_s']:.1f}",
            f"answers: {document['out']}",
            *([f"\n{comparison(document['plan'], 'service')}"] if "plan" in document else []),
        ]
    )
