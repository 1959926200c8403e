"""The sentences of the evidence that bear on a question or support an answer, so that a reader can check it quickly."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpu_rag.program.embed import embed
from gpu_rag.text.language import ENGLISH, language_of
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Draft, Evidence, Grounding, GroundingSentence, Path, RankedNode, Sentence

_CITED = re.compile(r"\[\d{1,2}\]")  # an answer cites passages by number
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


def grounded(
    question: str, answer: str, evidence: Sequence[Evidence], paths: Sequence[Path], nodes: Sequence[RankedNode] = ()
) -> Grounding:
    """Whether passages with their titles, paths and knowledge base nodes support an answer. A function of its
    arguments alone, so that `verify-answers` can repeat it.

    Nothing is `supported` in another language than English, and an answer that may be a translation not `unsupported`.
    """
    from gpu_rag.text.grounding import NONE, UNSUPPORTED, grounding  # most runs of retrieval have no answer
    from gpu_rag.text.supporting import supporting

    answer = _CITED.sub("", answer)
    texts = [*(f"{item.title}. {item.text}" for item in evidence), *(path.text for path in paths)]
    status = grounding(question, answer, [*texts, *(f"{node.name} ({node.type})" for node in nodes)])
    languages = {language_of(question), language_of("\n".join(texts))}
    if status == UNSUPPORTED:
        return Grounding(NONE if len(languages) > 1 else status)
    if languages != {ENGLISH}:
        return Grounding(status)
    passages = [(item.title, item.text) for item in evidence]
    numbers = {item.passage_id: number for number, item in enumerate(evidence)}
    chains: list[list[tuple[str, str, int]]] = []
    for path in paths:
        chains.append([])
        for subject, relation, object_, passage in path.edges:
            if passage not in numbers:  # an edge without a text is a sentence itself
                passages.append(("", f"{subject} {relation.replace('_', ' ')} {object_}."))
            chains[-1].append((subject, object_, numbers.get(passage, len(passages) - 1)))
    spans = supporting(question, answer, passages, chains)
    sentences = [
        GroundingSentence(evidence[s.passage].passage_id, s.start, s.end, s.answer)
        for s in spans
        if s.passage < len(evidence)
    ]
    return Grounding("supported", tuple(sentences)) if spans else Grounding(status)
