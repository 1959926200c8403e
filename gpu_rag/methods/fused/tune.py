"""Weights of `fused` fitted to questions with gold, and an unbiased score of them by nested cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from gpu_rag.engine import Engine
from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.evaluation.bootstrap import paired_difference
from gpu_rag.evaluation.ceiling import shown_documents
from gpu_rag.evaluation.compare import DEFAULT_AT, check_gold
from gpu_rag.evaluation.metrics import ranked_documents, recall_at
from gpu_rag.index.folder import sha256_text
from gpu_rag.index.index import Index
from gpu_rag.index.tuned import tuned
from gpu_rag.methods.fused.batched import Candidates
from gpu_rag.methods.fused.model import Learnt, Model, fit
from gpu_rag.methods.fused.program import Dated, Params, candidates, model, placed, without_dates
from gpu_rag.methods.method import Shown, Tuned
from gpu_rag.methods.registry import method_of, served
from gpu_rag.program.decide import RULE
from gpu_rag.program.run import Run, content
from gpu_rag.program.search import Ranking
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Draft, Evidence, Question


@dataclass(frozen=True)
class Places:
    """The c candidates of a question, then other passages that hold its words or state its date. documents: the
    documents that a passage counts as, see `shown_documents`; contents: numbers, equal for copies; holding: see
    `Candidates`; dated, words: see `program.Dated`."""

    documents: Sequence[Sequence[str]]
    contents: Sequence[int]
    holding: Sequence[int]
    dated: Sequence[int]
    words: Sequence[float]

    def shown(self, scores: np.ndarray, limit: int) -> list[str]:
        """The documents of the first `limit` passages that `ask` shows. scores: f64[c], ties in their order."""
        order = np.argsort(-scores, kind="stable").tolist()
        by_scores = Ranking(tuple(order), tuple(scores[order].tolist()))
        by_date = Dated(tuple(self.dated), dict(enumerate(self.words)))
        firsts = dict[int, Sequence[str]]()
        for place in placed(by_scores, self.holding, by_date).rows:
            firsts.setdefault(self.contents[place], self.documents[place])
        return ranked_documents([*chain.from_iterable(islice(firsts.values(), limit))])


@dataclass(frozen=True)
class Examples:
    """Questions, their candidates and the features of these."""

    rows: Sequence[QuestionRow]
    learnt: Learnt
    places: Sequence[Places]

    def recall(self, scores: np.ndarray, cutoffs: Sequence[int]) -> np.ndarray:
        """f64[Q, len(at)]: recall of what is shown of candidates with scores f64[Q, c]."""
        recalls = np.zeros((len(self.rows), len(cutoffs)))
        for number, (row, places) in enumerate(zip(self.rows, self.places)):
            ranking = places.shown(scores[number], max(cutoffs))
            recalls[number] = [recall_at(ranking, row.gold_ids, k) for k in cutoffs]
        return recalls


def examples(engine: Engine, rows: Sequence[QuestionRow]) -> Examples:
    """The inputs of `fused` for each question, by its settings. Raises BadInput for gold that is not a document."""
    check_gold(rows, set(engine.index.documents["id"].to_pylist()))
    seen = {}

    async def see(question: Question, run: Run, params: Params) -> Draft:
        asked = await without_dates(question, run, params)
        seen[question.id] = await candidates(question, asked, run, run.depth)
        return Draft(None, (), (), "unsupported")

    options: dict[str, Any] = {"program": see, "retrieval_only": True, "decider": RULE}
    answers = engine.run("fused", [row.question for row in rows], **options).answers
    for answer in answers:
        if answer.error is not None:
            given = f"{answer.question_id}: {answer.error['message']}"
            raise GpuRagError("a question cannot be tuned with", given=given)
    documents_of = shown_documents(engine.index, rows)
    places = [_places(engine.index, row, *seen[row.question.id], documents_of) for row in rows]
    found = [seen[row.question.id][0] for row in rows]
    values, pairs = (np.stack(arrays) for arrays in zip(*((item.values, item.pairs) for item in found)))
    n = values.shape[1]
    gold = [[not {*row.gold_ids}.isdisjoint(names) for names in p.documents[:n]] for p, row in zip(places, rows)]
    return Examples(rows, Learnt(values, pairs, np.array(gold), np.ones(len(rows))), places)


def _places(
    index: Index,
    row: QuestionRow,
    found: Candidates,
    by_date: Dated,
    documents_of: Callable[[Sequence[Evidence], QuestionRow], list[str]],
) -> Places:
    passages = list(dict.fromkeys((*found.ranking.rows[: len(found.values)], *found.holding, *by_date.rows)))
    evidence, contents = index.evidence(passages, [0.0] * len(passages), ""), dict[Hashable, int]()
    return Places(
        [documents_of([passage], row) for passage in evidence],
        [contents.setdefault(content(passage), len(contents)) for passage in evidence],
        [passages.index(passage) for passage in found.holding],
        [passages.index(passage) for passage in by_date.rows],
        [by_date.words.get(passage, 0.0) for passage in passages],
    )


MIN_QUESTIONS = 50  # minimum number of questions with gold
FOLDS, INNER = 5, 4
PULLS = (np.inf, 3.0, 0.3, 0.03)  # toward the shipped weights; the first keeps them, and wins ties


@dataclass(frozen=True)
class Fitted:
    """The outcome. document: for `tune --json`; weights: for `fused`, as JSON; method: the best one, for `auto`."""

    document: dict[str, Any]
    weights: dict[str, Any]
    method: str


def tune_fused(engine: Engine, rows: Sequence[QuestionRow], among: Sequence[str] | None) -> Tuned:
    """Tune the weights only. Raises UsageError if methods to choose among are given, BadInput as `fitted`."""
    if among:
        raise UsageError("--among is only for methods that learn a choice", given="--method fused", do="leave it out")
    outcome = fitted(engine, rows, ["ppr"])
    return _tuned(engine, outcome, {**outcome.document, "method": None}, {})


def tune_auto(engine: Engine, rows: Sequence[QuestionRow], among: Sequence[str] | None) -> Tuned:
    """Tune the weights, and choose the best of `among` and `fused`. The default of `among` is all methods over passages
    that the index serves and that have their own ranking. Raises BadInput as `fitted`."""
    able = served(engine.index.stages)
    own = (name for name in able if name not in ("fused", "auto") and not method_of(name).ranks_as)
    methods = among or [name for name in own if "kb" not in method_of(name).needs]
    outcome = fitted(engine, rows, methods)
    return _tuned(engine, outcome, outcome.document, {"auto": {"method": outcome.method}})


def _tuned(engine: Engine, outcome: Fitted, document: dict[str, Any], choice: dict[str, Any]) -> Tuned:
    weights = {**tuned(engine.index.path).get("fused", {}), ",".join(document["lists"]): outcome.weights}
    return Tuned(document, {"fused": weights, **choice}, _shown(document))


def _shown(document: dict[str, Any]) -> Shown:
    measures = list(document["recall"]["fused"])
    rows = [[name, *(f"{recall[m]:.3f}" for m in measures)] for name, recall in document["recall"].items()]
    pairs = [
        [f"{name} - ppr", *(f"{pair['diff']:+.3f} [{pair['low']:+.3f}, {pair['high']:+.3f}]" for pair in gain.values())]
        for name, gain in document["gain"].items()
    ]
    changed = "weights of these questions" if document["changed"] else "the weights of the package fit best and stay"
    lines = [f"fused: {changed}"]
    if document["gain"]["fused"]["recall@5"]["low"] <= 0:
        lines.append("no gain of fused over ppr can be shown on these questions")
    if document["method"]:
        lines.append(f"auto: {document['method']}")
    return [
        f"{document['n']} questions; fused and auto are cross-validated",
        (rows, ["method", *measures]),
        (pairs, ["difference, 95 % interval", *measures]),
        "\n".join(lines),
    ]


def fitted(engine: Engine, rows: Sequence[QuestionRow], methods: Sequence[str]) -> Fitted:
    """Fit `fused` to questions, and find the best of `methods` and `fused`. Raises BadInput for fewer than
    MIN_QUESTIONS questions.

    Recall of `fused` and `auto` is cross-validated: each fold is judged by weights, and by a choice, made on the other
    folds. Inside these folds a second cross-validation chooses how far weights may move from the package's.
    """
    rows = [row for row in rows if row.gold_ids]
    if len(rows) < MIN_QUESTIONS:
        raise BadInput(
            "too few questions to tune with", given=f"{len(rows)} with gold_ids",
            expected=f"at least {MIN_QUESTIONS}, answered by documents of this index",
            do="use the weights that the package brings: --method fused, or ppr",
        )  # fmt: skip
    seen = examples(engine, rows)
    start = model(engine.index, engine.params("fused"), own=False)
    digests = [sha256_text(row.question.id) for row in rows]
    folds = np.argsort(np.argsort(digests)) % FOLDS  # by id, so the order of the file does not matter
    scores = np.zeros(seen.learnt.gold.shape)
    for fold in range(FOLDS):
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        pull = _pull(seen, start, inside)
        scores[outside] = _fitted(start, seen, inside, pull).scores(*seen.learnt.part(outside).inputs)
    all_rows = np.arange(len(rows))
    pull = _pull(seen, start, all_rows)
    recalls = {name: _recalls(engine, name, rows) for name in methods}
    shipped = seen.recall(start.scores(*seen.learnt.inputs), DEFAULT_AT)
    recalls["fused"] = seen.recall(scores, DEFAULT_AT)
    routed = np.zeros_like(shipped)
    for fold in range(FOLDS):
        best = _best({name: recall[folds != fold] for name, recall in recalls.items()})
        routed[folds == fold] = recalls[best][folds == fold]
    chosen, weights = _best(recalls), _fitted(start, seen, all_rows, pull)
    shown = {**recalls, "fused as shipped": shipped, "auto": routed}
    base = recalls.get("ppr", shipped)
    document = {
        "n": len(rows),
        "lists": list(start.lists),
        "recall": {name: dict(zip(_MEASURES, recall.mean(0).tolist())) for name, recall in shown.items()},
        "gain": {name: _differences(shown[name], base) for name in ("fused", "auto")},
        "changed": bool(np.isfinite(pull)),
        "method": chosen,
    }
    return Fitted(document, weights.document(), chosen)


_MEASURES = tuple(f"recall@{k}" for k in DEFAULT_AT)


def _best(recalls: Mapping[str, np.ndarray]) -> str:
    """The method of highest recall@5, then recall@2, then recall@10; ties to `fused`, the default."""

    def quality(name: str) -> tuple[float, float, float, bool]:
        at_2, at_5, at_10 = np.round(recalls[name].mean(0), 9).tolist()
        return at_5, at_2, at_10, name == "fused"

    return max(recalls, key=quality)


def _differences(first: np.ndarray, second: np.ndarray) -> dict[str, dict[str, float]]:
    columns = zip(_MEASURES, first.T.tolist(), second.T.tolist())
    return {name: paired_difference(ours, others) for name, ours, others in columns}


def _recalls(engine: Engine, method: str, rows: Sequence[QuestionRow]) -> np.ndarray:
    """f64[Q, 3]: recall of a method without a language model."""
    options: dict[str, Any] = {"limit": max(DEFAULT_AT), "retrieval_only": True, "decider": RULE}
    answers = engine.run(method, [row.question for row in rows], **options).answers
    documents_of = shown_documents(engine.index, rows)
    rankings = [documents_of(answer.evidence, row) for answer, row in zip(answers, rows)]
    return np.array([[recall_at(r, row.gold_ids, k) for k in DEFAULT_AT] for r, row in zip(rankings, rows)])


def _fitted(start: Model, seen: Examples, questions: np.ndarray, pull: float) -> Model:
    """The model fitted to some of the questions; `start` for an infinite pull."""
    return start if np.isinf(pull) else fit(start, seen.learnt.part(questions), pull)


def _pull(seen: Examples, start: Model, questions: np.ndarray) -> float:
    """The value of PULLS with the best cross-validated recall; ties to the stronger."""
    folds, quality = np.arange(len(questions)) % INNER, []
    for pull in PULLS:
        scores = np.zeros(seen.learnt.gold.shape)
        for fold in range(INNER):
            outside = questions[folds == fold]
            scores[outside] = _fitted(start, seen, questions[folds != fold], pull).scores(
                *seen.learnt.part(outside).inputs
            )
        quality.append(round(float(seen.recall(scores, DEFAULT_AT)[questions].mean()), 9))
    return PULLS[int(np.argmax(quality))]
