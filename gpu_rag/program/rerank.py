"""Reranking of evidence, after any method's retrieval and before the reader: `models.reranker`.

A cross-encoder scores every passage and every fact with the question, and orders them by (-score, earlier place).

With a reranker a method retrieves DEPTH passages, or more if more are to be kept. Each ranking is one request to the
reranker and is noted as "rerank_passages" or "rerank_facts", with the number of pairs as the number of candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_rag.program.kinds import EMBED, Models
from gpu_rag.program.run import Run
from gpu_rag.program.steps import Texts
from gpu_rag.runtime.step import batched
from gpu_rag.types import Evidence, Path

DEPTH = 50  # passages that are reranked


@batched(EMBED)
def rerank(models: Models, queries: list[tuple[str, Texts]]) -> list[np.ndarray]:
    """The scores f32[n] of each question's texts by the cross-encoder."""
    assert models.encoder is not None  # `reranked` asks only if there is one
    scores = models.encoder.scores([(question, text) for question, texts in queries for text in texts])
    return np.split(scores, np.cumsum([len(texts) for _, texts in queries])[:-1])


async def reranked(
    run: Run, question: str, passages: Sequence[Evidence], facts: Sequence[Path], keep: int = 0
) -> tuple[tuple[Evidence, ...], tuple[Path, ...]]:
    """Passages and facts in the order of the reranker, if there is one; at most `keep` passages (0: all)."""
    if run.models.encoder is None:
        return tuple(passages), tuple(facts)
    order, scores = await _order(run, question, [f"{e.title}\n{e.text}" for e in passages], "passages")
    ordered = [replace(passages[i], score=scores[i]) if scores else passages[i] for i in order]
    by_fact, _ = await _order(run, question, [path.text for path in facts], "facts")
    return tuple(ordered[: keep or None]), tuple(facts[i] for i in by_fact)


async def _order(run: Run, question: str, texts: Sequence[str], name: str) -> tuple[list[int], list[float]]:
    """Positions of the texts, best first, and their scores by position."""
    if len(texts) < 2:
        return list(range(len(texts))), []
    scores = (await rerank((question, tuple(texts)))).tolist()
    order = sorted(range(len(texts)), key=lambda i: -scores[i])  # stable: ties keep their order
    run.note(f"rerank_{name}/encoder", len(texts), tuple(" ".join(texts[i].split())[:120] for i in order))
    return order, scores
