"""The cost of a build: tokens, seconds and memory by stage, and disk, predicted from samples that are really indexed.

A cost is a straight line through the smaller and the larger sample, in the size that the stage grows with. Memory is
that of the largest sample, grown by a power (MEMORY_GROWTH), and the share KEPT of the largest so far is added.
The number of names grows by a power of the number of names written in the whole corpus: a sample does not show which
names its passages share with others. The number of relations grows by a power of the passages (Heaps' law). Where a
stage compares all pairs, their number, divided by this machine's pairs per second, is added to the line. Work that
several workers may share is measured with one, and divided.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rag.graph.nearest import nearest
from gpu_rag.graph.nearest.pairs import EXACT_ROWS, near_pairs
from gpu_rag.index.build import few_collections, fingerprint_of, guard_folder, is_up_to_date
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.memory import memory_bytes
from gpu_rag.index.stage import Stage, settle
from gpu_rag.index.work import Progress, Silent
from gpu_rag.index.workers import START_S, n_workers
from gpu_rag.lazy import torch
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.plan import trial
from gpu_rag.plan.compare import write_plan
from gpu_rag.plan.trial import BuildJob, Passages, RepeatingLLM

DEFAULT_SAMPLE = 2048
STEP = 4  # ratio of the sizes of two samples
LEAST = 64  # passages
LONG_S = 10.0  # a run on at least LEAST that takes longer is the last one, unless the size of the sample was given
N_TRIPLES = 100_000  # triples of each knowledge base source that are really read, linked and written
N_ASKED = 8  # passages of the sample when an LLM is used
N_FRESH = 4  # new replies needed to measure the time of one
# Exponents of the memory of a stage, for stages that embed (they read windows of texts) and others; and the share of
# the largest stage's memory that allocators keep until the end. Measured between 2,048 and 1,001,700 passages.
MEMORY_GROWTH = {True: 0.45, False: 0.7}
KEPT = 0.15
COUNTING = ("passages", "extraction", "entities")  # these stages always run on the whole sample, since they are quick
MIN_SHARE = 0.2  # minimum share of a cost that grows, however flat two noisy measurements look
FOUND = ("entities", "relations", "mentions")
_GROWTH: dict[str, tuple[str, float, float]] = {  # (size that it grows with, smallest and largest exponent)
    "entities": ("written names", 0.0, 1.0),
    "relations": ("extracted", 0.0, 1.0),
    "nodes": ("triples", 0.0, 1.0),
    "kinds of relation": ("triples", 0.0, 1.0),
}
_COUNTS = ("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens", "failures")
# Numbers of vectors that measure the rates of pairs, and of results of a query; more are 5 % faster, and take longer
_QUERIES, _BASE, _ALL, _BEST = 1024, 65536, 16384, 21


def on_line(size_a: float, cost_a: float, size_b: float, cost_b: float, size: float) -> float:
    """The cost at a size, on the line through two measured costs, size_a < size_b, with limits against noise.

    The line goes through the larger measurement. From the share MIN_SHARE to all of that cost grows with the size.
    """
    if size_b <= 0:
        return max(cost_b, 0.0)
    whole = max(cost_b, 0.0) / size_b
    slope = (cost_b - cost_a) / (size_b - size_a) if size_b > size_a else whole
    return whole * size_b + min(max(slope, MIN_SHARE * whole), whole) * (size - size_b)


def growth(n_a: float, count_a: float, n_b: float, count_b: float, low: float, high: float) -> dict[str, float]:
    """{"k", "beta"} of count = k * n ** beta through (n_b, count_b) and near (n_a, count_a), beta from `low` to `high`.

    If the two sizes or counts do not show growth, beta is 1.
    """
    beta = 1.0
    if 0 < n_a < n_b and count_a > 0 and count_b > 0:
        beta = min(max(math.log(count_b / count_a) / math.log(n_b / n_a), low), high)
    return {"k": count_b / max(n_b, 1) ** beta, "beta": beta}


def plan_index(job: BuildJob, *, n_sample: int | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """The plan of a build, also written to `out`/plan.json. Besides it only the reply cache is written.

    The whole corpus is read and cut, so documents, passages and rejects are exact. The stages run in a temporary folder
    on n_sample passages and on the first 100,000 triples of each source; without n_sample on growing parts of 2,048
    passages and of these triples, until a run takes more than 10 s. Stages whose input cannot be counted are left
    out, and a note says so. Raises all errors that the build raises before and in its first stage.
    """
    progress = progress or Silent()
    started = time.perf_counter()
    guard_folder(job.out)
    unplanned = [stage.name for stage in job.stages if not stage.planned]
    job = replace(job, stages=[stage for stage in job.stages if stage.planned])
    counts, corpus, drawn = trial.read_corpus(job.sources, job.settings, n_sample or DEFAULT_SAMPLE, progress)
    read_s = time.perf_counter() - started
    n_names = corpus.n_written_names() if any(stage.name == "entities" for stage in job.stages) else 0
    del corpus  # its text is no memory of the stages that are tried
    with storage_errors(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    job = replace(job, settings=settle(job.stages, job.settings, job.models))
    roles = {role for stage in job.stages for role in stage.roles(job.settings)}
    loading = time.perf_counter()
    if "embedder" in roles:
        job.models.embedder().embed(["one text, so that parts that load on first use are loaded"])
    llm = RepeatingLLM(job.models.llm()) if "llm" in roles else None
    load_s = time.perf_counter() - loading
    progress.start("trying", None, "passages")
    with few_collections(), tempfile.TemporaryDirectory(prefix="gpu-rag-plan-") as folder:
        plan = _tried(job, llm, counts, n_names, drawn, Path(folder), math.inf if n_sample else LONG_S)
    progress.advance(len(plan.sample))
    progress.finish("trying", skipped=False)
    document = plan.document(read_s, load_s)
    if unplanned:
        document["notes"].append(f"not predicted: {', '.join(unplanned)}; they grow with the pages")
    document["plan_s"] = time.perf_counter() - started
    write_plan(job.out / "plan.json", document)
    return document


def _tried(
    job: BuildJob,
    llm: RepeatingLLM | None,
    counts: Mapping[str, int],
    n_names: int,
    drawn: Passages,
    folder: Path,
    long_s: float,
) -> _Plan:
    """The plan of a build, from runs on growing samples. With an LLM, the samples are 8 passages that it was not
    asked about before, and half of these. n_names: number of names written in the corpus; long_s: seconds; a run that
    takes longer is the last one.

    first, warm: runs on one sample, the first one in this process, with real LLM requests; small, full: runs on the
    smallest and the largest sample; full has the stages of COUNTING on the whole sample.
    """
    settings = job.settings.changed("index", min_yield=0.0, workers=1)  # a low yield is only reported
    reading = time.perf_counter()
    sources = trial.keep_drawn(job.sources, drawn, folder)  # reads all ready extractions, as their stage will
    import_s = time.perf_counter() - reading
    n_triples = trial.count_triples(sources.of_kind("kg", "skb"))
    read = {source: min(n, N_TRIPLES) for source, n in n_triples.items()}

    def run(
        name: str, divisor: int, passages: Passages, stages: Sequence[Stage] = job.stages
    ) -> Mapping[str, trial.Cost]:
        named = tuple(replace(source, most=math.ceil(n / divisor)) for source, n in read.items())
        part = replace(job, stages=stages, settings=settings, sources=replace(sources, named=named))
        return trial.run_stages(part, llm, folder / name, passages)

    if llm is None:
        divisors = [STEP**k for k in (3, 2, 1, 0)]
        samples = [drawn.take(np.arange(0, len(drawn), divisor)) for divisor in divisors]
        first = run("first", divisors[1], samples[1])
    else:
        kinds = drawn.n_extracted, len(drawn) - drawn.n_extracted
        divisors, place = [2, 1], np.concatenate([np.arange(n) for n in kinds])  # position within its kind
        for start in range(0, max(drawn.n_extracted, 1), N_ASKED):
            sample = drawn.take(np.flatnonzero((place >= start) & (place < start + N_ASKED)))
            first = run(f"first-{start}", 1, sample)
            if sum(cost.llm_calls + cost.failures for cost in first.values()) >= min(N_FRESH, sample.n_extracted):
                break
        samples = [sample.take(np.arange(0, len(sample), 2)), sample]
    runs = list[Mapping[str, trial.Cost]]()
    for divisor, sample in zip(divisors, samples):
        runs.append(run(f"part-{divisor}", divisor, sample))
        if len(runs) > 1 and len(sample) >= LEAST and sum(cost.s for cost in runs[-1].values()) > long_s:
            break
    last = len(runs) - 1
    named = {"first": first, "warm": runs[1], "small": runs[0], "full": runs[-1]}
    n_read = sum(math.ceil(n / divisors[last]) for n in read.values())
    times = sum(n_triples.values()) / n_read if n_read else 0.0
    small, near, full = (trial.sizes_of(runs[k], samples[k]) for k in (0, last - 1, last))
    far = full
    if last + 1 < len(samples) and COUNTING[-1] in runs[last]:
        counting = [stage for stage in job.stages if stage.name in COUNTING]
        costs = run("counts", 1, samples[-1], counting)
        named["full"] = {**runs[-1], **costs}
        counted = trial.sizes_of(costs, samples[-1])
        counted = {name: n for name, n in counted.items() if n}
        near, far = near | {name: full.get(name, 0) for name in counted}, full | counted
    return _Plan(job, llm, counts, n_names, samples[last], named, small, near, far, full, times, import_s)


@dataclass
class _Plan:
    """A plan built from trial runs. counts, n_names: numbers of the corpus; sample: the passages of the
    largest run; small, full: sizes of the smallest and the largest run; near, far: two sizes that counts are
    extrapolated through.

    times: the ratio of all triples of the knowledge base to those read; 0 if its only source is the corpus. import_s:
    seconds of reading all ready extractions.
    """

    job: BuildJob
    llm: RepeatingLLM | None
    counts: Mapping[str, int]
    n_names: int
    sample: Passages
    runs: Mapping[str, Mapping[str, trial.Cost]]
    small: trial.Sizes
    near: trial.Sizes
    far: trial.Sizes
    full: trial.Sizes
    times: float
    import_s: float

    def __post_init__(self) -> None:
        """Predict the sizes of the index."""
        near, far, full = self.near, self.far, self.full
        sizes = self.sizes = {**dict[str, float](self.counts), "written names": self.n_names}
        self.laws = dict[str, dict[str, float]]()
        for name, (by, *ends) in _GROWTH.items():
            if name == "nodes":
                sizes["triples"] = round(full["triples"] * self.times) if self.times else sizes["relations"]
            law = self.laws[name] = growth(near[by], near[name], far[by], far[name], *ends)
            sizes[name] = round(law["k"] * sizes[by] ** law["beta"])
            if name == "entities" and far["extracted"] < sizes["extracted"]:
                self.laws[name] = growth(far["extracted"], far[name], sizes["extracted"], sizes[name], 0.0, 1.0)
        for name in full.keys() - sizes.keys():  # counts of method stages grow with the passages
            sizes[name] = round(full[name] / max(full["passages"], 1) * sizes["passages"])
        sizes["links"] = sizes["mentions"] + sizes["relations"]
        sizes["stand-ins"] = max(sizes["nodes"] - sizes["documents"], 0)  # most nodes with documents are in passages

    def document(self, read_s: float, load_s: float) -> dict[str, Any]:
        sizes, stages = self.sizes, self._stages(read_s)
        running = [stage for stage in stages.values() if not stage["skipped"]]
        kb = {name: sizes[name] for name in ("triples", "nodes")}
        kb.update({"relations": sizes["kinds of relation"], "stand-ins": sizes["stand-ins"]})
        counted = {name: sizes[name] if trial.COUNTED[name][0] in stages else None for name in FOUND}
        return {
            **self.counts,
            "extracted": self.counts["extracted"] if "extraction" in stages else None,
            "sample": len(self.sample),
            **counted,
            "growth": {name: self.laws[name] for name in FOUND[:2] if sizes["passages"]},
            "extraction": self._statuses(),
            "kb": kb if "kb" in stages else None,
            "stages": stages,
            **{key: sum(stage[key] for stage in running) for key in ("llm_calls", "prompt_tokens", "generated_tokens")},
            "load_s": load_s,
            "wall_s": load_s + sum(stage["s"] for stage in running),
            "peak_memory_bytes": max((stage["peak_memory_bytes"] for stage in running), default=memory_bytes()),
            "disk_bytes": sum(stage["disk_bytes"] for stage in stages.values()),
            "work_bytes": max((stage["work_bytes"] for stage in running), default=0),
            "notes": self._notes(),
            "out": str(self.job.out),
            "identity": {stage.name: fingerprint_of(stage, {}, *self._made_of(stage)) for stage in self.job.stages},
        }

    def _made_of(self, stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
        settings = self.job.settings
        described = {role: self.job.models.describe(role) for role in stage.roles(settings)}
        return stage.params(settings, self.job.sources), described

    def _skipped(self) -> set[str]:
        names, out = set[str](), self.job.out
        resumes = not self.job.fresh and (out / "manifest.json").exists()
        records = Manifest.read(out).stages if resumes else {}
        for stage in self.job.stages:
            record, needs = records.get(stage.name), stage.needs_of(self.job.sources)
            if record is not None and names.issuperset(needs):
                inputs = {need: records[need].output_hash for need in needs}
                if is_up_to_date(out, stage, record, fingerprint_of(stage, inputs, *self._made_of(stage))):
                    names.add(stage.name)
        return names

    def _stages(self, read_s: float) -> dict[str, dict[str, Any]]:
        skipped, cache = self._skipped(), self.llm.inner if self.llm is not None else None
        known = len(cache) if isinstance(cache, CachedLLM) and not self.job.forget_replies else 0  # replies
        stages, kept = {stage.name: self._stage(stage) for stage in self.job.stages}, 0.0
        for name, stage in stages.items():
            first, n_calls = self.runs["first"][name], stage["llm_calls"]
            grown = stage["peak_memory_bytes"] - first.base_bytes
            stage["peak_memory_bytes"] += round(kept)
            kept = kept if name in skipped else max(kept, KEPT * grown)
            stage["llm_calls"] = n_new = max(n_calls - known, 0)
            known -= n_calls - n_new
            stage["s"] += n_new * first.llm_s / max(first.llm_calls, 1)
            stage["s"] += {"passages": read_s, "extraction": self.import_s}.get(name, 0.0)
            stage["skipped"] = name in skipped
        return stages

    def _stage(self, stage: Stage) -> dict[str, Any]:
        """The prediction for one stage at these sizes, if LLM calls took no time."""
        name, settings, sizes = stage.name, self.job.settings, self.sizes
        grows_with, sizes_of_full = stage.size, self.far if name in COUNTING else self.full
        n_small, n_full, n = (part[grows_with] for part in (self.small, sizes_of_full, sizes))
        first, warm, small, full = (run[name] for run in self.runs.values())
        disk_bytes = round(on_line(n_small, small.disk_bytes, n_full, full.disk_bytes, n))
        embeds = "embedder" in stage.roles(settings)
        grown = full.peak_memory_bytes * (n / max(n_full, 1)) ** MEMORY_GROWTH[embeds]
        pairs_s = [0.0, 0.0, 0.0]
        if stage.pairs is not None:
            parts = self.small, self.full, sizes
            compared = [(stage.pairs.number(settings, part), stage.pairs.are_all(part)) for part in parts]
            if compared[-1][0]:
                dim = self.job.models.embedder().dim
                grows_with, pairs_s = stage.pairs.name, [n / pairs_per_second(dim, are_all) for n, are_all in compared]
        costs = (max(cost.s - of_pairs, 0.0) for cost, of_pairs in zip((small, full), pairs_s))
        seconds = on_line(n_small, next(costs), n_full, next(costs), n)
        shared_s = seconds * min(full.shared_s / max(full.s, 1e-9), 1.0)
        seconds += pairs_s[-1] - max(shared_s - START_S, 0.0) * (1 - 1 / n_workers(settings))
        by = "extracted" if name == "extraction" else "passages"
        ratio = sizes[by] / max(sizes_of_full[by], 1)
        return {
            "grows_with": grows_with,
            "s": seconds + max(0.0, first.s - warm.s),  # for things loaded on first use
            **{key: round(getattr(full, key) * ratio) for key in _COUNTS},
            "peak_memory_bytes": first.base_bytes + max(first.peak_memory_bytes, round(grown)),
            "disk_bytes": disk_bytes,
            "work_bytes": disk_bytes if embeds else 0,  # blocks, besides the file
        }

    def _statuses(self) -> dict[str, int]:
        """The number of passages of the trial by extraction status."""
        counts = self.runs["full"]["extraction"].counts if "extraction" in self.runs["full"] else {}
        return {name.removeprefix("extraction_"): n for name, n in counts.items()}

    def _notes(self) -> list[str]:
        notes, tried, n = list[str](), len(self.sample), f"{int(self.sizes['entities']):,}"
        if (n_passages := int(self.sizes["passages"])) > tried:
            notes.append(f"extrapolated from {tried} of {n_passages:,} passages")
        if "synonyms" in self.runs["full"] and tried and self.sizes["entities"] <= EXACT_ROWS:
            notes.append(f"synonyms: every name is compared with every other, {n} x {n} pairs: its time is quadratic")
        n_asked = self.sample.n_extracted
        if self.llm is not None and n_asked:
            passages, least = f"{n_asked} passages", self.job.settings.index.min_yield
            notes.append(f"the LLM was asked about {passages}; a server that takes more at once is faster than this")
            if (ok := self._statuses().get("ok", 0)) < least * n_asked:
                low = f"below index.min_yield = {least:g} the build fails"
                notes.append(f"the LLM found entities in {ok} of {passages}: {low}")
        if (n_tried := int(self.full["triples"])) < self.sizes["triples"]:
            part = f"{n_tried:,} of {int(self.sizes['triples']):,} triples"
            doubt = "where few nodes have most edges, there may be far fewer nodes"
            notes.append(f"knowledge base: extrapolated from {part}; {doubt}")
        return notes


@cache
def pairs_per_second(dim: int, are_all: bool) -> float:
    """The pairs of random vectors that this machine compares per second. are_all: by `near_pairs`, each pair counted
    twice; else by `nearest`."""
    generator, seconds = np.random.default_rng(0), list[float]()
    n, n_base = (_ALL, _ALL) if are_all else (_QUERIES, _BASE)
    base = torch.nn.functional.normalize(torch.from_numpy(generator.standard_normal((n_base, dim), np.float32))).half()
    for rows in (64, n, n):  # the first loads what is needed
        started = time.perf_counter()
        if are_all:
            near_pairs(base[:rows], 0.9)
        else:
            nearest(base[:rows].float(), base, _BEST)
        seconds.append(time.perf_counter() - started)
    return n * n_base / max(min(seconds[1:]), 1e-9)
