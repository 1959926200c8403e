"""Stages of an index really run on a smaller and a larger sample: seconds, disk, memory, calls, and what was found."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from gpu_rag.errors import RequestFailed
from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.passages import write_passages
from gpu_rag.index.work import Models, Silent, Sources, StageReport, Work
from gpu_rag.models.embed.interface import Embedder, OnBatch
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import LLM, OnReply
from gpu_rag.plan.sample import Passages, Sampled
from gpu_rag.settings import Settings
from gpu_rag.types import Reply, Request

MAX_TEXTS = 1024  # that a stage of a trial really embeds
Sizes = dict[str, float]  # of a corpus or a sample: passages, characters, entities, relations, mentions, ...
COUNTED = {  # where what a cost may grow with is counted
    "entities": "entities/entities.parquet",
    "relations": "entities/relations.parquet",
    "mentions": "mentions/mentions.parquet",
    "triples": "kb/kb_edges.parquet",
    "nodes": "kb/kb_nodes.parquet",
    "kinds of relation": "kb/kb_relations.parquet",
}


class CappedEmbedder:
    """An embedder that embeds at most `left` more texts: others get copies of their vectors, and `owed_s` counts the
    seconds that they would have taken."""

    def __init__(self, inner: Embedder):
        self.inner, self.left, self.owed_s = inner, MAX_TEXTS, 0.0
        self.name, self.content_hash, self.dim = inner.name, inner.content_hash, inner.dim
        self.device, self.n_truncated, self.row_identical = inner.device, inner.n_truncated, inner.row_identical

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """A vector for each text."""
        chosen, started = texts[: max(self.left, 1)], time.perf_counter()
        vectors = self.inner.embed(chosen, on_batch)
        self.owed_s += (time.perf_counter() - started) * (len(texts) - len(chosen)) / max(len(chosen), 1)
        self.left -= len(chosen)
        return np.resize(vectors, (len(texts), self.dim))


class CountedLLM:
    """An LLM that is asked everything once. n_requests: to it; n_fresh: replies that no cache had."""

    def __init__(self, inner: LLM):
        self.inner, self.n_requests, self.n_fresh = inner, 0, 0
        self.name, self.content_hash = inner.name, inner.content_hash
        self.context_tokens, self.capable = inner.context_tokens, inner.capable
        self.count_tokens, self.close = inner.count_tokens, inner.close
        self._known: dict[Request, Reply | RequestFailed] = {}

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """The replies, in order."""
        unknown = [request for request in requests if request not in self._known]
        replies = self.inner.complete(unknown) if unknown else []
        self._known.update(zip(unknown, replies))
        self.n_requests += len(requests)
        self.n_fresh += sum(not (isinstance(reply, Reply) and reply.from_cache) for reply in replies)
        return [self._known[request] for request in requests]


class TrialModels:
    """The models of a build, with the embedder capped and the LLM counted."""

    def __init__(self, models: Models):
        self.describe, self._models = models.describe, models

    @cached_property
    def _capped(self) -> CappedEmbedder:
        return CappedEmbedder(self._models.embedder())

    @cached_property
    def _counted(self) -> CountedLLM:
        return CountedLLM(self._models.llm())

    def embedder(self) -> CappedEmbedder:
        """The embedding model."""
        return self._capped

    def llm(self) -> CountedLLM:
        """The language model."""
        return self._counted

    def load(self, roles: Collection[str]) -> None:
        """Loads the models of these roles."""
        if "embedder" in roles:
            self.embedder().embed(["one text, so that what is loaded on first use is loaded"])
        if "llm" in roles:
            self.llm()

    def n_cached(self) -> int:
        """Replies in the index's cache: no build asks for them."""
        return len(self._counted.inner) if isinstance(self._counted.inner, CachedLLM) else 0


@dataclass(frozen=True)
class BuildJob:
    """Everything that `build_index` takes."""

    out: Path
    layers: Sequence[Stage]
    settings: Settings
    sources: Sources
    models: Models
    fresh: bool = False
    forget_replies: bool = False


@dataclass(frozen=True)
class Cost:
    """The cost of one stage on a sample. s: without the LLM's; requests, fresh: as `CountedLLM` counts."""

    s: float
    disk_bytes: int
    memory_bytes: int
    requests: int
    fresh: int
    counts: Mapping[str, int]
    report: StageReport


def run_stages(job: BuildJob, folder: Path, passages: Passages, *, traced: bool = False) -> dict[str, Cost]:
    """Runs every stage of a job on these passages, in order, below `folder`. Its models are `TrialModels`.

    traced: measures the peak of Python's memory, NumPy's arrays included; its seconds are not true.
    """
    return {layer.name: _run_stage(job, folder, layer, passages.rows(), traced) for layer in job.layers}


def _run_stage(job: BuildJob, folder: Path, layer: Stage, rows: Sequence[Sampled], traced: bool) -> Cost:
    out, report, roles = folder / layer.name, StageReport(), layer.roles(job.settings)
    out.mkdir(parents=True)
    embedder = job.models.embedder() if "embedder" in roles else None
    if isinstance(embedder, CappedEmbedder):
        embedder.left, embedder.owed_s = MAX_TEXTS, 0.0
    llm = job.models.llm() if "llm" in roles else None
    if isinstance(llm, CountedLLM):
        llm.n_requests = llm.n_fresh = 0
    # a base is tried without the triples of the corpus, where it has others
    alone = layer.name.startswith("kb") and job.sources.named
    sources = replace(job.sources, corpus=()) if alone else job.sources
    inputs, partial = {need: folder / need for need in layer.needs_of(sources)}, folder / "work" / layer.name
    work = Work(out, partial, inputs, job.settings, sources, job.models, Silent(), report)
    if traced:
        tracemalloc.start()
    started = time.perf_counter()
    try:
        counts = _write_passages(out, rows) if layer.name == "passages" else layer.run(work)
        seconds = time.perf_counter() - started
        peak = tracemalloc.get_traced_memory()[1] if traced else 0
    finally:
        tracemalloc.stop()
    return Cost(
        max(seconds - report.llm_s, 0.0) + (embedder.owed_s if isinstance(embedder, CappedEmbedder) else 0.0),
        sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        peak,
        llm.n_requests if isinstance(llm, CountedLLM) else 0,
        llm.n_fresh if isinstance(llm, CountedLLM) else 0,
        counts,
        report,
    )


def _write_passages(out: Path, rows: Sequence[Sampled]) -> dict[str, int]:
    """The tables of the first stage. Rows are copied, as reading them would make them anew."""
    documents = {row.document["id"]: dict(row.document) for row in rows}
    passages = [{**row.passage, "text": "".join(list(row.passage["text"]))} for row in rows]
    write_passages(out, list(documents.values()), passages)
    origins = {row.document["id"]: (row.source, row.node) for row in rows if row.node}
    if origins:
        columns = {"document": list(origins), **dict(zip(("source", "node"), zip(*origins.values())))}
        tables.write_table(out / "origins.parquet", ORIGINS, columns)
    return {"documents": len(documents), "passages": len(passages)}


def sizes_of(folder: Path, passages: Passages) -> Sizes:
    """Everything that a cost may grow with in the stages below `folder`, 0 where a table was not made."""
    lengths = [len(row.passage["text"]) for row in passages.rows()]
    sizes: Sizes = {"passages": len(lengths), "characters": sum(lengths), "extracted": len(passages.extracted)}
    for name, table in COUNTED.items():
        sizes[name] = pq.read_metadata(folder / table).num_rows if (folder / table).exists() else 0
    return sizes | {"links": sizes["mentions"] + sizes["relations"]}
