"""Synonym links between near-equal names, and the graph of entities and passages as one CSR adjacency."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.index import tables
from gpu_rag.index.stage import Pairs, stage
from gpu_rag.index.work import Sources, Work
from gpu_rag.models.set import pick_device
from gpu_rag.settings import Settings

_DIGITS = re.compile(r"\d+")
_MIN_LETTERS = 3
_ROWS = 4096  # entities searched at once: bounds memory, not the result


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The threshold and the number of neighbours, and faiss where it finds them: its scores may differ in a bit."""
    by = {"neighbours": "faiss"} if settings.graph.neighbours == "faiss" else {}
    return {"threshold": settings.index.synonym_threshold, "k": settings.index.synonym_k, **by}


@stage(
    "synonyms",
    needs=("entities", "entity_vectors"),
    params=_params,
    size="entities",
    pairs=Pairs("entities squared", lambda _, sizes: sizes["entities"] ** 2),
)
def synonyms_stage(work: Work) -> dict[str, int]:
    """Table `synonyms`: pairs (left < right) of entities whose names are near-equal by cosine.

    Names of fewer than three letters, and names whose numbers differ (1941 and 1942 have close vectors), never pair.
    Searched on the device of the models: scores are the same on every device.
    """
    index = work.settings.index
    names = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES)["id"].to_pylist()
    arrays = tables.read_arrays(work.stage_folders["entity_vectors"] / "vectors.safetensors")
    base = torch.from_numpy(arrays["vectors"]).to(pick_device(work.settings.models.device))
    nearest = NearestRows(base)
    numbers = [tuple(_DIGITS.findall(name)) for name in names]
    usable = [sum(c.isalpha() for c in name) >= _MIN_LETTERS for name in names]
    pairs: dict[tuple[int, int], float] = {}
    work.progress.start("synonyms", len(names), "names")
    for start in range(0, len(names), _ROWS):
        queries = base[start : start + _ROWS].float()
        top = nearest.search(queries, min(index.synonym_k + 1, len(names)))
        ids, scores = (part.numpy() for part in to_host(top.ids, top.scores))
        for row, column in zip(*np.nonzero((scores >= index.synonym_threshold) & (ids >= 0))):
            a, b = start + int(row), int(ids[row, column])
            if a != b and usable[a] and usable[b] and numbers[a] == numbers[b]:
                key = (min(a, b), max(a, b))
                pairs[key] = max(pairs.get(key, 0.0), float(scores[row, column]))
        work.progress.advance(len(queries))
    keys = sorted(pairs)
    columns = {"left": [a for a, _ in keys], "right": [b for _, b in keys], "score": [pairs[k] for k in keys]}
    return {"synonyms": tables.write_table(work.out / "synonyms.parquet", tables.SYNONYMS, columns)}


@stage("graph", needs=("passages", "entities", "mentions", "synonyms"), size="links", graph=True)
def graph_stage(work: Work) -> dict[str, int]:
    """The adjacency over the nodes [entities | passages], undirected, both directions stored (safetensors).

    An edge joins two entities of a relation (weight 1), two synonyms (weight: their cosine) and an entity with
    each passage that mentions it (weight 1); of several reasons for one edge the strongest counts.
    """
    folders = work.stage_folders
    n_entities = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES).num_rows
    n_passages = tables.read_table(folders["passages"] / "passages.parquet", tables.PASSAGES).num_rows
    relations = tables.read_table(folders["entities"] / "relations.parquet", tables.RELATIONS)
    mentions = tables.read_table(folders["mentions"] / "mentions.parquet", tables.MENTIONS)
    synonyms = tables.read_table(folders["synonyms"] / "synonyms.parquet", tables.SYNONYMS)
    src = [_ints(relations["subject"]), _ints(synonyms["left"]), _ints(mentions["entity"])]
    dst = [_ints(relations["object"]), _ints(synonyms["right"]), _ints(mentions["passage"]) + n_entities]
    weight = [np.ones(len(src[0])), synonyms["score"].to_numpy().astype(np.float64), np.ones(len(src[2]))]
    a, b, w = strongest(np.concatenate(src), np.concatenate(dst), np.concatenate(weight))
    n = n_entities + n_passages
    csr = csr_from_edges(
        torch.from_numpy(a), torch.from_numpy(b), n, torch.from_numpy(w.astype(np.float32)), undirected=True
    )
    weights = torch.ones(csr.m) if csr.weight is None else csr.weight
    arrays = {"indptr": csr.indptr.numpy(), "indices": csr.indices.numpy(), "weight": weights.numpy()}
    arrays["ranges"] = np.asarray([0, n_entities, n_entities, n], np.int64)  # [entities | relations: none | passages]
    tables.write_arrays(work.out / "graph.safetensors", arrays)
    work.progress.advance(n)
    return {"nodes": n, "edges": csr.m}


def _ints(column: Any) -> np.ndarray:
    return column.to_numpy().astype(np.int64)


def strongest(src: np.ndarray, dst: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One edge a pair of different nodes (smaller first), with the greatest weight among its reasons; sorted."""
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    order = np.lexsort((-weight, high, low))
    low, high, weight = low[order], high[order], weight[order]
    first = np.ones(len(low), bool)
    first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    first &= low != high
    return low[first], high[first], weight[first]
