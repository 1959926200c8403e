"""Stage of the graph of entities and passages as one CSR adjacency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.csr import degrees
from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.stage import stage
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.index.work import Work
from gpu_rag.types import CSR

_ROWS = 4096  # rows of the graph at a time: bounds memory


_PAIRS = """CREATE TABLE pairs AS SELECT low, high, max(weight) + max(title) AS weight FROM (
    SELECT least(subject, object) AS low, greatest(subject, object) AS high, 1::FLOAT AS weight, 0::FLOAT AS title
        FROM relations
    UNION ALL SELECT least("left", "right"), greatest("left", "right"), score, 0::FLOAT FROM synonyms
    UNION ALL SELECT entity, passage + {n_entities}, 1::FLOAT, 0::FLOAT FROM mentions
    UNION ALL SELECT entity, passage + {n_entities}, 0::FLOAT, {title_weight}::FLOAT FROM titles
    ) WHERE low <> high GROUP BY low, high"""
_BOTH = """CREATE VIEW edges AS
    SELECT low AS src, high AS dst, weight FROM pairs UNION ALL SELECT high, low, weight FROM pairs"""
_DEGREES = "SELECT src, count(*)::INTEGER AS degree FROM edges GROUP BY src ORDER BY src"
_EDGES = "SELECT dst, weight FROM edges ORDER BY src, dst"


@stage("graph", needs=("passages", "entities", "mentions", "synonyms"), version=2, size="links", graph=True)
def graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over the nodes [entities | passages], both directions stored (safetensors).

    An edge joins two entities of a relation (weight 1), two synonyms (weight: their cosine), and an entity with each
    passage that mentions it (weight 1). An edge with several reasons gets the greatest weight. The entity that a title
    names, see `index.titles`, has a further TITLE_WEIGHT with the passage. `degree` has the sum of each row, f64.
    Memory: `index.memory`, names and titles, and 16 bytes a node.
    """
    folders = work.stage_folders
    names = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    titles = tables.read_table(folders["passages"] / "passages.parquet", tables.PASSAGES, ["title"])["title"]
    n_entities, n = len(names), len(names) + len(titles)
    entity, passage = title_edges(titles, names)
    indptr = np.zeros(n + 1, np.int64)
    with database(work) as db:
        db.run("CREATE TABLE titles (entity INTEGER, passage INTEGER)")
        db.add("titles", pa.table({"entity": entity, "passage": passage}))
        for name, stage_name in (("relations", "entities"), ("synonyms", "synonyms"), ("mentions", "mentions")):
            db.view(name, folders[stage_name] / f"{name}.parquet")
        db.run(_PAIRS.format(n_entities=n_entities, title_weight=TITLE_WEIGHT), _BOTH)
        for batch in db.batches(_DEGREES):
            indptr[1 + batch["src"].to_numpy()] = batch["degree"].to_numpy()
        np.cumsum(indptr, out=indptr)
        indices, weight = _spooled(work, db.batches(_EDGES), ("dst", "weight"))
    ranges = np.asarray([0, n_entities, n_entities, n], np.int64)  # [entities | relations: none | passages]
    arrays = {"indptr": indptr, "indices": indices, "weight": weight, "degree": _degrees(indptr, weight)}
    tables.write_arrays(work.out / "graph.safetensors", {**arrays, "ranges": ranges})
    work.progress.advance(n)
    return {"nodes": n, "edges": len(indices)}


def _degrees(indptr: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`degrees` of a CSR, f64[N], a block of rows at a time."""
    parts = [np.zeros(0)]
    for start in range(0, len(indptr) - 1, _ROWS):
        ends = torch.from_numpy(indptr[start : start + _ROWS + 1])
        rows = torch.from_numpy(np.array(weight[ends[0] : ends[-1]]))
        parts.append(degrees(CSR(ends - ends[0], torch.zeros(len(rows), dtype=torch.int32), rows)).numpy())
    return np.concatenate(parts)


def _spooled(work: Work, batches: Iterator[pa.RecordBatch], columns: tuple[str, str]) -> list[np.ndarray]:
    """Columns i32 and f32 of a stream, as mapped files in the work space."""
    types, paths = (np.int32, np.float32), [work.partial / f"{name}.raw" for name in columns]
    with storage_errors(work.partial), ExitStack() as stack:
        work.partial.mkdir(parents=True, exist_ok=True)
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for batch in batches:
            for file, name, kind in zip(files, columns, types):
                tables.write_raw(file, batch[name].to_numpy().astype(kind, copy=False))
    sizes = [path.stat().st_size for path in paths]
    return [np.memmap(path, kind, "r") if size else np.zeros(0, kind) for path, kind, size in zip(paths, types, sizes)]
