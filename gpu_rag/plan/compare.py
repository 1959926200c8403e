"""Plans on disk (plan.json in an index folder), and their comparison with actual cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.build import BuildReport, fingerprint_of
from gpu_rag.index.folder import check_seal, read_json, sealed, write_atomic
from gpu_rag.index.stage import settle
from gpu_rag.plan.trial import BuildJob

FORMAT = 1
INDEX_KEYS = ("stages", "identity", "load_s")
KINDS = ("prompt", "generated")
Comparison = dict[str, Any]
Pair = tuple[float, float]  # predicted and actual


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Write a plan atomically."""
    write_atomic(path, sealed({"format": FORMAT, **document}))


def read_plan(path: Path, keys: Iterable[str]) -> dict[str, Any] | None:
    """The plan at `path`; None if there is no file. Raises BadInput for a file that is not a plan with these keys,
    IndexCorrupt for an altered one."""
    if not path.is_file():
        return None
    plan = read_json(path)
    if not isinstance(plan, dict) or plan.get("format") != FORMAT or not plan.keys() >= set(keys):
        raise BadInput(
            "not a plan of this version", given=path, expected="made by --plan", do="remove it, or plan again"
        )
    check_seal(path, "remove it, or plan again")
    return plan


def planned_seconds(plan: Mapping[str, Any] | None, job: BuildJob) -> dict[str, float | None]:
    """Predicted seconds of each stage of a build, 0 if it was up to date; None without a plan of this corpus and these
    settings."""
    unplanned: dict[str, float | None] = dict.fromkeys(stage.name for stage in job.stages)
    try:
        planned = unplanned if plan is None else unplanned | _planned(plan, job)
    except (LookupError, TypeError, ValueError, AttributeError):  # a plan that --plan has not written
        return unplanned
    return planned if planned.get("passages") is not None else unplanned


def _planned(plan: Mapping[str, Any], job: BuildJob) -> dict[str, float | None]:
    """Predicted seconds of the stages that the plan is of. Raises for a plan that --plan has not written."""
    planned: dict[str, float | None] = {}
    settings = settle(job.stages, job.settings, job.models)
    for stage in job.stages:
        described = {role: job.models.describe(role) for role in stage.roles(settings)}
        made = fingerprint_of(stage, {}, stage.params(settings, job.sources), described)
        if plan["identity"].get(stage.name) == made:
            row = plan["stages"][stage.name]
            planned[stage.name] = 0.0 if row["skipped"] and not job.fresh else float(row["s"])
    return planned


def compared(seconds: Mapping[str, Pair], tokens: Mapping[str, Pair], memory: Pair, disk: Pair) -> Comparison:
    """{"predicted_s", "actual_s", "ratio": actual / predicted} by name, then the same for tokens, memory and disk
    (bytes).

    A ratio is None if nothing was predicted.
    """

    def against(pair: Pair, unit: str = "") -> dict[str, float | None]:
        predicted, actual = pair
        return {
            f"predicted{unit}": predicted,
            f"actual{unit}": actual,
            "ratio": actual / predicted if predicted else None,
        }

    comparison: Comparison = {name: against(pair, "_s") for name, pair in seconds.items()}
    comparison["tokens"] = {kind: against(pair) for kind, pair in tokens.items()}
    return comparison | {"memory": against(memory, "_bytes"), "disk": against(disk, "_bytes")}


def compared_build(plan: Mapping[str, Any] | None, report: BuildReport) -> tuple[Comparison | None, str]:
    """The comparison of a build with its plan, and a remark if the plan is not of this build."""
    if plan is None:
        return None, ""
    try:
        comparison = compare_index(plan, report)
    except (LookupError, TypeError, ValueError, AttributeError):  # a plan that --plan has not written
        comparison = None
    if comparison is None and not all(stage.skipped for stage in report.stages.values()):
        return None, f"{report.out}/plan.json is of another corpus or other settings: not compared"
    return comparison, ""


def compare_index(plan: Mapping[str, Any], report: BuildReport) -> Comparison | None:
    """The comparison of each stage that ran, then of wall time, tokens, memory and disk. Stages with other settings
    than in the plan are left out. None for a plan of another corpus, and if no planned stage ran."""
    records, planned, actual = report.manifest.stages, plan["stages"], report.stages
    made = {name: fingerprint_of(record, {}, record.params, record.models) for name, record in records.items()}
    same = {name for name in records if plan["identity"].get(name) == made[name]}
    ran = [name for name, stage in actual.items() if not stage.skipped and name in same]
    if "passages" not in same or not ran:
        return None

    def pairs(key: str) -> list[Pair]:
        return [(planned[name][key], getattr(actual[name], key)) for name in ran]

    def both(total: Callable[[Iterable[float]], float], key: str) -> Pair:
        predicted, used = zip(*pairs(key))
        return total(predicted), total(used)

    wall = (plan["load_s"] + both(sum, "s")[0], report.wall_s)
    tokens = {kind: both(sum, f"{kind}_tokens") for kind in KINDS}
    on_disk = sum(file["bytes"] for name in same for file in records[name].files.values())
    disk = (sum(planned[name]["disk_bytes"] for name in same), on_disk)
    return compared({**dict(zip(ran, pairs("s"))), "wall": wall}, tokens, both(max, "peak_memory_bytes"), disk)
