"""The state of a dialogue: the question, its plan, and the Librarian's findings so far, also in words for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_rag.methods.higra.librarian import Finding
from gpu_rag.text.rules.decomposition import Plan
from gpu_rag.types import Evidence, Path

_EVIDENCE_CHARS = 600


@dataclass(frozen=True)
class Ask:
    """One sub-question to the Librarian; step: that of the plan which it answers, None for a free one."""

    question: str
    step: int | None = None


Asks = tuple[Ask, ...]  # all at the same time


@dataclass(frozen=True)
class Answered:
    """The Seeker answers. cited: numbers of findings, from 1."""

    text: str
    cited: tuple[int, ...]


@dataclass
class Dialogue:
    """One question's dialogue. findings: in the order asked; number i (from 1) is findings[i - 1]."""

    question: str
    plan: Plan
    asks: list[Ask] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, asks: Sequence[Ask], findings: Sequence[Finding]) -> None:
        """One call to the Librarian."""
        self.asks.extend(asks)
        self.findings.extend(findings)

    def of_step(self, step: int) -> list[int]:
        """The numbers of the findings for a step of the plan."""
        return [number for number, ask in enumerate(self.asks, 1) if ask.step == step]

    def answers_of(self, step: int) -> tuple[str, ...]:
        """All answers found for a step, each once, in order."""
        found = (answer for number in self.of_step(step) for answer in self.findings[number - 1].answers)
        return tuple(dict.fromkeys(found))

    # --- in words ---

    def plan_lines(self) -> str:
        """The plan for a prompt."""
        return "\n".join(f"#{step.id} {step.question}" for step in self.plan.steps)

    def history_lines(self) -> list[str]:
        """One block a finding, in order."""
        return [
            f"[{number}] {found.question}\nanswers: {'; '.join(found.answers) or 'none'}\n"
            f"evidence: {found.evidence[:_EVIDENCE_CHARS]}"
            for number, found in enumerate(self.findings, 1)
        ]

    # --- what the answer rests on ---

    def evidence(self, cited: Sequence[int]) -> tuple[Evidence, ...]:
        """Passages, each once: those that the cited findings rest on, those of the others, then all else retrieved."""
        first = [self.findings[number - 1] for number in cited]
        groups = [e for found in first for e in found.cited] + [e for found in self.findings for e in found.cited]
        groups += [e for found in [*first, *self.findings] for e in found.retrieved.passages]
        return _once(groups)

    def readable(self) -> tuple[Evidence, ...]:
        """Passages for one last reading: what findings rest on, then the first of each finding, the second of each."""
        rows = [found.retrieved.passages for found in self.findings]
        turns = [row[i] for i in range(max(map(len, rows), default=0)) for row in rows if i < len(row)]
        order = [e for found in self.findings for e in found.cited] + turns
        return _once(order)

    def paths(self, cited: Sequence[int]) -> tuple[Path, ...]:
        """The relations that were read for the cited findings (all, where none is cited), each once."""
        chosen = [self.findings[number - 1] for number in cited] or self.findings
        return tuple({path.edges: path for found in chosen for path in found.retrieved.paths}.values())


def _once(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Each passage at its first place."""
    first: dict[str, Evidence] = {}
    for item in evidence:
        first.setdefault(item.passage_id, item)
    return tuple(first.values())
