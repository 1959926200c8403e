"""Budgets and totals: what one question may cost, and what a run did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_rag.errors import BudgetExceeded, UsageError
from gpu_rag.runtime.call import Metered
from gpu_rag.types import Usage

# Usage has no field for text search; its seconds are retrieval, as those of graph ops are.
SECONDS_FIELD = {"llm": "llm_s", "embed": "embed_s", "graph": "graph_s", "text": "graph_s"}


@dataclass(frozen=True)
class Budget:
    """What ONE question may use; None is no limit. It fails with BudgetExceeded at the call that finds it used up.

    max_calls: calls of any verb, counted when they are made. max_tokens: prompt + generated tokens. max_s: seconds
    charged to the question, its shares of the batches (not the time it waited for other questions).
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
        """What is used up, for a question that is about to make its call number `n_calls`; None if nothing is."""
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


def charge(usage: Usage, service: str, seconds: float, result: Any) -> None:
    """Book one call's share of a batch, and its tokens where the result is Metered."""
    name = SECONDS_FIELD[service]
    setattr(usage, name, getattr(usage, name) + seconds)
    if isinstance(result, Metered):
        usage.llm_calls += result.llm_calls
        usage.prompt_tokens += result.n_prompt
        usage.cached_tokens += result.n_cached
        usage.generated_tokens += result.n_generated
        usage.malformed += result.malformed


@dataclass
class VerbStats:
    """Totals of one verb. batch_sizes: {size: number of batches of that size}; s: seconds inside its executor."""

    service: str
    n_calls: int = 0
    n_batches: int = 0
    s: float = 0.0
    batch_sizes: dict[int, int] = field(default_factory=dict)

    @property
    def mean_batch(self) -> float:
        """Calls a batch; 0 where there was none."""
        return self.n_calls / self.n_batches if self.n_batches else 0.0

    @property
    def largest_batch(self) -> int:
        """The largest batch; 0 where there was none."""
        return max(self.batch_sizes, default=0)


@dataclass
class RunStats:
    """Totals of a run, updated while it goes. n_late_calls: answered after their task was cancelled.

    overhead_s: wall time outside all executors, the programs' own time included.
    """

    verbs: dict[str, VerbStats] = field(default_factory=dict)
    n_rounds: int = 0
    n_questions: int = 0
    n_failed: int = 0
    n_late_calls: int = 0
    wall_s: float = 0.0

    def add_batch(self, verb: str, service: str, size: int, seconds: float) -> None:
        """Book one executed batch."""
        stats = self.verbs.get(verb)
        if stats is None:
            stats = self.verbs[verb] = VerbStats(service)
        stats.n_calls += size
        stats.n_batches += 1
        stats.s += seconds
        stats.batch_sizes[size] = stats.batch_sizes.get(size, 0) + 1

    @property
    def overhead_s(self) -> float:
        """Wall time minus the seconds inside executors."""
        return self.wall_s - sum(stats.s for stats in self.verbs.values())
