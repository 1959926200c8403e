"""Answering a file of questions as a job: durable rows, exact resumption, and cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_rag_kernels.dispatch import spelled

from gpu_rag.api.arguments import PathLike, checked_path
from gpu_rag.api.questions import load_questions
from gpu_rag.engine import Engine, check_unique, checked_method
from gpu_rag.errors import BadInput, ModelError, RequestFailed
from gpu_rag.index.index import Index
from gpu_rag.index.work import Progress, Silent
from gpu_rag.jobs import AnswersFile, Tally, read_rows
from gpu_rag.report.accounts import llm_account, servers_document
from gpu_rag.runtime.accounts import RunStats
from gpu_rag.types import Answer, Question, Reject, Reply

Options = dict[str, Any]
_NO_JSON = (".csv", ".tsv", ".txt", ".xls", ".xlsx", ".ods")


@dataclass
class Job:
    """The outcome of a job.

    rows: all of its questions; new: the questions `ids` of this run; kept: rows of earlier runs; rejects: rows or pages
    of the questions file that could not be used; document: the output of `answer --json`; notes: remarks for people.
    """

    method: str
    config: dict[str, Any]
    rejects: list[Reject]
    rows: Tally = field(default_factory=Tally)
    new: Tally = field(default_factory=Tally)
    stats: RunStats = field(default_factory=RunStats)
    ids: list[str] = field(default_factory=list)
    kept: int = 0
    document: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Job({self.document.get('out')}: {self.rows.n} questions, {self.kept} of earlier runs)"


def answer_file(
    index: Index,
    questions: PathLike,
    out: PathLike,
    open_engine: Callable[[Path], Engine],
    options: Options,
    limit: int | None,
    progress: Progress | None,
    retries: dict[str, bool],
) -> Job:
    """Implements `Index.answer_file`. open_engine: from the file that stores the model's replies; options: options of
    `Engine.run`, and the method; retries: retries of `AnswersFile`."""
    started, target = time.perf_counter(), checked_path("out", out)
    if target.suffix.lower() in _NO_JSON:
        raise BadInput("answers are rows of JSON", given=f"out {target}", expected="a name that ends in .jsonl")
    rows, rejects = load_questions(checked_path("questions", questions), limit)
    asked = [row.question for row in rows]
    check_unique(asked)
    options = {**options, "method": checked_method(index, options["method"])}  # before a model is loaded
    replies = _beside(target, ".replies.sqlite")
    engine = open_engine(replies)
    with closing(engine.models):
        if options["where"]:
            engine.part_for(options["method"], options["where"])  # finds a wrong filter before a file is written
        job = Job(options["method"], _config(engine, options), rejects)
        with AnswersFile(target, job.config, style=rows[0].style, **retries) as answers:
            _write_rejects(_beside(target, ".rejects.jsonl"), job)
            _Run(engine, options, answers, job, progress or Silent()).answer(asked)
    _document(job, engine, options, target, time.perf_counter() - started)
    return job


@dataclass
class _Run:
    """The run that answers a job's questions without a row."""

    engine: Engine
    options: Options
    answers: AnswersFile
    job: Job
    progress: Progress

    def answer(self, questions: Sequence[Question]) -> None:
        """Answer the questions. Suspects of an earlier death come last and fewer at a time."""
        job, answers, journal = self.job, self.answers, self.answers.journal
        ids = {question.id for question in questions}
        for row in read_rows(answers.path) if answers.done else ():
            if row["id"] in ids:
                job.rows.add(row)
        job.kept = job.rows.n
        todo = [question for question in questions if question.id not in answers.done]
        method, where = self.options["method"], self.options["where"]
        config_hash = self.engine.config_hash(method, where=where)
        for row in answers.set_aside(todo, method, config_hash, where):
            job.rows.add(row)
        todo = [question for question in todo if not journal.is_set_aside(question.id)]
        job.ids = [question.id for question in todo]
        self.progress.start("questions", len(todo), "questions")
        self.engine.on_reply = self.count
        given = {"on_begin": journal.begin, "on_answer": self.take, "keep": False, "stats": job.stats, **self.options}
        try:
            for width, wave in journal.waves(todo, self.engine.settings.runtime.max_live):
                self.engine.run(questions=wave, max_live=width, **given)
        except ModelError as error:
            if error.question is not None:
                journal.blame(error.question)
            raise
        self.progress.finish("questions", skipped=False)

    def take(self, answer: Answer) -> None:
        row = self.answers.add(answer)
        self.job.rows.add(row)
        self.job.new.add(row)
        self.progress.advance(1)

    def count(self, reply: Reply | RequestFailed) -> None:
        """Report tokens, which show progress between finished questions."""
        if isinstance(reply, Reply):
            self.progress.advance(0, reply.n_prompt + reply.n_generated)


def _config(engine: Engine, options: Options) -> dict[str, Any]:
    """Everything that the rows depend on, with the number of passages if it is given."""
    config = engine.config(options["method"], where=options["where"])
    return config if options["limit"] is None else {**config, "k": options["limit"]}


def _write_rejects(path: Path, job: Job) -> None:
    path.unlink(missing_ok=True)
    if job.rejects:
        job.notes.append(f"{len(job.rejects)} rows or pages of the questions file could not be read: {path}")
        path.write_text("".join(json.dumps(vars(reject)) + "\n" for reject in job.rejects), encoding="utf-8")


def _document(job: Job, engine: Engine, options: Options, out: Path, wall_s: float) -> None:
    stats = job.stats
    job.document = {**job.rows.document(), "asked": len(job.ids), "kept": job.kept, "rejects": len(job.rejects)}
    job.document.update(method=job.method, driver=engine.settings.runtime.driver)
    if options["where"]:
        job.document["where"] = options["where"]
    batches = {
        step: {"calls": s.n_calls, "batches": s.n_batches, "largest": s.largest_batch, "s": s.s}
        for step, s in stats.steps.items()
    }
    job.document.update(wall_s=wall_s, out=str(out), batches=batches, stages=stats.stage_costs())
    job.document.update(llm=llm_account(stats), graph_ops=spelled(stats.implementations))
    job.document.update(servers_document(engine.models.servers(), stats.wall_s))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
