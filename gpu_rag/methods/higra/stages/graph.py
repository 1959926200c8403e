"""What HiGraAgent's retriever reads: vectors and BM25 of entities and relations, the two graphs, and statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.stages.decide import entity_text
from gpu_rag.methods.higra.statistics import statistics
from gpu_rag.methods.higra.tables import EXACT_ENTITIES, HIGRA_ENTITIES, HIGRA_LINKS, HIGRA_RELATIONS
from gpu_rag.text.bm25 import Bm25
from gpu_rag.types import CSR


def exact_texts(folder: Path) -> list[str]:
    """As "name | aliases | types | descriptions", each entity after the exact merge."""
    return [
        entity_text(row)
        for row in tables.read_table(folder / "higra_exact_entities.parquet", EXACT_ENTITIES).to_pylist()
    ]


def higra_entity_texts(folder: Path) -> list[str]:
    """As "name | aliases | types", each entity."""
    rows = tables.read_table(folder / "higra_entities.parquet", HIGRA_ENTITIES).to_pylist()
    return [entity_text(row, descriptions=False) for row in rows]


def higra_relation_texts(merge: Path, links: Path) -> list[str]:
    """As "subject label object", each relation with the entities' written names."""
    names = tables.read_table(merge / "higra_entities.parquet", HIGRA_ENTITIES)["name"].to_pylist()
    table = tables.read_table(links / "higra_relations.parquet", HIGRA_RELATIONS)
    rows = zip(table["subject"].to_pylist(), table["label"].to_pylist(), table["object"].to_pylist())
    return [f"{names[s]} {label} {names[o]}" for s, label, o in rows]


@stage(
    "higra_search",
    needs=("higra_merge", "higra_links"),
    params=lambda settings, _: {"k1": settings.index.bm25_k1, "b": settings.index.bm25_b},
)
def search_stage(work: Work) -> dict[str, int]:
    """BM25 indexes over the entities (name, aliases, types) and over the relations."""
    texts = {
        "entities": higra_entity_texts(work.stage_folders["higra_merge"]),
        "relations": higra_relation_texts(*(work.stage_folders[need] for need in ("higra_merge", "higra_links"))),
    }
    index = work.settings.index
    for name, rows in texts.items():
        Bm25.build(rows, k1=index.bm25_k1, b=index.bm25_b).save(work.out / name)
        work.progress.advance(len(rows))
    return {}


@stage("higra_graph", needs=("passages", "entities", "higra_exact", "higra_merge", "higra_links", "higra_mentions"))
def graph_stage(work: Work) -> dict[str, int]:
    """The entity graph and the graph over [entities | passages] as CSR arrays, and `statistics.json`; see
    `index.higra.HigraGraph` and `index.higra_statistics`.
    """
    folders = work.stage_folders
    n_passages = tables.read_table(folders["passages"] / "passages.parquet", tables.PASSAGES).num_rows
    n_entities = tables.read_table(folders["higra_merge"] / "higra_entities.parquet", HIGRA_ENTITIES).num_rows
    relations = tables.read_table(folders["higra_links"] / "higra_relations.parquet", HIGRA_RELATIONS)
    links = tables.read_table(folders["higra_mentions"] / "higra_links.parquet", HIGRA_LINKS)
    ends = (_ints(relations["subject"]), _ints(relations["object"]))
    entity = csr_from_edges(*ends, n_entities)
    src = torch.cat([ends[0], _ints(links["entity"])])
    dst = torch.cat([ends[1], _ints(links["passage"]) + n_entities])
    full = csr_from_edges(src, dst, n_entities + n_passages)
    tables.write_arrays(work.out / "graph.safetensors", {**_arrays("entity", entity), **_arrays("full", full)})
    document = statistics(folders, entity, full, n_passages)
    text = json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"
    (work.out / "statistics.json").write_text(text, encoding="utf-8")
    work.progress.advance(full.n)
    return {"higra_entity_edges": entity.m, "higra_full_edges": full.m}


def _ints(column: Any) -> torch.Tensor:
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def _arrays(name: str, csr: CSR) -> dict[str, np.ndarray]:
    return {f"{name}_indptr": csr.indptr.numpy(), f"{name}_indices": csr.indices.numpy()}
