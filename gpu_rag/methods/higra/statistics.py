"""Figures of HiGraAgent's index that its paper prints: the graph before and after alignment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gpu_rag.errors import BadInput, IndexCorrupt
from gpu_rag.graph.components import connected_components
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.index import tables
from gpu_rag.index.folder import read_json
from gpu_rag.index.manifest import Manifest
from gpu_rag.methods.higra.tables import ints, pairs, read
from gpu_rag.types import CSR

_TOP_BIN = 64


def statistics(folders: Mapping[str, Path], entity: CSR, full: CSR, n_passages: int) -> dict[str, Any]:
    """Counts before and after alignment, from the tables of the stages and the finished graphs.

    before: distinct normalised names, relations between them, and their components; extracted_entities: a name counted
    again in every passage. Degree: relations at an entity, both ends of one of an entity with itself; the mean is
    2 relations / entities. Components are of the entity layer; components_with_passages of the graph that has the links
    too. Distributions: {lower bound: entities}, bins that double.
    """
    names = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES)
    old = _ends(tables.read_table(folders["entities"] / "relations.parquet", tables.RELATIONS))
    relations, links = read(folders["higra_links"], "higra_relations"), read(folders["higra_mentions"], "higra_links")
    degree = _degree(_ends(relations), entity.n)
    linked = np.unique(np.stack([ints(links, "entity"), ints(links, "passage")], 1), axis=0)
    passages = np.bincount(linked[:, 0], minlength=entity.n)
    n_before, n_in_passages = names.num_rows, ints(names, "n_passages")
    n_extracted, origins = int(n_in_passages.sum()), relations["origin"].to_pylist()
    exact = read(folders["higra_exact"], "higra_exact_entities").num_rows
    return {
        "entities": {"before": n_before, "exact": exact, "semantic": entity.n},
        "reduction_percent": _fewer(entity.n, n_before),
        "extracted_entities": n_extracted,
        "extracted_reduction_percent": _fewer(entity.n, n_extracted),
        "relations": {
            "before": len(old[0]),
            "extracted": origins.count("extraction"),
            "inferred": origins.count("inferred"),
        },
        "links": {
            "extracted": _n_pairs(links, "extraction"),
            "searched": _n_pairs(links, "search"),
            "mentions": links.num_rows,
        },
        "degree": {"before": _spread(_degree(old, n_before)), "after": _spread(degree)},
        "components": {
            "before": _n_components(csr_from_edges(torch.from_numpy(old[0]), torch.from_numpy(old[1]), n_before)),
            "after": _n_components(entity),
        },
        "components_with_passages": _n_components(full),
        "passages_an_entity": {"before": _spread(n_in_passages), "after": _spread(passages)},
        "passages": n_passages,
        "distributions": {"degree": _bins(degree), "passages_an_entity": _bins(passages)},
    }


def _fewer(now: int, before: int) -> float:
    """By how many per cent `now` is less."""
    return round(100 * (1 - now / before), 3) if before else 0.0


def _ends(relations: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    return ints(relations, "subject"), ints(relations, "object")


def _degree(ends: tuple[np.ndarray, np.ndarray], n: int) -> np.ndarray:
    return np.bincount(ends[0], minlength=n) + np.bincount(ends[1], minlength=n)


def _n_pairs(links: pa.Table, origin: str) -> int:
    return len(pairs(links.filter(pc.equal(links["origin"], origin))))


def _n_components(csr: CSR) -> int:
    return int(connected_components(csr).unique().numel())


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {"min": 0, "mean": 0.0, "max": 0}
    return {"min": int(values.min()), "mean": round(float(values.mean()), 4), "max": int(values.max())}


def _bins(values: np.ndarray) -> dict[str, int]:
    """Entities with 0, 1, 2-3, 4-7, ... : {"0": ..., "1": ..., "2": ..., "4": ...}; the last bin is open."""
    lows = [0]
    while (lows[-1] * 2 or 1) <= _TOP_BIN:
        lows.append(lows[-1] * 2 or 1)
    at = np.searchsorted(np.asarray(lows), values, side="right") - 1
    counts = np.bincount(at, minlength=len(lows))
    return {str(low): int(n) for low, n in zip(lows, counts)}


def read_statistics(out: Path, manifest: Manifest) -> dict[str, Any] | None:
    """The statistics of a finished index; None where it has no such graph."""
    record = manifest.stages.get("higra_graph")
    if record is None:
        return None
    path = out / record.folder / "statistics.json"
    try:
        found: dict[str, Any] = read_json(path)
    except (OSError, BadInput) as error:
        raise IndexCorrupt("a file of the index cannot be read", given=f"{path}: {error}") from error
    return found
