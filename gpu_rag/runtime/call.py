"""What a program may await: one `Call`, or a `gather` of siblings; and what answers a call, an `Executor`.

A program is a bare coroutine. `await Call(...)` hands the call to whichever driver is stepping the coroutine
and resumes with its result; there is no event loop, so nothing else may be awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any

from gpu_rag.errors import UsageError

SERVICES = ("text", "graph", "embed", "llm")
# Cheap kinds run first, so that the dearest meets the largest batch.
RANK_TEXT, RANK_GRAPH, RANK_EMBED, RANK_LLM = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Call:
    """One piece of work that a program asks for: `result = await Call(verb, static, args)`.

    verb: names the executor. static: hashable parameters; calls share a batch only where verb and static are equal.
    args: this call's own input, any object. The executor's answer comes back, or is raised where it is an error.
    """

    verb: str
    static: tuple[Any, ...]
    args: Any

    def __await__(self) -> Generator[Call, Any, Any]:
        return (yield self)


class Gather:
    """Siblings that run side by side; made by `gather`, awaited once."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, ...]):
        self.items = items

    def __await__(self) -> Generator[Gather, Any, list[Any]]:
        return (yield self)

    def discard(self) -> None:
        """Close the coroutines of a gather that will never run."""
        items = [*self.items]
        for item in items:  # grows while it is walked: nested gathers need no recursion
            if isinstance(item, Gather):
                items.extend(item.items)
            elif iscoroutine(item):
                item.close()


def gather(*items: Coroutine[Any, Any, Any] | Call | Gather) -> Gather:
    """`results = await gather(a, b, ...)`: run siblings side by side, results in the order given.

    Items are coroutines, calls or other gathers. Failure, by position: when sibling i fails, the siblings after i
    are cancelled at once and those before it run to their end; then the failure of lowest position is raised. So what
    is raised never depends on timing. A cancelled sibling sees `Cancelled` raised at its await; a call that it makes
    while it unwinds (in a `finally`) is refused with `Cancelled` too, and never runs.
    Raises UsageError for any other item, and for one coroutine given twice.
    """
    joined = Gather(items)
    for item in items:
        if not (iscoroutine(item) or isinstance(item, (Call, Gather))):
            joined.discard()
            raise UsageError(
                "gather takes coroutines and calls", given=type(item).__name__, do="pass verb(...) without awaiting it"
            )
    coroutines = [id(item) for item in items if iscoroutine(item)]
    if len(set(coroutines)) < len(coroutines):
        joined.discard()
        raise UsageError("one coroutine was given twice to gather", do="call the verb once for each sibling")
    return joined


@dataclass(frozen=True, slots=True)
class Metered:
    """A result together with what it cost in tokens; the program receives `value` alone (raised where it is an error).

    n_prompt, n_cached, n_generated: tokens. malformed: replies that could not be read. llm_calls: model requests made.
    """

    value: Any
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    malformed: int = 0
    reply_hash: str = ""
    llm_calls: int = 1


@dataclass(frozen=True)
class Executor:
    """Answers one verb for many questions at once.

    run(static, args_list) -> one item per call, in that order: a result, a `Metered`, or a GpuRagError VALUE for a call
    that failed alone. An exception that it raises fails every call of the batch, except ModelError, Cancelled and
    KeyboardInterrupt, which stop the run.
    service: text | graph | embed | llm, where the seconds are booked. rank: batches of a lower rank run first.
    max_batch: calls a batch, at most; results must not depend on it.
    """

    run: Callable[[tuple[Any, ...], list[Any]], Sequence[Any]]
    service: str
    rank: int
    max_batch: int = 1024

    def __post_init__(self) -> None:
        if self.service not in SERVICES:
            raise UsageError("unknown service of an executor", given=self.service, expected=" | ".join(SERVICES))
        if self.max_batch < 1:
            raise UsageError("an executor needs room for a call", given=f"max_batch={self.max_batch}", expected=">= 1")
