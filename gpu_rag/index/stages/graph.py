"""Stages of the graphs over entities and passages, each one CSR adjacency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.graph.nearest.pairs import distinct
from gpu_rag.index import tables
from gpu_rag.index.database import memory_limit
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.index import GRAPH
from gpu_rag.index.stage import stage
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.index.walk import stored
from gpu_rag.index.work import Work

Edges = tuple[np.ndarray, np.ndarray, np.ndarray | int]  # both ends, and the weights, or 1 for all
_SORTED = 64  # bytes of memory an entry that is sorted


@stage("graph", needs=("passages", "entities", "mentions", "synonyms"), version=4, size="links", graph=True)
def graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over the nodes [entities | passages], both directions stored, see `index.walk`.

    An edge joins two entities of a relation (weight 1), two synonyms (weight: their cosine), and an entity with each
    passage that mentions it (weight 1). An edge with several reasons gets the greatest weight. The entity that a title
    names, see `index.titles`, has a further TITLE_WEIGHT with the passage. Memory: `index.memory`, names and titles,
    and 32 bytes a node.
    """
    folders = work.stage_folders
    names = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    n = len(names)

    def edges() -> Iterator[Edges]:
        for ends in numbers(folders["entities"] / "relations.parquet", tables.RELATIONS, ("subject", "object")):
            yield *ends, 1
        yield from numbers(folders["synonyms"] / "synonyms.parquet", tables.SYNONYMS, ("left", "right", "score"))
        yield from _mentioned(folders["mentions"], n)

    walk = walk_arrays(work, edges, n, names)
    tables.write_arrays(work.out / GRAPH, stored(**walk))
    return {"nodes": len(walk["indptr"]) - 1, "edges": len(walk["indices"])}


@stage("relation_graph", needs=("passages", "entities", "mentions"), version=3, size="links", graph=True)
def relation_graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over [entities | relations | passages], stored as in `graph_stage`.

    An edge of weight 1 joins a relation with its subject and its object, an entity with each passage that mentions it,
    and a relation with each passage that states it. Titles add weight, and memory is used, as in `graph_stage`.
    """
    folders = work.stage_folders
    names = tables.read_table(folders["entities"] / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    relations, n = folders["entities"] / "relations.parquet", len(names)
    first = n + tables.n_rows(relations)

    def edges() -> Iterator[Edges]:
        last = n
        for batch in tables.read_batches(relations, tables.RELATIONS, ("subject", "object", "passages")):
            last += batch.num_rows
            relation = np.arange(last - batch.num_rows, last)
            for end in ("subject", "object"):
                yield batch[end].to_numpy(), relation, 1
            stated = batch["passages"]
            yield relation[pc.list_parent_indices(stated).to_numpy()], stated.flatten().to_numpy() + first, 1
        yield from _mentioned(folders["mentions"], first)

    walk = walk_arrays(work, edges, first, names)
    tables.write_arrays(work.out / GRAPH, stored(**walk))
    return {}


def _mentioned(folder: Path, first: int) -> Iterator[Edges]:
    """Edges of entities with the passages that mention them. first: the node of passage 0."""
    for entity, passage in numbers(folder / "mentions.parquet", tables.MENTIONS, ("entity", "passage")):
        yield entity, passage + first, 1


def numbers(path: Path, schema: pa.Schema, columns: Sequence[str]) -> Iterator[Any]:
    """Some columns of numbers of a table, a row group at a time."""
    for batch in tables.read_batches(path, schema, columns):
        yield tuple(batch[name].to_numpy() for name in columns)


def walk_arrays(
    work: Work,
    edges: Callable[[], Iterable[Edges]],
    first: int,
    names: pa.Array | pa.ChunkedArray,
    rows: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """{"indptr", "indices", "weight"} of a symmetric graph over [nodes | passages], with the edges of titles.

    edges(): all other edges, by block; an edge that it gives several times has its greatest weight. first: the node of
    passage 0. names, rows: names and rows of the nodes that titles may name, as in `title_edges`.
    """
    titles = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES, ["title"])["title"]
    node, passage = title_edges(titles, names, rows)
    n, titled = first + len(titles), (node, passage + first, np.zeros(len(node), np.float32))

    def both_ways() -> Iterator[Edges]:
        for a, b, weight in chain(edges(), (titled,)):
            yield a, b, weight
            yield b, a, weight

    n_entries = np.zeros(n, np.int64)
    for source, _, _ in both_ways():
        np.add.at(n_entries, source, 1)
    starts = tables.starts_of(n_entries)
    most = memory_limit(work.settings.index.memory) // _SORTED
    bounds = np.searchsorted(starts, np.arange(0, starts[-1], most), "right") - 1
    parts = (_entries(both_ways(), titled, low, high) for low, high in pairwise([*np.unique(bounds).tolist(), n]))
    walk = _spooled(work, parts, n)
    work.progress.advance(n)
    return walk


def _entries(edges: Iterable[Edges], titled: Edges, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """(source << 32 | target, i64, ascending; weight f32) of the entries of the nodes from low to high."""
    plain, keys, weights = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for source, target, weight in edges:
        kept = (source >= low) & (source < high) & (source != target)
        key = source[kept].astype(np.int64) << 32 | target[kept]
        if isinstance(weight, np.ndarray):
            keys.append(key)
            weights.append(weight[kept])
        else:
            plain.append(key)
    ones, weighted = distinct(np.concatenate(plain)), np.concatenate(keys)  # sorting without weights is much faster
    order = np.argsort(weighted)
    weighted = weighted[order]
    firsts = np.flatnonzero(np.diff(weighted, prepend=-1))
    weighted, most = weighted[firsts], np.maximum.reduceat(np.concatenate(weights)[order], firsts)
    key = distinct(np.concatenate([ones, weighted]))
    weight = np.ones(len(key), np.float32)
    is_one = np.append(ones, -1)[np.searchsorted(ones, weighted)] == weighted
    weight[np.searchsorted(key, weighted)] = np.where(is_one, np.maximum(most, 1), most)
    ends = np.stack(titled[:2]).astype(np.int64)
    for source, target in (ends, ends[::-1]):
        kept = (source >= low) & (source < high)
        weight[np.searchsorted(key, source[kept] << 32 | target[kept])] += np.float32(TITLE_WEIGHT)
    return key, weight


def _spooled(work: Work, parts: Iterable[tuple[np.ndarray, np.ndarray]], n: int) -> dict[str, np.ndarray]:
    """The arrays of a CSR of n rows from parts of its entries; columns and weights are mapped files in the work
    space."""
    counts, types = np.zeros(n, np.int64), {"indices": np.int32, "weight": np.float32}
    paths = [work.partial / f"{name}.raw" for name in types]
    with storage_errors(work.partial), ExitStack() as stack:
        work.partial.mkdir(parents=True, exist_ok=True)
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for key, weight in parts:
            counts += np.bincount(key >> 32, minlength=n)
            for file, column in zip(files, (key.astype(np.int32), weight)):
                tables.write_raw(file, column)
    sizes = [path.stat().st_size for path in paths]
    kinds = zip(paths, types.values(), sizes)
    mapped = [np.memmap(path, kind, "r") if size else np.zeros(0, kind) for path, kind, size in kinds]
    return {"indptr": tables.starts_of(counts), **dict(zip(types, mapped))}
