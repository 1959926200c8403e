"""The sentences of the evidence that bear on a question, so that a reader can check an answer quickly."""

from __future__ import annotations

import numpy as np

from gpu_rag.program.embed import embed
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Draft, Evidence, Sentence

PASSAGES, SENTENCES = 5, 3  # passages searched, sentences returned


async def supported(question: str, draft: Draft) -> tuple[Sentence, ...]:
    """The sentences nearest to the question, best first: at most three, from the first five passages.

    They are ranked by the cosine of their vectors and the question's, with titles in front of sentences; ties to the
    earlier.
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
