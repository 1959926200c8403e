"""--plan of `index` and `answer`, and predicted against actual afterwards: the runs and their tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.options import add_count, api_key, names, say, table
from gpu_rag.cli.progress import Bars
from gpu_rag.errors import UsageError
from gpu_rag.settings import Settings

if TYPE_CHECKING:
    from gpu_rag.engine import Engine
    from gpu_rag.index.build import BuildReport
    from gpu_rag.plan.answer_plan import PlannedAnswers
    from gpu_rag.types import Question

PLANNED = {"vector_cache_gib": 0.0}  # of [models]: with vectors from the cache, embedding would look free
TOKENS = ("llm_calls", "prompt_tokens", "generated_tokens")


def add_plan(parser: argparse.ArgumentParser, what: str, default: int) -> None:
    """--plan and --plan-sample."""
    words = f"predict tokens, time, memory and disk from a sample of {what} and stop"
    parser.add_argument("--plan", action="store_true", help=words)
    add_count(parser, "--plan-sample", what, f"{what} in the sample of --plan (default {default})")


def check_plan(options: argparse.Namespace) -> None:
    """Raises UsageError for options that a plan, or its absence, would drop."""
    if options.plan_sample and not options.plan:
        raise UsageError("--plan-sample is for --plan", given=options.plan_sample, do="add --plan, or leave it out")
    if options.plan and options.report:
        raise UsageError("--plan writes no report", given=f"--report {options.report}", do="leave one of the two out")


# --- index -----------------------------------------------------------------------------------------


def plan_index(
    options: argparse.Namespace, settings: Settings, sources: Mapping[str, Any]
) -> tuple[int, dict[str, Any], str]:
    """Plans a build. sources: all that `api.sources_of` takes, but the folder."""
    from gpu_rag.api import default_methods, open_models, sources_of
    from gpu_rag.index.saved_settings import check_same_models
    from gpu_rag.methods.registry import stages_for
    from gpu_rag.plan.index_plan import DEFAULT_SAMPLE
    from gpu_rag.plan.index_plan import plan_index as plan_build
    from gpu_rag.plan.trial import BuildJob

    given = sources_of(out=options.out, **sources)
    methods = default_methods(given) if options.methods is None else names(options.methods)
    stages, settings = stages_for(methods, given), settings.changed("models", **PLANNED)
    models = open_models(settings, options.out / "replies.sqlite", api_key=api_key(settings))
    with closing(models):
        if not options.fresh:
            check_same_models(options.out, stages, settings, models)
        job = BuildJob(options.out, stages, settings, given, models, options.fresh, options.forget_replies)
        with Bars() as bars:
            document = plan_build(job, n_sample=options.plan_sample or DEFAULT_SAMPLE, progress=bars)
    return 0, document, _index_text(document)


def _index_text(document: Mapping[str, Any]) -> str:
    rows = []
    for name, stage in document["stages"].items():
        seconds = "up to date" if stage["skipped"] else f"{stage['s']:,.1f}"
        bytes_ = (_mib(stage[key]) for key in ("peak_memory_bytes", "disk_bytes"))
        rows.append([name, seconds, *bytes_, *(f"{stage[key]:,}" for key in TOKENS), stage["grows_with"]])
    counts = ", ".join(f"{document[name]:,} {name}" for name in ("documents", "passages", "characters", "rejects"))
    n = document["extracted"]
    extracted = "" if n in (None, document["passages"]) else f"; {n:,} passages are extracted from"
    found = {name: document[name] for name in ("entities", "relations", "mentions") if document[name] is not None}
    tokens = f"{document['prompt_tokens']:,} prompt and {document['generated_tokens']:,} generated tokens"
    return "\n".join(
        [
            table(rows, ["stage", "s", "peak MiB", "disk MiB", "LLM calls", "prompt", "generated", "grows with"]),
            f"counted: {counts}{extracted}",
            *(f"predicted: {_counts(sizes)}" for sizes in (found, document["kb"]) if sizes),
            f"predicted: {document['wall_s']:,.0f} s, {tokens}, {_mib(document['peak_memory_bytes'])} MiB of memory, "
            f"{_mib(document['disk_bytes'])} MiB of disk and {_mib(document['work_bytes'])} more while it runs",
            *(f"- {note}" for note in document["notes"]),
            f"plan: {document['out']}/plan.json ({document['plan_s']:.1f} s)",
        ]
    )


def _counts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sizes.items())


# --- answer ----------------------------------------------------------------------------------------


def plan_answers(
    options: argparse.Namespace, engine: Engine, questions: list[Question]
) -> tuple[int, dict[str, Any], str]:
    """Plans a job of answers to the questions of a file that are not answered yet."""
    from gpu_rag.jobs import read_rows
    from gpu_rag.plan import answer_plan

    rows = read_rows(options.out) if options.out.exists() else iter(())
    kept = {row["id"] for row in rows if row["status"] != "failed"} & {question.id for question in questions}
    todo = [question for question in questions if question.id not in kept]
    n_sample = options.plan_sample or answer_plan.DEFAULT_SAMPLE
    document = answer_plan.plan_answers(
        engine, options.method, todo, options.out, n_sample=n_sample, kept=len(kept), where=options.where or ""
    )
    return 0, document, _answer_text(document)


def _answer_text(document: Mapping[str, Any]) -> str:
    each = document["per_question"]
    services = (("LLM s", "llm_s"), ("embedding s", "embed_s"), ("graph s", "graph_s"), ("other s", "other_s"))
    rows = [[key.replace("_", " ").replace("llm", "LLM"), f"{each[key]:,.1f}", f"{document[key]:,}"] for key in TOKENS]
    rows += [[name, f"{each[key]:,.3f}", f"{document[key]:,.1f}"] for name, key in services]
    return "\n".join(
        [
            table(rows, ["", "a question", f"{document['todo']:,} questions"]),
            f"sample: {document['sample']} questions, {_counts(document['statuses'])}; answered already: "
            f"{document['kept']:,}",
            f"predicted: {document['wall_s']:,.0f} s with {document['load_s']:.0f} s of loading, "
            f"{_mib(document['peak_memory_bytes'])} MiB of memory, {_mib(document['disk_bytes'])} MiB of disk",
            *(f"- {note}" for note in document["notes"]),
            f"plan: {document['out']}.plan.json ({document['plan_s']:.1f} s)",
        ]
    )


# --- afterwards ------------------------------------------------------------------------------------


def compared_index(options: argparse.Namespace, plan: Mapping[str, Any] | None, report: BuildReport) -> dict[str, Any]:
    """{"plan": predicted against actual} for a build that was planned, else {}."""
    from gpu_rag.plan.compare import compare_index

    found = None
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # of a plan that --plan has not written
        found = compare_index(plan, report) if plan is not None else None
    if plan is not None and found is None and not all(stage.skipped for stage in report.stages.values()):
        say(f"{options.out}/plan.json is of another corpus or other settings: not compared")
    return {"plan": found} if found is not None else {}


def compared_answers(planned: PlannedAnswers, job: Any, wall_s: float) -> dict[str, Any]:
    """{"plan": predicted against actual} for the planned questions that a job answered now, else {}."""
    if not job.ids:
        return {}
    if not planned.is_of(job.config):
        say(f"{planned.path} is of other settings: not compared")
        return {}
    try:
        found = planned.compare(job.ids, job.new.usage, wall_s)
    except (LookupError, TypeError, ValueError, AttributeError):
        say(f"{planned.path} is no plan that --plan has written: not compared")
        return {}
    return {"plan": found} if found is not None else {}


def comparison(plan: Mapping[str, Any], what: str) -> str:
    """The table of a run that was planned. what: heads its first column, "stage" or "service"."""
    from gpu_rag.report.runs import plan_header, plan_rows

    return "\n".join(["predicted against actual", table(plan_rows(plan), plan_header(what))])


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.1f}" if n_bytes < 2**24 else f"{n_bytes / 2**20:,.0f}"
