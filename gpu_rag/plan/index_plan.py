"""The cost of a build: tokens, seconds and memory by stage, disk, from two samples that are really indexed.

A cost is a straight line through the smaller and the larger sample, in what the stage grows with. Names found grow by a
power of the passages (Heaps' law). Two stages compare everything with everything: pairs over the pairs a second that
this machine compares are added to their line.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.nearest import nearest
from gpu_rag.index import tables
from gpu_rag.index.build import guard_folder
from gpu_rag.index.finished import fingerprint_of, is_up_to_date
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.knowledge_base.tables import KB_EDGES
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.memory import memory_bytes
from gpu_rag.index.stage import Stage, settle
from gpu_rag.index.work import Models, Progress, Silent, Sources
from gpu_rag.plan.compare import identity_of, write_plan
from gpu_rag.plan.sample import CorpusCount, count_corpus, sample_sources
from gpu_rag.plan.trial import Lab, Sizes, Trial, TrialModels, run_trial
from gpu_rag.settings import Settings

DEFAULT_SAMPLE = 64
N_TRIPLES = 100_000  # of each source of a knowledge base, that are really read, linked and written
N_ASKED = 8  # passages of the sample that an LLM is really asked about
N_FRESH = 4  # replies that must be new, to tell how long one takes
MIN_SHARE = 0.2  # of a cost that is taken to grow, however flat two noisy measurements look
FOUND = {"entities": "entities", "relations": "entities", "mentions": "mentions"}  # and the stages that find them
UNPLANNED = ("kb_web",)  # grows with the pages of its snapshots, which nothing counts beforehand
_DRIVERS = {  # sizes that the cost of a stage is proportional to; other stages: passages
    **dict.fromkeys(("passages", "bm25", "higra_exact"), "characters"),
    **dict.fromkeys(("extraction", "entities"), "extracted"),  # passages that are extracted from
    **dict.fromkeys(("entity_vectors", "synonyms", "higra_exact_vectors", "higra_merge"), "entities"),
    **dict.fromkeys(("higra_links", "higra_entity_vectors"), "entities"),
    **dict.fromkeys(("relation_vectors", "higra_relation_vectors", "higra_search", "kb_relation_vectors"), "relations"),
    **dict.fromkeys(("mentions", "higra_mentions"), "mentions"),
    **dict.fromkeys(("graph", "higra_graph"), "links"),
    **dict.fromkeys(("kb", "kb_texts", "kb_edge_vectors"), "triples"),
    "kb_name_vectors": "nodes",
    "kb_text_vectors": "stand-ins",
}
_GROWTH: dict[str, tuple[str, float, float]] = {  # (what it grows with, smallest and largest exponent)
    "entities": ("extracted", 0.0, 1.0),
    "relations": ("extracted", 0.0, 1.0),
    "mentions": ("passages", 1.0, 1.5),
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


# --- the job ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildJob:
    """Everything that `build_index` takes."""

    out: Path
    layers: Sequence[Stage]
    settings: Settings
    sources: Sources
    models: Models
    fresh: bool = False

    @cached_property
    def made_of(self) -> dict[str, tuple[int, dict[str, Any], dict[str, Any]]]:
        """(version, parameters, models) of each stage."""
        return {
            layer.name: (
                layer.version,
                layer.params(self.settings, self.sources),
                {role: self.models.describe(role) for role in layer.roles(self.settings)},
            )
            for layer in self.layers
        }

    def up_to_date(self) -> set[str]:
        """The stages that the build will skip."""
        names: set[str] = set()
        resumes = not self.fresh and (self.out / "manifest.json").exists()
        manifest = Manifest.read(self.out) if resumes else Manifest()
        for layer in self.layers:
            record, needs = manifest.stages.get(layer.name), layer.needs_of(self.sources)
            if record is None or not names.issuperset(needs):
                continue
            inputs = {need: manifest.stages[need].output_hash for need in needs}
            _, params, described = self.made_of[layer.name]
            if is_up_to_date(self.out, layer, record, fingerprint_of(layer, inputs, params, described)):
                names.add(layer.name)
        return names


def plan_index(job: BuildJob, *, n_sample: int = DEFAULT_SAMPLE, progress: Progress | None = None) -> dict[str, Any]:
    """The plan of a build, also written to `out`/plan.json; beside it only the reply cache is written.

    The whole corpus is read and cut, so documents, passages and rejects are exact. The stages run on n_sample passages
    of it and on half of these, those of a knowledge base on the first 100,000 triples of each source and half of these.
    An LLM is asked about 8 passages through the index's reply cache, so the build does not ask these again. Pages of
    the web are left out, and a note says so. Raises everything that the build raises before and in its first stage.
    """
    progress = progress or Silent()
    started = time.perf_counter()
    guard_folder(job.out)
    unplanned = [layer.name for layer in job.layers if layer.name in UNPLANNED]
    job = replace(job, layers=[layer for layer in job.layers if layer.name not in unplanned])
    count = count_corpus(job.sources, job.settings, n_sample, progress)
    with storage_errors(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    job = replace(job, settings=settle(job.layers, job.settings, job.models))
    models = TrialModels(job.models)
    load_s, plan = _load(job, models), _Plan(job, models, count)
    progress.start("trying", None, "passages")
    with tempfile.TemporaryDirectory(prefix="gpu-rag-plan-") as folder:
        _tried(plan, Path(folder))
    progress.advance(len(count.sample.rows()))
    progress.finish("trying", skipped=False)
    document = plan.document(load_s)
    if unplanned:
        document["notes"].append(f"not predicted: {', '.join(unplanned)}; they grow with the pages")
    document["plan_s"] = time.perf_counter() - started
    write_plan(job.out / "plan.json", document)
    return document


def _load(job: BuildJob, models: TrialModels) -> float:
    """Seconds to load the models that the build needs."""
    started = time.perf_counter()
    roles = {role for layer in job.layers for role in layer.roles(job.settings)}
    if "embedder" in roles:
        models.embedder().embed(["one text, so that what is loaded on first use is loaded"])
    if "llm" in roles:
        models.llm()
    return time.perf_counter() - started


# --- trials ----------------------------------------------------------------------------------------


def _tried(plan: _Plan, folder: Path) -> None:
    """Stages that an LLM works for, and those after them, are tried on a handful of passages, the others on all."""
    job, sample = plan.job, plan.count.sample
    settings = replace(job.settings, index=replace(job.settings.index, min_yield=0.0))  # a bad yield is reported
    layers = [layer for layer in job.layers if not layer.name.startswith("kb")]
    asking: set[str] = set()
    for layer in layers:  # in building order
        if "llm" in layer.roles(settings) or asking & set(layer.needs):
            asking.add(layer.name)
    lab = Lab(layers, settings, job.sources, plan.models)
    if sample.rows():
        plain = replace(lab, layers=[layer for layer in layers if layer.name not in asking])
        plan.found = run_trial(folder / "sample", (plain, sample.half()), (plain, sample))
        plan.trials = dict.fromkeys((layer.name for layer in plain.layers), plan.found)
        for number in range(math.ceil(len(sample.rows()) / N_ASKED) if asking else 0):
            handful = sample.part(number, N_ASKED)
            plan.found = run_trial(folder / f"asked-{number}", (lab, handful.half()), (lab, handful))
            plan.trials |= dict.fromkeys(asking, plan.found)
            plan.n_asked = len(handful.extracted)
            if sum(cost.fresh for cost in plan.found.runs["first"].values()) >= min(N_FRESH, plan.n_asked):
                break
    if len(layers) < len(job.layers):
        base = [job.layers[0], *(layer for layer in job.layers if layer.name.startswith("kb"))]
        _try_base(plan, replace(lab, layers=base), folder / "kb")


def _try_base(plan: _Plan, lab: Lab, folder: Path) -> None:
    """The stages of a knowledge base, on the first triples of its sources."""
    labs = []
    for part, n in (("half", N_TRIPLES // 2), ("whole", N_TRIPLES)):
        samples = sample_sources(lab.sources.of_kind("kg", "skb"), folder / f"sources-{part}", n)
        named = tuple(sample.source for sample in samples)
        labs.append(replace(lab, sources=replace(lab.sources, named=named, corpus=())))
    trial = run_trial(folder, (labs[0], plan.count.sample), (labs[1], plan.count.sample))
    plan.trials |= dict.fromkeys((layer.name for layer in lab.layers[1:]), trial)
    source = tables.read_table(folder / "full" / "kb" / "kb_edges.parquet", KB_EDGES)["source"].to_numpy()
    n = np.bincount(source, minlength=len(samples)) @ np.asarray([sample.times for sample in samples], float)
    for sizes in (trial.small, trial.full):
        sizes["stand-ins"] = max(sizes["nodes"] - plan.count.documents, 0)
        sizes["relations"] = sizes["kinds"]
    plan.n_triples = int(trial.full["triples"])
    plan.kb = {"triples": round(n)}
    for name in ("nodes", "relations"):
        plan.kb[name] = round(_count(growth(*_points(trial, "triples", name), 0.0, 1.0), n))
    plan.kb["stand-ins"] = max(plan.kb["nodes"] - plan.count.documents, 0)


def _points(trial: Trial, by: str, name: str) -> tuple[float, float, float, float]:
    small, full = trial.small, trial.full
    return small[by], small[name], full[by], full[name]


def _count(law: Mapping[str, float], n: float) -> float:
    return law["k"] * n ** law["beta"]


# --- extrapolation ---------------------------------------------------------------------------------


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
    """Trials by stage, and the plan that they add up to.

    found: the trial of the stages that find entities; n_asked: passages that the LLM was asked about; kb: predicted
    sizes of the knowledge base; n_triples: those of it that were tried.
    """

    job: BuildJob
    models: TrialModels
    count: CorpusCount
    trials: dict[str, Trial] = field(default_factory=dict)
    found: Trial | None = None
    n_asked: int = 0
    kb: dict[str, int] | None = None
    n_triples: int = 0

    def document(self, load_s: float) -> dict[str, Any]:
        """The plan as JSON."""
        job, count = self.job, self.count
        laws = self._laws()
        sizes: Sizes = {name: vars(count)[name] for name in ("passages", "characters", "extracted")}
        sizes |= {name: round(_count(law, sizes[_GROWTH[name][0]])) for name, law in laws.items()}
        sizes["links"] = sizes.get("mentions", 0) + sizes.get("relations", 0)
        stages = self._stages(sizes)
        running = [stage for stage in stages.values() if not stage.skipped]
        return {
            **{name: vars(count)[name] for name in ("documents", "passages", "characters")},
            "extracted": count.extracted if "extraction" in stages else None,
            "rejects": count.rejects,
            "sample": len(count.sample.rows()),
            **{name: sizes.get(name, 0) if stage in stages else None for name, stage in FOUND.items()},
            "growth": {name: law for name, law in laws.items() if name != "mentions"},
            "extraction": self._statuses(),
            "kb": self.kb,
            "stages": {name: dict(vars(stage)) for name, stage in stages.items()},
            **{key: sum(getattr(stage, key) for stage in running) for key in _TOKENS},
            "load_s": load_s,
            "wall_s": load_s + sum(stage.s for stage in running),
            "peak_memory_bytes": max((stage.peak_memory_bytes for stage in running), default=memory_bytes()),
            "disk_bytes": sum(stage.disk_bytes for stage in stages.values()),
            "work_bytes": sum(stage.work_bytes for stage in running),
            "notes": self._notes(sizes, stages),
            "out": str(job.out),
            "identity": {name: identity_of(*made_of) for name, made_of in job.made_of.items()},
        }

    def _laws(self) -> dict[str, dict[str, float]]:
        """The laws by which names, relations and mentions grow."""
        if self.found is None:
            return {}
        return {name: growth(*_points(self.found, by, name), *exponent) for name, (by, *exponent) in _GROWTH.items()}

    def _stages(self, sizes: Sizes) -> dict[str, StagePlan]:
        skipped, before = self.job.up_to_date(), memory_bytes()
        known = self.models.n_cached() if self.n_asked and not self.job.fresh else 0
        stages: dict[str, StagePlan] = {}
        for layer in self.job.layers:
            stage = StagePlan("characters")
            if trial := self.trials.get(layer.name):
                stage = self._stage(layer, trial, sizes | (self.kb or {}) if layer.name.startswith("kb") else sizes)
                fresh = max(stage.llm_calls - known, 0)
                known -= stage.llm_calls - fresh
                first = trial.runs["first"][layer.name]
                stage.s += fresh * first.report.llm_s / max(first.fresh, 1)
                stage.llm_calls = fresh
            stage.s += self.count.s if layer.name == "passages" else 0.0
            stage.peak_memory_bytes += before
            stage.skipped = layer.name in skipped
            stages[layer.name] = stage
        return stages

    def _stage(self, layer: Stage, trial: Trial, sizes: Sizes) -> StagePlan:
        """One stage of an index of these sizes. Its memory is that of Python objects and NumPy's arrays alone."""
        name, settings = layer.name, self.job.settings
        stage = StagePlan(_DRIVERS.get(name, "passages"))
        n_small, n_full, n = (s.get(stage.grows_with, 0) for s in (trial.small, trial.full, sizes))
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
        if (pairs := self._pairs(name, trial, sizes)) is not None:
            stage.grows_with = "entities squared" if name == "synonyms" else "questions squared"
            stage.s += pairs / pairs_per_second(self.models.embedder().dim, settings.index.synonym_k + 1)
        by = "extracted" if name == "extraction" else "passages"
        ratio = sizes[by] / max(trial.full[by], 1)
        stage.llm_calls = round(full.requests * ratio)
        for key in ("prompt_tokens", "cached_tokens", "generated_tokens", "failures"):
            setattr(stage, key, round(getattr(full.report, key) * ratio))
        return stage

    def _pairs(self, name: str, trial: Trial, sizes: Sizes) -> float | None:
        """Pairs of names or questions that a stage compares; None of stages that grow along a line."""
        if name == "synonyms":
            return sizes["entities"] ** 2
        if name != "hop_edges":
            return None
        ratio, counts = sizes["passages"] / trial.full["passages"], trial.runs["full"]["hop_questions"].counts
        n_in, n_out = (counts[f"hop_{side}_questions"] * ratio for side in ("in", "out"))
        return 0.0 if max(n_in, n_out) > self.job.settings.hops.exact_limit else n_in * n_out

    def _statuses(self) -> dict[str, int]:
        """Passages of the trial by the status of their extraction."""
        trial = self.trials.get("extraction")
        counts = trial.runs["full"]["extraction"].counts if trial is not None else {}
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
        trial = self.trials.get("extraction")
        if trial is not None and trial.runs["full"]["extraction"].requests:
            least, ok = self.job.settings.index.min_yield, self._statuses().get("ok", 0)
            asked = f"{self.n_asked} passages"
            notes.append(f"the LLM was asked about {asked}; a server that takes more at once is faster than this")
            if ok < least * self.n_asked:
                said = f"the LLM found entities in {ok} of {asked}"
                notes.append(f"{said}: below index.min_yield = {least:g} the build fails")
        if self.kb and self.n_triples < self.kb["triples"]:
            part = f"{self.n_triples:,} of about {self.kb['triples']:,} triples"
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
