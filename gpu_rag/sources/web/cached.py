"""A web provider that asks for nothing twice: many questions, and the phases of one, send the same query."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import TypeVar

from gpu_rag.errors import RequestFailed
from gpu_rag.sources.web.types import WebPage, WebProvider, WebResult

MAX_CHARS = 64 << 20  # of results and pages that are kept
MAX_AGE_S = 3600.0
FAILED_S = 30.0  # how long what failed is not asked for again
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CachedProvider:
    """Results and pages of another provider, kept for an hour (what failed for half a minute), the last used first.

    clock: seconds, for tests. Threads may share it; two that ask for one thing at the same time may both send it.
    """

    def __init__(self, provider: WebProvider, clock: Callable[[], float] = time.monotonic):
        self.name = provider.name
        self._provider, self._clock, self._lock = provider, clock, Lock()
        self._kept: OrderedDict[Hashable, tuple[float, int, object]] = OrderedDict()  # until, characters, what
        self._chars = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """The first k results of each query, or why it failed."""
        found = self._all([(query, k) for query in queries], lambda new: self._provider.search([q for q, _ in new], k))
        return [one if isinstance(one, RequestFailed) else list(one) for one in found]

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        """The pages behind results."""
        return self._all(list(urls), self._provider.read)

    def _all(self, keys: Sequence[K], ask: Callable[[list[K]], Sequence[V]]) -> list[V]:
        now, known = self._clock(), dict[K, V]()
        with self._lock:
            for key in dict.fromkeys(keys):
                if key in self._kept and self._kept[key][0] > now:
                    self._kept.move_to_end(key)
                    known[key] = self._kept[key][2]  # type: ignore[assignment]
        new = [key for key in dict.fromkeys(keys) if key not in known]
        for key, value in zip(new, ask(new) if new else ()):
            known[key] = value
            self._keep(key, value)
        return [known[key] for key in keys]

    def _keep(self, key: Hashable, value: object) -> None:
        failed = isinstance(value, RequestFailed) or (isinstance(value, WebPage) and bool(value.problem))
        size = len(str(key)) + len(str(value))
        with self._lock:
            self._chars -= self._kept.pop(key, (0.0, 0, None))[1]
            self._kept[key] = (self._clock() + (FAILED_S if failed else MAX_AGE_S), size, value)
            self._chars += size
            while self._chars > MAX_CHARS:
                self._chars -= self._kept.popitem(last=False)[1][1]

    def close(self) -> None:
        """Closes the other provider."""
        self._provider.close()
