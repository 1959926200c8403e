"""Deterministic driver: all programs run until each waits, then all calls of the cheapest kind run, in batches.

The content of a batch depends only on the programs and the replies, never on time. The calls of a question are answered
in the same order, whatever other questions are open: all waiting calls of one rank are answered before any program
continues, and results are delivered in the order of (question, slot).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any, Unpack

from gpu_rag.errors import UsageError
from gpu_rag.runtime.batches import cheapest_batches, run_batch
from gpu_rag.runtime.core import Core, CoreOptions, Program
from gpu_rag.runtime.tasks import Outcome, Pending
from gpu_rag.types import Question


def run_rounds(
    programs: Iterable[tuple[Question, Program]],
    resources: Mapping[str, Any],
    *,
    max_live: int = 1024,
    on_done: Callable[[Outcome], None] | None = None,
    keep: bool = True,
    **options: Unpack[CoreOptions],
) -> list[Outcome]:
    """Run one program per question to its end. Returns the outcomes in the order of the questions.

    programs: (question, program) pairs, drawn only when there is room; program(ctx) makes the coroutine. resources:
    inputs of steps, by the resource name of their kind. max_live: number of questions open at once; outcomes do not
    depend on it. on_done(outcome) is called as each question ends. keep: whether outcomes are returned. If not, [] is
    returned, and the memory of a run does not grow with its questions. options: budget, the limits of each question;
    run_seed; stats, totals to add to.

    An exception in a program is the outcome of its question. ModelError, Cancelled raised by a step, KeyboardInterrupt,
    and exceptions of `programs` or `on_done` stop the run: open coroutines are closed and the exception is raised. The
    outcomes until then have gone to `on_done` only.
    """
    if max_live < 1:
        raise UsageError("a run needs room for a question", given=f"max_live={max_live}", expected=">= 1")
    outcomes: dict[int, Outcome] = {}

    def end(order: int, outcome: Outcome) -> None:
        if keep:
            outcomes[order] = outcome
        if on_done is not None:
            on_done(outcome)

    core, source, started = Core(resources, end, **options), iter(programs), perf_counter()
    core.stats.llm.begin(started)
    try:
        while True:
            core.resume()
            core.admit(source, max_live)
            if not core.waiting:
                return [outcomes[order] for order in sorted(outcomes)]
            answered = [item for batch in cheapest_batches(core) for item in run_batch(core, batch)]
            for pending, result, seconds in sorted(answered, key=_place):
                core.settle(pending, result, seconds)
    finally:
        core.close()
        ended = perf_counter()
        core.stats.llm.end(ended)
        core.stats.wall_s += ended - started


def _place(item: tuple[Pending, Any, float]) -> tuple[int, tuple[int, ...]]:
    return item[0].order, item[0].slot
