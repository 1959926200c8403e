"""What an index remembers of how it was built, and that another build of it does not lose what models have made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_rag.errors import IndexMismatch
from gpu_rag.index.build import Layer, Models, settle
from gpu_rag.index.manifest import Manifest
from gpu_rag.settings import Settings, as_plain

KEPT = ("index", "alignment", "hops")  # the sections that stages depend on; answers depend on none of them
NOT_KEPT = frozenset({"block"})  # changes no table


def kept_settings(settings: Settings) -> dict[str, Any]:
    """What a manifest remembers, as defaults for later commands: the embedder, and what of KEPT is not the default."""
    given, defaults = as_plain(settings), as_plain(Settings())
    kept: dict[str, Any] = {"models": {"embedder": settings.models.embedder}}
    for section in KEPT:
        mine = {n: v for n, v in given[section].items() if v != defaults[section][n] and n not in NOT_KEPT}
        kept.update({section: mine} if mine else {})
    return kept


def remembered_settings(out: Path, fresh: bool = False) -> dict[str, Any]:
    """What the index in `out` remembers; {} where there is none, or it is to be built from nothing."""
    return {} if fresh or not (out / "manifest.json").exists() else Manifest.read(out).settings


def check_same_models(out: Path, layers: Sequence[Layer], settings: Settings, models: Models) -> None:
    """Raises IndexMismatch where `layers` of the index in `out` would be made anew by another model than made them.

    Mixing the vectors of two embedders must be asked for, and so must throwing away what an LLM has written because
    another one is configured, or `auto` now means rules. Rules that are asked for by name are asked for.
    """
    if not (out / "manifest.json").exists():
        return
    built = Manifest.read(out)
    if any("embedder" in layer.roles(settings) for layer in layers):
        _check("the index was embedded with another model", built.model("embedder"), models.describe("embedder"))
    written = [layer for layer in layers if layer.name in built.stages and "llm" in built.stages[layer.name].models]
    settled = settle(layers, settings, models) if written else settings
    for layer in written:
        what, made_by = f"the stage {layer.name} was written by another model", built.stages[layer.name].models["llm"]
        if "llm" in layer.roles(settled):
            _check(what, made_by, models.describe("llm"))
        elif _left_to_the_model(layer.name, settings):
            _check(what, made_by, {"name": f"{settings.models.llm}, which is not capable", "content_hash": ""})


def _left_to_the_model(stage: str, settings: Settings) -> bool:
    """Whether the capability of the model decides if it makes a stage, or rules do."""
    chosen = settings.alignment
    return {
        "hop_questions": settings.hops.simulate == "auto",
        "higra_merge": chosen.refine and chosen.decider == "auto",
        "higra_links": chosen.refine and chosen.decider == "auto",
    }.get(stage, False)


def _check(what: str, built: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    if built is not None and given["content_hash"] != built["content_hash"]:
        raise IndexMismatch(
            what,
            given=given["name"],
            expected=built["name"],
            do="name that one; or add --fresh to build it again with the new one, or choose another --out",
        )
