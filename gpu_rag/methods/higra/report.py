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
    windows}; link only if a language model was asked."""
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


def section(document: dict[str, Any], page: Any) -> list[str]:
    """Tables and plots of `document["alignment"]`. page: the module `report.page`, which draws them."""
    statistics = document.get("alignment")
    if not statistics:
        return []
    degree, passages = statistics["distributions"]["degree"], statistics["distributions"]["passages_an_entity"]
    steps = [(step, {"entities": n}) for step, n in statistics["entities"].items()]
    return [
        page.heading("Alignment"),
        page.table(["", "before", "after"], _rows(statistics)),
        page.table(["entities", "number", "fewer than names", "fewer than in passages"], _steps(statistics)),
        page.stacked_bars("entities after each step", steps, "entities"),
        page.stacked_bars("entities by degree (relations at an entity)", _binned(degree), "entities"),
        page.stacked_bars("entities by the passages they are linked to", _binned(passages), "entities"),
    ]


def _rows(statistics: dict[str, Any]) -> list[list[str]]:
    entities, relations, links = statistics["entities"], statistics["relations"], statistics["links"]
    rows = [
        ["entities", entities["before"], entities["semantic"]],
        ["relations, extracted", relations["before"], relations["extracted"]],
        ["relations, inferred", "-", relations["inferred"]],
        ["connected components of the entities", statistics["components"]["before"], statistics["components"]["after"]],
        ["connected components with the passages", "-", statistics["components_with_passages"]],
        ["entity-passage links, extracted", "-", links["extracted"]],
        ["entity-passage links, by search", "-", links["searched"]],
    ]
    for what, pairs in statistics.get("pairs", {}).items():
        rows.append([f"near pairs, seen together to {what}", pairs["within_radius"], pairs["together"]])
    for key in ("degree", "passages_an_entity"):
        before, after = statistics[key]["before"], statistics[key]["after"]
        rows += [[f"{key.replace('_', ' ')}, {part}", before[part], after[part]] for part in ("min", "mean", "max")]
    return [[label, *(f"{cell:,}" if not isinstance(cell, str) else cell for cell in cells)] for label, *cells in rows]


def _steps(statistics: dict[str, Any]) -> list[list[str]]:
    extracted, entities = statistics["extracted_entities"], statistics["entities"]
    names = {"before": "distinct normalised names", "exact": "exact merge", "semantic": "semantic merge"}
    rows = [["in each passage by itself", f"{extracted:,}", "-", "-"]]
    for step, name in names.items():
        fewer = [f"{100 * (1 - entities[step] / n):.1f} %" if n else "-" for n in (entities["before"], extracted)]
        rows.append([name, f"{entities[step]:,}", *fewer])
    return rows


def _binned(bins: dict[str, int]) -> list[tuple[str, dict[str, float]]]:
    """(label, {"entities": number}) of each bin; labels such as "2-3" and "64 or more", in ascending order."""
    lows = sorted(map(int, bins))
    labels = [str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in zip(lows, lows[1:])] + [f"{lows[-1]} or more"]
    return [(label, {"entities": bins[str(low)]}) for label, low in zip(labels, lows)]
