"""The steps that models answer: requests to replies, texts to vectors, options to similarities. Also an adapter that
makes an LLM with single requests a slow service of the streaming driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpu_rag.errors import RequestFailed
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.llm.interface import StreamingLLM
from gpu_rag.program.kinds import EMBED, LLM
from gpu_rag.program.models import Models
from gpu_rag.runtime.step import Metered, batched
from gpu_rag.types import Reply, Request

Texts = tuple[str, ...]


@batched(EMBED, name="embed")
def embed_texts(models: Models, queries: list[Texts]) -> list[np.ndarray]:
    """The unit vectors f32[n, D] of each group of texts."""
    return _vectors(models.embedder, queries)


@batched(EMBED)
def similarity(models: Models, queries: list[tuple[str, Texts]]) -> list[np.ndarray]:
    """The cosines f32[n] of each text with its options."""
    vectors = _vectors(models.embedder, [(text, *options) for text, options in queries])
    # In float64 the rounded cosine does not depend on the order of summation.
    exact = (rows.astype(np.float64) for rows in vectors)
    return [(rows[1:] @ rows[0]).astype(np.float32) for rows in exact]


@batched(LLM)
def llm(models: Models, queries: list[Request]) -> Sequence[Reply | Metered[Reply]]:
    """The replies to requests. Requests with the same system part are passed to the engine next to each other."""
    engine, on_reply = models.language_model, models.on_reply
    place: dict[str, int] = {}
    for request in queries:
        place.setdefault(request.system, len(place))
    order = sorted(range(len(queries)), key=lambda i: place[queries[i].system])
    ordered = [queries[i] for i in order]
    # an engine need not support reporting unless it is used
    replies = engine.complete(ordered, lambda _, reply: on_reply(reply)) if on_reply else engine.complete(ordered)
    if len(replies) != len(queries):
        raise RequestFailed(f"{engine.name} lost replies", given=len(replies), expected=f"{len(queries)} replies")
    answered = dict(zip(order, replies))
    return [_metered(answered[i]) for i in range(len(queries))]


def _vectors(embedder: Embedder, groups: list[Texts]) -> list[np.ndarray]:
    """The vectors of each group of texts. A text that occurs twice in the batch is embedded once."""
    row = {text: i for i, text in enumerate(dict.fromkeys(text for group in groups for text in group))}
    vectors = embedder.embed(list(row)) if row else np.zeros((0, embedder.dim), dtype=np.float32)
    return [vectors[np.array([row[text] for text in group], dtype=np.intp)] for group in groups]


class LLMCalls:
    """An adapter from a `StreamingLLM` to the step `llm` in the streaming driver (a `gpu_rag.runtime.SlowService`).

    on_reply: called in the driver's thread with each reply that arrives, for progress.
    """

    def __init__(self, llm: StreamingLLM, on_reply: Callable[[Reply | RequestFailed], None] | None = None):
        self._llm, self._on_reply = llm, on_reply
        self._aborted: set[int] = set()

    def submit(self, key: int, query: Request) -> None:
        """Submit the request of one call."""
        self._llm.submit(key, query)

    def poll(self, timeout_s: float) -> list[tuple[int, Metered[Reply]]]:
        """The replies that arrived, metered as in the step. An aborted request without a reply counts as no LLM call.

        Raises ModelError when the engine is dead.
        """
        finished = self._llm.poll(timeout_s)
        if self._on_reply is not None:
            for _, reply in finished:
                self._on_reply(reply)
        return [(key, self._metered(key, reply)) for key, reply in finished]

    def _metered(self, key: int, reply: Reply | RequestFailed) -> Metered[Reply]:
        n_calls = 1
        if key in self._aborted:
            self._aborted.remove(key)
            n_calls = 0 if isinstance(reply, RequestFailed) else 1
        return _metered(reply, n_calls)

    def abort(self, key: int) -> None:
        """Abort a request; its reply is no longer needed."""
        self._aborted.add(key)
        self._llm.abort(key)

    @property
    def n_open(self) -> int:
        """The number of requests without a reply."""
        return self._llm.n_open


def _metered(reply: Reply | RequestFailed, n_calls: int = 1) -> Metered[Reply]:
    if isinstance(reply, RequestFailed):
        return Metered(reply, llm_calls=n_calls)
    return Metered(reply, reply.n_prompt, reply.n_cached, reply.n_generated, llm_calls=n_calls)
