"""The cost of one stage of a build, from what its layer cost on a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_rag.graph.nearest import QUERY_TILE
from gpu_rag.index.stage import Stage
from gpu_rag.methods.hoprag.plan import merging_seconds
from gpu_rag.plan.growth import Line, line_through
from gpu_rag.plan.rates import TILE, embed_seconds, pairs_per_second
from gpu_rag.plan.trial import Cost, Sizes, Trial, TrialModels
from gpu_rag.settings import Settings

# What the cost of a stage is proportional to; other stages: passages.
GROWS_WITH = {
    "passages": "characters",
    "bm25": "characters",
    "extraction": "characters",
    "entities": "characters",
    "entity_vectors": "entities",
    "relation_vectors": "relations",
    "mentions": "mentions",
    "synonyms": "entities",
    "graph": "links",
    "higra_exact": "characters",
    "higra_exact_vectors": "entities",
    "higra_merge": "entities",
    "higra_links": "entities",
    "higra_mentions": "mentions",
    "higra_entity_vectors": "entities",
    "higra_relation_vectors": "relations",
    "higra_search": "relations",
    "higra_graph": "links",
}
EXTRACTED = ("extraction", "entities")  # whose characters are those of the passages that are extracted from


@dataclass
class StagePlan:
    """What one stage is predicted to cost. call_s: seconds of one LLM call that no cache answers, not yet in `s`."""

    grows_with: str
    s: float = 0.0
    call_s: float = 0.0
    llm_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    failures: int = 0
    peak_memory_bytes: int = 0
    disk_bytes: int = 0
    work_bytes: int = 0
    skipped: bool = False

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: value for name, value in vars(self).items() if name != "call_s"}


def plan_stage(layer: Stage, trial: Trial, sizes: Sizes, settings: Settings, models: TrialModels) -> StagePlan:
    """The stage for a corpus of `sizes`. Its peak memory is that of Python objects and known buffers alone."""
    name, grows_with = layer.name, GROWS_WITH.get(layer.name, "passages")
    driver = "extracted_characters" if name in EXTRACTED else grows_with
    first, full, half = trial.first[name], trial.full[name], trial.half[name]
    whole, n_full, n_half = sizes[driver], trial.sizes[driver], trial.sizes_half[driver]
    stage = StagePlan(grows_with)
    if name == "extraction" and settings.index.extractor == "import":
        stage.grows_with, stage.s = "the file of --openie", full.s  # which is read whole for any sample
    else:
        stage.s = line_through(n_half, half.s, n_full, full.s).at(whole)
    if not first.requests:
        stage.s += max(0.0, first.s - first.embed_s - full.s)  # what is loaded on first use
    stage.disk_bytes = round(line_through(n_half, half.disk_bytes, n_full, full.disk_bytes).at(whole))
    stage.peak_memory_bytes = round(_memory(trial, name, driver).at(whole))
    if first.texts:
        n_texts = round(len(first.texts) * whole / n_full) if n_full else 0
        stage.s += embed_seconds(models.embedder().inner, first.texts, first.embed_s, n_texts, settings.index.block)
        stage.work_bytes = n_texts * models.embedder().dim * 2  # blocks of float16, beside the finished file
    if name == "synonyms":
        _add_pairs(stage, sizes["entities"], settings, models)
    if name == "hop_edges":
        ratio, dim = sizes["passages"] / trial.sizes["passages"], models.embedder().dim
        counts, limit = trial.full["hop_questions"].counts, settings.hops.exact_limit
        stage.s += merging_seconds(counts, ratio, limit, dim, settings.models.threads)
        stage.grows_with = "questions squared"
    if full.requests:
        asked_about = "extracted" if name == "extraction" else "passages"
        _add_requests(stage, first, full, sizes[asked_about] / trial.sizes[asked_about])
    return stage


def _memory(trial: Trial, name: str, driver: str) -> Line:
    quarter, half = trial.memory_quarter[name].memory_bytes, trial.memory_half[name].memory_bytes
    n_quarter, n_half = trial.sizes_quarter[driver], trial.sizes_half[driver]
    if n_half <= n_quarter:
        return line_through(0, 0, n_half, half)
    return Line(0.0, max(half - quarter, 0) / (n_half - n_quarter))


def _add_pairs(stage: StagePlan, n: float, settings: Settings, models: TrialModels) -> None:
    """The quadratic part: every name is compared with every other, n^2 D products."""
    dim = models.embedder().dim
    rate = pairs_per_second(int(n), dim, settings.index.synonym_k + 1, settings.runtime.seed)
    stage.s += n * n / rate
    stage.grows_with = "entities squared"
    stage.peak_memory_bytes += round(min(n, TILE) * 4 * (dim + 2 * QUERY_TILE))


def _add_requests(stage: StagePlan, first: Cost, full: Cost, ratio: float) -> None:
    """Requests of an LLM, a passage each; `ratio`: passages of the corpus for one of the trial."""
    report = full.report
    stage.llm_calls = round(full.requests * ratio)
    stage.prompt_tokens = round(report.prompt_tokens * ratio)
    stage.cached_tokens = round(report.cached_tokens * ratio)
    stage.generated_tokens = round(report.generated_tokens * ratio)
    stage.failures = round(report.failures * ratio)
    stage.call_s = max(0.0, first.s - full.s) / first.fresh if first.fresh else 0.0
