"""Occurrences of entities: extraction links with their offsets, and further whole-word occurrences found by search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.text.mentions import MentionFinder

MAX_PASSAGES_OF_A_SEARCHED_NAME = 100  # theta of HiGraAgent: a name in more passages is not informative


@stage(
    "mentions",
    needs=("passages", "entities"),
    params=lambda settings, _: {"max_passages": MAX_PASSAGES_OF_A_SEARCHED_NAME},
    size="mentions",
)
def mentions_stage(work: Work) -> dict[str, int]:
    """Table `mentions`, sorted by (passage, start, entity). An extraction link that is not verbatim has offsets -1.
    Every written name is searched in every passage (whole words).

    Memory: that of `mention_blocks`.
    """
    folder = work.stage_folders["entities"]
    passages = tables.n_rows(work.stage_folders["passages"] / "passages.parquet")
    work.progress.start("mentions", passages, "passages")
    extracted = tables.read_table(folder / "extracted.parquet", tables.EXTRACTED)
    links = np.stack([extracted[name].to_numpy() for name in ("passage", "entity")], 1)
    n, n_not_verbatim = 0, 0
    with tables.TableWriter(work.out / "mentions.parquet", tables.MENTIONS) as writer:
        for columns in mention_blocks(work, folder / "entities.parquet", tables.ENTITIES, links, _in_passages, _often):
            writer.add(columns)
            n, n_not_verbatim = n + len(columns[0]), n_not_verbatim + int((columns[2] < 0).sum())
    return {"mentions": n, "mentions_not_verbatim": n_not_verbatim}


def _in_passages(occurrences: np.ndarray, named: np.ndarray) -> np.ndarray:
    """The entities of a block, once for each passage that names them."""
    return _distinct(occurrences[:, [0, 3]])[:, 1]


def _often(n_passages: np.ndarray) -> np.ndarray:
    return n_passages >= MAX_PASSAGES_OF_A_SEARCHED_NAME


def mention_blocks(
    work: Work,
    entities: Path,
    schema: pa.Schema,
    links: np.ndarray,
    counted: Callable[[np.ndarray, np.ndarray], np.ndarray],
    often: Callable[[np.ndarray], np.ndarray],
) -> Iterator[list[Any]]:
    """Columns of MENTIONS for each block of passages, sorted by (passage, start, entity, end).

    entities: a table with a name and aliases for each of N entities; schema: its columns. links: i32[L, 2], ascending,
    (passage, entity) where entities were extracted; an entity that is not found there gets offsets -1. counted: for a
    block, distinct (passage, start, end, entity) and the entity of each occurrence of a name (not of an alias), the
    entities to count. often: bool[N] from their numbers, True for entities that count only where they were extracted.

    Names are found first and labelled later, when all are counted. Memory: the table of names, 12 bytes an entity, 8
    bytes a link, and a block.
    """
    scratch, counts = work.partial / "occurrences", np.zeros(tables.n_rows(entities), np.int64)
    with storage_errors(scratch):
        work.partial.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            sizes: list[tuple[int, int]] = []  # per block: the number of passages up to its end, and its occurrences
            for last, occurrences, named in _occurrences(work, entities, schema):
                counts += np.bincount(counted(occurrences, named), minlength=len(counts))
                tables.write_raw(file, occurrences)
                sizes.append((last, len(occurrences)))
    is_often, done = often(counts), 0
    with scratch.open("rb") as file:
        for last, size in sizes:
            occurrences = np.fromfile(file, np.int32, 4 * size).reshape(-1, 4)
            n = int(np.searchsorted(links[:, 0], last))
            yield _block(occurrences, links[done:n], is_often)
            done = n
    scratch.unlink()


def _occurrences(work: Work, entities: Path, schema: pa.Schema) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Per block of passages: the number of passages up to its end, i32[T, 4], distinct (passage, start, end, entity),
    and the entity of each occurrence of a name."""
    owners: list[np.ndarray] = []
    finder = MentionFinder(_names(entities, schema, owners))
    entity_of = np.concatenate(owners) if owners else np.zeros(0, np.int32)
    path, first = work.stage_folders["passages"] / "passages.parquet", 0
    for batch in tables.read_batches(path, tables.PASSAGES, ("text",)):
        mentions = finder.find(batch["text"].to_pylist())
        owner = entity_of[mentions.name]
        entity = np.where(owner < 0, ~owner, owner)
        rows = np.stack([mentions.text + np.int32(first), mentions.start, mentions.end, entity], 1)
        first += batch.num_rows
        yield first, _distinct(rows), owner[owner >= 0]
        work.progress.advance(batch.num_rows)


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Rows in ascending order, each once."""
    rows = rows[np.lexsort(rows.T[::-1])]
    first = np.ones(len(rows), bool)
    first[1:] = (rows[1:] != rows[:-1]).any(1)
    return rows[first]


def _names(path: Path, schema: pa.Schema, owners: list[np.ndarray]) -> Iterator[str]:
    """Every written name of every entity; appends the row of its entity to `owners`, inverted (~row) for an alias."""
    first = 0
    for batch in tables.read_batches(path, schema, ("name", "aliases")):
        rows = np.arange(first, first + batch.num_rows, dtype=np.int32)
        owners += [rows, ~rows[pc.list_parent_indices(batch["aliases"]).to_numpy()]]
        yield from batch["name"].to_pylist()
        yield from pc.list_flatten(batch["aliases"]).to_pylist()
        first += batch.num_rows


def _block(occurrences: np.ndarray, links: np.ndarray, often: np.ndarray) -> list[Any]:
    n = len(often)
    key_of_link = links[:, 0].astype(np.int64) * n + links[:, 1]
    key = occurrences[:, 0].astype(np.int64) * n + occurrences[:, 3]
    is_extracted = np.isin(key, key_of_link)
    kept = is_extracted | ~often[occurrences[:, 3]]
    absent = links[~np.isin(key_of_link, key)]
    nowhere = np.full(len(absent), -1, np.int32)
    passage, start, end, entity = (
        np.concatenate([column, more])
        for column, more in zip(occurrences[kept].T, (absent[:, 0], nowhere, nowhere, absent[:, 1]))
    )
    order = np.lexsort((end, entity, start, passage))
    origin = np.concatenate([is_extracted[kept], np.ones(len(absent), bool)])[order]
    names = pa.array(["search", "extraction"]).take(pa.array(origin.astype(np.int8)))
    return [entity[order], passage[order], start[order], end[order], names]
