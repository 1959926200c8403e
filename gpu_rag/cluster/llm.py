"""A language model whose requests are answered by workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_rag.cluster.pool import Pool
from gpu_rag.cluster.task_queue import Task
from gpu_rag.errors import RequestFailed
from gpu_rag.models.llm.chat import ChatFormat
from gpu_rag.models.llm.interface import OnReply, check_key
from gpu_rag.types import Reply, Request

N_COUNTS = 4096  # token counts that are kept of a model without a tokenizer's files


class RayLLM:
    """Replies by the engine that each worker of `pool` holds, with its name and content hash: both faces of an engine.

    A worker holds about twice what its engine runs together; the rest waits here. Requests of one system text, and of
    like length, are given out together, so that a worker's batches and its prefix cache are used. Which worker answers
    depends on time; where an engine's reply depends on its batch, keep replies (CachedLLM) or replay them. A request at
    whose side workers died twice, the last time alone, is a RequestFailed. Tokens are counted here, by the tokenizer
    of the workers. Replies are taken in the caller's thread: an engine goes on by itself, but what it has finished is
    seen, and new requests are sent, in `complete` and `poll`.
    """

    def __init__(self, pool: Pool):
        """For a pool that runs already."""
        about = pool.about
        self.name, self.content_hash = about["name"], about["content_hash"]
        self.context_tokens, self.capable = about["context_tokens"], about["capable"]
        self._pool = pool
        files = pool.ask("tokenizer")
        self._chat = _chat_format(files) if files else None
        self._counted = lru_cache(maxsize=N_COUNTS)(partial(pool.ask, "count_tokens"))
        self._open: dict[int, Task] = {}
        self._finished: deque[tuple[int, Reply | RequestFailed]] = deque()  # by the thread that pumps

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, as the engine counts."""
        return int(self._counted(text)) if self._chat is None else len(self._chat.prompt_ids([text])[0])

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order. Raises ModelError when no worker is left; what came before is handed out."""
        replies: list[Reply | RequestFailed | None] = [None] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: (requests[i].system, -len(requests[i].prompt), i))
        with closing(self._pool.run([requests[i] for i in order])) as results:
            for place, reply in results:
                i = order[place]
                replies[i] = reply
                if on_reply is not None:
                    on_reply(i, reply)
        return [reply for reply in replies if reply is not None]

    # --- the streaming face ---

    @property
    def n_open(self) -> int:
        """How many keys were submitted and not yet given out by `poll`."""
        return len(self._open)

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; it leaves at the next `poll`. Raises UsageError for a key that is open."""
        check_key(key, self._open)
        task = self._open[key] = Task(request, partial(self._keep, key))
        self._pool.add([task])

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """What has finished; see `StreamingLLM.poll`."""
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
        """Give up a request; a key that is not open is ignored."""
        task = self._open.get(key)
        if task is not None:
            self._pool.abort(task)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self._open.clear()

    def _keep(self, key: int, reply: Any) -> None:
        self._finished.append((key, reply))


def _chat_format(files: dict[str, bytes]) -> ChatFormat:
    """What tells how many tokens a text has, from a tokenizer's files. Raises ModelError."""
    from gpu_rag.models.llm.vllm import load_tokenizer

    with TemporaryDirectory(prefix="gpu-rag-tokenizer-") as folder:
        for name, data in files.items():
            (Path(folder) / Path(name).name).write_bytes(data)
        return ChatFormat(load_tokenizer(Path(folder)))
