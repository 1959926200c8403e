"""Siblings of a program that run side by side: `await gather(a, b, ...)`.

A program is a bare coroutine. It awaits calls of steps and gathers of them; the driver that steps it resumes it with
the result. There is no event loop, so nothing else may be awaited.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from inspect import iscoroutine
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.runtime.step import Call


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
        for item in items:  # grows during iteration: nested gathers need no recursion
            if isinstance(item, Gather):
                items.extend(item.items)
            elif iscoroutine(item):
                item.close()


def gather(*items: Coroutine[Any, Any, Any] | Call[Any] | Gather) -> Gather:
    """Run siblings side by side: `results = await gather(a, b, ...)`, results in the given order.

    Items are coroutines, calls or other gathers. Failure is by position: when sibling i fails, the siblings after i are
    cancelled at once and those before it run to their end; then the failure of lowest position is raised. So the raised
    error never depends on timing. A cancelled sibling sees `Cancelled` raised at its await; a call that it makes while
    it unwinds (in a `finally`) is also refused with `Cancelled`, and never runs.
    Raises UsageError for any other item, and for one coroutine given twice.
    """
    joined = Gather(items)
    for item in items:
        if not (iscoroutine(item) or isinstance(item, (Call, Gather))):
            joined.discard()
            raise UsageError(
                "gather takes coroutines and calls", given=type(item).__name__, do="pass step(...) without awaiting it"
            )
    coroutines = [id(item) for item in items if iscoroutine(item)]
    if len(set(coroutines)) < len(coroutines):
        joined.discard()
        raise UsageError("one coroutine was given twice to gather", do="call the function once for each sibling")
    return joined
