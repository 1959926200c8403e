"""Stages that prepare the tables for HiGraAgent's retriever: texts to embed, BM25, two graphs, and statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.graph.components import connected_components
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.index import tables
from gpu_rag.index.name_table import NAMES, NameTable, of_one
from gpu_rag.index.names import normalised, one_array
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.graph import walk_arrays
from gpu_rag.index.stages.search import TextRows, same_triples, triple_texts
from gpu_rag.index.tables import same_rows, unchanged_rows
from gpu_rag.index.walk import stored
from gpu_rag.index.work import Work
from gpu_rag.lazy import torch
from gpu_rag.methods.higra.graph import WALK, graph_parts
from gpu_rag.methods.higra.stages.asks import entity_text
from gpu_rag.methods.higra.tables import EXACT_ENTITIES, HIGRA_ENTITIES, ints, pairs, read
from gpu_rag.text.bm25 import Bm25, count_words
from gpu_rag.types import CSR

_KNOWN = ("id", "name", "aliases", "types", "descriptions")
_SHOWN = _KNOWN[1:]
_ENDS = ("subject", "label", "object")
_ORIGINS = (("extracted", "extraction"), ("inferred", "inferred"))
_LOWS = (0, 1, 2, 4, 8, 16, 32, 64)  # lower bounds of bins; the last bin has no upper bound


def exact_texts(folder: Path) -> TextRows:
    """The entities after the exact merge, each as "name | aliases | types | descriptions"."""
    return _entity_texts(read(folder, "higra_exact_entities", _SHOWN), True)


def entity_texts(folder: Path) -> TextRows:
    """The entities, each as "name | aliases | types"."""
    return _entity_texts(read(folder, "higra_entities", _SHOWN[:3]), False)


def _entity_texts(table: pa.Table, descriptions: bool) -> TextRows:
    def make(rows: slice) -> list[str]:
        part = table.slice(rows.start, rows.stop - rows.start)
        texts: list[str] = part["name"].to_pylist()
        sizes = [pc.list_value_length(part[name]).to_numpy() for name in part.column_names[1:]]
        longer = np.flatnonzero(np.any(sizes, 0))  # most have a name alone
        for row, entity in zip(longer.tolist(), part.take(pa.array(longer)).to_pylist()):
            texts[row] = entity_text(entity, descriptions=descriptions)
        return texts

    return TextRows(len(table), make)


def relation_texts(merge: Path, links: Path) -> TextRows:
    """The relations, each as "subject label object", with the entities' written names."""
    return triple_texts(read(merge, "higra_entities", ("name",))["name"], read(links, "higra_relations", _ENDS))


def same_exact(now: Path, before: Path) -> np.ndarray:
    """i64[n]: the earlier row of each exact entity with the same text, -1 if there is none."""
    file = "higra_exact_entities.parquet"
    return unchanged_rows(now / file, before / file, EXACT_ENTITIES, _KNOWN)


def same_entities(now: Path, before: Path, n: int = 4) -> np.ndarray:
    """The same for merged entities. n: number of columns that must be equal, of id, name, aliases and types."""
    file = "higra_entities.parquet"
    return unchanged_rows(now / file, before / file, HIGRA_ENTITIES, _KNOWN[:n])


def same_as_exact(merge: Path, exact: Path) -> np.ndarray:
    """i64[n]: the exact entity with the text of each merged one, -1 if there is none; exact ones also have
    descriptions."""
    known = read(exact, "higra_exact_entities", _KNOWN)
    rows = same_rows(zip(read(merge, "higra_entities", _KNOWN[:4]).columns, known.columns))
    described = pc.list_value_length(known["descriptions"]).to_numpy() > 0
    rows[(rows >= 0) & described[rows]] = -1
    return rows


def same_relations(merge: Path, links: Path, merge_before: Path, links_before: Path) -> np.ndarray:
    """The same for relations."""
    relations = (read(folder, "higra_relations", _ENDS) for folder in (links, links_before))
    return same_triples(same_entities(merge, merge_before, 2), *relations)


@stage(
    "higra_search",
    needs=("higra_merge", "higra_links"),
    version=6,
    params=lambda settings, _: {"k1": settings.index.bm25_k1, "b": settings.index.bm25_b},
    size="relations",
)
def search_stage(work: Work) -> dict[str, int]:
    """Build BM25 indexes over the entities (name, aliases, types) and over the relations. Texts that an earlier run had
    keep their word counts."""
    folders, index = [work.stage_folders[name] for name in ("higra_merge", "higra_links")], work.settings.index
    searched = {"entities": entity_texts(folders[0]), "relations": relation_texts(*folders)}
    work.progress.start("higra_search", sum(map(len, searched.values())), "texts")
    for name, texts in searched.items():
        rows, earlier = np.full(len(texts), -1), None
        if work.previous and work.previous_inputs:
            before = [work.previous_inputs[needed] for needed in ("higra_merge", "higra_links")]
            earlier = Bm25.load(work.previous / name, tables.read_arrays).counts
            rows = same_entities(folders[0], before[0]) if name == "entities" else same_relations(*folders, *before)
        counts = count_words(_advancing(work, texts, rows < 0), earlier, rows)
        Bm25.of(counts, index.bm25_k1, index.bm25_b).save(work.out / name)
        work.report.reused += int((rows >= 0).sum())
    return {}


def _advancing(work: Work, texts: TextRows, wanted: np.ndarray) -> Iterator[str]:
    for start in range(0, len(texts), tables.ROWS_A_GROUP):
        mask = wanted[start : start + tables.ROWS_A_GROUP]
        if mask.any():
            yield from compress(texts[start : start + tables.ROWS_A_GROUP], mask)
        work.progress.advance(len(mask))


