"""Predicted against actual: a plan beside the run that it foretold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_rag.index.build import BuildReport
from gpu_rag.plan.answer_plan import plain, predict
from gpu_rag.plan.files import identity_of

INDEX_KEYS = ("stages", "identity", "load_s")


def against(predicted: float, actual: float, unit: str = "") -> dict[str, float | None]:
    """{"predicted", "actual", "ratio": actual / predicted}; null where nothing was predicted."""
    ending = f"_{unit}" if unit else ""
    ratio = actual / predicted if predicted else None
    return {f"predicted{ending}": predicted, f"actual{ending}": actual, "ratio": ratio}


def compare_index(plan: Mapping[str, Any], report: BuildReport) -> dict[str, Any] | None:
    """Each stage that ran, then wall, tokens, memory and disk; stages of other settings than the plan's are left out.

    None for a plan of another corpus, and where no planned stage ran.
    """
    records = report.manifest.stages
    same = {
        name
        for name, record in records.items()
        if plan["identity"].get(name) == identity_of(record.version, record.params, record.models)
    }
    ran = [name for name, stage in report.stages.items() if not stage.skipped and name in same]
    if "passages" not in same or not ran:
        return None
    planned, actual = plan["stages"], report.stages
    found: dict[str, Any] = {name: against(planned[name]["s"], actual[name].s, "s") for name in ran}
    found["wall"] = against(plan["load_s"] + sum(planned[name]["s"] for name in ran), report.wall_s, "s")
    found["tokens"] = {
        kind: against(
            sum(planned[name][f"{kind}_tokens"] for name in ran),
            sum(getattr(actual[name], f"{kind}_tokens") for name in ran),
        )
        for kind in ("prompt", "generated")
    }
    memory = (
        max(planned[name]["peak_memory_bytes"] for name in ran),
        max(actual[name].peak_memory_bytes for name in ran),
    )
    found["memory"] = against(*memory, "bytes")
    sizes = [sum(file["bytes"] for file in records[name].files.values()) for name in same]
    found["disk"] = against(sum(planned[name]["disk_bytes"] for name in same), sum(sizes), "bytes")
    return found


def compare_answers(
    plan: Mapping[str, Any],
    config: Mapping[str, Any],
    asked: Sequence[str],
    usage: Mapping[str, float],
    *,
    wall_s: float,
    memory_bytes: int,
    disk_bytes: int,
) -> dict[str, Any] | None:
    """The services, then wall, tokens, memory and disk, of the questions that this run asked.

    usage: summed over these questions. None for a plan of other settings, and where nothing was asked.
    """
    if not asked or plan["config"] != plain(config):
        return None
    predicted = predict(plan, asked)
    services = {"llm": "llm_s", "embedding": "embed_s", "graph": "graph_s"}
    found: dict[str, Any] = {name: against(predicted[key], usage[key], "s") for name, key in services.items()}
    found["wall"] = against(predicted["wall_s"], wall_s, "s")
    found["tokens"] = {
        kind: against(predicted[f"{kind}_tokens"], usage[f"{kind}_tokens"]) for kind in ("prompt", "generated")
    }
    found["memory"] = against(plan["peak_memory_bytes"], memory_bytes, "bytes")
    found["disk"] = against(predicted["disk_bytes"], disk_bytes, "bytes")
    return found
