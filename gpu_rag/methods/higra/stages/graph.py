"""The tables as HiGraAgent's retriever reads them: texts to embed, BM25, the two graphs, and statistics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.stages.clusters import entity_text
from gpu_rag.methods.higra.statistics import statistics
from gpu_rag.methods.higra.tables import ints, read, read_rows
from gpu_rag.text.bm25 import Bm25


def exact_texts(folder: Path) -> list[str]:
    """Each entity after the exact merge, as "name | aliases | types | descriptions"."""
    return [entity_text(row) for row in read_rows(folder, "higra_exact_entities")]


def entity_texts(folder: Path) -> list[str]:
    """Each entity, as "name | aliases | types"."""
    return [entity_text(row, descriptions=False) for row in read_rows(folder, "higra_entities")]


def relation_texts(merge: Path, links: Path) -> list[str]:
    """Each relation as "subject label object", with the entities' written names."""
    names, table = read(merge, "higra_entities")["name"].to_pylist(), read(links, "higra_relations")
    rows = zip(table["subject"].to_pylist(), table["label"].to_pylist(), table["object"].to_pylist())
    return [f"{names[s]} {label} {names[o]}" for s, label, o in rows]


@stage(
    "higra_search",
    needs=("higra_merge", "higra_links"),
    params=lambda settings, _: {"k1": settings.index.bm25_k1, "b": settings.index.bm25_b},
)
def search_stage(work: Work) -> dict[str, int]:
    """BM25 indexes over the entities (name, aliases, types) and over the relations."""
    merge, links = work.stage_folders["higra_merge"], work.stage_folders["higra_links"]
    index = work.settings.index
    for name, texts in (("entities", entity_texts(merge)), ("relations", relation_texts(merge, links))):
        Bm25.build(texts, k1=index.bm25_k1, b=index.bm25_b).save(work.out / name)
        work.progress.advance(len(texts))
    return {}


@stage("higra_graph", needs=("passages", "entities", "higra_exact", "higra_merge", "higra_links", "higra_mentions"))
def graph_stage(work: Work) -> dict[str, int]:
    """The entity graph and the graph over [entities | passages] as CSR arrays (see `HigraGraph`), and
    `statistics.json`."""
    folders = work.stage_folders
    n_passages = tables.read_table(folders["passages"] / "passages.parquet", tables.PASSAGES).num_rows
    n_entities = read(folders["higra_merge"], "higra_entities").num_rows
    relations, links = read(folders["higra_links"], "higra_relations"), read(folders["higra_mentions"], "higra_links")
    subjects, objects = ints(relations, "subject"), ints(relations, "object")
    entity = csr_from_edges(torch.from_numpy(subjects), torch.from_numpy(objects), n_entities)
    src = np.concatenate([subjects, ints(links, "entity")])
    dst = np.concatenate([objects, ints(links, "passage") + n_entities])
    full = csr_from_edges(torch.from_numpy(src), torch.from_numpy(dst), n_entities + n_passages)
    graphs = {"entity": entity, "full": full}
    arrays = {f"{name}_indptr": csr.indptr.numpy() for name, csr in graphs.items()}
    arrays |= {f"{name}_indices": csr.indices.numpy() for name, csr in graphs.items()}
    tables.write_arrays(work.out / "graph.safetensors", arrays)
    document = statistics(folders, entity, full, n_passages)
    text = json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"
    (work.out / "statistics.json").write_text(text, encoding="utf-8")
    work.progress.advance(full.n)
    return {"higra_entity_edges": entity.m, "higra_full_edges": full.m}