@stage(
    "higra_graph",
    needs=("passages", "entities", "higra_exact", "higra_merge", "higra_links", "higra_mentions"),
    version=4,
    size="links",
    graph=True,
)
def graph_stage(work: Work) -> dict[str, int]:
    """Write the graph over [entities | passages] with the edges of titles, see `index.walk`; the table of names, and
    `statistics.json`."""
    folders = work.stage_folders
    entities = read(folders["higra_merge"], "higra_entities", ("name", "aliases"))
    known, owner = known_names(entities)
    relations = read(folders["higra_links"], "higra_relations", ("subject", "object", "origin"))
    links, n = read(folders["higra_mentions"], "higra_links", ("entity", "passage", "origin")), len(entities)
    ends = ints(relations, "subject"), ints(relations, "object")
    edges = (*ends, 1), (ints(links, "entity"), ints(links, "passage") + n, 1)
    walk = walk_arrays(work, lambda: edges, n, known, owner)
    parts = graph_parts(walk, n)
    tables.write_arrays(work.out / WALK, stored(**walk))
    tables.write_arrays(work.out / NAMES, names_of(entities, known, owner).arrays)
    entity, full = (CSR(*map(torch.from_numpy, parts[name])) for name in ("entity", "full"))
    document = {"passages": full.n - n, **statistics(folders, relations, links, entity)}
    document["components_with_passages"] = _n_components(full)
    text = json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"
    (work.out / "statistics.json").write_text(text, encoding="utf-8")
    return {"higra_entity_edges": entity.m, "higra_full_edges": full.m}


def known_names(entities: pa.Table) -> tuple[pa.LargeStringArray, np.ndarray]:
    """(normalised names of all entities, then their aliases; the entity of each). Of equal names the first counts."""
    aliases = entities["aliases"].combine_chunks()
    names = pa.chunked_array([one_array(entities["name"]), one_array(aliases.flatten())])
    owner = pc.list_parent_indices(aliases).to_numpy()
    return normalised(one_array(names)), np.concatenate([np.arange(len(entities)), owner])


def names_of(entities: pa.Table, known: pa.LargeStringArray, owner: np.ndarray) -> NameTable:
    """Entity rows by name, and by aliases that belong to only one entity. known, owner: `known_names` of them."""
    n = len(entities)
    also, rows = of_one(known.slice(n), owner[n:], known.slice(0, n))
    return NameTable.of(pa.chunked_array([one_array(entities["name"]), also]), np.concatenate([np.arange(n), rows]))


# --- statistics ------------------------------------------------------------------------------------


def statistics(folders: Mapping[str, Path], relations: pa.Table, links: pa.Table, entity: CSR) -> dict[str, Any]:
    """Counts before and after alignment, from the tables of the stages and the finished entity graph.

    before: the distinct normalised names, the relations between them, and their components.
    extracted_entities: counts a name once for each passage that it occurs in.
    degree: number of relations of an entity; a self-loop counts twice, so the mean is 2 relations / entities.
    components: those of the entity graph; components_with_passages: those of the full graph.
    distributions: {lower bound: number of entities}, in bins of doubling width.
    """
    names = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES, ("n_passages",))
    old = tables.read_table(folders["entities"] / "relations.parquet", tables.RELATIONS, ("subject", "object"))
    exact = tables.n_rows(folders["higra_exact"] / "higra_exact_entities.parquet")
    n_before, n_in_passages = names.num_rows, ints(names, "n_passages")
    n_extracted = int(n_in_passages.sum())
    degree, n_passages = _degree(relations, entity.n), np.bincount(pairs(links) >> 32, minlength=entity.n)
    old_ends = torch.from_numpy(ints(old, "subject")), torch.from_numpy(ints(old, "object"))
    graph_before = csr_from_edges(*old_ends, n_before)
    return {
        "entities": {"before": n_before, "exact": exact, "semantic": entity.n},
        "reduction_percent": _fewer(entity.n, n_before),
        "extracted_entities": n_extracted,
        "extracted_reduction_percent": _fewer(entity.n, n_extracted),
        "relations": {
            "before": old.num_rows,
            **{name: pc.sum(pc.equal(relations["origin"], origin)).as_py() or 0 for name, origin in _ORIGINS},
        },
        "links": {
            "extracted": len(pairs(links, "extraction")),
            "searched": len(pairs(links, "search")),
            "mentions": links.num_rows,
        },
        "degree": {"before": _spread(_degree(old, n_before)), "after": _spread(degree)},
        "components": {"before": _n_components(graph_before), "after": _n_components(entity)},
        "passages_an_entity": {"before": _spread(n_in_passages), "after": _spread(n_passages)},
        "distributions": {"degree": _bins(degree), "passages_an_entity": _bins(n_passages)},
    }


def _fewer(now: int, before: int) -> float:
    """The decrease from `before` to `now` in per cent."""
    return round(100 * (1 - now / before), 3) if before else 0.0


def _degree(relations: pa.Table, n: int) -> np.ndarray:
    return np.bincount(np.concatenate([ints(relations, "subject"), ints(relations, "object")]), minlength=n)


def _n_components(csr: CSR) -> int:
    return int(connected_components(csr).unique().numel())


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {"min": 0, "mean": 0.0, "max": 0}
    return {"min": int(values.min()), "mean": round(float(values.mean()), 4), "max": int(values.max())}


def _bins(values: np.ndarray) -> dict[str, int]:
    """Number of values in each bin 0, 1, 2-3, 4-7, ...: {lower bound: number}; the last bin has no upper bound."""
    slot = np.searchsorted(_LOWS, values, side="right") - 1
    return {str(low): int(n) for low, n in zip(_LOWS, np.bincount(slot, minlength=len(_LOWS)))}
