"""A trial build on a sample: passages drawn from the whole corpus and the first triples of each source. It runs all
stages and measures their seconds, disk, memory, calls, and counts."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import RequestFailed
from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.memory import watched_memory
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.node_documents import SCHEMAS
from gpu_rag.index.stages.passages import keep_passages, no_passage, read_passages, write_passages
from gpu_rag.index.work import NamedSource, Progress, Silent, Sources, StageReport, Work
from gpu_rag.models.embed.interface import Embedder, OnBatch
from gpu_rag.models.llm.interface import LLM, OnReply
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.openie import OpenIERow, read_openie
from gpu_rag.sources.knowledge_base import read_edge_blocks
from gpu_rag.sources.knowledge_graph import read_kg_blocks
from gpu_rag.types import Reject, Reply, Request

_NAME = re.compile(r"[A-Z0-9][\w'’.-]*(?: (?:(?:of|the|and) )*[A-Z0-9][\w'’-]*)*")
PLANNED = {"vector_cache_gib": 0.0}  # changes to [models]: with cached vectors embedding would look free
MAX_TEXTS, QUICK_S = 1024, 2.0  # texts that a trial stage really embeds at once, and seconds after which it stops
Sizes = dict[str, float]  # {"passages", "characters", "entities", "relations", ...: number in a corpus or sample}
COUNTED = {  # {size: (stage that counts it, its key there)}
    "entities": ("entities", "entities"),
    "relations": ("entities", "relations"),
    "mentions": ("mentions", "mentions"),
    "triples": ("kb", "kb_edges"),
    "nodes": ("kb", "kb_nodes"),
    "kinds of relation": ("kb", "kb_relations"),
    "stand-ins": ("kb_texts", "kb_texts"),
}


@dataclass(frozen=True)
class BuildJob:
    """The arguments of `build_index`. notes: remarks for people."""

    out: Path
    stages: Sequence[Stage]
    settings: Settings
    sources: Sources
    models: ModelSet
    fresh: bool = False
    forget_replies: bool = False
    retry_unread: bool = False
    notes: tuple[str, ...] = ()


# --- passages --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Passages:
    """Passages and all documents of their corpus. Only the first n_extracted passages are extracted from (texts of
    nodes may be left out)."""

    documents: pa.Table
    origins: pa.Table
    passages: pa.Table
    n_extracted: int

    def __len__(self) -> int:
        return int(self.passages.num_rows)

    def take(self, rows: np.ndarray) -> Passages:
        """The passages with the given ascending rows."""
        n_extracted = int((rows < self.n_extracted).sum())
        return replace(self, passages=self.passages.take(pa.array(rows)), n_extracted=n_extracted)

    def sizes(self) -> dict[str, int]:
        """The number of passages, of their characters, and of passages that are extracted from."""
        characters = pc.sum(pc.utf8_length(self.passages["text"])).as_py() or 0
        return {"passages": len(self), "characters": characters, "extracted": self.n_extracted}

    def n_written_names(self) -> int:
        """The number of distinct runs of words with a capital or a digit, in the passages that are extracted from."""
        hashes = [np.zeros(0, np.int64)]
        for start in range(0, self.n_extracted, tables.ROWS_A_GROUP):
            texts = self.passages["text"].slice(start, min(tables.ROWS_A_GROUP, self.n_extracted - start)).to_pylist()
            names = set[str]().union(*map(_NAME.findall, texts))
            hashes.append(np.fromiter(map(hash, names), np.int64, len(names)))
        return len(np.unique(np.concatenate(hashes)))

    def write(self, work: Work) -> dict[str, int]:
        """Write the tables of the first stage."""
        ids = self.passages["doc_id"]
        documents = self.documents.filter(pc.is_in(self.documents["id"], ids))
        origins = self.origins.filter(pc.is_in(self.origins["document"], ids))
        with database(work) as db:
            keep_passages(db, [{"documents": documents, "passages": self.passages, "origins": origins}])
            write_passages(db, work.out, origins=origins.num_rows > 0)
        return {"documents": documents.num_rows, "passages": len(self)}


def read_corpus(
    sources: Sources, settings: Settings, n: int, progress: Progress
) -> tuple[dict[str, int], Passages, Passages]:
    """Count the whole corpus, read and cut as in the build, and draw n passages, of both kinds if there are any.

    Returns the numbers of documents, passages, characters (overlaps count twice), passages that are extracted from, and
    rejects; then all passages, and those drawn. Raises BadInput if there is no passage, except for a knowledge base
    without documents. Memory: the text, as in the build.
    """
    parts, n_rejects, first = [], 0, None
    progress.start("reading", None, "documents")
    for item in read_passages(sources, settings):
        if isinstance(item, Reject):
            n_rejects, first = n_rejects + 1, first or item
        else:
            parts.append(item)
            progress.advance(item["documents"].num_rows)
    documents, passages, origins = (pa.Table.from_batches([part[name] for part in parts]) for name in SCHEMAS)
    if not passages.num_rows and (sources.corpus or not sources.named):
        raise no_passage(n_rejects, first)
    progress.finish("reading", skipped=False)
    origins = origins.filter(pc.not_equal(origins["node"], ""))
    left_out = pc.is_in(passages["doc_id"], origins["document"]).to_numpy() & (not settings.index.extract_nodes)
    order = np.random.default_rng(settings.runtime.seed).permutation(passages.num_rows)
    chosen, others = order[~left_out[order]], order[left_out[order]]
    corpus = Passages(documents, origins, passages, len(chosen))
    chosen = chosen[: max(n - len(others), (n + 1) // 2)]
    rows = pa.array(np.concatenate([chosen, others[: n - len(chosen)]]))
    sample = replace(corpus, passages=passages.take(rows), n_extracted=len(chosen))
    return {"documents": documents.num_rows, **corpus.sizes(), "rejects": n_rejects}, corpus, sample


def keep_drawn(sources: Sources, drawn: Passages, folder: Path) -> Sources:
    """Sources with the ready extractions of the drawn passages alone, as files below `folder`."""
    ids = {*drawn.passages["id"].to_pylist(), *drawn.passages["doc_id"].to_pylist()}
    paths = tuple(folder / f"{number}.jsonl" for number in range(len(sources.openie)))
    for path, source in zip(paths, sources.openie):
        rows = (row for row in read_openie(source) if isinstance(row, OpenIERow) and row.id in ids)
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return replace(sources, openie=paths)


def count_triples(sources: Sequence[NamedSource]) -> dict[NamedSource, int]:
    """The number of usable triples of each source of kind kg or skb. Reads all of them."""
    read = {"kg": read_kg_blocks, "skb": read_edge_blocks}
    return {source: sum(block.n for block in read[source.kind](source.path)) for source in sources}


# --- models ----------------------------------------------------------------------------------------


class CappedEmbedder:
    """An embedder that stops after 1,024 texts, or if it is fast after QUICK_S. Other texts get these vectors, rolled
    and with random signs so that they are not near each other, and `owed_s` adds up the seconds that they would have
    taken."""

    def __init__(self, inner: Embedder):
        self.inner, self.left, self.used_s, self.owed_s = inner, MAX_TEXTS, 0.0, 0.0
        self.shares = hasattr(inner, "workers") and inner.device == "cpu"
        self._random = np.random.default_rng(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def shared_s(self) -> float:
        """Seconds of embedding that workers may share."""
        return self.used_s + self.owed_s if self.shares else 0.0

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """A vector for each text."""
        chosen, started = texts[: max(self.left, 1)], time.perf_counter()
        vectors = self.inner.embed(chosen, on_batch)
        used_s, n_others = time.perf_counter() - started, len(texts) - len(chosen)
        self.left, self.used_s = self.left - len(chosen), self.used_s + used_s
        if n_others and self.used_s < QUICK_S:
            self.left = MAX_TEXTS
            return np.concatenate([vectors, self.embed(texts[len(chosen) :], on_batch)])
        self.owed_s += used_s * n_others / max(len(chosen), 1)
        times = math.ceil(len(texts) / max(len(chosen), 1))
        result = np.concatenate([vectors, *(np.roll(vectors, k, 1) for k in range(1, times))])[: len(texts)]
        result[len(chosen) :] *= 2 * self._random.integers(0, 2, (n_others, result.shape[1]), np.int8) - 1
        return result


class RepeatingLLM:
    """An LLM that sends every request once. A repeated reply counts as new, as in a build without a cache."""

    def __init__(self, inner: LLM):
        self.inner, self.name, self.content_hash = inner, inner.name, inner.content_hash
        self.context_tokens, self.capable = inner.context_tokens, inner.capable
        self.count_tokens, self.close = inner.count_tokens, inner.close
        self._known: dict[Request, Reply | RequestFailed] = {}

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """The replies in order."""
        unknown = [request for request in requests if request not in self._known]
        new = dict(zip(unknown, self.inner.complete(unknown))) if unknown else {}
        for request, reply in new.items():
            self._known[request] = replace(reply, from_cache=False) if isinstance(reply, Reply) else reply
        return [new.get(request, self._known[request]) for request in requests]


# --- runs ------------------------------------------------------------------------------------------


@dataclass
class Cost(StageReport):
    """The cost of one stage on a sample. s: without LLM time; shared_s: the part of it that workers may share;
    base_bytes: memory before the stage; peak_memory_bytes: most memory above that."""

    shared_s: float = 0.0
    disk_bytes: int = 0
    base_bytes: int = 0


def run_stages(job: BuildJob, llm: RepeatingLLM | None, folder: Path, sample: Passages) -> dict[str, Cost]:
    """Run every stage of a job on these passages, in order, below `folder`."""
    costs: dict[str, Cost] = {}
    for stage in job.stages:
        name, sources = stage.name, job.sources
        cost, out = costs.setdefault(name, Cost()), folder / name
        out.mkdir(parents=True)
        embedder = CappedEmbedder(job.models.embedder()) if "embedder" in stage.roles(job.settings) else None
        models: Any = SimpleNamespace(describe=job.models.describe, embedder=lambda one=embedder: one, llm=lambda: llm)
        if name.startswith("kb") and sources.named:  # a trial of a knowledge base leaves out the corpus triples
            sources = replace(sources, corpus=())
        inputs = {need: folder / need for need in stage.needs_of(sources)}
        work = Work(out, folder / "work" / name, inputs, job.settings, sources, models, Silent(), cost)
        with watched_memory() as peak_memory_bytes:
            cost.base_bytes, started = peak_memory_bytes(), time.perf_counter()
            cost.counts = sample.write(work) if name == "passages" else stage.run(work)
            cost.s = max(time.perf_counter() - started - cost.llm_s, 0.0)
            cost.peak_memory_bytes = peak_memory_bytes() - cost.base_bytes
        cost.shared_s = work.shared_s
        if embedder is not None:
            cost.s += embedder.owed_s
            cost.shared_s += embedder.shared_s
        files = [path for path in out.rglob("*") if path.is_file()]
        cost.disk_bytes = sum(path.stat().st_size for path in files)
    return costs


def sizes_of(costs: Mapping[str, Cost], sample: Passages) -> Sizes:
    """All sizes that a cost may grow with in a run on a sample, 0 if no stage counts them, and the counts of each
    stage."""
    counts = {name: costs[stage].counts[key] if stage in costs else 0 for name, (stage, key) in COUNTED.items()}
    own = {name: n for cost in costs.values() for name, n in cost.counts.items()}
    written = sample.n_written_names() if "entities" in costs else 0
    sizes = {**own, **sample.sizes(), **counts, "written names": written}
    return {**sizes, "links": counts["mentions"] + counts["relations"]}
