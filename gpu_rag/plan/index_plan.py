"""The cost of a build: tokens, seconds and memory by stage, disk, from two samples that are really indexed.

A cost is a straight line through the smaller and the larger sample, in what the stage grows with. Names found grow by a
power of the passages (Heaps' law). Two stages compare everything with everything: pairs over the pairs a second that
this machine compares are added to their line.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.nearest import nearest
from gpu_rag.index import tables
from gpu_rag.index.build import fingerprint_of, guard_folder, is_up_to_date
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.knowledge_base.tables import KB_EDGES
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.memory import memory_bytes
from gpu_rag.index.stage import Stage, settle
from gpu_rag.index.work import Progress, Silent
from gpu_rag.plan.compare import identity_of, write_plan
from gpu_rag.plan.sample import CorpusCount, count_corpus, sample_sources
from gpu_rag.plan.trial import BuildJob, Cost, Sizes, TrialModels, run_stages, sizes_of

DEFAULT_SAMPLE = 64
N_TRIPLES = 100_000  # of each source of a knowledge base, that are really read, linked and written
N_ASKED = 8  # passages of the sample where an LLM works for the build
N_FRESH = 4  # replies that must be new, to tell how long one takes
MIN_SHARE = 0.2  # of a cost that is taken to grow, however flat two noisy measurements look
FOUND = {"entities": "entities", "relations": "entities", "mentions": "mentions"}  # and the stages that find them
UNPLANNED = ("kb_web",)  # grows with the pages of its snapshots, which nothing counts beforehand
_DRIVERS = {  # sizes that the cost of a stage is proportional to; other stages: passages
    **dict.fromkeys(("passages", "bm25", "higra_exact"), "characters"),
    **dict.fromkeys(("extraction", "entities"), "extracted"),  # passages that are extracted from
    **dict.fromkeys(("entity_vectors", "synonyms", "higra_exact_vectors", "higra_merge"), "entities"),
    **dict.fromkeys(("higra_links", "higra_entity_vectors"), "entities"),
    **dict.fromkeys(("relation_vectors", "higra_relation_vectors", "higra_search"), "relations"),
    **dict.fromkeys(("mentions", "higra_mentions"), "mentions"),
    **dict.fromkeys(("graph", "higra_graph"), "links"),
    **dict.fromkeys(("kb", "kb_texts", "kb_edge_vectors"), "triples"),
    "kb_relation_vectors": "kinds of relation",
    "kb_name_vectors": "nodes",
    "kb_text_vectors": "stand-ins",
}
_GROWTH: dict[str, tuple[str, float, float]] = {  # (what it grows with, smallest and largest exponent)
    "entities": ("extracted", 0.0, 1.0),
    "relations": ("extracted", 0.0, 1.0),
    "mentions": ("passages", 1.0, 1.5),
    "nodes": ("triples", 0.0, 1.0),
    "kinds of relation": ("triples", 0.0, 1.0),
}
_TOKENS = ("llm_calls", "prompt_tokens", "generated_tokens")
_QUERIES, _BASE = 128, 65536  # vectors that the rate of pairs is measured on


def on_line(size_a: float, cost_a: float, size_b: float, cost_b: float, size: float) -> float:
    """The cost at a size, on the line through two measured costs, size_a < size_b, kept sane against noise.

    The line goes through the larger measurement; at least a fifth of that and at most all of it grows with the size.
    """
    if size_b <= 0:
        return max(cost_b, 0.0)
    whole = max(cost_b, 0.0) / size_b
    slope = (cost_b - cost_a) / (size_b - size_a) if size_b > size_a else whole
    return whole * size_b + min(max(slope, MIN_SHARE * whole), whole) * (size - size_b)


def growth(n_a: float, count_a: float, n_b: float, count_b: float, low: float, high: float) -> dict[str, float]:
    """{"k", "beta"} of count = k * n ** beta through (n_b, count_b) and near (n_a, count_a), beta from `low` to `high`.

    Where two sizes or counts say nothing about growth, beta is 1.
    """
    beta = 1.0
    if 0 < n_a < n_b and count_a > 0 and count_b > 0:
        beta = min(max(math.log(count_b / count_a) / math.log(n_b / n_a), low), high)
    return {"k": count_b / max(n_b, 1) ** beta, "beta": beta}


def plan_index(job: BuildJob, *, n_sample: int = DEFAULT_SAMPLE, progress: Progress | None = None) -> dict[str, Any]:
    """The plan of a build, also written to `out`/plan.json; beside it only the reply cache is written.

    The whole corpus is read and cut, so documents, passages and rejects are exact. The stages run on n_sample passages
    of it and on half of these, and on the first 100,000 triples of each source and half of these. Where an LLM works
    they run on 8 passages, through the index's reply cache, so the build does not ask these again. Pages of the web
    are left out, and a note says so. Raises everything that the build raises before and in its first stage.
    """
    progress = progress or Silent()
    started = time.perf_counter()
    guard_folder(job.out)
    unplanned = [layer.name for layer in job.layers if layer.name in UNPLANNED]
    job = replace(job, layers=[layer for layer in job.layers if layer.name not in unplanned])
    count = count_corpus(job.sources, job.settings, n_sample, progress)
    with storage_errors(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    models = TrialModels(job.models)
    job = replace(job, settings=settle(job.layers, job.settings, job.models), models=models)
    loading = time.perf_counter()
    models.load({role for layer in job.layers for role in layer.roles(job.settings)})
    load_s = time.perf_counter() - loading
    progress.start("trying", None, "passages")
    with tempfile.TemporaryDirectory(prefix="gpu-rag-plan-") as folder:
        trial = _tried(job, count, Path(folder))
    progress.advance(len(count.sample.rows()))
    progress.finish("trying", skipped=False)
    document = _Plan(job, models, count, trial).document(load_s)
    if unplanned:
        document["notes"].append(f"not predicted: {', '.join(unplanned)}; they grow with the pages")
    document["plan_s"] = time.perf_counter() - started
    write_plan(job.out / "plan.json", document)
    return document


@dataclass(frozen=True)
class _Trial:
    """The costs of all stages on two samples, of these sizes, in five runs.

    first: of the larger, as the first run in this process, with the LLM really asked; small, full: of both, warm;
    small_traced, full_traced: their memory. n_triples: predicted triples of the knowledge base.
    """

    runs: Mapping[str, Mapping[str, Cost]]
    small: Sizes
    full: Sizes
    n_triples: float

    def points(self, by: str, name: str) -> tuple[float, float, float, float]:
        """What was found by name, in the smaller and in the larger sample."""
        return self.small[by], self.small[name], self.full[by], self.full[name]


def _tried(job: BuildJob, count: CorpusCount, folder: Path) -> _Trial:
    """The trial of a build. Where an LLM works, `count.sample` becomes 8 passages that were not asked about before."""
    job = replace(job, settings=job.settings.changed("index", min_yield=0.0))  # a bad yield is reported
    jobs, samples = [], []
    for part, n in (("small", N_TRIPLES // 2), ("full", N_TRIPLES)):
        samples = sample_sources(job.sources.of_kind("kg", "skb"), folder / f"sources-{part}", n)
        named = tuple(sample.source for sample in samples)
        jobs.append(replace(job, sources=replace(job.sources, named=named)))
    asks = any("llm" in layer.roles(job.settings) for layer in job.layers)
    drawn, size = count.sample, N_ASKED if asks else len(count.sample.rows())
    for number in range(max(math.ceil(len(drawn.rows()) / max(size, 1)), 1)):
        count.sample = drawn.part(number, size)
        first = run_stages(jobs[1], folder / f"first-{number}", count.sample)
        if sum(cost.fresh for cost in first.values()) >= min(N_FRESH, len(count.sample.extracted)):
            break
    parts = {"small": (jobs[0], count.sample.half()), "full": (jobs[1], count.sample)}
    runs = {"first": first}
    for ending in ("", "_traced"):
        for name, (part_job, passages) in parts.items():
            runs[name + ending] = run_stages(part_job, folder / (name + ending), passages, traced=bool(ending))
    small, full = (sizes_of(folder / name, passages) for name, (_, passages) in parts.items())
    for sizes in (small, full):
        sizes["stand-ins"] = max(sizes["nodes"] - count.documents, 0)
    n_triples = 0.0
    if "kb" in first and not samples:  # of the corpus alone
        n_triples = full["triples"] * count.extracted / max(full["extracted"], 1)
    elif "kb" in first:
        source = tables.read_table(folder / "full" / "kb" / "kb_edges.parquet", KB_EDGES)["source"].to_numpy()
        n_triples = float(np.bincount(source, minlength=len(samples)) @ [sample.times for sample in samples])
    return _Trial(runs, small, full, n_triples)


@dataclass
class StagePlan:
    """The predicted cost of one stage."""

    grows_with: str
    s: float = 0.0
    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    failures: int = 0
    peak_memory_bytes: int = 0
    disk_bytes: int = 0
    work_bytes: int = 0
    skipped: bool = False


@dataclass
class _Plan:
    """The plan that a trial adds up to."""

    job: BuildJob
    models: TrialModels
    count: CorpusCount
    trial: _Trial

    def document(self, load_s: float) -> dict[str, Any]:
        """The plan as JSON."""
        count = self.count
        laws = {name: growth(*self.trial.points(by, name), *ends) for name, (by, *ends) in _GROWTH.items()}
        sizes: Sizes = {name: vars(count)[name] for name in ("passages", "characters", "extracted")}
        sizes["triples"] = round(self.trial.n_triples)
        sizes |= {name: round(law["k"] * sizes[_GROWTH[name][0]] ** law["beta"]) for name, law in laws.items()}
        sizes["links"] = sizes["mentions"] + sizes["relations"]
        sizes["stand-ins"] = max(sizes["nodes"] - count.documents, 0)
        stages = self._stages(sizes)
        running = [stage for stage in stages.values() if not stage.skipped]
        kb = {name: sizes[name] for name in ("triples", "nodes")}
        kb.update({"relations": sizes["kinds of relation"], "stand-ins": sizes["stand-ins"]})
        return {
            **{name: vars(count)[name] for name in ("documents", "passages", "characters")},
            "extracted": count.extracted if "extraction" in stages else None,
            "rejects": count.rejects,
            "sample": len(count.sample.rows()),
            **{name: sizes[name] if stage in stages else None for name, stage in FOUND.items()},
            "growth": {name: laws[name] for name in ("entities", "relations") if count.passages},
            "extraction": self._statuses(),
            "kb": kb if "kb" in stages else None,
            "stages": {name: dict(vars(stage)) for name, stage in stages.items()},
            **{key: sum(getattr(stage, key) for stage in running) for key in _TOKENS},
            "load_s": load_s,
            "wall_s": load_s + sum(stage.s for stage in running),
            "peak_memory_bytes": max((stage.peak_memory_bytes for stage in running), default=memory_bytes()),
            "disk_bytes": sum(stage.disk_bytes for stage in stages.values()),
            "work_bytes": sum(stage.work_bytes for stage in running),
            "notes": self._notes(sizes, stages),
            "out": str(self.job.out),
            "identity": {layer.name: identity_of(layer.version, *self._made_of(layer)) for layer in self.job.layers},
        }

    def _made_of(self, layer: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
        settings = self.job.settings
        described = {role: self.models.describe(role) for role in layer.roles(settings)}
        return layer.params(settings, self.job.sources), described

    def _skipped(self) -> set[str]:
        """The stages that the build will skip."""
        names: set[str] = set()
        out = self.job.out
        resumes = not self.job.fresh and (out / "manifest.json").exists()
        manifest = Manifest.read(out) if resumes else Manifest()
        for layer in self.job.layers:
            record, needs = manifest.stages.get(layer.name), layer.needs_of(self.job.sources)
            if record is None or not names.issuperset(needs):
                continue
            inputs = {need: manifest.stages[need].output_hash for need in needs}
            if is_up_to_date(out, layer, record, fingerprint_of(layer, inputs, *self._made_of(layer))):
                names.add(layer.name)
        return names

    def _stages(self, sizes: Sizes) -> dict[str, StagePlan]:
        skipped, before = self._skipped(), memory_bytes()
        asked = any(cost.requests for cost in self.trial.runs["first"].values())
        known = self.models.n_cached() if asked and not self.job.forget_replies else 0
        stages: dict[str, StagePlan] = {}
        for layer in self.job.layers:
            stage, first = self._stage(layer, self.trial, sizes), self.trial.runs["first"][layer.name]
            fresh = max(stage.llm_calls - known, 0)
            known -= stage.llm_calls - fresh
            stage.s += fresh * first.report.llm_s / max(first.fresh, 1)
            stage.llm_calls = fresh
            stage.s += self.count.s if layer.name == "passages" else 0.0
            stage.peak_memory_bytes += before
            stage.skipped = layer.name in skipped
            stages[layer.name] = stage
        return stages

    def _stage(self, layer: Stage, trial: _Trial, sizes: Sizes) -> StagePlan:
        """One stage of an index of these sizes. Its memory is that of Python objects and NumPy's arrays alone."""
        name, settings = layer.name, self.job.settings
        stage = StagePlan(_DRIVERS.get(name, "passages"))
        n_small, n_full, n = (s[stage.grows_with] for s in (trial.small, trial.full, sizes))
        first, small, full, *traced = (run[name] for run in trial.runs.values())
        stage.s = on_line(n_small, small.s, n_full, full.s, n)
        if name == "extraction" and settings.index.extractor == "import":
            stage.grows_with, stage.s = "the file of --openie", full.s  # which is read whole for any sample
        stage.s += max(0.0, first.s - full.s)  # for things loaded on first use
        stage.disk_bytes = round(on_line(n_small, small.disk_bytes, n_full, full.disk_bytes, n))
        if "embedder" in layer.roles(settings):
            stage.work_bytes = stage.disk_bytes  # blocks of vectors, beside the finished file
        grown = traced[1].memory_bytes - traced[0].memory_bytes
        stage.peak_memory_bytes = round(max(grown, 0) / max(n_full - n_small, 1) * n)
        if (pairs := self._pairs(name, sizes)) is not None:
            stage.grows_with = "entities squared" if name == "synonyms" else "questions squared"
            stage.s += pairs / pairs_per_second(self.models.embedder().dim, settings.index.synonym_k + 1)
        by = "extracted" if name == "extraction" else "passages"
        ratio = sizes[by] / max(trial.full[by], 1)
        stage.llm_calls = round(full.requests * ratio)
        for key in ("prompt_tokens", "cached_tokens", "generated_tokens", "failures"):
            setattr(stage, key, round(getattr(full.report, key) * ratio))
        return stage

    def _pairs(self, name: str, sizes: Sizes) -> float | None:
        """Pairs of names or questions that a stage compares; None of stages that grow along a line."""
        if name == "synonyms":
            return sizes["entities"] ** 2
        if name != "hop_edges":
            return None
        counts = self.trial.runs["full"]["hop_questions"].counts
        ratio = sizes["passages"] / max(self.trial.full["passages"], 1)
        n_in, n_out = (counts[f"hop_{side}_questions"] * ratio for side in ("in", "out"))
        return 0.0 if max(n_in, n_out) > self.job.settings.hops.exact_limit else n_in * n_out

    def _statuses(self) -> dict[str, int]:
        """Passages of the trial by the status of their extraction."""
        extraction = self.trial.runs["full"].get("extraction")
        counts = extraction.counts if extraction is not None else {}
        return {name.removeprefix("extraction_"): n for name, n in counts.items()}

    def _notes(self, sizes: Sizes, stages: Mapping[str, StagePlan]) -> list[str]:
        notes, tried = list[str](), len(self.count.sample.rows())
        if self.count.passages > tried:
            notes.append(f"extrapolated from {tried} of {self.count.passages:,} passages")
        if "synonyms" in stages and tried:
            n = f"{int(sizes['entities']):,}"
            notes.append(
                f"synonyms: every name is compared with every other, {n} x {n} pairs, so its time is quadratic"
            )
        if "extraction" in stages and self.trial.runs["full"]["extraction"].requests:
            least, n_asked = self.job.settings.index.min_yield, len(self.count.sample.extracted)
            ok, asked = self._statuses().get("ok", 0), f"{n_asked} passages"
            notes.append(f"the LLM was asked about {asked}; a server that takes more at once is faster than this")
            if ok < least * n_asked:
                said = f"the LLM found entities in {ok} of {asked}"
                notes.append(f"{said}: below index.min_yield = {least:g} the build fails")
        if (n_tried := int(self.trial.full["triples"])) < sizes["triples"]:
            part = f"{n_tried:,} of about {sizes['triples']:,} triples"
            doubt = "where few nodes have most edges, there may be far fewer nodes"
            notes.append(f"knowledge base: extrapolated from {part}; {doubt}")
        return notes


def pairs_per_second(dim: int, k: int) -> float:
    """Pairs of vectors that this machine compares a second, the best k of each kept: 128 against 65,536 drawn ones."""
    generator = np.random.default_rng(0)
    base = torch.from_numpy(generator.standard_normal((_BASE, dim), np.float32).astype(np.float16))
    queries = base[:_QUERIES].float()
    nearest(queries, base, k)  # the first call warms up
    started = time.perf_counter()
    nearest(queries, base, k)
    return _QUERIES * _BASE / max(time.perf_counter() - started, 1e-9)
