"""Questions submitted to a live driver, and the queue in which they wait for their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from gpu_rag.errors import Cancelled
from gpu_rag.runtime.core import Program
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.types import Question, Usage


class Handle:
    """A question that was submitted to a live driver. on_end(outcome) is called once, in the driver's thread.

    group: the owner of the question; groups take turns while they wait.
    """

    __slots__ = ("group", "on_end", "order", "program", "question", "reason")

    def __init__(self, question: Question, program: Program, on_end: Callable[[Outcome], None], group: Hashable):
        self.question, self.program, self.on_end, self.group = question, program, on_end, group
        self.order: int | None = None  # set on admission
        self.reason: BaseException | None = None  # reason of the cancellation, if the submitter gave one

    def end_by(self, error: BaseException) -> None:
        """End the question with an error before its program has finished."""
        self.on_end(Outcome(self.question, None, error, (), Usage()))

    def cancelled(self) -> BaseException:
        """Error with which a cancelled question fails."""
        return self.reason or Cancelled("the question was cancelled", do="ask it again if it is still wanted")


class Turns:
    """A queue of handles with turns: one of each group, then the next of each (round robin); first in, first out within
    a group.

    A new group has its first turn after the waiting groups. So a single question waits for one of each group, however
    many they have. Handles of one group, such as None, leave in the order in which they came. It has no lock.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Handle]] = {}  # the group with the next turn stands first; none is empty
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def append(self, handle: Handle) -> None:
        """Add a handle, as the last of its group."""
        self._groups.setdefault(handle.group, deque()).append(handle)
        self._n += 1

    def popleft(self) -> Handle:
        """Remove and return the handle whose turn it is. Raises IndexError if none waits."""
        if not self._groups:
            raise IndexError("no handle waits")
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        handle = waiting.popleft()
        if waiting:
            self._groups[group] = waiting  # after all others
        self._n -= 1
        return handle

    def remove(self, handle: Handle) -> bool:
        """Remove a handle; False if it does not wait."""
        waiting = self._groups.get(handle.group)
        if waiting is None or handle not in waiting:
            return False
        waiting.remove(handle)
        if not waiting:
            del self._groups[handle.group]
        self._n -= 1
        return True

    def drain(self) -> list[Handle]:
        """Remove and return all handles, in the order of their turns."""
        return [self.popleft() for _ in range(self._n)]
