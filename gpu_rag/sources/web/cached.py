"""A web provider with a cache: many questions, and the phases of one, send the same query."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import TypeVar

from gpu_rag.errors import RequestFailed
from gpu_rag.sources.web.types import WebPage, WebProvider, WebResult

MAX_CHARS = 64 << 20  # maximum characters of kept results and pages
MAX_AGE_S = 3600.0
FAILED_S = 30.0  # time before a failed request is sent again
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CachedProvider:
    """Results and pages of another provider, kept for an hour (failures for half a minute); the least recently used
    leave first.

    clock: returns seconds, for tests. Threads may share it; concurrent equal requests may both be sent.
    """

    def __init__(self, provider: WebProvider, clock: Callable[[], float] = time.monotonic):
        self.name = provider.name
        self._provider, self._clock, self._lock = provider, clock, Lock()
        self._kept: OrderedDict[Hashable, tuple[float, int, object]] = OrderedDict()  # until, characters, value
        self._chars = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[WebResult] | RequestFailed]:
        """First k results of each query, or the reason of its failure."""
        lists = self._all([(query, k) for query in queries], lambda new: self._provider.search([q for q, _ in new], k))
        return [item if isinstance(item, RequestFailed) else list(item) for item in lists]

    def read(self, urls: Sequence[str]) -> list[WebPage]:
        """Pages of results."""
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
        """Close the other provider."""
        self._provider.close()
