"""Synonym links between similar names, and the graphs over entities and passages, each one CSR adjacency."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import xxhash

from gpu_rag.graph.common.arrays import to_host
from gpu_rag.graph.csr import degrees
from gpu_rag.graph.nearest.index import NearestRows
from gpu_rag.graph.nearest.pairs import EXACT_ROWS, close_pairs, sampled_recall
from gpu_rag.index import tables
from gpu_rag.index.database import database
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.index import GRAPH, PARTS
from gpu_rag.index.stage import Pairs, stage
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.index.work import Sources, Work
from gpu_rag.models.set import pick_device
from gpu_rag.settings import Settings
from gpu_rag.types import CSR

_log = logging.getLogger(__name__)
_DIGITS = re.compile(r"\d+")
_MIN_LETTERS = 3
_ROWS = 4096  # entities per search: bounds memory, does not change the result
CANDIDATES_COST = 20_000.0  # cost of a name's candidates in exact comparisons, measured at 100,000 names


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The threshold and the number of neighbours; also faiss if it finds them, because its scores may differ
    in a bit."""
    by = {"neighbours": "faiss"} if settings.graph.neighbours == "faiss" else {}
    return {"threshold": settings.index.synonym_threshold, "k": settings.index.synonym_k, **by}


def compared_with(n: float) -> float:
    """Number of comparisons per name for n names, for predictions; for candidates, their cost on a CPU in
    comparisons."""
    return n if n <= EXACT_ROWS else CANDIDATES_COST


@stage(
    "synonyms",
    needs=("entities", "entity_vectors"),
    params=_params,
    size="entities",
    pairs=Pairs("entities squared", lambda _, sizes: sizes["entities"] * compared_with(sizes["entities"])),
)
def synonyms_stage(work: Work) -> dict[str, int]:
    """Table `synonyms`: pairs (left < right) of entities whose names have a cosine of at least the threshold.

    Names of fewer than three letters, and names with different numbers (1941 and 1942 have close vectors), never pair.
    The search runs on the device of the models: scores are the same on every device. Above EXACT_ROWS names on a CPU,
    pairs are candidates from hashed projections, see `graph.nearest.pairs`; a sample measures the share of the exact
    pairs among them, and counts report it. Memory: that of `close_pairs`; vectors are mapped.
    """
    index = work.settings.index
    numbers, usable = _may_pair(work.stage_folders["entities"] / "entities.parquet")
    arrays = tables.read_arrays(work.stage_folders["entity_vectors"] / "vectors.safetensors")
    base = torch.from_numpy(arrays["vectors"]).to(pick_device(work.settings.models.device))
    work.progress.start("synonyms", len(numbers), "names")
    counts = {}
    if len(numbers) <= EXACT_ROWS or base.device.type != "cpu":
        pairs = _of_neighbours(work, base, numbers, usable)
    else:
        alone = np.arange(len(numbers), dtype=np.uint64)  # one group per name that never pairs
        groups, threshold = np.where(usable, numbers, alone), index.synonym_threshold
        close = close_pairs(base, groups, threshold)
        sampled, n_found = sampled_recall(base, groups, *close[:2], threshold)
        counts = {"synonyms_sampled": sampled, "synonyms_sampled_and_found": n_found}
        _log.info("synonyms by candidates: %d of %d exact pairs of a sample are among them", n_found, sampled)
        pairs = _nearest_of_each(*close, index.synonym_k)
        work.progress.advance(len(numbers))
    columns = dict(zip(("left", "right", "score"), pairs))
    return {"synonyms": tables.write_table(work.out / "synonyms.parquet", tables.SYNONYMS, columns), **counts}


RowPairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ascending pairs of rows i64[P], the first the lower one, and their scores f32[P]."""


def _may_pair(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """u64[n], equal for names with the same numbers in the same order, and bool[n]: whether a name has enough
    letters."""
    numbers, usable = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]
    for batch in tables.read_batches(path, tables.ENTITIES, ("id",)):
        names = batch["id"].to_pylist()
        digits = (" ".join(_DIGITS.findall(name)) for name in names)
        numbers.append(np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in digits), np.uint64, len(names)))
        letters = (sum(map(str.isalpha, name)) >= _MIN_LETTERS for name in names)
        usable.append(np.fromiter(letters, bool, len(names)))
    return np.concatenate(numbers), np.concatenate(usable)


def _of_neighbours(work: Work, base: torch.Tensor, numbers: np.ndarray, usable: np.ndarray) -> RowPairs:
    """Pairs of each row of `base` with its `synonym_k` nearest rows."""
    threshold, k = work.settings.index.synonym_threshold, min(work.settings.index.synonym_k + 1, len(numbers))
    nearest = NearestRows(base)
    lefts, rights, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for start in range(0, len(base), _ROWS):
        part = np.arange(start, min(start + _ROWS, len(base)))
        top = nearest.search(base[start : start + _ROWS].float(), k)
        ids, score = (array.numpy() for array in to_host(top.ids, top.scores))
        row, column = np.nonzero((score >= threshold) & (ids >= 0))
        a, b = part[row], ids[row, column].astype(np.int64)
        good = (a != b) & usable[a] & usable[b] & (numbers[a] == numbers[b])
        lefts.append(np.minimum(a, b)[good])
        rights.append(np.maximum(a, b)[good])
        scores.append(score[row, column][good])
        work.progress.advance(len(part))
    left, right, score = (np.concatenate(array) for array in (lefts, rights, scores))
    order = np.lexsort((np.negative(score), right, left))  # faiss scores of (a, b) and (b, a) may differ in a bit
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(left[order]) != 0) | (np.diff(right[order]) != 0)
    return left[order[first]], right[order[first]], score[order[first]]


def _nearest_of_each(left: np.ndarray, right: np.ndarray, score: np.ndarray, k: int) -> RowPairs:
    """Pairs of which one row is among the k best of the other, by (-score, row)."""
    row, other, pair = np.concatenate([left, right]), np.concatenate([right, left]), np.tile(np.arange(len(left)), 2)
    order = np.lexsort((other, -score[pair], row))
    starts = np.searchsorted(row[order], row[order])
    kept = np.unique(pair[order[np.arange(len(order)) - starts < k]])
    return left[kept], right[kept], score[kept]


_PAIRS = """CREATE TABLE pairs AS SELECT low, high, max(weight) + max(title) AS weight FROM (
    SELECT least(a, b) AS low, greatest(a, b) AS high, weight, 0::FLOAT AS title FROM edges
    UNION ALL SELECT node, passage + {first}, 0::FLOAT, {title_weight}::FLOAT FROM titles
    ) WHERE low <> high GROUP BY low, high"""
_BOTH = """CREATE VIEW entries AS
    SELECT low AS src, high AS dst, weight FROM pairs UNION ALL SELECT high, low, weight FROM pairs"""
_DEGREES = "SELECT src, count(*)::INTEGER AS degree FROM entries GROUP BY src ORDER BY src"
_ENTRIES = "SELECT dst, weight FROM entries ORDER BY src, dst"


_GRAPH = """SELECT subject AS a, object AS b, 1::FLOAT AS weight FROM relations
    UNION ALL SELECT "left", "right", score FROM synonyms
    UNION ALL SELECT entity, passage + {n_entities}, 1::FLOAT FROM mentions"""
_RELATIONS = """SELECT subject AS a, {n_entities} + file_row_number::INTEGER AS b, 1::FLOAT AS weight FROM relations
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
    edges, n = _GRAPH.format(n_entities=len(names)), len(names)
    arrays = walk_arrays(work, edges, n, names, relations="entities", synonyms="synonyms", mentions="mentions")
    n_nodes = len(arrays["degree"])
    ranges = np.asarray([0, n, n, n_nodes], np.int64)  # [entities | relations: none | passages]
    tables.write_arrays(work.out / GRAPH, {**arrays, "ranges": ranges})
    return {"nodes": n_nodes, "edges": len(arrays["indices"])}


@stage("relation_graph", needs=("passages", "entities", "mentions"), size="links", graph=True)
def relation_graph_stage(work: Work) -> dict[str, int]:
    """Undirected adjacency over [entities | relations | passages], and its parts without passages and weights.

    An edge of weight 1 joins a relation with its subject and its object, and either kind with each passage that
    mentions or states it. Titles add to it as in `graph_stage`. In `parts.safetensors`, indptr and indices are the
    adjacency of [entities | relations], offsets and values the passages of each of them. Memory: as `graph_stage`, and
    the parts.
    """
    folder = work.stage_folders["entities"]
    names = tables.read_table(folder / "entities.parquet", tables.ENTITIES, ["id"])["id"]
    first = len(names) + tables.n_rows(folder / "relations.parquet")
    edges = _RELATIONS.format(n_entities=len(names), first=first)
    arrays = walk_arrays(work, edges, first, names, relations="entities", mentions="mentions")
    tables.write_arrays(work.out / GRAPH, arrays)
    tables.write_arrays(work.out / PARTS, relation_parts(arrays, first))
    return {}


def relation_parts(walk: Mapping[str, np.ndarray], first: int) -> dict[str, np.ndarray]:
    """The arrays of `parts.safetensors` from those of the graph. first: the node of passage 0."""
    indptr, indices = chosen_entries(walk, first, lambda column, _: column < first)
    offsets, nodes = chosen_entries(walk, first, lambda column, weight: (column >= first) & (weight != TITLE_WEIGHT))
    return {"indptr": indptr, "indices": indices, "offsets": offsets, "values": nodes - np.int32(first)}


def walk_arrays(
    work: Work, edges: str, first: int, names: pa.Array | pa.ChunkedArray, rows: np.ndarray | None = None, **views: str
) -> dict[str, np.ndarray]:
    """{"indptr", "indices", "weight", "degree"} of a symmetric graph over [nodes | passages], with the edges of titles.

    edges: a query of the columns (a, b, weight); views: {table that it reads: its stage}. An edge that it gives several
    times has its greatest weight. first: the node of passage 0; names, rows: of the nodes that titles may name, as in
    `title_edges`.
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
        indices, weight = _spooled(work, db.batches(_ENTRIES), ("dst", "weight"))
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
