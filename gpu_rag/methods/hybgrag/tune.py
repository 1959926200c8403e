"""Examples for `hybgrag` from questions with known answers, collected with the user's own model, and their benefit.

The loop runs on all questions with a critic that knows the answers, and all it collects is kept. The benefit is
measured separately: examples from one half of the questions are used on the other half, compared with none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_rag.engine import Engine
from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.evaluation.bootstrap import paired_difference
from gpu_rag.evaluation.ceiling import oracle_of
from gpu_rag.evaluation.kb import SKB_MEASURES, KbGold
from gpu_rag.index.folder import sha256_text
from gpu_rag.methods.hybgrag import examples as known
from gpu_rag.methods.hybgrag.asks import ROUTE
from gpu_rag.methods.hybgrag.lessons import Lessons
from gpu_rag.methods.hybgrag.program import retrieve
from gpu_rag.methods.method import Shown, Tuned
from gpu_rag.program.decide import MODEL
from gpu_rag.program.oracle import Oracle
from gpu_rag.sources.questions import QuestionRow

LEAST = 20  # questions whose answers are nodes


@dataclass(frozen=True)
class Collected:
    """The outcome. document: for `tune --json`; examples: for `hybgrag`, as JSON, None if they do not help."""

    document: dict[str, Any]
    examples: dict[str, Any] | None


def tune(engine: Engine, rows: Sequence[QuestionRow], among: Sequence[str] | None) -> Tuned:
    """Examples for the prompts, kept if they help. Raises UsageError if methods to choose among are given, BadInput as
    `collect`."""
    if among:
        raise UsageError("--among is only for methods that learn a choice", given="--method hybgrag", do="leave it out")
    collected = collect(engine, rows)
    document = collected.document
    gain = document["gain"]
    lines = [[name, *(f"{document[when][name]:.3f}" for when in ("before", "after"))] for name in gain]
    for line, pair in zip(lines, gain.values()):
        line.append(f"{pair['diff']:+.3f} [{pair['low']:+.3f}, {pair['high']:+.3f}]")
    counts = ", ".join(f"{n} {name}" for name, n in document["collected"].items())
    shown: Shown = [
        f"{document['n']} questions: {counts}; judged on {document['judged']}, by examples of the others",
        (lines, ["measure", "without", "with examples", "difference, 95 % interval"]),
    ]
    if collected.examples is None:
        return Tuned(document, {}, [*shown, "no examples are kept: answers are no better with them"])
    return Tuned(document, {"hybgrag": collected.examples}, shown)


def collect(engine: Engine, rows: Sequence[QuestionRow]) -> Collected:
    """Run the loop three times: on all questions to collect, and on every second one without and with examples.

    Examples are kept unless the mean reciprocal rank falls with them. Raises BadInput for fewer than LEAST questions,
    and without a language model, since only a model uses examples.
    """
    if not engine.models.has_llm() or engine.settings.models.decider == "rule":
        raise BadInput(
            "examples of hybgrag are for a language model that decides", given="none in the settings",
            do="name it: --set models.llm=..., see docs/settings.toml",
        )  # fmt: skip
    gold = KbGold(engine.index, rows)
    rows = [row for row in rows if gold.is_skb(row) and gold.nodes(row)]
    if len(rows) < LEAST:
        raise BadInput(
            "too few questions to tune with", given=f"{len(rows)} with answer_ids that are nodes",
            expected=f"at least {LEAST}", do="use the examples that the package brings",
        )  # fmt: skip
    rows = sorted(rows, key=lambda row: sha256_text(row.question.id))  # by id, so the input order does not matter
    learning, judged = rows[::2], rows[1::2]
    earlier = known.own_examples(engine.index)
    try:
        engine.index.put(known.OWN, known.NONE)
        first_half, second_half = (_collected(engine, half, gold) for half in (learning, judged))
        before, after = (_scores(engine, judged, gold, examples) for examples in (None, first_half.document()))
    finally:
        engine.index.put(known.OWN, earlier)
    gain = {name: paired_difference(after[name], before[name]) for name in SKB_MEASURES}
    examples = first_half.joined(second_half).document()
    changed = gain["mrr"]["diff"] >= 0
    document = {
        "n": len(rows),
        "judged": len(judged),
        "collected": {name: len(items) for name, items in examples.items()},
        "before": {name: sum(values) / len(values) for name, values in before.items()},
        "after": {name: sum(values) / len(values) for name, values in after.items()},
        "gain": gain,
        "changed": changed,
        "method": None,
    }
    return Collected(document, examples if changed else None)


def _collected(engine: Engine, rows: Sequence[QuestionRow], gold: KbGold) -> Lessons:
    """Lessons from a loop whose critic knows the gold; the model decides the rest."""
    lessons = Lessons()
    left = frozenset({ROUTE.name})
    _answered(engine, rows, oracle_of(rows, base=gold, left=left, otherwise=MODEL, watch=lessons.watch))
    return lessons


def _scores(
    engine: Engine, rows: Sequence[QuestionRow], gold: KbGold, examples: dict[str, Any] | None
) -> dict[str, list[float]]:
    """The measures of each question, with only these examples."""
    own = known.NONE if examples is None else known.examples_of(examples, "collected")
    engine.index.put(known.OWN, own)
    answers = _answered(engine, rows)
    scores = [gold.scores(answers[row.question.id], row) for row in rows]
    return {name: [score[name] for score in scores] for name in SKB_MEASURES}


def _answered(engine: Engine, rows: Sequence[QuestionRow], decider: Oracle | None = None) -> dict[str, Any]:
    """Ranked nodes by question, without the reader. Raises GpuRagError if a question failed."""
    answers = engine.run("hybgrag", [row.question for row in rows], program=retrieve, decider=decider).answers
    for answer in answers:
        if answer.error is not None:
            given = f"{answer.question_id}: {answer.error['message']}"
            raise GpuRagError("a question cannot be tuned with", given=given)
    return {answer.question_id: answer for answer in answers}
