"""Streaming interface: the base class of engines that have it, and a thread that adds it to any other engine."""

from __future__ import annotations

import queue
import threading
from typing import Generic, TypeVar

from gpu_rag.errors import Cancelled, GpuRagError, ModelError, RequestFailed, UsageError
from gpu_rag.models.llm.interface import LLM, ServerAccount, StreamingLLM, aborted, complete_each
from gpu_rag.types import Reply, Request

JOIN_S = 10.0
Item = TypeVar("Item")
Work = TypeVar("Work")


class StreamingEngine(Generic[Item, Work]):
    """The output half of `StreamingLLM`: open keys, and items on their way from an engine's thread.

    An engine may have accounts of its servers, and may be able to sleep.
    """

    def __init__(self) -> None:
        self._finished: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._open: dict[int, Work] = {}  # used only by the caller's thread
        self._dead: GpuRagError | None = None

    def _read(self, item: Item) -> tuple[int, Reply | RequestFailed] | None:
        """Key and reply of an item; None if the request continues. Raises the error that ended the engine."""
        raise NotImplementedError

    def accounts(self) -> list[ServerAccount]:
        """Current account of each of its servers."""
        return []

    def sleep(self) -> None:
        """Free its device memory until the next request. Does nothing while a request is open."""

    @property
    def n_open(self) -> int:
        """Number of keys that were submitted and not yet returned by `poll`."""
        return len(self._open)

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """Finished requests; see `StreamingLLM.poll`. Raises the error that ended the engine."""
        finished: list[tuple[int, Reply | RequestFailed]] = []
        try:
            while self._open and self._dead is None:
                item = self._finished.get(timeout=0.0 if finished else max(0.0, timeout_s))
                if (read := self._read(item)) is not None:
                    finished.append(read)
                    del self._open[read[0]]
        except queue.Empty:
            pass
        except GpuRagError as error:
            self._dead = error
        if self._dead is not None and not finished and self._open:
            raise self._dead
        return finished


def as_streaming(llm: LLM) -> StreamingLLM:
    """`llm` itself if it has the streaming interface, else an `LLMService` over it."""
    return llm if isinstance(llm, StreamingLLM) else LLMService(llm)


class LLMService(StreamingEngine["tuple[int, Reply | RequestFailed] | GpuRagError", Request]):
    """`StreamingLLM` over an engine that has only `complete`, in a thread: the requests that have arrived form the next
    batch.

    A request in a batch cannot be stopped: if aborted, it still returns its reply, so that the work is not lost. The
    thread starts with the first request. Closing waits for it at most 10 s.
    """

    def __init__(self, llm: LLM):
        super().__init__()
        self.llm = llm
        self.name, self.content_hash = llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        self._waiting: dict[int, Request] = {}  # in order of arrival
        self._change = threading.Condition()  # guards _waiting, _closed
        self._closed = False
        self._thread: threading.Thread | None = None

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, by the engine's count."""
        return self.llm.count_tokens(text)

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; returns at once. Raises UsageError for an open key or a closed service."""
        if key in self._open or self._closed:
            raise UsageError("the request cannot be taken", given=f"key {key}", expected="a new key, an open service")
        self._open[key] = request
        with self._change:
            self._waiting[key] = request
            self._change.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="llm", daemon=True)
            self._thread.start()

    def abort(self, key: int) -> None:
        """Give up a request that is not in a batch yet."""
        with self._change:
            if self._waiting.pop(key, None) is not None:
                self._finished.put((key, aborted()))

    def close(self) -> None:
        """Stop the thread after its current request, and close the engine."""
        with self._change:
            self._closed = True
            self._waiting.clear()
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        self._open.clear()
        self.llm.close()

    def _read(self, item: tuple[int, Reply | RequestFailed] | GpuRagError) -> tuple[int, Reply | RequestFailed]:
        if isinstance(item, GpuRagError):
            raise item
        return item

    def _work(self) -> None:
        """Run batches until the service is closed or the whole engine fails."""
        failure: GpuRagError = ModelError("a service thread ended", given="the error printed above")
        try:
            while batch := self._next_batch():
                self._complete(batch)
        except GpuRagError as error:
            failure = error
        finally:  # the caller does not wait for ever
            if not self._closed:
                self._finished.put(failure)

    def _next_batch(self) -> list[tuple[int, Request]]:
        """All requests that have arrived; waits for the first. [] when the service is closed."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed)
            batch = list(self._waiting.items())
            self._waiting.clear()
            return batch

    def _complete(self, batch: list[tuple[int, Request]]) -> None:
        def hand_out(i: int, reply: Reply | RequestFailed) -> None:
            if self._closed:
                raise Cancelled("the service was closed")
            self._finished.put((batch[i][0], reply))

        complete_each(self.llm, [request for _, request in batch], hand_out)
