"""What answers the model verbs: executors (requests to replies, texts to vectors, options to similarities), and an LLM
that takes requests one by one as a slow service of the streaming driver."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_rag.errors import RequestFailed
from gpu_rag.program.decider import resolve_decider
from gpu_rag.runtime.call import RANK_EMBED, RANK_LLM, Executor, Metered
from gpu_rag.types import Reply, Request

OnReply = Callable[[Reply | RequestFailed], None]

if TYPE_CHECKING:
    from gpu_rag.models.embed import Embedder
    from gpu_rag.models.llm import LLM
    from gpu_rag.models.llm.interface import StreamingLLM


def reply_hash(text: str) -> str:
    """The first 12 hexadecimal digits of sha1 of a reply's text."""
    return sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:12]


def model_executors(
    llm: LLM | None,
    embedder: Embedder,
    decider: str = "auto",
    *,
    max_requests: int = 8192,
    max_texts: int = 1024,
    on_reply: OnReply | None = None,
) -> dict[str, Executor]:
    """The executors of the verbs "llm" (where there is a model), "embed" and "similarity".

    max_requests, max_texts: calls a batch. on_reply: called with each reply as it is finished, for progress. Raises
    UsageError for a decider that cannot work.
    """
    resolve_decider(decider, llm)

    def embed(static: tuple[Any, ...], args: list[tuple[str, ...]]) -> list[np.ndarray]:
        return _embed_each(embedder, args)

    def similarity(static: tuple[Any, ...], args: list[tuple[str, tuple[str, ...]]]) -> list[np.ndarray]:
        vectors = _embed_each(embedder, [(query, *options) for query, options in args])
        # In float64: the rounded cosine then does not depend on the order of summation.
        exact = (rows.astype(np.float64) for rows in vectors)
        return [(rows[1:] @ rows[0]).astype(np.float32) for rows in exact]

    executors = {
        "embed": Executor(embed, "embed", RANK_EMBED, max_texts),
        "similarity": Executor(similarity, "embed", RANK_EMBED, max_texts),
    }
    if llm is not None:
        engine = llm

        def complete(static: tuple[Any, ...], args: list[Request]) -> list[Metered]:
            return _complete(engine, args, on_reply)

        executors["llm"] = Executor(complete, "llm", RANK_LLM, max_requests)
    return executors


def _embed_each(embedder: Embedder, groups: list[tuple[str, ...]]) -> list[np.ndarray]:
    """The vectors of each group of texts; a text that occurs twice in the batch is embedded once."""
    row = {text: i for i, text in enumerate(dict.fromkeys(text for group in groups for text in group))}
    vectors = embedder.embed(list(row)) if row else np.zeros((0, embedder.dim), dtype=np.float32)
    return [vectors[np.array([row[text] for text in group], dtype=np.intp)] for group in groups]


def _complete(llm: LLM, requests: list[Request], on_reply: OnReply | None) -> list[Metered]:
    """Replies in the order of the requests; those that share a system part reach the engine next to each other."""
    place: dict[str, int] = {}
    for request in requests:
        place.setdefault(request.system, len(place))
    order = sorted(range(len(requests)), key=lambda i: place[requests[i].system])
    ordered = [requests[i] for i in order]
    # only an engine that is asked to report needs to know how
    replies = llm.complete(ordered, lambda _, reply: on_reply(reply)) if on_reply else llm.complete(ordered)
    if len(replies) != len(requests):
        raise RequestFailed(f"{llm.name} lost replies", given=len(replies), expected=f"{len(requests)} replies")
    answered: list[Metered] = [Metered(None)] * len(requests)
    for i, reply in zip(order, replies):
        answered[i] = _metered(reply)
    return answered


class LLMCalls:
    """A `StreamingLLM` as what answers the verb "llm" in the streaming driver (a `gpu_rag.runtime.SlowService`).

    on_reply: called in the driver's thread with each reply as it is taken, for progress.
    """

    def __init__(self, llm: StreamingLLM, on_reply: OnReply | None = None):
        self._llm, self._on_reply = llm, on_reply
        self._aborted: set[int] = set()

    def submit(self, key: int, args: Request) -> None:
        """Hand over the request of one call."""
        self._llm.submit(key, args)

    def poll(self, timeout_s: float) -> list[tuple[int, Metered]]:
        """What has come, metered as by the executor; an aborted request without a reply is no LLM call.

        Raises ModelError when the engine is dead.
        """
        found = self._llm.poll(timeout_s)
        if self._on_reply is not None:
            for _, reply in found:
                self._on_reply(reply)
        return [(key, self._metered(key, reply)) for key, reply in found]

    def _metered(self, key: int, reply: Reply | RequestFailed) -> Metered:
        if key not in self._aborted:
            return _metered(reply)
        self._aborted.remove(key)
        return Metered(reply, llm_calls=0) if isinstance(reply, RequestFailed) else _metered(reply)

    def abort(self, key: int) -> None:
        """The reply is wanted no more."""
        self._aborted.add(key)
        self._llm.abort(key)

    @property
    def n_open(self) -> int:
        """Requests without a reply."""
        return self._llm.n_open


def _metered(reply: Reply | RequestFailed) -> Metered:
    if isinstance(reply, RequestFailed):
        return Metered(reply)
    return Metered(reply, reply.n_prompt, reply.n_cached, reply.n_generated, reply_hash=reply_hash(reply.text))
