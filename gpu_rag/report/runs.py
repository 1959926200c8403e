"""Rows of the tables that a build prints: its stages, its rejects by kind, and its plan against the actual cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_rag.types import Reject

SIDES = ("predicted", "actual")
PLAN_HEADER = ["stage", *SIDES, "actual / predicted"]
_HEADER = ("stage", "s", "s/1,000 passages", "peak MiB")
_OF_LLM = ("LLM calls", "prompt", "generated", "failed", "LLM idle")
OTHERS = ("wall", "tokens", "memory", "disk")  # keys of a comparison that are not stages


def stage_table(document: Mapping[str, Any]) -> tuple[list[list[str]], tuple[str, ...]]:
    """A row for each stage of a build, and their header; with what a language model cost if one was asked."""
    stages = document["stages"].values()
    of_llm = _OF_LLM if any(stage["llm_calls"] or stage["failures"] for stage in stages if not stage["skipped"]) else ()
    thousands, rows, header = max(document["passages"], 1) / 1000, [], (*_HEADER, *of_llm)
    for name, stage in document["stages"].items():
        if stage["skipped"]:
            rows.append([name, "up to date", *["-"] * (len(header) - 2)])
            continue
        numbers = [f"{stage[key]:,}" for key in ("llm_calls", "prompt_tokens", "generated_tokens", "failures")]
        memory = f"{stage['peak_memory_bytes'] / 2**20:,.0f}"
        idle = f"{100 * (1 - stage['llm_s'] / stage['s']):.1f} %" if stage["llm_s"] else "-"
        row = [name, f"{stage['s']:.2f}", f"{stage['s'] / thousands:.2f}", memory, *numbers, idle]
        rows.append(row[: len(header)])
    return rows, header


_VARYING = re.compile(r"\bin \S+ line \d+|(?<!pip install )'[^']*'|\"[^\"]*\"|\d[\d.,]*")
_UNREAD = re.compile(r"files (?:of the type )?(.+) are not read")
_MAX_KINDS, _MAX_TYPES = 10_000, 20


def reject_kinds(rejects: Iterable[Reject]) -> list[tuple[str, int, list[str]]]:
    """(reason, number of rejects, places of the first three) of rejects by kind: first the kinds with a library to
    install, last hidden files and types of files that are not read, among these the most frequent first. Reasons of
    several have no names and numbers; all types of files that are not read are one kind."""
    kinds: dict[str, tuple[str, int, list[str]]] = {}
    types = Counter[str]()
    for reject in rejects:
        unread = _UNREAD.fullmatch(reject.reason)
        types.update(unread.groups() if unread else ())
        kind = _UNREAD.pattern if unread else _VARYING.sub("...", reject.reason)
        kind = kind if unread or kind in kinds or len(kinds) < _MAX_KINDS else "other reasons"
        _, n, places = kinds.get(kind, ("", 0, []))
        place = f"{reject.file}:{reject.line}" if reject.line else reject.file
        reason = kind if n else reject.reason
        kinds[kind] = (reason, n + 1, [*places, place] if len(places) < 3 else places)
    if len(types) > 1:
        _, n, places = kinds[_UNREAD.pattern]
        shown = ", ".join(f"{count:,} {name}" for name, count in types.most_common(_MAX_TYPES))
        more = ", ..." if len(types) > _MAX_TYPES else ""
        kinds[_UNREAD.pattern] = (f"files of types that are not read ({shown}{more})", n, places)

    def rank(item: tuple[str, tuple[str, int, list[str]]]) -> tuple[int, int]:
        kind, (_, n, _) = item
        last = kind == _UNREAD.pattern or kind.startswith("hidden files")
        return 0 if "pip install" in kind else 1 + last, -n

    return [entry for _, entry in sorted(kinds.items(), key=rank)]


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
