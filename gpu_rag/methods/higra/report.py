"""HiGraAgent's graph in the report of a build: the alignment statistics of the paper."""

from __future__ import annotations

from typing import Any

from gpu_rag.errors import BadInput, IndexCorrupt
from gpu_rag.index.build import BuildReport
from gpu_rag.index.folder import read_json
from gpu_rag.index.manifest import Manifest


def figures(report: BuildReport) -> dict[str, Any]:
    """{"alignment": ...} for the --json of a build; {} if the index has no such graph."""
    record = report.manifest.stages.get("higra_graph")
    if record is None:
        return {}
    path = report.out / record.folder / "statistics.json"
    pairs = pair_coverage(report.manifest)
    try:
        return {"alignment": {**read_json(path), **({"pairs": pairs} if pairs else {})}}
    except (OSError, BadInput) as error:
        raise IndexCorrupt("a file of the index cannot be read", given=f"{path}: {error}") from error


def pair_coverage(manifest: Manifest) -> dict[str, dict[str, int]]:
    """{merge | link: number of entity pairs within the radius, of pairs that one window shows together, and of
    windows}. Empty if no language model was asked."""
    coverage = {}
    for what, stage in (("merge", "higra_merge"), ("link", "higra_links")):
        counts = manifest.stages[stage].counts if stage in manifest.stages else {}
        if (pairs := counts.get(f"higra_{what}_pairs")) is not None:
            together, windows = (counts[f"higra_{what}_{name}"] for name in ("pairs_together", "clusters"))
            coverage[what] = {"within_radius": pairs, "together": together, "windows": windows}
    return coverage


def summary(document: dict[str, Any]) -> list[str]:
    """The lines that a build prints."""
    if "alignment" not in document:
        return []
    names, parts = document["alignment"]["entities"], document["alignment"]["components"]
    merged = f"alignment: {names['before']:,} entities became {names['semantic']:,}"
    lines = [f"{merged}; connected components: {parts['before']:,} became {parts['after']:,}"]
    return [*lines, *coverage_lines(document["alignment"].get("pairs", {}))]


def coverage_lines(pairs: dict[str, dict[str, int]]) -> list[str]:
    """One line for each entry of `pair_coverage`."""
    return [
        f"{what}: {counts['together']:,} of {counts['within_radius']:,} near pairs seen together, "
        f"{counts['windows']:,} windows"
        for what, counts in pairs.items()
    ]
