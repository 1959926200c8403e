"""The whole corpus read and cut once, in a stream: exact counts, rejects, and an even sample of passages."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from gpu_rag.index.build import Progress, Sources
from gpu_rag.layers.passages import Row, no_passage, read_passages
from gpu_rag.plan.sampling import EvenSample
from gpu_rag.settings import Settings
from gpu_rag.types import Reject


@dataclass(frozen=True)
class Sampled:
    """One passage of the sample: its document's row and its own."""

    document: Row
    passage: Row


@dataclass(frozen=True)
class CorpusCount:
    """What a corpus holds. characters: of all passages, overlaps counted twice. s: seconds to read and cut it.

    sample: passages spread evenly over the corpus, in random order, so that each part of it is a sample too.
    """

    documents: int
    passages: int
    characters: int
    rejects: int
    s: float
    sample: list[Sampled]


def count_corpus(sources: Sources, settings: Settings, n: int, progress: Progress) -> CorpusCount:
    """Reads all of the corpus as the build will, keeping n passages. Raises BadInput when it holds no passage.

    A knowledge base without documents beside it has none.
    """
    started = time.perf_counter()
    sample: EvenSample[Sampled] = EvenSample(n, settings.runtime.seed)
    n_documents, n_passages, n_characters, n_rejects, first = 0, 0, 0, 0, None
    progress.start("reading", None, "documents")
    for found in read_passages(sources, settings):
        if isinstance(found, Reject):
            n_rejects, first = n_rejects + 1, first or found
            continue
        n_documents += 1
        for passage in found.passages:
            n_passages += 1
            n_characters += len(passage["text"])
            sample.add(Sampled(found.document, passage))
        progress.advance(1)
    if not n_passages and (sources.corpus or not sources.named):
        raise no_passage(n_rejects, first)
    progress.finish("reading", skipped=False)
    chosen = sample.items()
    random.Random(settings.runtime.seed).shuffle(chosen)
    return CorpusCount(n_documents, n_passages, n_characters, n_rejects, time.perf_counter() - started, chosen)
