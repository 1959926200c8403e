"""Budgets and totals: limits of one question, and the costs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gpu_rag.errors import BudgetExceeded, UsageError
from gpu_rag.runtime.occupancy import Occupancy
from gpu_rag.runtime.step import Metered
from gpu_rag.types import FALLBACKS, Usage

# Stages of calls without a note: made after the last note of a program, or by a cancelled strand.
UNNOTED, CANCELLED = "(after the last note)", "(cancelled)"


def fallbacks_by_step(fallbacks: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """{step: {kind: number}}, every kind of `types.FALLBACKS`, from the {"step/kind": number} of `Usage`."""
    by_step: dict[str, dict[str, int]] = {}
    for key, n in sorted(fallbacks.items()):
        step, _, kind = key.rpartition("/")
        by_step.setdefault(step, dict.fromkeys(FALLBACKS, 0))[kind] = n
    return by_step


def add_fallbacks(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the fallbacks of one question or stage to a total."""
    for key, n in more.items():
        total[key] = total.get(key, 0) + n


@dataclass(frozen=True)
class Budget:
    """Budget of ONE question; None means no limit. The question fails with BudgetExceeded at the call that finds it
    used up.

    max_calls: calls of any step, counted when they are made. max_tokens: prompt + generated tokens. max_s: seconds
    charged to the question, its shares of the batches (not its waiting time for other questions).
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    max_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_tokens", "max_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise UsageError("a budget must be positive", given=f"{name}={limit}", expected="> 0, or none")

    def check(self, n_calls: int, usage: Usage) -> BudgetExceeded | None:
        """BudgetExceeded if something is used up for a question about to make call number `n_calls`; else None."""
        tokens = usage.prompt_tokens + usage.generated_tokens
        seconds = usage.llm_s + usage.graph_s + usage.embed_s
        if self.max_calls is not None and n_calls > self.max_calls:
            return BudgetExceeded("the question has no calls left", given=n_calls, expected=f"<= {self.max_calls}")
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return BudgetExceeded("the question has no tokens left", given=tokens, expected=f"< {self.max_tokens}")
        if self.max_s is not None and seconds >= self.max_s:
            return BudgetExceeded(
                "the question has no seconds left", given=f"{seconds:.3f}", expected=f"< {self.max_s}"
            )
        return None


@dataclass(slots=True)
class Cost:
    """Cost of some calls: calls of a strand since its last note, or of all notes of one name in a run.

    n_notes: notes of the name; n_calls: calls of any step. Seconds are the calls' shares of their batches (or of a
    service that works on several at once); wait_s: further waiting time, for a place in a batch or for others.
    """

    n_notes: int = 0
    n_calls: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    llm_s: float = 0.0
    embed_s: float = 0.0
    graph_s: float = 0.0
    wait_s: float = 0.0

    @property
    def s(self) -> float:
        """Seconds inside services."""
        return self.llm_s + self.embed_s + self.graph_s

    def add(self, other: Cost) -> None:
        """Add another cost to this one."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))


def charge(usage: Usage, cost: Cost, service: str, seconds: float, wait_s: float, result: Any) -> None:
    """Book one call's share of a batch, and its tokens if the result is Metered, to its question and its stage."""
    cost.n_calls += 1
    cost.wait_s += wait_s
    # there is no field for text search: its seconds count as retrieval, as graph ops do
    part = f"{service}_s" if service in ("llm", "embed") else "graph_s"
    accounts: tuple[Usage | Cost, ...] = (usage, cost)
    for account in accounts:
        setattr(account, part, getattr(account, part) + seconds)
        if isinstance(result, Metered):
            account.llm_calls += result.llm_calls
            account.prompt_tokens += result.n_prompt
            account.cached_tokens += result.n_cached
            account.generated_tokens += result.n_generated
    if isinstance(result, Metered):
        usage.malformed += result.malformed


@dataclass
class StepStats:
    """Totals of one step. batch_sizes: {size: number of batches of that size}; s: seconds inside it.

    For a step answered by a slow service, a batch is the replies taken at once, and s the time with requests open.
    """

    service: str
    n_calls: int = 0
    n_batches: int = 0
    s: float = 0.0
    batch_sizes: dict[int, int] = field(default_factory=dict)

    @property
    def largest_batch(self) -> int:
        """The largest batch size; 0 if there was none."""
        return max(self.batch_sizes, default=0)


@dataclass
class RunStats:
    """Totals of a run, updated while it goes. n_late_calls: calls answered after their task was cancelled.

    stages: costs of the calls, by the name of the note that they led to, or `UNNOTED` or `CANCELLED`; they add up to
    the costs of all questions. llm: open requests of the LLM over time, and the reasons for having none.
    implementations: for each graph op that ran, the names of its implementations.
    """

    steps: dict[str, StepStats] = field(default_factory=dict)
    stages: dict[str, Cost] = field(default_factory=dict)
    llm: Occupancy = field(default_factory=Occupancy)
    implementations: dict[str, set[str]] = field(default_factory=dict)
    n_late_calls: int = 0
    wall_s: float = 0.0

    def add_batch(self, step: str, service: str, size: int, seconds: float) -> None:
        """Book one executed batch."""
        stats = self.steps.get(step)
        if stats is None:
            stats = self.steps[step] = StepStats(service)
        stats.n_calls += size
        stats.n_batches += 1
        stats.s += seconds
        stats.batch_sizes[size] = stats.batch_sizes.get(size, 0) + 1

    def add_implementations(self, record: Mapping[str, set[str]]) -> None:
        """Book the implementations that ran graph ops."""
        for op, names in record.items():
            self.implementations.setdefault(op, set()).update(names)

    def add_stage(self, name: str, cost: Cost) -> None:
        """Book the cost of calls of a stage."""
        total = self.stages.get(name)
        if total is None:
            total = self.stages[name] = Cost()
        total.add(cost)

    def stage_costs(self) -> dict[str, dict[str, Any]]:
        """{stage: its costs by name}, in the order in which stages first ended."""
        return {name: asdict(cost) for name, cost in self.stages.items()}

    def add_note(self, name: str, cost: Cost | None) -> None:
        """Book one note of a question that ended, and the cost that led to it."""
        self.add_stage(name, cost or Cost())
        self.stages[name].n_notes += 1
