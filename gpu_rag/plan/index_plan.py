"""What a build will cost: tokens, seconds and memory by stage, disk, from a sample that is really indexed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_rag.index.build import guard_folder
from gpu_rag.index.finished import fingerprint_of, is_up_to_date
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.memory import memory_bytes
from gpu_rag.index.stage import Stage, settle
from gpu_rag.index.stages.extraction import extraction_requests
from gpu_rag.index.work import Models, Progress, Silent, Sources
from gpu_rag.plan.corpus import CorpusCount, Sampled, count_corpus
from gpu_rag.plan.files import identity_of, write_plan
from gpu_rag.plan.growth import Heaps, fit_heaps, power_between
from gpu_rag.plan.kb import UNPLANNED, KbPlan, plan_kb
from gpu_rag.plan.stages import StagePlan, plan_stage
from gpu_rag.plan.trial import Lab, Sizes, Trial, TrialModels, run_trial
from gpu_rag.settings import Settings

DEFAULT_SAMPLE = 64
N_ASKED = 8  # passages of the sample that an LLM is really asked about
N_FRESH = 4  # replies that must be new, to tell how long one takes
FOUND = {"entities": "entities", "relations": "entities", "mentions": "mentions"}  # and the stages that find them
MOST_SEARCHED_GROWTH = 1.5  # exponent of passages for names found by searching, however steep a small sample is


@dataclass(frozen=True)
class BuildJob:
    """What is to be built, as `build_index` takes it."""

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
            record = manifest.stages.get(layer.name)
            needs = layer.needs_of(self.sources)
            if record is None or not names.issuperset(needs):
                continue
            inputs = {need: manifest.stages[need].output_hash for need in needs}
            _, params, described = self.made_of[layer.name]
            if is_up_to_date(self.out, layer, record, fingerprint_of(layer, inputs, params, described)):
                names.add(layer.name)
        return names


def plan_index(job: BuildJob, *, n_sample: int = DEFAULT_SAMPLE, progress: Progress | None = None) -> dict[str, Any]:
    """The plan of a build, also written to `out`/plan.json; beside it only the reply cache is written.

    The whole corpus is read and cut, so documents, passages and rejects are exact. The layers run on n_sample passages
    of it; an LLM is asked about 8 of them through the index's reply cache, so the build does not ask these again.
    Costs are extrapolated by what they grow with: characters, entities and relations (Heaps' law), mentions, links, and
    for synonyms the square of the entities; layers of a knowledge base: see `kb.plan_kb`. Pages of the web are left
    out, and a note says so.
    Raises what the build raises before and in its first stage.
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
    load_s = _load(job, models)
    progress.start("trying", None, "passages")
    with tempfile.TemporaryDirectory(prefix="gpu-rag-plan-") as folder:
        trials = _trials(replace(job, layers=_of_passages(job)), models, count, Path(folder)) if count.sample else None
        kb_layers = [layer for layer in job.layers if layer.name.startswith("kb")]
        lab = Lab(job.layers, job.settings, job.sources, models)
        kb = plan_kb(lab, kb_layers, count, Path(folder) / "kb") if kb_layers else None
    progress.advance(len(count.sample))
    progress.finish("trying", skipped=False)
    document = _document(job, models, count, trials, kb, load_s)
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


@dataclass(frozen=True)
class _Trials:
    """The trial of each layer; `found`: that of the layers that find entities, on the passages `tried`."""

    of: Mapping[str, Trial]
    found: Trial
    tried: Sequence[Sampled]


def _trials(job: BuildJob, models: TrialModels, count: CorpusCount, folder: Path) -> _Trials:
    """Layers that an LLM works for, and those after them, are tried on a handful of passages, the others on all."""
    asking = _after([layer for layer in job.layers if "llm" in layer.roles(job.settings)], job.layers)
    settings = replace(job.settings, index=replace(job.settings.index, min_yield=0.0))  # a bad yield is reported
    plain = [layer for layer in job.layers if layer.name not in asking]
    trial = run_trial(folder / "sample", count.sample, Lab(plain, settings, job.sources, models))
    of = {layer.name: trial for layer in plain}
    if not asking:
        return _Trials(of, trial, count.sample)
    lab = Lab(job.layers, settings, job.sources, models)
    for start in range(0, len(count.sample), N_ASKED):
        asked = count.sample[start : start + N_ASKED]
        handful = run_trial(folder / f"asked-{start}", asked, lab)
        if sum(cost.fresh for cost in handful.first.values()) >= min(N_FRESH, len(asked)):
            break
    return _Trials({**of, **dict.fromkeys(asking, handful)}, handful, asked)


def _after(first: Sequence[Stage], layers: Sequence[Stage]) -> set[str]:
    """The names of `first` and of all layers that read them, directly or not; `layers` are in building order."""
    found = {layer.name for layer in first}
    for layer in layers:
        if found & set(layer.needs):
            found.add(layer.name)
    return found


# --- extrapolation ---------------------------------------------------------------------------------


def _sizes(count: CorpusCount, trial: Trial) -> tuple[Sizes, dict[str, Heaps]]:
    """What the whole index will hold, and the laws by which names and relations grow."""
    half, full = trial.sizes_half, trial.sizes
    tried, whole = int(full["extracted"]), count.extracted
    laws = {"entities": fit_heaps(trial.entities, tried), "relations": fit_heaps(trial.relations, tried)}
    power = power_between(
        half["passages"], half["searched"], full["passages"], full["searched"], 1.0, MOST_SEARCHED_GROWTH
    )
    searched = full["searched"] * (count.passages / full["passages"]) ** power
    sizes: Sizes = {"passages": count.passages, "characters": count.characters}
    sizes |= {"extracted": whole, "extracted_characters": count.extracted_characters}
    sizes.update((name, round(law.at(whole))) for name, law in laws.items())
    sizes["mentions"] = round((full["mentions"] - full["searched"]) * whole / max(tried, 1) + searched)
    sizes["links"] = sizes["mentions"] + sizes["relations"]
    return sizes, laws


def _stages(
    job: BuildJob, models: TrialModels, count: CorpusCount, trials: _Trials, sizes: Sizes
) -> dict[str, StagePlan]:
    stages: dict[str, StagePlan] = {}
    skipped, held = job.up_to_date(), memory_bytes()
    known = 0 if job.fresh else models.kept_replies()
    for layer in job.layers:
        stage = plan_stage(layer, trials.of[layer.name], sizes, job.settings, models)
        stage.peak_memory_bytes += held
        if layer.name == "passages":
            stage.s += count.s
        if layer.name == "extraction" and stage.llm_calls:
            stage.prompt_tokens = round(stage.prompt_tokens * _longer(count.sample, trials.tried, job.settings, models))
        fresh = max(stage.llm_calls - known, 0)
        known -= stage.llm_calls - fresh
        stage.llm_calls, stage.s = fresh, stage.s + fresh * stage.call_s
        stage.skipped = layer.name in skipped
        stages[layer.name] = stage
    return stages


def _longer(sample: Sequence[Sampled], tried: Sequence[Sampled], settings: Settings, models: TrialModels) -> float:
    """How many times as long the prompts of the sample are as those that were asked, as the LLM counts tokens."""

    def mean(rows: Sequence[Sampled]) -> float:
        asked = [row.passage for row in rows if row.extracted]
        requests = extraction_requests([row["title"] for row in asked], [row["text"] for row in asked], settings)
        return sum(count_of(request.system) + count_of(request.prompt) for request in requests) / len(requests)

    count_of = models.llm().count_tokens
    return mean(sample) / max(mean(tried), 1)


def _document(
    job: BuildJob, models: TrialModels, count: CorpusCount, trials: _Trials | None, kb: KbPlan | None, load_s: float
) -> dict[str, Any]:
    """trials: None where there is no passage."""
    sizes: Sizes = dict.fromkeys(("passages", "characters", *FOUND), 0)
    laws: dict[str, Heaps] = {}
    stages = {layer.name: StagePlan("characters") for layer in _of_passages(job)}
    stages["passages"].s = count.s
    if trials is not None:
        sizes, laws = _sizes(count, trials.found)
        stages = _stages(replace(job, layers=_of_passages(job)), models, count, trials, sizes)
    stages |= kb.stages_of(job.up_to_date()) if kb else {}
    running = [stage for stage in stages.values() if not stage.skipped]
    return {
        "documents": count.documents,
        "passages": count.passages,
        "characters": count.characters,
        "extracted": count.extracted if "extraction" in stages else None,
        "rejects": count.rejects,
        "sample": len(count.sample),
        **{name: sizes[name] if stage in stages else None for name, stage in FOUND.items()},
        "growth": {name: vars(law).copy() for name, law in laws.items()},
        "extraction": _statuses(trials.found) if trials else {},
        "kb": kb.sizes if kb else None,
        "stages": {name: stage.document() for name, stage in stages.items()},
        "llm_calls": sum(stage.llm_calls for stage in running),
        "prompt_tokens": sum(stage.prompt_tokens for stage in running),
        "generated_tokens": sum(stage.generated_tokens for stage in running),
        "load_s": load_s,
        "wall_s": load_s + sum(stage.s for stage in running),
        "peak_memory_bytes": max((stage.peak_memory_bytes for stage in running), default=memory_bytes()),
        "disk_bytes": sum(stage.disk_bytes for stage in stages.values()),
        "work_bytes": sum(stage.work_bytes for stage in running),
        "notes": [*(_notes(count, trials, sizes, stages, job.settings) if trials else []), *(kb.notes() if kb else [])],
        "out": str(job.out),
        "identity": {name: identity_of(*made_of) for name, made_of in job.made_of.items()},
    }


def _of_passages(job: BuildJob) -> list[Stage]:
    """The layers that grow with the passages."""
    return [layer for layer in job.layers if not layer.name.startswith("kb")]


def _statuses(trial: Trial) -> dict[str, int]:
    """Passages of the trial by what an extractor found in them."""
    counts = trial.full["extraction"].counts if "extraction" in trial.full else {}
    return {name.removeprefix("extraction_"): n for name, n in counts.items()}


def _notes(
    count: CorpusCount, trials: _Trials, sizes: Sizes, stages: Mapping[str, StagePlan], settings: Settings
) -> list[str]:
    notes = []
    if count.passages > len(count.sample):
        notes.append(f"extrapolated from {len(count.sample)} of {count.passages:,} passages")
    if "synonyms" in stages:
        n = int(sizes["entities"])
        notes.append(
            f"synonyms: every name is compared with every other, {n:,} x {n:,} pairs, so its time is quadratic"
        )
    statuses, n_tried = _statuses(trials.found), sum(row.extracted for row in trials.tried)
    if "extraction" in trials.of and trials.of["extraction"].full["extraction"].requests:
        notes.append(
            f"the LLM was asked about {n_tried} passages; a server that takes more at once is faster than this"
        )
        if statuses.get("ok", 0) < settings.index.min_yield * n_tried:
            notes.append(
                f"the LLM found entities in {statuses.get('ok', 0)} of {n_tried} passages: below index.min_yield = "
                f"{settings.index.min_yield:g} the build fails"
            )
    return notes
