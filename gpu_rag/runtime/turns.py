"""Questions that wait to be admitted, taken by turns of those who asked them."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from gpu_rag.runtime.handle import Handle


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
