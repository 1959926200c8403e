"""Synonym links between near-equal names, and the graph of entities and passages as one CSR adjacency."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.stage import stage
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


@stage("synonyms", needs=("entities", "entity_vectors"), params=_params)
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


_PAIRS = """CREATE TABLE pairs AS SELECT low, high, max(weight) AS weight FROM (
    SELECT least(subject, object) AS low, greatest(subject, object) AS high, 1::FLOAT AS weight FROM relations
    UNION ALL SELECT least("left", "right"), greatest("left", "right"), score FROM synonyms
    UNION ALL SELECT entity, passage + {n_entities}, 1::FLOAT FROM mentions
    ) WHERE low <> high GROUP BY low, high"""
_BOTH = """CREATE VIEW edges AS
    SELECT low AS src, high AS dst, weight FROM pairs UNION ALL SELECT high, low, weight FROM pairs"""
_DEGREES = "SELECT src, count(*)::INTEGER AS degree FROM edges GROUP BY src ORDER BY src"
_EDGES = "SELECT dst, weight FROM edges ORDER BY src, dst"


@stage("graph", needs=("passages", "entities", "mentions", "synonyms"))
def graph_stage(work: Work) -> dict[str, int]:
    """The adjacency over the nodes [entities | passages], undirected, both directions stored (safetensors).

    An edge joins two entities of a relation (weight 1), two synonyms (weight: their cosine) and an entity with
    each passage that mentions it (weight 1); of several reasons for one edge the strongest counts.
    Memory: `index.memory`, and 8 bytes a node.
    """
    folders = work.stage_folders
    n_entities = tables.n_rows(folders["entities"] / "entities.parquet")
    n = n_entities + tables.n_rows(folders["passages"] / "passages.parquet")
    indptr = np.zeros(n + 1, np.int64)
    with database(work) as db:
        for name, stage_name in (("relations", "entities"), ("synonyms", "synonyms"), ("mentions", "mentions")):
            db.view(name, folders[stage_name] / f"{name}.parquet")
        db.run(_PAIRS.format(n_entities=n_entities), _BOTH)
        for batch in db.batches(_DEGREES):
            indptr[1 + batch["src"].to_numpy()] = batch["degree"].to_numpy()
        np.cumsum(indptr, out=indptr)
        indices, weight = _spooled(work, db.batches(_EDGES), ("dst", "weight"))
    ranges = np.asarray([0, n_entities, n_entities, n], np.int64)  # [entities | relations: none | passages]
    arrays = {"indptr": indptr, "indices": indices, "weight": weight, "ranges": ranges}
    tables.write_arrays(work.out / "graph.safetensors", arrays)
    work.progress.advance(n)
    return {"nodes": n, "edges": len(indices)}


def _spooled(work: Work, batches: Iterator[pa.RecordBatch], columns: tuple[str, str]) -> list[np.ndarray]:
    """Columns i32 and f32 of a stream as mapped files in the work space."""
    types, paths = (np.int32, np.float32), [work.partial / f"{name}.raw" for name in columns]
    with storage_errors(work.partial), ExitStack() as stack:
        work.partial.mkdir(parents=True, exist_ok=True)
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for batch in batches:
            for file, name, kind in zip(files, columns, types):
                tables.write_raw(file, batch[name].to_numpy().astype(kind, copy=False))
    sizes = [path.stat().st_size for path in paths]
    return [np.memmap(path, kind, "r") if size else np.zeros(0, kind) for path, kind, size in zip(paths, types, sizes)]
