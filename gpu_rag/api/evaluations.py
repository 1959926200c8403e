"""Comparison of methods on questions with known answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from gpu_rag.api.arguments import (
    PathLike,
    SettingsLike,
    checked_count,
    checked_key,
    checked_names,
    checked_path,
    checked_settings,
    checked_text,
)
from gpu_rag.api.indexes import Index
from gpu_rag.api.questions import checked_rows, load_questions
from gpu_rag.engine import Engine, checked_method, methods_for
from gpu_rag.errors import RequestFailed, UsageError
from gpu_rag.evaluation.compare import DEFAULT_AT, Comparison, compare
from gpu_rag.evaluation.judge import Judge, open_judge
from gpu_rag.index.work import Progress, Silent
from gpu_rag.methods.registry import AUTO
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.report.accounts import servers_document
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer, Reject, Reply


def evaluate(
    index: Index | PathLike,
    questions: PathLike | Iterable[QuestionRow | Mapping[str, Any]],
    *,
    methods: str | Sequence[str] | None = None,
    retrieval_only: bool = False,
    at: Sequence[int] = DEFAULT_AT,
    where: str | None = None,
    limit: int | None = None,
    ceiling: bool = False,
    decider: str = "",
    judge: bool = False,
    replies: PathLike | None = None,
    judge_replies: PathLike | None = None,
    settings: SettingsLike = None,
    llm: str | LLM | None = None,
    embedder: str | None = None,
    api_key: ApiKeys = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare methods on questions with gold ids or answers; `.document` is the output of `eval --json`.

    questions: a file, or its rows as `load_questions` gives them, as mappings or as a table; limit: use only the first
    rows of a file. at: cut-offs of recall. ceiling: also report at which stage gold passages are lost if every choice
    is perfect. decider: rule, model, or oracle:P, which knows the gold and is right with probability P; oracle:P:NAME
    takes only the decisions of a name; "" for the setting. judge: whether a model also judges the answers
    (`eval.judge`, else the model that answers).
    replies, judge_replies: files that store the models' replies. Other keywords: see `Index`.

    Raises UsageError, BadInput, MissingLayer before any method runs; ModelError.
    """
    chosen = index if isinstance(index, Index) else Index.open(checked_path("index", index))
    decider, p_oracle, only = decider_of(decider)
    given, model = checked_settings(settings, chosen.manifest.defaults(), llm=llm, embedder=embedder)
    given = given.changed("models", decider=decider) if decider else given
    rows, rejects = _rows(questions, limit)
    names = methods_for(chosen, checked_names(AUTO if methods is None else methods))
    for name in names:  # check all methods before the first one runs
        checked_method(chosen, name)
    if judge and retrieval_only:
        raise UsageError("--retrieval-only leaves no answers to judge", given="--judge", do="leave out one of the two")
    kept, key, bars = _path("replies", replies), checked_key(api_key), _Bars(progress or Silent(), len(rows))
    engine = chosen.engine(given, replies=kept, llm=model, api_key=key)
    verdicts = _path("judge_replies", judge_replies) or kept
    opened = open_judge(engine, replies=verdicts, api_key=key) if judge else nullcontext()
    with closing(engine.models), opened as judging:
        bars.listen(engine, judging)
        comparison = compare(
            engine, names, rows, retrieval_only=retrieval_only, at=_cutoffs(at), on_method=bars.on_method,
            on_answer=bars.on_answer, judge=judging, where=checked_text("where", where, ""), ceiling=ceiling,
            p_oracle=p_oracle, only=only,
        )  # fmt: skip
    document = comparison.document
    document["rejects"] = len(rejects)
    wall_s = sum(entry["wall_s"] for entry in document["methods"].values())
    document.update(servers_document(engine.models.servers(), wall_s))
    return comparison


def _rows(
    questions: PathLike | Iterable[QuestionRow | Mapping[str, Any]], limit: int | None
) -> tuple[list[QuestionRow], list[Reject]]:
    if isinstance(questions, (str, Path)):
        return load_questions(checked_path("questions", questions), checked_count("limit", limit))
    return checked_rows(questions), []


def _cutoffs(given: object) -> list[int]:
    return [checked_count("at", k) or 0 for k in (given if isinstance(given, Iterable) else (given,))]


def _path(name: str, given: PathLike | None) -> Path | None:
    return None if given is None else checked_path(name, given)


class _Bars:
    """Progress display of methods, then of verdicts."""

    def __init__(self, progress: Progress, n: int):
        self._progress, self._n = progress, n

    def listen(self, engine: Engine, judge: Judge | None) -> None:
        """Show the tokens of replies, and the verdicts of a judge."""
        engine.on_reply = self.count
        if judge is not None:
            judge.on_reply = self.on_verdict

    def on_method(self, method: str) -> None:
        self._progress.start(method, self._n, "questions")

    def on_answer(self, method: str, answer: Answer) -> None:
        self._progress.advance(1)

    def on_verdict(self, _: int, reply: Any) -> None:
        self._progress.start("judge", None, "verdicts")
        self._progress.advance(1)
        self.count(reply)

    def count(self, reply: Reply | RequestFailed) -> None:
        if isinstance(reply, Reply):
            self._progress.advance(0, reply.n_prompt + reply.n_generated)


def decider_of(given: str) -> tuple[str, float | None, str]:
    """(setting `models.decider`, "" for the index's own; probability of an oracle; its only decision, "" for all).
    Raises UsageError.

    >>> decider_of("oracle:0.8"), decider_of("oracle:1:hop"), decider_of("rule")
    (('', 0.8, ''), ('', 1.0, 'hop'), ('rule', None, ''))
    """
    name, colon, rest = checked_text("decider", given).partition(":")
    p, _, only = rest.partition(":")
    if name in ("", "rule", "model") and not colon:
        return name, None, ""
    try:
        if name == "oracle" and 0 <= float(p) <= 1:
            return "", float(p), only
    except ValueError:
        pass
    raise UsageError("unknown decider", given=given, expected="rule | model | oracle:P[:NAME], P from 0 to 1")
