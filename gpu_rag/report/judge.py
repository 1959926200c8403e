"""The section of an evaluation's report about its judge: what it asked and cost, and whether it can judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_rag.evaluation.judged import KINDS
from gpu_rag.report.page import heading, paragraph, table

_SHARES = ("judge_exact", "judge_unanswered")
_COUNTS = ("judge_malformed", "judge_failed")
_COSTS = ("judge_llm_calls", "judge_prompt_tokens", "judge_cached_tokens", "judge_generated_tokens")


def judge_section(document: Mapping[str, Any]) -> list[str]:
    """The section, from the document of `eval --json`; nothing without a judge."""
    if "judge" not in document:
        return []
    judge = document["judge"]
    if not judge["capable"]:
        return [heading("The judge"), paragraph(f"None: {judge['doubts'][0]}.", "verdict")]
    rows = [[KINDS[kind], f["n"], f["right"], f["unread"]] for kind, f in judge["check"].items()]
    header = ["method", "equal to gold", "not answered", "malformed", "failed"]
    header += ["calls", "prompt tokens", "cached", "generated"]
    costs = [
        [
            method,
            *(f"{100 * entry[name]:.1f} %" for name in _SHARES),
            *(entry[name] for name in _COUNTS),
            *(f"{entry[name]:,.1f}" for name in _COSTS),
        ]
        for method, entry in document["methods"].items()
    ]
    doubts = [paragraph(f"The verdicts are not to be trusted: {doubt}.", "verdict") for doubt in judge["doubts"]]
    remark = "The first two need no judge: they are correct, and not. Calls and tokens are means a question."
    asked = f"{judge['model']}: {judge['asked']:,} claims judged, {judge['from_cache']:,} of them in an earlier run"
    return [
        heading("The judge"),
        *doubts,
        paragraph(f"{asked}, in {judge['s']:.1f} s."),
        table(["checked on", "claims", "verdict right", "no verdict"], rows),
        table(header, costs),
        paragraph(remark, "dim"),
    ]
