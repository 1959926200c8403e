"""Examples for HybGRAG's prompts, collected from a loop whose critic knows the gold nodes.

`gpu-rag tune --method hybgrag` runs the loop with the oracle on questions with known answers; the router is the user's
model. `Lessons` records its actions and the right choices, from which the examples for all three prompts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_rag.methods.hybgrag.asks import COMMENT, VALIDATE
from gpu_rag.methods.hybgrag.critic import first_of
from gpu_rag.methods.hybgrag.examples import Experience, Validation
from gpu_rag.methods.hybgrag.gold import gold_rows
from gpu_rag.methods.hybgrag.state import HYBRID
from gpu_rag.models.ask import Fields
from gpu_rag.program.knowledge_base.views import kb_of
from gpu_rag.program.oracle import Known

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
