"""gpu-rag answer: a file of questions into a file of answers, as a job that can be killed and continued."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.options import (
    add_index,
    add_limit,
    add_limits,
    add_report,
    add_settings,
    add_where,
    api_key,
    exit_status,
    say,
    settings_of,
)
from gpu_rag.cli.plan_view import PLANNED, add_plan, check_plan, compared_answers, comparison, plan_answers
from gpu_rag.cli.progress import Bars
from gpu_rag.errors import ModelError
from gpu_rag.jobs import STATUSES, AnswersFile, Tally, read_rows
from gpu_rag.methods.registry import DEFAULT, method_names
from gpu_rag.report.accounts import (
    fallbacks_line,
    graph_ops_line,
    idle_line,
    llm_account,
    places,
    places_lines,
    rerank_lines,
)
from gpu_rag.runtime.accounts import RunStats

if TYPE_CHECKING:
    from gpu_rag.engine import Engine
    from gpu_rag.types import Answer, Question

HELP = "Answer a file of questions; running it again continues where it stopped."
EXAMPLE = f"gpu-rag answer my-index questions.jsonl --method {DEFAULT} --out answers.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_index(parser)
    words = ".jsonl {id, question}, an OpenAI batch file, or a benchmark's; gold in it reaches no method"
    parser.add_argument("questions", type=Path, metavar="QUESTIONS", help=words)
    parser.add_argument("--method", required=True, metavar="M", help=f"one of {', '.join(method_names())}")
    words = "one durable row a question, in the style of QUESTIONS"
    parser.add_argument("--out", required=True, type=Path, metavar="ANSWERS.jsonl", help=words)
    parser.add_argument("--driver", choices=["rounds", "streaming"], help="how questions are driven (default rounds)")
    words = "ask questions again that were set aside because the process died over them"
    parser.add_argument("--retry-set-aside", action="store_true", help=words)
    words = "answer questions again where a reply of the model could not be read"
    parser.add_argument("--retry-unread", action="store_true", help=words)
    add_where(parser)
    add_limit(parser)
    add_plan(parser, "questions", 5)
    add_report(parser, "costs and batches")
    add_limits(parser, "5%")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Answers what is not yet answered, and reports."""
    from gpu_rag_kernels.dispatch import spelled

    from gpu_rag.api import Index, load_questions
    from gpu_rag.engine import check_unique
    from gpu_rag.methods.registry import check_stages
    from gpu_rag.plan.answer_plan import PlannedAnswers
    from gpu_rag.sources.questions import n_questions_lost

    check_plan(options)
    started = time.perf_counter()
    rows, rejects = load_questions(options.questions, options.limit)
    questions, style = [row.question for row in rows], rows[0].style
    check_unique(questions)
    index = Index.open(options.index)
    flags = {"runtime": {"driver": options.driver}} if options.driver else {}
    settings = settings_of(options, index.manifest.defaults(), flags)
    # before a model is loaded or a file written
    check_stages(options.method, index.stages, str(index.path), index.manifest.sources)
    replies = _beside(options.out, ".replies.sqlite")
    planned = PlannedAnswers(options.out, replies)
    if options.plan:
        settings = settings.changed("models", **PLANNED)
    engine = index.engine(settings, replies=replies, api_key=api_key(settings), retry_unread=options.retry_unread)
    with closing(engine.models):
        if options.plan:
            return plan_answers(options, engine, questions)
        rejected = _beside(options.out, ".rejects.jsonl")
        rejected.unlink(missing_ok=True)
        if rejects:
            say(f"{len(rejects)} rows or pages of the questions file could not be read: {rejected}")
            rejected.write_text("".join(json.dumps(vars(reject)) + "\n" for reject in rejects), encoding="utf-8")
        job = _answered(options, engine, questions, style)
    document = {**job.rows.document(), "asked": len(job.ids), "kept": job.kept, "rejects": len(rejects)}
    document.update(method=options.method, driver=settings.runtime.driver)
    if options.where:
        document["where"] = options.where
    document.update(wall_s=time.perf_counter() - started, out=str(options.out), batches=batch_sizes(job.stats))
    document.update(stages=job.stats.stage_costs(), llm=llm_account(job.stats))
    document.update(graph_ops=spelled(job.stats.implementations))
    document.update(places(engine.models.on_workers(), engine.models.servers(), job.stats.wall_s))
    document.update(compared_answers(planned, job, document["wall_s"]))
    if options.report:
        from gpu_rag.report.page import write
        from gpu_rag.report.runs import answer_page

        write(options.report, answer_page(document, job.rows.failures))
    n_rejected = n_questions_lost(rejects)
    n_lost, words = document["failed"] + n_rejected, f"{document['failed']} questions failed, {n_rejected} rejected"
    losses = [(n_lost, document["n"] + n_rejected, words)]
    fallbacks = [(document["fallbacks"], document["usage"]["replies_read"])]
    return exit_status(options, losses, fallbacks), document, _summary(document)


@dataclass
class _Job:
    """The outcome of a job. rows: all of its questions; new: the questions `ids` of this run."""

    config: dict[str, Any]
    rows: Tally = field(default_factory=Tally)
    new: Tally = field(default_factory=Tally)
    stats: RunStats = field(default_factory=RunStats)
    ids: list[str] = field(default_factory=list)
    kept: int = 0


def _answered(options: argparse.Namespace, engine: Engine, questions: list[Question], style: str) -> _Job:
    """Answers what has no row yet, the suspects of an earlier death last and fewer at a time."""
    if options.where:
        engine.part_for(options.method, options.where)  # a wrong filter is found before a file is written
    job = _Job(engine.config(options.method, where=options.where or ""))
    retries = {"retry_set_aside": options.retry_set_aside, "retry_unread": options.retry_unread}
    with AnswersFile(options.out, job.config, style=style, **retries) as answers, Bars() as bars:
        journal, ids = answers.journal, {question.id for question in questions}
        for row in read_rows(options.out) if answers.done else ():
            if row["id"] in ids:
                job.rows.add(row)
        job.kept = job.rows.n
        todo = [question for question in questions if question.id not in answers.done]
        config_hash = engine.config_hash(options.method, where=options.where or "")
        for row in answers.set_aside(todo, options.method, config_hash, options.where or ""):
            job.rows.add(row)
        todo = [question for question in todo if not journal.is_set_aside(question.id)]
        job.ids = [question.id for question in todo]
        bars.start("questions", len(todo), "questions")

        def take(answer: Answer) -> None:
            row = answers.add(answer)
            job.rows.add(row)
            job.new.add(row)
            bars.advance(1)

        engine.on_reply = bars.count_reply
        try:
            for width, wave in journal.waves(todo, engine.settings.runtime.max_live):
                engine.run(
                    options.method, wave, on_begin=journal.begin, on_answer=take, keep=False, max_live=width,
                    stats=job.stats, where=options.where or "",
                )  # fmt: skip
        except ModelError as error:
            if error.question is not None:
                journal.blame(error.question)
            raise
        bars.finish("questions", skipped=False)
    return job


def batch_sizes(stats: Any) -> dict[str, Any]:
    """The calls and batches of each step."""
    return {
        step: {"calls": s.n_calls, "batches": s.n_batches, "largest": s.largest_batch, "s": s.s}
        for step, s in stats.steps.items()
    }


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


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
            *places_lines(document),
            f"answers: {document['out']}",
            *([f"\n{comparison(document['plan'], 'service')}"] if "plan" in document else []),
        ]
    )
