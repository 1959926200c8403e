"""A question that was submitted to a live driver, as its submitter sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from gpu_rag.errors import Cancelled
from gpu_rag.runtime.core import Program
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.types import Question, Usage


class Handle:
    """A question that was submitted to a live driver. on_end(outcome) is called once, in the driver's thread.

    group: whose question it is; groups take turns while they wait.
    """

    __slots__ = ("_ended", "group", "on_end", "order", "outcome", "program", "question", "reason")

    def __init__(
        self,
        question: Question,
        program: Program,
        on_end: Callable[[Outcome], None] | None = None,
        group: Hashable = None,
    ):
        self.question, self.program, self.on_end, self.group = question, program, on_end, group
        self.order: int | None = None  # set when it is admitted
        self.outcome: Outcome | None = None
        self.reason: BaseException | None = None  # why it was cancelled, where the submitter said so
        self._ended = threading.Event()

    def end(self, outcome: Outcome) -> None:
        """The driver says how it ended."""
        self.outcome = outcome
        self._ended.set()
        if self.on_end is not None:
            self.on_end(outcome)

    def end_by(self, error: BaseException) -> None:
        """The driver ends it without having run it to its end."""
        self.end(Outcome(self.question, None, error, (), Usage()))

    def cancelled(self) -> BaseException:
        """What a cancelled question fails with."""
        return self.reason or Cancelled("the question was cancelled", do="ask it again if it is still wanted")

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """The outcome, when there is one; None after timeout_s without."""
        self._ended.wait(timeout_s)
        return self.outcome
