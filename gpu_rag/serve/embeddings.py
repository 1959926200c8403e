"""OpenAI's protocol: the vectors of texts, by the embedder of the index."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpu_rag.engine import OnText, Prepared
from gpu_rag.program.embed import embed
from gpu_rag.program.history import Turn
from gpu_rag.runtime.core import Context, Program
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.serve.admission import Admission, Batch
from gpu_rag.serve.bodies import EmbeddingsBody
from gpu_rag.serve.live import ServedIndex
from gpu_rag.serve.refusal import Refusal, check_answered
from gpu_rag.types import Question

NAME = "embeddings"  # the method, in metrics
TEXTS_A_STEP = 32  # few, because questions wait until a step ends


class _Embedding(Batch):
    """The texts of one request as one question, whose row has `vectors`, f32[n, D], or an error."""

    def row(self, outcome: Outcome) -> dict[str, Any]:
        """The row of the texts."""
        if outcome.error is not None:
            return super().row(outcome)
        return {"method": NAME, "status": "answered", "usage": vars(outcome.usage), "vectors": outcome.draft}


def embedding_batch(
    admission: Admission, live: ServedIndex, body: EmbeddingsBody, texts: Sequence[str], seconds: float | None
) -> Batch:
    """Submit texts to the engine. Raises Refusal: 404 for another model's name, 400 for other dimensions, and as
    `Admission.ask`."""
    name, dim = (live.embedder[key] for key in ("name", "dim"))
    if body.model.removeprefix("gpu-rag/") != name:
        raise Refusal(404, "no such embedder", kind="model_not_found", given=body.model[:80], expected=name)
    if body.dimensions not in (None, dim):
        raise Refusal(400, "the embedder has other dimensions", given=body.dimensions, expected=dim)
    admission.check_room(1)
    steps = [texts[start : start + TEXTS_A_STEP] for start in range(0, len(texts), TEXTS_A_STEP)]

    resources = live.engine.resources

    def bind(question: Question, on_text: OnText = None, history: Sequence[Turn] = ()) -> Program:
        return lambda context: _embed_steps(context, resources, steps)

    ready = live.ready(Prepared(NAME, "", bind))
    return _Embedding(admission, live, ready, [Question(NAME, "")], seconds=seconds)


async def _embed_steps(context: Context, resources: dict[str, Any], steps: Iterable[Sequence[str]]) -> np.ndarray:
    context.resources = resources  # the models of this index, where they are not the driver's
    return np.concatenate([await embed(texts) for texts in steps])


def embeddings_of(row: dict[str, Any], body: EmbeddingsBody, texts: Sequence[str]) -> dict[str, Any]:
    """The reply: one vector per text, in order, as numbers or as base64 of little-endian float32. Its usage counts
    words, since embedders report no tokens. Raises as `check_answered`."""
    check_answered(row)
    vectors: np.ndarray = row["vectors"].astype("<f4")
    packed = body.encoding_format == "base64"
    shown = [base64.b64encode(vector.tobytes()).decode() for vector in vectors] if packed else vectors.tolist()
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(shown)]
    n_words = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": n_words, "total_tokens": n_words}
    return {"object": "list", "model": body.model, "data": data, "usage": usage}
