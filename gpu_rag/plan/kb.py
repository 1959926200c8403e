"""What the layers of a knowledge base will cost, from the first triples of its sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_NODES
from gpu_rag.index.memory import memory_bytes
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.knowledge_base.texts import EdgeTexts, node_names, relation_texts, standin_texts
from gpu_rag.plan.corpus import CorpusCount
from gpu_rag.plan.growth import fit_heaps, line_through
from gpu_rag.plan.kb_sample import SourceSample, sample_sources
from gpu_rag.plan.rates import embed_seconds
from gpu_rag.plan.stages import StagePlan
from gpu_rag.plan.trial import Cost, Lab

N_TRIPLES = 100_000  # of each source, that are really read, linked and written
N_TEXTS = 64  # of each layer of vectors, that are really embedded
UNPLANNED = ("kb_web",)  # grows with the pages of its snapshots, which nothing counts beforehand
# Measured of builds of 10^6 to 5 * 10^7 triples: see docs/cli.md.
EDGE_BYTES, NODE_BYTES, TEXT_EDGE_BYTES = 60, 250, 50
TEXT_BYTES, LAZY_TEXT_BYTES = 60, 12  # of a text that is embedded: beside its characters, or made when it is its turn
_VECTORS: dict[str, tuple[str, str, Callable[[Path], Sequence[str]]]] = {  # what there is one of for each vector
    "kb_name_vectors": ("nodes", "kb", node_names),
    "kb_edge_vectors": ("triples", "kb", EdgeTexts),
    "kb_relation_vectors": ("relations", "kb", relation_texts),
    "kb_text_vectors": ("stand-ins", "kb_texts", standin_texts),
}


@dataclass(frozen=True)
class KbPlan:
    """The stages, the sizes predicted of the whole ("triples", "nodes", "relations", "stand-ins"), and triples read."""

    stages: dict[str, StagePlan]
    sizes: dict[str, int]
    tried: int

    def stages_of(self, skipped: Collection[str]) -> dict[str, StagePlan]:
        """The stages, with what the process holds already; `skipped`: those that are up to date."""
        held = memory_bytes()
        return {
            name: replace(stage, skipped=name in skipped, peak_memory_bytes=stage.peak_memory_bytes + held)
            for name, stage in self.stages.items()
        }

    def notes(self) -> list[str]:
        """What a reader of the plan should know."""
        if self.tried >= self.sizes["triples"]:
            return []
        return [
            f"knowledge base: extrapolated from {self.tried:,} of about {self.sizes['triples']:,} triples; where few "
            "nodes have most edges, there may be far fewer nodes"
        ]


def plan_kb(lab: Lab, kb_layers: Sequence[Stage], count: CorpusCount, folder: Path) -> KbPlan:
    """Runs the layers on the first 100,000 triples of each source, and on the first half of these.

    Seconds and disk grow along the line between the two; names of graphs by Heaps' law, while the nodes of knowledge
    bases of nodes and edges are all read. Memory is what a triple and a node are known to take. Vectors: from 64 texts.
    Passages are those of the sample, so names that are searched for in a large corpus take longer than predicted.
    lab: how the build's layers are run, of which `passages` is.
    """
    run = [lab.layers[0], *(layer for layer in kb_layers if layer.name not in _VECTORS)]
    named = lab.sources.of_kind("kg", "skb")
    costs, sizes = [], []
    for part, n in (("half", N_TRIPLES // 2), ("full", N_TRIPLES)):
        samples = sample_sources(named, folder / f"sources-{part}", n)
        sources = replace(lab.sources, named=tuple(sample.source for sample in samples), corpus=())
        costs.append(replace(lab, layers=run, sources=sources).run(folder / part, count.sample))
        sizes.append(_sizes(folder / part / "kb", samples, count.documents))
    (half, full), (small, large) = costs, sizes
    stages: dict[str, StagePlan] = {}
    for layer in kb_layers:
        if layer.name in _VECTORS:
            stages[layer.name] = _vectors(layer.name, folder / "full", large.whole, lab)
        else:
            stages[layer.name] = _stage(layer.name, half, full, (small.tried, large.tried), large.whole)
    return KbPlan(stages, large.whole, large.tried)


@dataclass(frozen=True)
class _Sizes:
    tried: int  # triples
    whole: dict[str, int]


def _sizes(folder: Path, samples: Sequence[SourceSample], n_documents: int) -> _Sizes:
    edges = tables.read_table(folder / "kb_edges.parquet", KB_EDGES)
    n_nodes = tables.read_table(folder / "kb_nodes.parquet", KB_NODES).num_rows
    source, relation = edges["source"].to_numpy(), edges["relation"].to_numpy()
    ends = np.stack([edges["head"].to_numpy(), edges["tail"].to_numpy()])
    triples, nodes = 0.0, float(n_nodes)
    for number, sample in enumerate(samples):
        mine = source == number
        n = int(mine.sum())
        triples += n * sample.times
        if sample.source.kind == "kg" and n:
            law = fit_heaps(_in_edges(ends[:, mine]), n)
            nodes += law.at(round(n * sample.times)) - law.at(n)
    kinds = fit_heaps(np.unique(relation, return_counts=True)[1], edges.num_rows) if edges.num_rows else None
    whole = {
        "triples": round(triples),
        "nodes": round(nodes),
        "relations": round(kinds.at(round(triples))) if kinds else 0,
        "stand-ins": max(round(nodes) - n_documents, 0),
    }
    return _Sizes(edges.num_rows, whole)


def _in_edges(ends: np.ndarray) -> np.ndarray:
    """In how many edges each node is; one that an edge joins to itself is once in it."""
    once = np.concatenate([ends[0], ends[1][ends[0] != ends[1]]])
    found: np.ndarray = np.unique(once, return_counts=True)[1]
    return found


def _stage(
    name: str, half: Mapping[str, Cost], full: Mapping[str, Cost], tried: tuple[int, int], whole: Mapping[str, int]
) -> StagePlan:
    small, large = tried
    stage, a, b = StagePlan("triples"), half[name], full[name]
    n = max(whole["triples"], large)
    stage.s = line_through(small, a.s, large, b.s).at(n) if large else b.s
    stage.disk_bytes = round(line_through(small, a.disk_bytes, large, b.disk_bytes).at(n)) if large else b.disk_bytes
    each = EDGE_BYTES if name == "kb" else TEXT_EDGE_BYTES
    stage.peak_memory_bytes = each * whole["triples"] + NODE_BYTES * whole["nodes"]
    return stage


def _vectors(name: str, folder: Path, whole: Mapping[str, int], lab: Lab) -> StagePlan:
    grows_with, stage_name, texts_of = _VECTORS[name]
    stage, n = StagePlan(grows_with), whole[grows_with]
    texts = texts_of(folder / stage_name)
    chosen = [texts[row] for row in np.linspace(0, len(texts) - 1, min(N_TEXTS, len(texts))).astype(int)]
    embedder = lab.models.embedder()
    embedder.s = 0.0
    embedder.embed(chosen)
    stage.s = embed_seconds(embedder.inner, chosen, embedder.s, n, lab.settings.index.block)
    stage.disk_bytes = stage.work_bytes = n * embedder.dim * 2
    length = sum(map(len, chosen)) / max(len(chosen), 1)
    held = TEXT_BYTES + length if isinstance(texts, list) else LAZY_TEXT_BYTES
    stage.peak_memory_bytes = round(n * (embedder.dim * 2 + held))
    return stage
