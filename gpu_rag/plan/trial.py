"""Index layers really run on a sample, at several sizes: seconds, bytes on disk, Python memory, what was found."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from gpu_rag.plan.corpus import Sampled
from gpu_rag.settings import Settings
from gpu_rag.types import Reply, Request

Sizes = dict[str, float]  # of a corpus or a sample: passages, characters, entities, relations, mentions, ...


class MeasuredEmbedder:
    """An embedder that counts seconds and texts. With `recall` it gives the vectors that it computed before."""

    def __init__(self, inner: Embedder):
        self.inner, self.recall = inner, False
        self.name, self.content_hash, self.dim = inner.name, inner.content_hash, inner.dim
        self.device, self.n_truncated, self.row_identical = inner.device, inner.n_truncated, inner.row_identical
        self.s, self.texts = 0.0, list[str]()
        self._known: dict[str, np.ndarray] = {}

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """As the embedder does."""
        self.texts.extend(texts)
        # a part of the sample may have texts of its own: an entity that lacks an alias
        unknown = [text for text in texts if not self.recall or text not in self._known]
        if unknown:
            started = time.perf_counter()
            vectors = self.inner.embed(unknown, on_batch)
            self.s += time.perf_counter() - started
            self._known.update(zip(unknown, vectors))
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        return np.stack([self._known[text] for text in texts])


class MeasuredLLM:
    """An LLM that counts requests, and those that it had to work for. With `recall` it repeats what it said before."""

    def __init__(self, inner: LLM):
        self.inner, self.recall = inner, False
        self.name, self.content_hash = inner.name, inner.content_hash
        self.context_tokens, self.capable = inner.context_tokens, inner.capable
        self.n_requests, self.n_fresh = 0, 0
        self._known: dict[Request, Reply | RequestFailed] = {}

    def count_tokens(self, text: str) -> int:
        """As the LLM counts."""
        return self.inner.count_tokens(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """As the LLM replies."""
        self.n_requests += len(requests)
        unknown = [request for request in requests if not self.recall or request not in self._known]
        if unknown:
            replies = self.inner.complete(unknown)
            self.n_fresh += sum(not (isinstance(reply, Reply) and reply.from_cache) for reply in replies)
            self._known.update(zip(unknown, replies))
        return [self._known[request] for request in requests]

    def close(self) -> None:
        """Whoever opened the LLM closes it."""


class TrialModels:
    """The models of a build, measured; loaded on first use, as they are there."""

    def __init__(self, models: Models):
        self._models = models
        self._recall = False
        self._embedder: MeasuredEmbedder | None = None
        self._llm: MeasuredLLM | None = None

    def embedder(self) -> MeasuredEmbedder:
        """The embedding model."""
        if self._embedder is None:
            self._embedder = MeasuredEmbedder(self._models.embedder())
        self._embedder.recall = self._recall
        return self._embedder

    def llm(self) -> MeasuredLLM:
        """The language model."""
        if self._llm is None:
            self._llm = MeasuredLLM(self._models.llm())
        self._llm.recall = self._recall
        return self._llm

    def describe(self, role: str) -> dict[str, Any]:
        """As the models say."""
        return self._models.describe(role)

    def recall(self, recall: bool) -> None:
        """Whether both give what they gave before, instead of working for it."""
        self._recall = recall

    def kept_replies(self) -> int:
        """Replies in the index's cache: no build will ask for them. 0 where no LLM was needed."""
        return len(self._llm.inner) if self._llm is not None and isinstance(self._llm.inner, CachedLLM) else 0


@dataclass(frozen=True)
class Cost:
    """What one layer cost on a sample.

    embed_s: seconds of `s`; texts: what was embedded; requests: to an LLM; fresh: those that were in no cache.
    """

    s: float
    disk_bytes: int
    memory_bytes: int
    embed_s: float
    texts: list[str]
    requests: int
    fresh: int
    counts: Mapping[str, int]
    report: StageReport


