"""The sentences of the evidence that bear on a question: a reader checks an answer against them at a glance."""

from __future__ import annotations

import numpy as np

from gpu_rag.program.embed import embed
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Draft, Evidence, Sentence

PASSAGES, SENTENCES = 5, 3  # of the first passages the best sentences


async def supported(question: str, draft: Draft) -> tuple[Sentence, ...]:
    """The sentences nearest to the question, best first: at most three, of the first five passages.

    By cosine of their vectors with the question's, titles in front of sentences; ties to the earlier.
    """
    spans = [(e, start, end) for e in draft.evidence[:PASSAGES] for start, end in split_sentences(e.text)]
    if not spans:
        return ()
    vectors = await embed([question, *(_titled(e, e.text[start:end]) for e, start, end in spans)])
    scores = vectors[1:] @ vectors[0]
    best = [(*spans[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")[:SENTENCES]]
    return tuple(Sentence(e.passage_id, start, end, e.text[start:end], score) for e, start, end, score in best)


def _titled(evidence: Evidence, sentence: str) -> str:
    return f"{evidence.title}. {sentence}" if evidence.title else sentence
