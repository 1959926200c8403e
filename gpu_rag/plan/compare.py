"""Plans on disk (plan.json in an index folder, ANSWERS.plan.json beside answers), and predicted against actual."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.index.build import BuildReport
from gpu_rag.index.folder import canonical_json, read_json, sha256_text, write_atomic

FORMAT = 1
INDEX_KEYS = ("stages", "identity", "load_s")
KINDS = ("prompt", "generated")
Comparison = dict[str, Any]


def identity_of(version: int, params: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> str:
    """A hash of a stage beside the stages before it: a plan is compared only with a build of the same."""
    made_of = {"version": version, "params": params, "models": {r: m["content_hash"] for r, m in models.items()}}
    return sha256_text(canonical_json(made_of))[:16]


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a plan atomically."""
    write_atomic(path, (json.dumps({"format": FORMAT, **document}, indent=1, allow_nan=False) + "\n").encode())


def read_plan(path: Path, keys: Iterable[str]) -> dict[str, Any] | None:
    """The plan at `path`, None where there is none. Raises BadInput for a file that is no plan with these keys."""
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT or not found.keys() >= set(keys):
        raise BadInput(
            "not a plan of this version", given=path, expected="made by --plan", do="remove it, or plan again"
        )
    return found


def against(predicted: float, actual: float, unit: str = "") -> dict[str, float | None]:
    """{"predicted", "actual", "ratio": actual / predicted}; null where nothing was predicted."""
    ending = f"_{unit}" if unit else ""
    ratio = actual / predicted if predicted else None
    return {f"predicted{ending}": predicted, f"actual{ending}": actual, "ratio": ratio}


def compare_index(plan: Mapping[str, Any], report: BuildReport) -> Comparison | None:
    """Each stage that ran, then wall, tokens, memory and disk; stages of other settings than the plan's are left out.

    None for a plan of another corpus, and where no planned stage ran.
    """
    records, planned, actual = report.manifest.stages, plan["stages"], report.stages
    identities = {name: identity_of(r.version, r.params, r.models) for name, r in records.items()}
    same = {name for name in records if plan["identity"].get(name) == identities[name]}
    ran = [name for name, stage in report.stages.items() if not stage.skipped and name in same]
    if "passages" not in same or not ran:
        return None
    found: Comparison = {name: against(planned[name]["s"], actual[name].s, "s") for name in ran}
    found["wall"] = against(plan["load_s"] + sum(planned[name]["s"] for name in ran), report.wall_s, "s")
    keys = {kind: f"{kind}_tokens" for kind in KINDS}
    found["tokens"] = {
        kind: against(sum(planned[name][key] for name in ran), sum(getattr(actual[name], key) for name in ran))
        for kind, key in keys.items()
    }
    memory = (planned[name]["peak_memory_bytes"] for name in ran)
    found["memory"] = against(max(memory), max(actual[name].peak_memory_bytes for name in ran), "bytes")
    on_disk = sum(file["bytes"] for name in same for file in records[name].files.values())
    found["disk"] = against(sum(planned[name]["disk_bytes"] for name in same), on_disk, "bytes")
    return found


def compare_answers(
    predicted: Mapping[str, float],
    usage: Mapping[str, float],
    *,
    wall_s: float,
    memory_bytes: tuple[int, int],
    disk_bytes: int,
) -> Comparison:
    """The services, then wall, tokens, memory and disk, of the questions that a run asked.

    predicted: by `answer_plan.predict`; usage: summed over these questions; memory_bytes: planned and used.
    """
    services = {"llm": "llm_s", "embedding": "embed_s", "graph": "graph_s"}
    found: Comparison = {name: against(predicted[key], usage[key], "s") for name, key in services.items()}
    found["wall"] = against(predicted["wall_s"], wall_s, "s")
    found["tokens"] = {kind: against(predicted[f"{kind}_tokens"], usage[f"{kind}_tokens"]) for kind in KINDS}
    found["memory"] = against(*memory_bytes, "bytes")
    found["disk"] = against(predicted["disk_bytes"], disk_bytes, "bytes")
    return found