@dataclass(frozen=True)
class Lab:
    """What layers are run with."""

    layers: Sequence[Stage]
    settings: Settings
    sources: Sources
    models: TrialModels

    def run(self, folder: Path, rows: Sequence[Sampled], *, traced: bool = False) -> dict[str, Cost]:
        """Runs every layer on the passages `rows`, in order, below `folder`.

        traced: measure the peak of Python's memory, NumPy's arrays included; that is slow, so seconds are not true.
        """
        costs = {}
        for layer in self.layers:
            (folder / layer.name).mkdir(parents=True)
            costs[layer.name] = self._run_layer(folder, layer, rows, traced)
        return costs

    def _run_layer(self, folder: Path, layer: Stage, rows: Sequence[Sampled], traced: bool) -> Cost:
        out, report = folder / layer.name, StageReport()
        embedder = self.models.embedder() if "embedder" in layer.roles(self.settings) else None
        llm = self.models.llm() if "llm" in layer.roles(self.settings) else None
        if embedder is not None:
            embedder.s, embedder.texts = 0.0, []
        if llm is not None:
            llm.n_requests = llm.n_fresh = 0
        inputs = {need: folder / need for need in layer.needs}
        work = Work(
            out, folder / "work" / layer.name, inputs, self.settings, self.sources, self.models, Silent(), report
        )
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
            seconds,
            sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
            peak,
            embedder.s if embedder is not None else 0.0,
            embedder.texts if embedder is not None else [],
            llm.n_requests if llm is not None else 0,
            llm.n_fresh if llm is not None else 0,
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


@dataclass(frozen=True)
class Trial:
    """Layers run on a sample, and on its first half and quarter.

    first: as the first thing in this process, models really asked; full, half: again, with vectors and replies
    recalled; memory_half, memory_quarter: traced. sizes_...: of the sample and its parts. entities, relations: for
    each one found, i64, in how many passages of the sample it is.
    """

    first: dict[str, Cost]
    full: dict[str, Cost]
    half: dict[str, Cost]
    memory_half: dict[str, Cost]
    memory_quarter: dict[str, Cost]
    sizes: Sizes
    sizes_half: Sizes
    sizes_quarter: Sizes
    entities: np.ndarray
    relations: np.ndarray


def run_trial(folder: Path, rows: Sequence[Sampled], lab: Lab) -> Trial:
    """Runs the layers of `lab` five times below `folder`."""
    half, quarter = rows[: (len(rows) + 1) // 2], rows[: (len(rows) + 3) // 4]
    first = lab.run(folder / "first", rows)
    lab.models.recall(True)
    try:
        return Trial(
            first,
            lab.run(folder / "full", rows),
            lab.run(folder / "half", half),
            lab.run(folder / "memory_half", half, traced=True),
            lab.run(folder / "memory_quarter", quarter, traced=True),
            sizes_of(folder / "full", rows),
            sizes_of(folder / "half", half),
            sizes_of(folder / "memory_quarter", quarter),
            _in_passages(folder / "full", "entities"),
            _in_passages(folder / "full", "relations"),
        )
    finally:
        lab.models.recall(False)


def _in_passages(folder: Path, table: str) -> np.ndarray:
    path = folder / "entities" / f"{table}.parquet"
    if not path.exists():
        return np.zeros(0, np.int64)
    if table == "entities":
        return tables.read_table(path, tables.ENTITIES)["n_passages"].to_numpy().astype(np.int64)
    lists = tables.read_table(path, tables.RELATIONS)["passages"].to_pylist()
    return np.asarray([len(passages) for passages in lists], np.int64)


def sizes_of(folder: Path, rows: Sequence[Sampled]) -> Sizes:
    """What the stages below `folder` hold: everything that a cost may grow with, 0 where a table was not made."""
    extracted = [len(row.passage["text"]) for row in rows if row.extracted]
    sizes: Sizes = {"passages": len(rows), "characters": sum(len(row.passage["text"]) for row in rows)}
    sizes |= {"extracted": len(extracted), "extracted_characters": sum(extracted)}
    for stage, table in (("entities", "entities"), ("entities", "relations"), ("mentions", "mentions")):
        path = folder / stage / f"{table}.parquet"
        sizes[table] = pq.read_metadata(path).num_rows if path.exists() else 0
    sizes["searched"] = 0
    if sizes["mentions"]:
        origins = tables.read_table(folder / "mentions" / "mentions.parquet", tables.MENTIONS)["origin"].to_pylist()
        sizes["searched"] = origins.count("search")
    sizes["links"] = sizes["mentions"] + sizes["relations"]
    return sizes
