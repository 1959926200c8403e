"""The steps that models answer: requests to replies, texts to vectors, options to similarities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_rag.errors import RequestFailed
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.program.kinds import EMBED, LLM, Models
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


def _metered(reply: Reply | RequestFailed) -> Metered[Reply]:
    if isinstance(reply, RequestFailed):
        return Metered(reply)
    return Metered(reply, reply.n_prompt, reply.n_cached, reply.n_generated)


@batched(LLM, meter=_metered)
def llm(models: Models, queries: list[Request]) -> Sequence[Reply | RequestFailed]:
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
    return [answered[i] for i in range(len(queries))]


def _vectors(embedder: Embedder, groups: list[Texts]) -> list[np.ndarray]:
    """The vectors of each group of texts. A text that occurs twice in the batch is embedded once."""
    row = {text: i for i, text in enumerate(dict.fromkeys(text for group in groups for text in group))}
    vectors = embedder.embed(list(row)) if row else np.zeros((0, embedder.dim), dtype=np.float32)
    return [vectors[np.array([row[text] for text in group], dtype=np.intp)] for group in groups]
