"""Predicted against actual: the lines of a table, and the section of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_rag.report.page import heading, stacked_bars, table

SIDES = ("predicted", "actual")
OTHERS = ("wall", "tokens", "memory", "disk")  # of a comparison; its other keys are stages or services


def header(what: str) -> list[str]:
    """The heads of `lines`. what: "stage" or "service"."""
    return [what, *SIDES, "actual / predicted"]


def lines(plan: Mapping[str, Any]) -> list[list[str]]:
    """A line for each stage or service of a comparison, then for wall time, tokens, memory and disk."""
    timed = [name for name in plan if name not in OTHERS]
    rows = [[f"{name} s", *_cells(plan[name], "_s", ",.2f")] for name in [*timed, "wall"]]
    rows += [[f"{kind} tokens", *_cells(found, "", ",.0f")] for kind, found in plan["tokens"].items()]
    rows += [[f"{name} MiB", *_cells(plan[name], "_bytes", ",.1f", 2**20)] for name in ("memory", "disk")]
    return rows


def _cells(found: Mapping[str, Any], ending: str, form: str, unit: int = 1) -> list[str]:
    numbers = [format(found[f"{side}{ending}"] / unit, form) for side in SIDES]
    return [*numbers, "-" if found["ratio"] is None else f"{found['ratio']:.2f}"]


def plan_section(document: Mapping[str, Any], what: str) -> list[str]:
    """The section of a run that was planned; nothing for one that was not."""
    if "plan" not in document:
        return []
    plan = document["plan"]
    bars = [
        (f"{name}, {side}", {"s": plan[name][f"{side}_s"]}) for name in plan if name not in OTHERS for side in SIDES
    ]
    return [
        heading("Predicted against actual"),
        table(header(what), lines(plan)),
        stacked_bars("seconds, predicted and actual", bars, "s"),
    ]
