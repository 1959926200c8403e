"""An embedder and a language model over a pool of workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from gpu_rag.cluster.pool import Pool
from gpu_rag.cluster.task_queue import Task
from gpu_rag.errors import GpuRagError, ModelError, RequestFailed
from gpu_rag.models.embed.interface import OnBatch, Parts, gathered
from gpu_rag.models.llm.chat import ChatFormat
from gpu_rag.models.llm.interface import OnReply, check_key, in_order
from gpu_rag.types import Reply, Request


class RayEmbedder:
    """Unit vectors by the embedder of a pool's workers, with its name, content hash and bits.

    Texts are sorted by length, so that texts of one padded length are together, and cut into lists of `batch`. Each
    list is a task of one worker, and each worker has at most two lists at a time. A text's shape depends only on the
    text (see `embed.batches`), so its vector does not depend on the lists or on the worker. Workers are checked when
    they join, so that all compute the same bits.
    """

    def __init__(self, pool: Pool, batch: int):
        """Use a pool that already runs."""
        about = pool.about
        self.name, self.content_hash, self.dim = about["name"], about["content_hash"], about["dim"]
        self.device, self.row_identical = about["device"], about["row_identical"]
        self.n_truncated = 0
        self._pool, self._batch = pool, batch

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Equal texts are computed once. Raises ModelError."""
        return gathered(texts, self.dim, self.parts, on_batch)

    def parts(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> Parts:
        """(rows, f32[len(rows), D]) of distinct texts, one list at a time as it finishes, in any order. So a vector
        cache can store them at once. Raises ModelError."""
        order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), row))
        lists = [order[start : start + self._batch] for start in range(0, len(order), self._batch)]
        n_done = 0
        with closing(self._pool.run([[texts[row] for row in rows] for rows in lists])) as results:
            for place, result in results:
                rows = lists[place]
                if isinstance(result, GpuRagError):
                    given = f"{len(rows)} texts, the first {texts[rows[0]][:80]!r}: {result}"
                    raise ModelError("texts could not be embedded", given=given) from result
                vectors, n_truncated = result
                self.n_truncated += n_truncated
                n_done += len(rows)
                yield rows, np.asarray(vectors)
                if on_batch is not None:
                    on_batch(n_done)


N_COUNTS = 4096  # cached token counts of a model without tokenizer files


class RayLLM:
    """Replies by the engine of a pool's workers, with its name and content hash. It has both interfaces of an engine.

    A worker gets about twice the requests that its engine runs together; the rest waits here. Requests with the same
    system text and similar length are sent together, so that batches and prefix caches are used well. The worker that
    answers depends on timing; if an engine's reply depends on its batch, cache replies (CachedLLM) or replay them. A
    request becomes a RequestFailed if workers died while they had it, twice or more and the last time with no other
    request. Tokens are counted here with the workers' tokenizer. An engine continues by itself, but its finished
    replies are taken, and new requests sent, only in `complete` and `poll`, in the caller's thread.
    """

    def __init__(self, pool: Pool):
        """Use a pool that already runs."""
        about = pool.about
        self.name, self.content_hash = about["name"], about["content_hash"]
        self.context_tokens, self.capable = about["context_tokens"], about["capable"]
        self._pool = pool
        files = pool.ask("tokenizer")
        self._chat = _chat_format(files) if files else None
        self._counted = lru_cache(maxsize=N_COUNTS)(partial(pool.ask, "count_tokens"))
        self._open: dict[int, Task] = {}
        self._finished: deque[tuple[int, Reply | RequestFailed]] = deque()  # filled by the thread that pumps

    def count_tokens(self, text: str) -> int:
        """The number of tokens of `text`, as the engine counts."""
        return int(self._counted(text)) if self._chat is None else len(self._chat.prompt_ids([text])[0])

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when no worker is left, after `on_reply` of others."""
        order = sorted(range(len(requests)), key=lambda i: (requests[i].system, -len(requests[i].prompt), i))
        with closing(self._pool.run([replace(requests[i], on_text=None) for i in order])) as results:
            return in_order(len(requests), ((order[place], reply) for place, reply in results), on_reply)

    # --- the streaming interface ---

    @property
    def n_open(self) -> int:
        """The number of submitted keys that `poll` has not returned yet."""
        return len(self._open)

    def submit(self, key: int, request: Request) -> None:
        """Submit a request; it is sent at the next `poll`. Raises UsageError for a key that is open."""
        check_key(key, self._open)
        sent = replace(request, on_text=None)  # a worker cannot call back
        task = self._open[key] = Task(sent, lambda reply: self._finished.append((key, reply)))
        self._pool.add([task])

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """The finished requests; see `StreamingLLM.poll`."""
        if not self._open:
            return []
        until, error = time.monotonic() + timeout_s, self._pool.pumped(0.0)
        while not self._finished and error is None and (left_s := until - time.monotonic()) > 0:
            error = self._pool.pumped(left_s)
        found: list[tuple[int, Reply | RequestFailed]] = []
        while self._finished:
            key, reply = self._finished.popleft()
            if reply is not error:
                found.append((key, reply))
                del self._open[key]
        if error is not None and not found:
            raise error
        return found

    def abort(self, key: int) -> None:
        """Abort a request; a key that is not open is ignored."""
        task = self._open.get(key)
        if task is not None:
            self._pool.abort(task)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self._open.clear()


def _chat_format(files: dict[str, bytes]) -> ChatFormat:
    """The chat format of a tokenizer, built from its files. Raises ModelError."""
    from gpu_rag.models.pretrained import load_tokenizer

    with TemporaryDirectory(prefix="gpu-rag-tokenizer-") as folder:
        for name, data in files.items():
            (Path(folder) / Path(name).name).write_bytes(data)
        return ChatFormat(load_tokenizer(Path(folder)))
