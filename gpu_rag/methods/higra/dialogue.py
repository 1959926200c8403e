"""The state of the dialogue of Seeker and Librarian on one question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from gpu_rag.program.reader import Support
from gpu_rag.text.rules.decomposition import Plan, PlanStep
from gpu_rag.types import Evidence, Path

SubQuestions = tuple[PlanStep, ...]  # asked together; id 0: not a step of the plan


@dataclass(frozen=True)
class Finding:
    """The Librarian's reply to one sub-question.

    answers: all supported answers, () for none. evidence: in words. cited: the passages that support it; retrieved: all
    that was retrieved. step: the plan step that it answers, 0 for a free question.
    """

    question: str
    answers: tuple[str, ...]
    evidence: str
    cited: tuple[Evidence, ...]
    retrieved: Support
    step: int = 0


@dataclass(frozen=True)
class Answered:
    """The Seeker's answer. cited: numbers of findings, from 1."""

    text: str
    cited: tuple[int, ...]


@dataclass
class Dialogue:
    """The dialogue on one question. findings: in the order they were asked; number i (from 1) is findings[i - 1]."""

    question: str
    plan: Plan
    findings: list[Finding] = field(default_factory=list)

    def of_step(self, step: int) -> list[int]:
        """The numbers of the findings for a step of the plan."""
        return [number for number, finding in enumerate(self.findings, 1) if finding.step == step]

    def answers_of(self, step: int) -> tuple[str, ...]:
        """All answers found for a step, without duplicates, in order."""
        return tuple(dict.fromkeys(text for number in self.of_step(step) for text in self.findings[number - 1].answers))

    def evidence(self, cited: Sequence[int]) -> tuple[Evidence, ...]:
        """Distinct passages: those that support the cited findings, those of the other findings, then all other
        retrieved ones."""
        order = [*(self.findings[number - 1] for number in cited), *self.findings]
        return _once(chain(*(finding.cited for finding in order), *(finding.retrieved.evidence for finding in order)))

    def readable(self) -> tuple[Evidence, ...]:
        """Passages for a last reading: the cited ones, then the first retrieved of each finding, then the second of
        each."""
        turns = zip_longest(*(finding.retrieved.evidence for finding in self.findings))
        return _once(chain(*(finding.cited for finding in self.findings), *turns))

    def paths(self, cited: Sequence[int]) -> tuple[Path, ...]:
        """The relations read for the cited findings (for all, if none is cited), without duplicates."""
        chosen = [self.findings[number - 1] for number in cited] or self.findings
        return tuple({path.edges: path for finding in chosen for path in finding.retrieved.paths}.values())


def _once(evidence: Iterable[Evidence | None]) -> tuple[Evidence, ...]:
    """Passages without duplicates, each at its first place."""
    first: dict[str, Evidence] = {}
    for item in evidence:
        if item is not None:
            first.setdefault(item.passage_id, item)
    return tuple(first.values())
