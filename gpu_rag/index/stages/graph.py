"""Stages of the graphs over entities and passages, each one CSR adjacency."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import torch

from gpu_rag.graph.csr import degrees
from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.index import GRAPH, PARTS
from gpu_rag.index.stage import stage
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.index.work import Work
from gpu_rag.types import CSR

_ROWS = 4096  # rows of the graph at a time: bounds memory
_PAIRS = """CREATE TABLE pairs AS SELECT low, high, max(weight) + max(title) AS weight FROM (
    SELECT least(a, b) AS low, greatest(a, b) AS high, weight, 0::FLOAT AS title FROM edges
    UNION ALL SELECT node, passage + {first}, 0::FLOAT, {title_weight}::FLOAT FROM titles
    ) WHERE low <> high GROUP BY low, high"""
_BOTH = """CREATE VIEW entries AS
    SELECT low AS src, high AS dst, weight FROM pairs UNION ALL SELECT high, low, weight FROM pairs"""
_ENTRIES = "SELECT src, dst, weight FROM entries ORDER BY src, dst"
_GRAPH_EDGES = """SELECT subject AS a, object AS b, 1::FLOAT AS weight FROM relations
    UNION ALL SELECT "left", "right", score FROM synonyms
    UNION ALL SELECT entity, passage + {n_entities}, 1::FLOAT FROM mentions"""
_RELATION_EDGES = """SELECT subject AS a, {n_entities} + file_row_number::INTEGER AS b, 1::FLOAT AS weight
        FROM relations
    UNION ALL SELECT object, {n_entities} + file_row_number::INTEGER, 1::FLOAT FROM relations
    UNION ALL SELECT {n_entities} + file_row_number::INTEGER, {first} + unnest(passages), 1::FLOAT FROM relations
    UNION ALL SELECT entity, passage + {first}, 1::FLOAT FROM mentions"""


@stage("graph", needs=("passages", "entities", "mentions", "synonyms"), version=2, size="links", graph=True)
def graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over the nodes [entities | passages], both directions stored (safetensors).

    An edge joins two entities of a relation (weight 1), two synonyms (weight: their cosine), and an entity with each
    passage that mentions it (weight 1). An edge with several reasons gets the greatest weight. The entity that a title
    names, see `index.titles`, has a further TITLE_WEIGHT with the passage. `degree` has the sum of each row, f64.
    Memory: `index.memory`, names and titles, and 16 bytes a node.
    """
    names = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    edges, n = _GRAPH_EDGES.format(n_entities=len(names)), len(names)
    arrays = walk_arrays(work, edges, n, names, relations="entities", synonyms="synonyms", mentions="mentions")
    n_nodes = len(arrays["degree"])
    ranges = np.asarray([0, n, n, n_nodes], np.int64)  # [entities | relations: none | passages]
    tables.write_arrays(work.out / GRAPH, {**arrays, "ranges": ranges})
    return {"nodes": n_nodes, "edges": len(arrays["indices"])}


