"""Stages of the graphs over entities and passages, each one CSR adjacency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.database import Database, database
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.index import GRAPH
from gpu_rag.index.stage import stage
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.index.walk import stored
from gpu_rag.index.work import Work

_PAIRS = """CREATE TABLE pairs AS SELECT low, high, max(weight) + max(title) AS weight FROM (
    SELECT least(a, b) AS low, greatest(a, b) AS high, weight, 0::FLOAT AS title FROM edges
    UNION ALL SELECT node, passage + {first}, 0::FLOAT, {title_weight}::FLOAT FROM titles
    ) WHERE low <> high GROUP BY low, high"""
_BOTH = """CREATE VIEW entries AS
    SELECT low AS src, high AS dst, weight FROM pairs UNION ALL SELECT high, low, weight FROM pairs"""
_DEGREES = "SELECT src, count(*)::INTEGER AS degree FROM entries GROUP BY src ORDER BY src"
_ENTRIES = "SELECT dst, weight FROM entries WHERE src >= {low} AND src < {high} ORDER BY src, dst"
_SORTED = 128  # bytes of memory a row that DuckDB sorts; its sorts of more than the limit can fail
_GRAPH_EDGES = """SELECT subject AS a, object AS b, 1::FLOAT AS weight FROM relations
    UNION ALL SELECT "left", "right", score FROM synonyms
    UNION ALL SELECT entity, passage + {n_entities}, 1::FLOAT FROM mentions"""
_RELATION_EDGES = """SELECT subject AS a, {n_entities} + file_row_number::INTEGER AS b, 1::FLOAT AS weight
        FROM relations
    UNION ALL SELECT object, {n_entities} + file_row_number::INTEGER, 1::FLOAT FROM relations
    UNION ALL SELECT {n_entities} + file_row_number::INTEGER, {first} + unnest(passages), 1::FLOAT FROM relations
    UNION ALL SELECT entity, passage + {first}, 1::FLOAT FROM mentions"""


@stage("graph", needs=("passages", "entities", "mentions", "synonyms"), version=3, size="links", graph=True)
def graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over the nodes [entities | passages], both directions stored, see `index.walk`.

    An edge joins two entities of a relation (weight 1), two synonyms (weight: their cosine), and an entity with each
    passage that mentions it (weight 1). An edge with several reasons gets the greatest weight. The entity that a title
    names, see `index.titles`, has a further TITLE_WEIGHT with the passage. Memory: `index.memory`, names and titles, 8
    bytes a node, and a byte an entry.
    """
    names = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    edges, n = _GRAPH_EDGES.format(n_entities=len(names)), len(names)
    walk = walk_arrays(work, edges, n, names, relations="entities", synonyms="synonyms", mentions="mentions")
    tables.write_arrays(work.out / GRAPH, stored(**walk))
    return {"nodes": len(walk["indptr"]) - 1, "edges": len(walk["indices"])}


@stage("relation_graph", needs=("passages", "entities", "mentions"), version=2, size="links", graph=True)
def relation_graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over [entities | relations | passages], stored as in `graph_stage`.

    An edge of weight 1 joins a relation with its subject and its object, an entity with each passage that mentions it,
    and a relation with each passage that states it. Titles add weight, and memory is used, as in `graph_stage`.
    """
    folder = work.stage_folders["entities"]
    names = tables.read_table(folder / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    first = len(names) + tables.n_rows(folder / "relations.parquet")
    edges = _RELATION_EDGES.format(n_entities=len(names), first=first)
    walk = walk_arrays(work, edges, first, names, relations="entities", mentions="mentions")
    tables.write_arrays(work.out / GRAPH, stored(**walk))
    return {}


def walk_arrays(
    work: Work, edges: str, first: int, names: pa.Array | pa.ChunkedArray, rows: np.ndarray | None = None, **views: str
) -> dict[str, np.ndarray]:
    """{"indptr", "indices", "weight"} of a symmetric graph over [nodes | passages], with the edges of titles.

    edges: SQL query of the columns (a, b, weight); an edge that it gives several times has its greatest weight. views:
    {table that the query reads: its stage}. first: the node of passage 0. names, rows: of the nodes that titles may
    name, as in `title_edges`.
    """
    titles = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES, ["title"])["title"]
    node, passage = title_edges(titles, names, rows)
    n = first + len(titles)
    indptr = np.zeros(n + 1, np.int64)
    with database(work) as db:
        db.run("CREATE TABLE titles (node INTEGER, passage INTEGER)")
        db.add("titles", pa.table({"node": node, "passage": passage}))
        for name, stage_name in views.items():
            db.view(name, work.stage_folders[stage_name] / f"{name}.parquet")
        db.run(f"CREATE VIEW edges AS {edges}", _PAIRS.format(first=first, title_weight=TITLE_WEIGHT), _BOTH)
        for batch in db.batches(_DEGREES):
            indptr[1 + batch["src"].to_numpy()] = batch["degree"].to_numpy()
        np.cumsum(indptr, out=indptr)
        indices, weight = _spooled(work, _entries(db, indptr, db.limit // _SORTED), ("dst", "weight"))
    work.progress.advance(n)
    return {"indptr": indptr, "indices": indices, "weight": weight}


def _entries(db: Database, indptr: np.ndarray, most: int) -> Iterator[pa.RecordBatch]:
    """Entries in the order of the CSR, sorted in parts of whole rows: about `most` entries each, or one row."""
    parts = np.arange(0, indptr[-1], most)
    for low, high in pairwise([*np.unique(np.searchsorted(indptr, parts, "right") - 1), len(indptr) - 1]):
        yield from db.batches(_ENTRIES.format(low=low, high=high))


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
