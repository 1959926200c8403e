"""Comparison of methods on one index: scores with bootstrap intervals, paired differences, and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from gpu_rag_kernels.dispatch import spelled

from gpu_rag.engine import Engine, check_unique
from gpu_rag.errors import BadInput, UsageError
from gpu_rag.evaluation.bootstrap import intervals, paired_difference
from gpu_rag.evaluation.ceiling import ceiling_scores, check_ceiling, oracle_of, shown_documents
from gpu_rag.evaluation.choices import ChoiceShares
from gpu_rag.evaluation.judge import Judge, check_rows, judge_answers
from gpu_rag.evaluation.kb import DEPTH, KG_MEASURES, KbGold, by_hops, pool_shares
from gpu_rag.evaluation.metrics import (
    exact_match,
    recall_at,
    retrieval_f1_at,
    token_f1,
    truthfulness,
    whole_at,
)
from gpu_rag.evaluation.spool import Spool
from gpu_rag.jobs import Tally
from gpu_rag.program.oracle import Oracle
from gpu_rag.runtime.accounts import fallbacks_by_step
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer

DEFAULT_AT = (2, 5, 10)
RETRIEVED = {"recall": recall_at, "retrieval_f1": retrieval_f1_at, "whole": whole_at}
TRUTHFUL, WAYS = "truthful", {"accurate": 1.0, "missing": 0.0, "hallucinated": -1.0}
_COSTS = ("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens")
_SECONDS = ("llm_s", "embed_s", "graph_s")


@dataclass(frozen=True)
class Comparison:
    """The document of `eval --json`, with all answers, which are read from a file, and per-question scores."""

    document: dict[str, Any]
    answers: dict[str, Sequence[Answer]] = field(default_factory=dict)
    scores: dict[str, dict[str, list[float]]] = field(default_factory=dict)


def check_gold(rows: Sequence[QuestionRow], known_documents: set[str]) -> None:
    """Raise BadInput if a gold id is not a document of the index, since recall would silently be too low."""
    if not rows:
        raise BadInput("no question to evaluate")
    check_unique([row.question for row in rows])
    lost = [(row.question.id, gold) for row in rows for gold in row.gold_ids if gold not in known_documents]
    if lost:
        raise BadInput(
            f"{len(lost)} gold ids are not documents of the index",
            given=f"question {lost[0][0]} with {lost[0][1]}",
            do="index the corpus that the questions belong to",
        )


def compare(
    engine: Engine,
    methods: Sequence[str],
    rows: Sequence[QuestionRow],
    *,
    retrieval_only: bool = False,
    at: Sequence[int] = DEFAULT_AT,
    on_method: Callable[[str], object] = lambda method: None,
    on_answer: Callable[[str, Answer], None] | None = None,
    judge: Judge | None = None,
    where: str = "",
    ceiling: bool = False,
    p_oracle: float | None = None,
    only: str = "",
) -> Comparison:
    """Run each method over the same questions and score it.

    recall@k is over gold_ids per document (a document has the rank of its best passage); whole@k is the share of
    questions with all of them. Questions without gold_ids are left out; em / f1 leave out questions without answers.
    For questions over a knowledge base see `evaluation.kb`; questions with web pages also get `truthful`, see
    `metrics.truthfulness`.

    where: a filter of documents, see `index.where`; gold that it excludes is missed.
    ceiling: whether the document includes the ceiling of each method, see `evaluation.ceiling`.
    p_oracle: lets an oracle decide that is right with this probability; decisions without gold are then listed. If a
    model decides, `choice_shares` has the shares of its choices that lead to gold, see `evaluation.choices`.
    only: the only decision that the oracle takes, by name; rules take the others.
    judge: judges the answers of all methods after the last one has run; see `evaluation.judge`.
    """
    check_gold(rows, set(engine.index.documents["id"].to_pylist()))
    if judge is not None:
        check_rows(rows)
        if retrieval_only:
            raise UsageError("there are no answers to judge", given="retrieval only", do="leave out one of the two")
    for method in methods:  # check all methods before the first one runs
        if ceiling:
            check_ceiling(method)
        if where:
            engine.part_for(method, where)
    retrieval_only = retrieval_only or not engine.models.has_llm()
    gold = KbGold(engine.index, rows)
    document: dict[str, Any] = {"n": len(rows), "methods": {}, "paired": {}}
    document |= {"where": where} if where else {}
    document |= {"gold_missed": gold.missed} if gold.missed else {}
    comparison = Comparison(document)
    for method in methods:
        on_method(method)
        oracle = None if p_oracle is None else oracle_of(rows, p_oracle, gold, only=only)
        report = None if on_answer is None else partial(on_answer, method)
        shares = ChoiceShares(oracle_of(rows, base=gold)) if engine.model_decides() and oracle is None else None
        _run_method(comparison, engine, method, rows, gold, oracle, shares, at, retrieval_only, where, report)
    if ceiling:
        document["ceiling"] = {}
        for method in methods:
            stages = ceiling_scores(engine, method, rows, at, retrieval_only=retrieval_only, where=where)
            document["ceiling"][method] = {name: _mean(values) for name, values in stages.items()}
    if judge is not None:
        _judge(comparison, judge, rows)
    _resample(comparison)
    return comparison


def _run_method(
    comparison: Comparison, engine: Engine, method: str, rows: Sequence[QuestionRow], gold: KbGold,
    oracle: Oracle | None, shares: ChoiceShares | None, at: Sequence[int], retrieval_only: bool, where: str,
    on_answer: Callable[[Answer], None] | None,
) -> None:  # fmt: skip
    """Add the answers, scores and costs of a method. Arguments: as of `compare`; oracle: decides, if given; shares:
    counts the choices, if given."""
    answers, depth = Spool([row.question.id for row in rows]), DEPTH if any(map(gold.is_skb, rows)) else 0

    def keep(answer: Answer) -> None:
        answers.add(answer)
        if on_answer is not None:
            on_answer(answer)

    result = engine.run(
        method,
        [row.question for row in rows],
        limit=max(max(at), engine.settings.reader.passages, depth),
        retrieval_only=retrieval_only,
        on_answer=keep,
        keep=False,
        where=where,
        decider=oracle,
        on_choice=None if shares is None else shares.see,
    )
    scores = score(engine, answers, rows, at, retrieval_only, gold)
    comparison.answers[method], comparison.scores[method] = answers, scores
    entry = comparison.document["methods"][method] = {
        **_entry(answers, scores, result.wall_s, retrieval_only),
        **_details(answers, rows, gold, scores),
        "llm_idle_share": result.stats.llm.share,
        "graph_ops": spelled(result.stats.implementations),
        "stages": result.stats.stage_costs(),
    }
    if oracle is not None:
        entry["by_rule"] = sorted(oracle.by_rule)
    if shares is not None and (of_choices := shares.entry()):
        entry["choice_shares"] = of_choices


def _judge(comparison: Comparison, judge: Judge, rows: Sequence[QuestionRow]) -> None:
    """Add the verdicts of the judge on all answers."""
    judged, entries, comparison.document["judge"] = judge_answers(judge, comparison.answers, rows)
    for method, entry in entries.items():
        scores, measures = comparison.scores[method], comparison.document["methods"][method]
        scores["judge"] = judged[method]
        if TRUTHFUL in scores:
            scores[TRUTHFUL] = truthful(comparison.answers[method], rows, judged[method])
            measures.update(_three_ways(scores[TRUTHFUL]))
        measures.update(judge=_mean(judged[method]), **entry)


def _resample(comparison: Comparison) -> None:
    """Add the interval of every measure, and its paired differences."""
    document, methods = comparison.document, list(comparison.scores)
    for method in methods:
        document["methods"][method]["ci95"] = {}
    for name in comparison.scores[methods[0]]:
        per_method = {m: comparison.scores[m][name] for m in methods}
        if not per_method[methods[0]]:
            continue
        for method, (low, high) in intervals(per_method).items():
            document["methods"][method]["ci95"][name] = [low, high]
        for i, first in enumerate(methods):
            for second in methods[:i]:
                pair = document["paired"].setdefault(f"{first} - {second}", {})
                pair[name] = paired_difference(per_method[first], per_method[second])


def score(
    engine: Engine,
    answers: Sequence[Answer],
    rows: Sequence[QuestionRow],
    at: Sequence[int],
    retrieval_only: bool,
    gold: KbGold,
) -> dict[str, list[float]]:
    """Per-question scores by measure. A failed question scores 0, so a failure is never left out of a mean.

    The questions of a measure do not depend on the method, so methods can be compared in pairs.
    """
    documents_of = shown_documents(engine.index, rows)
    names = [f"{measure}@{k}" for measure in RETRIEVED for k in at]
    scores: dict[str, list[float]] = {name: [] for name in names}
    scores.update({"em": [], "f1": []} if not retrieval_only else {})
    for answer, row in zip(answers, rows):
        ranking = documents_of(answer.evidence, row)
        if row.gold_ids:
            for k in at:
                for measure, at_k in RETRIEVED.items():
                    scores[f"{measure}@{k}"].append(at_k(ranking, row.gold_ids, k))
        if row.answers and not retrieval_only:
            scores["em"].append(exact_match(answer.text, row.answers))
            scores["f1"].append(token_f1(answer.text, row.answers))
        for name, value in gold.scores(answer, row).items():
            if not (retrieval_only and name == "hits@1"):  # retrieval gives no answer
                scores.setdefault(name, []).append(value)
    if not retrieval_only and any(row.answers and row.question.pages for row in rows):
        scores[TRUTHFUL] = truthful(answers, rows)
    return scores


def truthful(
    answers: Sequence[Answer], rows: Sequence[QuestionRow], judged: Sequence[float] | None = None
) -> list[float]:
    """The three-way scores of questions with answers and web pages. judged: a judge's scores of all answers."""
    with_answers = ((answer, row) for answer, row in zip(answers, rows) if row.answers)
    right = (correct == 1.0 for correct in judged) if judged else repeat(None)
    return [
        truthfulness(answer.text, answer.status == "answered", row.answers, is_right)
        for (answer, row), is_right in zip(with_answers, right)
        if row.question.pages
    ]


