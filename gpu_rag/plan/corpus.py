"""The whole corpus read and cut once, in a stream: exact counts, rejects, and an even sample of passages."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.index.stages.passages import Row, no_passage, read_passages
from gpu_rag.index.work import Progress, Sources
from gpu_rag.plan.sampling import EvenSample
from gpu_rag.settings import Settings
from gpu_rag.types import Reject


@dataclass(frozen=True)
class Sampled:
    """One passage of the sample: its document's row and its own.

    source, node: see `layers.passages.Pieces`; extracted: whether it is extracted from.
    """

    document: Row
    passage: Row
    source: str = ""
    node: str = ""
    extracted: bool = True


@dataclass(frozen=True)
class CorpusCount:
    """What a corpus holds. characters: of all passages, overlaps counted twice. s: seconds to read and cut it.

    extracted, extracted_characters: of the passages that are extracted from.
    sample: passages spread evenly over the corpus, in random order, so that each part of it is a sample too. Where some
    are not extracted from, those that are make up their share of it, and at least half as far as there are as many.
    """

    documents: int
    passages: int
    characters: int
    extracted: int
    extracted_characters: int
    rejects: int
    s: float
    sample: list[Sampled]


def count_corpus(sources: Sources, settings: Settings, n: int, progress: Progress) -> CorpusCount:
    """Reads all of the corpus as the build will, keeping n passages. Raises BadInput when it holds no passage.

    A knowledge base without documents beside it has none.
    """
    started, seed = time.perf_counter(), settings.runtime.seed
    samples: dict[bool, EvenSample[Sampled]] = {extracted: EvenSample(n, seed) for extracted in (True, False)}
    passages, characters = {True: 0, False: 0}, {True: 0, False: 0}
    n_documents, n_rejects, first = 0, 0, None
    progress.start("reading", None, "documents")
    for found in read_passages(sources, settings):
        if isinstance(found, Reject):
            n_rejects, first = n_rejects + 1, first or found
            continue
        n_documents += 1
        extracted = settings.index.extract_nodes or not found.node
        for passage in found.passages:
            passages[extracted] += 1
            characters[extracted] += len(passage["text"])
            samples[extracted].add(Sampled(found.document, passage, found.source, found.node, extracted))
        progress.advance(1)
    if not sum(passages.values()) and (sources.corpus or not sources.named):
        raise no_passage(n_rejects, first)
    progress.finish("reading", skipped=False)
    chosen = {extracted: sample.items() for extracted, sample in samples.items()}
    for items in chosen.values():
        random.Random(seed).shuffle(items)
    share = passages[True] / max(sum(passages.values()), 1)
    return CorpusCount(
        n_documents, sum(passages.values()), sum(characters.values()), passages[True], characters[True], n_rejects,
        time.perf_counter() - started, _mixed(chosen[True], chosen[False], n, share),
    )  # fmt: skip


def _mixed(extracted: Sequence[Sampled], others: Sequence[Sampled], n: int, share: float) -> list[Sampled]:
    """n of both: of the first that share, and at least half, so that every beginning of the list has of both."""
    wanted = max(round(n * share), (n + 1) // 2)
    others = others[: n - min(wanted, len(extracted))]
    extracted = extracted[: n - len(others)]
    most = max(len(extracted), len(others))
    placed = [(place / most, 0, item) for place, item in enumerate(extracted)]
    placed += [((place + 0.5) / len(others), 1, item) for place, item in enumerate(others)]
    return [item for *_, item in sorted(placed, key=lambda one: one[:2])]
