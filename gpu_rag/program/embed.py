"""The function `embed`, which embeds texts from within a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.program.steps import embed_texts


async def embed(texts: Sequence[str]) -> np.ndarray:
    """f32[n, D]: the unit vector of each text. Raises UsageError for no string, BadInput for invalid Unicode."""
    check_texts(texts)
    return await embed_texts(tuple(texts))


def check_texts(texts: Sequence[str]) -> None:
    """Refuse invalid texts here, before a tokenizer fails on them with the whole batch."""
    for text in texts:
        if not isinstance(text, str):
            raise UsageError("a model reads text", given=type(text).__name__, expected="str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInput(
                "a text is not valid Unicode", given=ascii(text[:40]), do="remove lone surrogates"
            ) from error
