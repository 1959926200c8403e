"""Examples for `hybgrag` from questions with known answers, collected with the user's own model, and their benefit.

The loop runs on all questions with a critic that knows the answers, and all it collects is kept. The benefit is
measured separately: examples from one half of the questions are used on the other half, compared with none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_rag.engine import Engine
from gpu_rag.errors import BadInput, GpuRagError, UsageError
from gpu_rag.evaluation.bootstrap import paired_difference
from gpu_rag.evaluation.ceiling import oracle_of
from gpu_rag.evaluation.kb import SKB_MEASURES, KbGold
from gpu_rag.index.folder import sha256_text
from gpu_rag.methods.hybgrag import examples as known
from gpu_rag.methods.hybgrag.asks import COMMENT, ROUTE, VALIDATE
from gpu_rag.methods.hybgrag.critic import first_of
from gpu_rag.methods.hybgrag.examples import Experience, Validation
from gpu_rag.methods.hybgrag.gold import gold_rows
from gpu_rag.methods.hybgrag.program import retrieve
from gpu_rag.methods.hybgrag.state import HYBRID
from gpu_rag.methods.method import Shown, Tuned
from gpu_rag.models.ask import Fields
from gpu_rag.program.decide import MODEL
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.oracle import Known, Oracle
from gpu_rag.sources.questions import QuestionRow

N_ROUTES, N_VALIDATIONS, N_EXPERIENCES = 10, 12, 30
WORDS = 40  # words of a reference's document in an example


@dataclass
class Lessons:
    """Lessons of a loop whose critic knows the gold.

    routes: actions that reached gold; validations: (example, whether the model's own choice was wrong); experiences:
    actions with the feedback that gold proves.
    """

    routes: list[Experience] = field(default_factory=list)
    validations: list[tuple[Validation, bool]] = field(default_factory=list)
    experiences: list[Experience] = field(default_factory=list)

    def watch(self, known: Known, name: str, fields: Fields, right: Sequence[int], believed: Sequence[int]) -> None:
        """Record a choice of the critic, see `program.oracle`."""
        if name == COMMENT.name:
            feedback = first_of([fields["faults"][i] for i in right], fields["unknown"])
            self.experiences.append(Experience.from_action(fields["question"], fields["action"], feedback))
        elif name == VALIDATE.name:
            fits = right[0] if right[0] < len(fields["rows"]) else None
            example = _validation(known, fields, fits)
            self.validations.append((example, list(believed) != list(right)))
            if fits is not None and fields["action"].module == HYBRID:
                self.routes.append(Experience.from_action(fields["question"], fields["action"]))

    def joined(self, other: Lessons) -> Lessons:
        """The lessons of both."""
        return Lessons(
            self.routes + other.routes, self.validations + other.validations, self.experiences + other.experiences
        )

    def document(
        self, routes: int = N_ROUTES, validations: int = N_VALIDATIONS, experiences: int = N_EXPERIENCES
    ) -> dict[str, list[dict[str, Any]]]:
        """The examples as JSON, up to the given numbers. They are taken in turn from groups: routes by their
        relations; validations by answer type and whether one fits, with the model's errors first; experiences by
        kind of feedback."""
        by_question = sorted(self.routes, key=lambda example: example.question)
        judged = sorted(self.validations, key=lambda pair: (not pair[1], pair[0].question, pair[0].references))
        faults = sorted(self.experiences, key=lambda example: example.question)
        kept = {
            "routes": _in_turn(by_question, lambda e: tuple(t.relations for t in e.action.topics), routes),
            "validations": _in_turn((e for e, _ in judged), lambda e: (e.type, e.fits is None), validations),
            "experiences": _in_turn(faults, lambda e: e.feedback and e.feedback.kind, experiences),
        }
        return {name: msgspec.to_builtins(examples) for name, examples in kept.items()}


def _validation(known: Known, fields: Fields, fits: int | None) -> Validation:
    """A judgement as an example. Its type is that of the first gold node."""
    kb = kb_of(known.index)
    types = [kb.type_names[kb.node_type[row]] for row in gold_rows(known)]
    nodes, paths = enumerate(fields["nodes"], 1), fields["paths"]
    lines = tuple(line for i, node in nodes for line in node.reference(i, paths, WORDS).split("\n"))
    return Validation(fields["question"], types[0] if types else "", lines, fits)


def _in_turn(items: Iterable[Any], group: Callable[[Any], Hashable], limit: int) -> list[Any]:
    """At most `limit` distinct items, taken from each group in turn, so that rare ones stay."""
    groups: dict[Hashable, list[Any]] = {}
    for item in dict.fromkeys(items):
        groups.setdefault(group(item), []).append(item)
    lists = sorted(groups.values(), key=lambda items_of: (len(items_of), items_of[0].question))
    longest = max(map(len, lists), default=0)
    return [items_of[place] for place in range(longest) for items_of in lists if place < len(items_of)][:limit]


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