@stage("relation_graph", needs=("passages", "entities", "mentions"), size="links", graph=True)
def relation_graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over [entities | relations | passages], and its parts without passages and weights.

    An edge of weight 1 joins a relation with its subject and its object, an entity with each passage that mentions it,
    and a relation with each passage that states it. Titles add weight as in `graph_stage`. In `parts.safetensors`,
    indptr and indices are the adjacency of [entities | relations]; offsets and values list the passages of each of
    these nodes. Memory: that of `graph_stage`, and the parts.
    """
    folder = work.stage_folders["entities"]
    names = tables.read_table(folder / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    first = len(names) + tables.n_rows(folder / "relations.parquet")
    edges = _RELATION_EDGES.format(n_entities=len(names), first=first)
    arrays = walk_arrays(work, edges, first, names, relations="entities", mentions="mentions")
    tables.write_arrays(work.out / GRAPH, arrays)
    tables.write_arrays(work.out / PARTS, relation_parts(arrays, first))
    return {}


def relation_parts(walk: Mapping[str, np.ndarray], first: int) -> dict[str, np.ndarray]:
    """The arrays of `parts.safetensors`. walk: arrays of the graph; first: the node of passage 0."""
    indptr, indices = chosen_entries(walk, first, lambda column, _: column < first)
    offsets, nodes = chosen_entries(walk, first, lambda column, weight: (column >= first) & (weight != TITLE_WEIGHT))
    return {"indptr": indptr, "indices": indices, "offsets": offsets, "values": nodes - np.int32(first)}


def walk_arrays(
    work: Work, edges: str, first: int, names: pa.Array | pa.ChunkedArray, rows: np.ndarray | None = None, **views: str
) -> dict[str, np.ndarray]:
    """{"indptr", "indices", "weight", "degree"} of a symmetric graph over [nodes | passages], with the edges of titles.

    edges: SQL query of the columns (a, b, weight); an edge that it gives several times has its greatest weight. views:
    {table that the query reads: its stage}. first: the node of passage 0. names, rows: of the nodes that titles may
    name, as in `title_edges`.
    """
    titles = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES, ["title"])["title"]
    node, passage = title_edges(titles, names, rows)
    n = first + len(titles)
    with database(work) as db:
        db.run("CREATE TABLE titles (node INTEGER, passage INTEGER)")
        db.add("titles", pa.table({"node": node, "passage": passage}))
        for name, stage_name in views.items():
            db.view(name, work.stage_folders[stage_name] / f"{name}.parquet")
        db.run(f"CREATE VIEW edges AS {edges}", _PAIRS.format(first=first, title_weight=TITLE_WEIGHT), _BOTH)
        indptr, indices, weight = _spooled(work, n, db.batches(_ENTRIES))
    work.progress.advance(n)
    return {"indptr": indptr, "indices": indices, "weight": weight, "degree": _degrees(indptr, weight)}


def chosen_entries(
    walk: Mapping[str, np.ndarray], n: int, chosen: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(indptr i64[n + 1], indices i32) of the entries of the first n rows where chosen(columns, weights) is True."""
    counts, parts = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    for start in range(0, n, _ROWS):
        ends = walk["indptr"][start : min(start + _ROWS, n) + 1]
        columns, weights = (np.array(walk[name][ends[0] : ends[-1]]) for name in ("indices", "weight"))
        mask = chosen(columns, weights)
        counts.append(np.diff(np.append(0, np.cumsum(mask))[ends - ends[0]]))
        parts.append(columns[mask])
    return np.cumsum(np.concatenate(counts)), np.concatenate(parts)


def _degrees(indptr: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`degrees` of a CSR, f64[N], a block of rows at a time."""
    parts = [np.zeros(0)]
    for start in range(0, len(indptr) - 1, _ROWS):
        ends = torch.from_numpy(indptr[start : start + _ROWS + 1])
        rows = torch.from_numpy(np.array(weight[ends[0] : ends[-1]]))
        parts.append(degrees(CSR(ends - ends[0], torch.zeros(len(rows), dtype=torch.int32), rows)).numpy())
    return np.concatenate(parts)


def _spooled(work: Work, n: int, entries: Iterator[pa.RecordBatch]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indptr i64[n + 1], indices i32, weight f32) of sorted entries, the last two as mapped files in the work
    space."""
    degree = np.zeros(n, np.int64)
    types, paths = (np.int32, np.float32), [work.partial / f"{name}.raw" for name in ("dst", "weight")]
    with storage_errors(work.partial), ExitStack() as stack:
        work.partial.mkdir(parents=True, exist_ok=True)
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for batch in entries:
            first, last = batch["src"][0].as_py(), batch["src"][-1].as_py() + 1
            degree[first:last] += np.bincount(batch["src"].to_numpy() - first)
            for file, name, kind in zip(files, ("dst", "weight"), types):
                tables.write_raw(file, batch[name].to_numpy().astype(kind, copy=False))
    sizes = [path.stat().st_size for path in paths]
    indices, weight = (
        np.memmap(path, kind, "r") if size else np.zeros(0, kind) for path, kind, size in zip(paths, types, sizes)
    )
    return np.append(0, np.cumsum(degree)), indices, weight
