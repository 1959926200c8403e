"""Batches: the choice and order of waiting calls that run together, and one guarded run of a step over them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

from gpu_rag.errors import Cancelled, GpuRagError, ModelError
from gpu_rag.runtime.core import Core
from gpu_rag.runtime.occupancy import DOING, PROGRAMS
from gpu_rag.runtime.step import Step
from gpu_rag.runtime.tasks import FAILED, GAVE, Pending, attempt, blame


class Batch(NamedTuple):
    """Calls of one step with the same key, ordered by (question, slot), at most max_batch."""

    step: Step[Any, Any, Any, Any]
    key: tuple[Any, ...]
    calls: list[Pending]


def cheapest_batches(core: Core) -> list[Batch]:
    """Take all waiting calls of the lowest rank, as batches in the order of their first calls."""
    groups = core.waiting.pop(min(core.waiting))
    batches = []
    for (step, key, _), waiting in groups.items():
        calls = sorted(pending for pending in waiting if pending.task.alive)
        size = step.kind.max_batch
        batches += [Batch(step, key, calls[i : i + size]) for i in range(0, len(calls), size)]
    batches.sort(key=lambda batch: batch.calls[0][:2])
    return batches


def oldest_batch(core: Core, ranks: Iterable[int], limit: int) -> Batch | None:
    """Take at most `limit` calls of the batch with the oldest call of some ranks. None if all calls were cancelled."""
    oldest = []
    for rank in ranks:
        alive = {key: sorted(p for p in calls if p.task.alive) for key, calls in core.waiting.pop(rank).items()}
        if groups := {key: calls for key, calls in alive.items() if calls}:
            core.waiting[rank] = groups
            oldest += [(calls[0][:2], rank, key) for key, calls in groups.items()]
    if not oldest:
        return None
    _, rank, group = min(oldest, key=itemgetter(0))
    (step, key, _), calls = group, core.waiting[rank].pop(group)
    size = min(max(limit, 1), step.kind.max_batch)
    if len(calls) > size:
        core.waiting[rank][group] = calls[size:]
    elif not core.waiting[rank]:
        del core.waiting[rank]
    return Batch(step, key, calls[:size])


def run_batch(core: Core, batch: Batch) -> list[tuple[Pending, Any, float]]:
    """Run a batch. Returns (call, result or error, its equal share of the seconds), in the order of the batch.

    Raises ModelError and Cancelled, which stop the run; any other exception becomes the result of every call.
    """
    step, n = batch.step, len(batch.calls)
    service, own = step.kind.service, batch.calls[0].task.run.ctx.resources
    resource = own.get(step.kind.resource, core.resources.get(step.kind.resource))
    queries = [pending.call.query for pending in batch.calls]
    llm, level = core.stats.llm, core.stats.llm.level
    started = perf_counter()
    llm.mark(started, n if service == "llm" else level, DOING[service])
    kind, results = attempt(lambda given: step.run(resource, given, batch.key), queries)
    ended = perf_counter()
    llm.mark(ended, level, PROGRAMS)
    seconds = ended - started
    core.stats.add_batch(step.name, service, n, seconds)
    if kind != GAVE:
        if isinstance(results, (ModelError, Cancelled)):
            if isinstance(results, ModelError):
                blame(results, batch.calls)
            raise results
        results = [_batch_failure(step.name, results if kind == FAILED else StopIteration(results))] * n
    return [(pending, result, seconds / n) for pending, result in zip(batch.calls, results)]


def _batch_failure(name: str, error: BaseException) -> GpuRagError:
    """One error for all calls of a batch, of which each call gets a copy."""
    if isinstance(error, GpuRagError):
        return error
    return GpuRagError(f"the step {name} failed", given=f"{type(error).__name__}: {error}")
