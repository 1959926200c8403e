"""The streaming face over any engine: worker threads that take what has arrived as one batch."""

from __future__ import annotations

import queue
import threading
import time
from itertools import islice

from gpu_rag.errors import Cancelled, GpuRagError, ModelError, RequestFailed, UsageError
from gpu_rag.models.llm.interface import LLM, StreamingLLM, aborted
from gpu_rag.types import Reply, Request

JOIN_S = 10.0


def as_streaming(llm: LLM) -> StreamingLLM:
    """`llm` itself where it has the streaming face, else an `LLMService` over it.

    An engine that says `max_connections` gets that many threads with one request each, so that a slow reply holds up
    no other; any other engine gets one thread and whole batches.
    """
    if isinstance(llm, StreamingLLM):
        return llm
    connections = getattr(llm, "max_connections", None)
    return LLMService(llm) if connections is None else LLMService(llm, workers=connections, max_batch=1)


class LLMService:
    """`StreamingLLM` over an engine that has only `complete`.

    workers: threads that call `llm.complete`; more than one only where that is safe. max_batch: requests a call, all
    that have arrived unless given. A request that a worker has taken cannot be stopped: aborted, it still comes back
    with its reply, so that the work is not lost. Threads start with the first request. Closing waits for all replies
    together no longer than 10 s.
    """

    def __init__(self, llm: LLM, *, workers: int = 1, max_batch: int | None = None):
        self.llm = llm
        self.name, self.content_hash = llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        self._workers, self._max_batch = workers, max_batch
        self._waiting: dict[int, Request] = {}  # in the order of arrival
        self._change = threading.Condition()  # guards _waiting, _dead, _closed
        self._finished: queue.SimpleQueue[tuple[int, Reply | RequestFailed] | None] = queue.SimpleQueue()
        self._open: set[int] = set()  # the caller's thread alone uses it
        self._dead: GpuRagError | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, as the engine counts."""
        return self.llm.count_tokens(text)

    @property
    def n_open(self) -> int:
        """The number of keys that were submitted and not yet given out by `poll`."""
        return len(self._open)

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; returns at once. Raises UsageError for a key that is open or a closed service."""
        if key in self._open or self._closed:
            raise UsageError("the request cannot be taken", given=f"key {key}", expected="a new key, an open service")
        self._open.add(key)
        with self._change:
            self._waiting[key] = request
            self._change.notify()
        if len(self._threads) < min(self._workers, len(self._open)):
            thread = threading.Thread(target=self._work, name=f"llm-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """Finished requests; see `StreamingLLM.poll`. Raises the error that ended a worker."""
        if not self._open:
            return []
        found: list[tuple[int, Reply | RequestFailed]] = []
        wait_s = 0.0 if self._dead else max(0.0, timeout_s)
        try:
            while True:
                item = self._finished.get(timeout=0.0 if found else wait_s)
                if item is None:  # a worker has ended
                    wait_s = 0.0
                else:
                    found.append(item)
        except queue.Empty:
            pass
        if not found and self._dead is not None:
            raise self._dead
        self._open.difference_update(key for key, _ in found)
        return found

    def abort(self, key: int) -> None:
        """Give up a request that no worker has taken yet."""
        with self._change:
            if self._waiting.pop(key, None) is not None:
                self._finished.put((key, aborted()))

    def close(self) -> None:
        """Stop the workers after the request they are at, and close the engine."""
        with self._change:
            self._closed = True
            self._waiting.clear()
            self._change.notify_all()
        until = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        self._open.clear()
        self.llm.close()

    def _work(self) -> None:
        """One worker: batches until the service is closed or the engine fails as a whole."""
        failure: GpuRagError = ModelError("a service thread ended", given="the error printed above")
        try:
            while batch := self._next_batch():
                self._complete(batch)
            return
        except GpuRagError as error:
            failure = error
        finally:  # whatever happens here, the caller is not left waiting
            with self._change:
                if not self._closed:
                    self._dead = self._dead or failure
                    self._change.notify_all()
            self._finished.put(None)

    def _next_batch(self) -> list[tuple[int, Request]]:
        """Requests that have arrived, up to max_batch; waits for the first. [] when the service is closed or dead."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed or self._dead)
            if self._closed or self._dead:
                return []
            keys = list(islice(self._waiting, self._max_batch))
            return [(key, self._waiting.pop(key)) for key in keys]

    def _complete(self, batch: list[tuple[int, Request]]) -> None:
        def hand_out(i: int, reply: Reply | RequestFailed) -> None:
            if self._closed:
                raise Cancelled("the service was closed")
            self._finished.put((batch[i][0], reply))

        self.llm.complete([request for _, request in batch], hand_out)
