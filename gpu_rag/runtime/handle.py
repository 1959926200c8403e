"""Questions that were submitted to a live driver, and the queue in which they wait for their turns."""

from __future__ import annotations

import threading
from collections import deque
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
        """The error that a cancelled question fails with."""
        return self.reason or Cancelled("the question was cancelled", do="ask it again if it is still wanted")

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """The outcome, when there is one; None after timeout_s without."""
        self._ended.wait(timeout_s)
        return self.outcome


class Turns:
    """A queue of handles with turns: one of each group, then the next of each (round robin), in a group as they came.

    A group that comes new has its first turn after those that wait, so a single question is behind one of each group,
    however many they have. Handles of one group, such as None, leave in the order in which they came. It has no lock.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Handle]] = {}  # whose turn is next stands first; none is empty
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def append(self, handle: Handle) -> None:
        """Let a handle wait, as the last of its group."""
        self._groups.setdefault(handle.group, deque()).append(handle)
        self._n += 1

    def popleft(self) -> Handle:
        """The handle whose turn it is. Raises IndexError where none waits."""
        if not self._groups:
            raise IndexError("no handle waits")
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        handle = waiting.popleft()
        if waiting:
            self._groups[group] = waiting  # behind all others
        self._n -= 1
        return handle

    def remove(self, handle: Handle) -> bool:
        """Take a handle out; False where it does not wait."""
        waiting = self._groups.get(handle.group)
        if waiting is None or handle not in waiting:
            return False
        waiting.remove(handle)
        if not waiting:
            del self._groups[handle.group]
        self._n -= 1
        return True

    def drain(self) -> list[Handle]:
        """Take all out, in the order of their turns."""
        return [self.popleft() for _ in range(self._n)]
