"""The reports of a build and of an answer job: stages, rates, tokens, rejects, yield, memory, batches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_rag.methods.registry import hooks
from gpu_rag.report import page as drawing
from gpu_rag.report.accounts import account_sections, fallbacks_section, servers_section
from gpu_rag.report.page import heading, page, paragraph, stacked_bars, table

SIDES = ("predicted", "actual")
PLAN_HEADER = ["stage", *SIDES, "actual / predicted"]
STAGE_HEADER = ("stage", "s", "s/1,000 passages", "peak MiB", "LLM calls", "prompt", "generated", "failed", "LLM idle")
OTHERS = ("wall", "tokens", "memory", "disk")  # keys of a comparison that are not stages


def index_page(document: dict[str, Any], rejects: Sequence[dict[str, Any]]) -> str:
    """The report of `gpu-rag index`, from its --json document and the rejected rows."""
    ran = {name: stage for name, stage in document["stages"].items() if not stage["skipped"]}
    counts = [
        [name, f"{document[name]:,}"]
        for name in ("documents", "passages", "entities", "relations", "mentions", "rejects")
    ]
    sections = [
        heading("What is in it"),
        table(["", "count"], counts),
        heading("Stages"),
        table(STAGE_HEADER, stage_rows(document)),
        stacked_bars("seconds by stage", [(name, {"s": stage["s"]}) for name, stage in ran.items()], "s"),
        stacked_bars(
            "peak memory by stage", [(n, {"MiB": s["peak_memory_bytes"] / 2**20}) for n, s in ran.items()], "MiB"
        ),
        *_plan_section(document),
        heading("Extraction"),
        _extraction(document["extraction"]),
        *fallbacks_section(document["fallbacks"], document["replies_read"]),
        *servers_section(document),
        *(part for module in hooks("report") for part in module.section(document, drawing)),
        heading("Rejected rows"),
        _rejects(rejects),
    ]
    return page(f"Index {document['out']}", f"built in {document['wall_s']:.1f} s", sections)


def stage_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """A row for each stage of a build, under STAGE_HEADER."""
    thousands, rows = max(document["passages"], 1) / 1000, []
    for name, stage in document["stages"].items():
        if stage["skipped"]:
            rows.append([name, "up to date", *["-"] * (len(STAGE_HEADER) - 2)])
            continue
        numbers = [f"{stage[key]:,}" for key in ("llm_calls", "prompt_tokens", "generated_tokens", "failures")]
        memory = f"{stage['peak_memory_bytes'] / 2**20:,.0f}"
        idle = f"{100 * (1 - stage['llm_s'] / stage['s']):.1f} %" if stage["llm_s"] else "-"
        rows.append([name, f"{stage['s']:.2f}", f"{stage['s'] / thousands:.2f}", memory, *numbers, idle])
    return rows


def _extraction(counts: dict[str, int]) -> str:
    if not counts:
        return paragraph("No extraction in this index.", "dim")
    total = sum(counts.values())
    rows = [[name, f"{n:,}", f"{100 * n / total:.1f} %"] for name, n in counts.items()]
    return table(["passages whose extraction was", "number", "share"], rows)


_VARYING = re.compile(r"\bin \S+ line \d+|'[^']*'|\"[^\"]*\"|\d[\d.,]*")
_MOST_KINDS = 10_000


def reject_kinds(rejects: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, list[str]]]:
    """(reason without names and numbers, number of rejects, places of the first three) of rejects by kind, the most
    frequent first."""
    kinds: dict[str, tuple[int, list[str]]] = {}
    for reject in rejects:
        kind = _VARYING.sub("...", str(reject["reason"]))
        kind = kind if kind in kinds or len(kinds) < _MOST_KINDS else "other reasons"
        n, places = kinds.get(kind, (0, []))
        place = f"{reject['file']}:{reject['line']}" if reject["line"] else str(reject["file"])
        kinds[kind] = (n + 1, [*places, place] if len(places) < 3 else places)
    return sorted(((kind, *entry) for kind, entry in kinds.items()), key=lambda entry: -entry[1])


def _rejects(rejects: Sequence[dict[str, Any]]) -> str:
    if not rejects:
        return paragraph("None: every row was used.", "dim")
    rows = [[kind, n, ", ".join(places)] for kind, n, places in reject_kinds(rejects)[:20]]
    summary = table(["reason", "rows", "examples"], rows)
    first = [[r["file"], r["line"], r["reason"]] for r in rejects[:20]]
    return summary + table(["file", "line", "reason (the first 20)"], first)


def answer_page(document: dict[str, Any], failed: Sequence[dict[str, Any]]) -> str:
    """The report of `gpu-rag answer`, from its --json document and the first failed rows."""
    usage = document["usage"]
    n = max(document["n"], 1)
    counts = [
        [name, document[name]]
        for name in ("answered", "retrieved", "unsupported", "failed", "asked", "kept", "rejects")
    ]
    cost = [
        [name, f"{usage[key]:,.0f}", f"{usage[key] / n:,.1f}"]
        for name, key in (
            ("LLM calls", "llm_calls"),
            ("prompt tokens", "prompt_tokens"),
            ("cached tokens", "cached_tokens"),
            ("generated tokens", "generated_tokens"),
            ("malformed replies", "malformed"),
            ("evidence tokens cut", "cut"),
        )
    ]
    seconds = {"LLM": usage["llm_s"], "embedding": usage["embed_s"], "graph and search": usage["graph_s"]}
    batches = [
        [step, b["calls"], b["batches"], f"{b['calls'] / max(b['batches'], 1):,.1f}", b["largest"], f"{b['s']:.2f}"]
        for step, b in document["batches"].items()
    ]
    failures = [[row["id"], row["error"]["type"], row["error"]["message"]] for row in failed]
    sections = [
        heading("Questions"),
        table(["", "number"], counts),
        heading("Cost"),
        table(["", "total", "a question"], cost),
        stacked_bars("seconds by service", [(document["method"], seconds)], "s"),
        *fallbacks_section(document["fallbacks"], usage["replies_read"]),
        *account_sections(document),
        heading("Batches of this run"),
        table(["step", "calls", "batches", "mean batch", "largest", "s"], batches),
        heading("Failures"),
        table(["id", "error", "message"], failures) if failures else paragraph("None.", "dim"),
    ]
    return page(f"Answers {document['out']}", f"{document['method']}; wall {document['wall_s']:.1f} s", sections)


# --- predicted against actual ---------------------------------------------------------------------


def plan_rows(plan: Mapping[str, Any]) -> list[list[str]]:
    """A row for each stage of a comparison, then for wall time, tokens, memory and disk."""
    timed = [name for name in plan if name not in OTHERS]
    rows = [[f"{name} s", *_cells(plan[name], "_s", ",.2f")] for name in [*timed, "wall"]]
    rows += [[f"{kind} tokens", *_cells(pair, "", ",.0f")] for kind, pair in plan["tokens"].items()]
    rows += [[f"{name} MiB", *_cells(plan[name], "_bytes", ",.1f", 2**20)] for name in ("memory", "disk")]
    return rows


def _cells(pair: Mapping[str, Any], ending: str, form: str, unit: int = 1) -> list[str]:
    numbers = [format(pair[f"{side}{ending}"] / unit, form) for side in SIDES]
    return [*numbers, "-" if pair["ratio"] is None else f"{pair['ratio']:.2f}"]


def _plan_section(document: Mapping[str, Any]) -> list[str]:
    """The section about a build's plan; [] for a build without a plan."""
    if "plan" not in document:
        return []
    plan = document["plan"]
    bars = [
        (f"{name}, {side}", {"s": plan[name][f"{side}_s"]}) for name in plan if name not in OTHERS for side in SIDES
    ]
    return [
        heading("Predicted against actual"),
        table(PLAN_HEADER, plan_rows(plan)),
        stacked_bars("seconds, predicted and actual", bars, "s"),
    ]