def _three_ways(scores: Sequence[float]) -> dict[str, float]:
    """The mean of three-way scores, and the share of each value."""
    shares = {name: scores.count(value) / len(scores) for name, value in WAYS.items()}
    return {TRUTHFUL: sum(scores) / len(scores), **shares}


def _details(
    answers: Sequence[Answer], rows: Sequence[QuestionRow], gold: KbGold, scores: dict[str, list[float]]
) -> dict[str, Any]:
    """Further entries of a method for KG questions: shares by pool, scores by hops."""
    of_kg = [row for row in rows if gold.is_kg(row)]
    if not of_kg:
        return {}
    details: dict[str, Any] = {"on_path": pool_shares((a, row) for a, row in zip(answers, rows) if gold.is_kg(row))}
    if hops := by_hops(of_kg, {name: scores[name] for name in KG_MEASURES if name in scores}):
        details["by_hops"] = hops
    return details


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _entry(
    answers: Sequence[Answer], scores: dict[str, list[float]], wall_s: float, retrieval_only: bool
) -> dict[str, Any]:
    entry: dict[str, Any] = {name: _mean(values) for name, values in scores.items()}
    if retrieval_only:
        entry["em"] = entry["f1"] = None
        if "answer_on_path" in entry:
            entry["hits@1"] = None
    if scores.get(TRUTHFUL):
        entry.update(_three_ways(scores[TRUTHFUL]))
    tally = Tally.of(answers)
    entry["failed"] = tally.statuses["failed"]
    entry["unsupported"] = None if retrieval_only else tally.statuses["unsupported"]
    if n_known := sum(answer.source == "model" for answer in answers):
        entry["from_model"] = n_known
    entry["malformed"], entry["replies_read"] = tally.usage["malformed"], tally.usage["replies_read"]
    entry["fallbacks"], entry["cut"] = fallbacks_by_step(tally.fallbacks), tally.usage["cut"]
    entry.update({name: tally.usage[name] / len(answers) for name in _COSTS}, wall_s=wall_s)
    entry |= {"rerank": tally.rerank} if tally.rerank else {}
    return {**entry, **{name: tally.usage[name] for name in _SECONDS}}
