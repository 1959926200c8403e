"""Settings that an index records of its build, and the check that another build uses the same models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_rag.errors import IndexMismatch
from gpu_rag.index.folder import refuse_links
from gpu_rag.index.manifest import Manifest
from gpu_rag.index.stage import Stage, settle
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import Settings, differences

_NOT_SAVED = frozenset({"block", "memory", "workers"})  # these change no table


def settings_to_save(settings: Settings) -> dict[str, Any]:
    """The embedder, and the values in [index] and in sections of methods that are not the default. They become defaults
    of later commands on the index. Saved sections of methods that are not installed stay unchanged."""
    sections = {"index": settings.index, **settings.own}
    saved: dict[str, Any] = {"models": {"embedder": settings.models.embedder}, **settings.kept}
    for name, section in sections.items():
        changed = {key: value for key, value in differences(section).items() if key not in _NOT_SAVED}
        saved.update({name: changed} if changed else {})
    return saved


def saved_settings(out: Path, fresh: bool = False) -> dict[str, Any]:
    """Settings saved in the index `out`; {} if there is none, or it is built from nothing."""
    refuse_links(out)
    return {} if fresh or not (out / "manifest.json").exists() else Manifest.read(out).defaults()


def check_same_models(out: Path, stages: Sequence[Stage], settings: Settings, models: ModelSet) -> None:
    """Raise IndexMismatch if `stages` of the index in `out` were made by other models than would make them now.

    The vectors of two embedders never mix. LLM output is not thrown away because another LLM is configured, or because
    `auto` now means rules; rules that are named in the settings may replace it.
    """
    if not (out / "manifest.json").exists():
        return
    built = Manifest.read(out)
    if any("embedder" in stage.roles(settings) for stage in stages):
        _check("the index was embedded with another model", built.model("embedder"), models.describe("embedder"))
    written = [stage for stage in stages if stage.name in built.stages and "llm" in built.stages[stage.name].models]
    settled = settle(stages, settings, models) if written else settings
    for stage in written:
        what, made_by = f"the stage {stage.name} was written by another model", built.stages[stage.name].models["llm"]
        if "llm" in stage.roles(settled):
            _check(what, made_by, models.describe("llm"))
        elif stage.by_capability(settings):
            _check(what, made_by, {"name": f"{settings.models.llm}, which is not capable", "content_hash": ""})


def _check(what: str, built: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    if built is not None and given["content_hash"] != built["content_hash"]:
        raise IndexMismatch(
            what,
            given=given["name"],
            expected=built["name"],
            do="name that one; or add --fresh to build it again with the new one, or choose another --out",
        )
