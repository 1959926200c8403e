"""Occurrences of entities: extraction links with their offsets, and further whole-word occurrences found by search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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

    Passages are read by block. Names are found first and labelled later, when the number of passages of each is known.
    Memory: the table of names, 12 bytes an entity, 8 bytes an extraction link, and a block.
    """
    folder, scratch = work.stage_folders["entities"], work.partial / "occurrences"
    n_passages = np.zeros(tables.n_rows(folder / "entities.parquet"), np.int32)  # passages per entity
    with storage_errors(scratch):
        work.partial.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            sizes: list[tuple[int, int]] = []  # per block: the number of passages up to its end, and its occurrences
            for last, occurrences in _occurrences(work, folder):
                pairs = _distinct(occurrences[:, [0, 3]])
                n_passages += np.bincount(pairs[:, 1], minlength=len(n_passages)).astype(np.int32)
                tables.write_raw(file, occurrences)
                sizes.append((last, len(occurrences)))
    n, n_not_verbatim = 0, 0
    often = n_passages >= MAX_PASSAGES_OF_A_SEARCHED_NAME
    with tables.TableWriter(work.out / "mentions.parquet", tables.MENTIONS) as writer:
        for columns in _labelled(scratch, sizes, folder, often):
            writer.add(columns)
            n, n_not_verbatim = n + len(columns[0]), n_not_verbatim + int((columns[2] < 0).sum())
    scratch.unlink()
    return {"mentions": n, "mentions_not_verbatim": n_not_verbatim}


def _occurrences(work: Work, folder: Path) -> Iterator[tuple[int, np.ndarray]]:
    """Per block of passages: the number of passages up to its end, and i32[T, 4], distinct (passage, start, end,
    entity)."""
    owners: list[np.ndarray] = []
    finder = MentionFinder(_names(folder / "entities.parquet", owners))
    entity_of = np.concatenate(owners) if owners else np.zeros(0, np.int32)
    path, first = work.stage_folders["passages"] / "passages.parquet", 0
    for batch in tables.read_batches(path, tables.PASSAGES, ("text",)):
        found = finder.find(batch["text"].to_pylist())
        rows = np.stack([found.text + np.int32(first), found.start, found.end, entity_of[found.name]], 1)
        first += batch.num_rows
        yield first, _distinct(rows)
        work.progress.advance(batch.num_rows)


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Rows in ascending order, each once."""
    rows = rows[np.lexsort(rows.T[::-1])]
    first = np.ones(len(rows), bool)
    first[1:] = (rows[1:] != rows[:-1]).any(1)
    return rows[first]


def _names(path: Path, owners: list[np.ndarray]) -> Iterator[str]:
    """Every written name of every entity; appends the rows of the entities to `owners`."""
    first = 0
    for batch in tables.read_batches(path, tables.ENTITIES, ("name", "aliases")):
        rows = np.arange(first, first + batch.num_rows, dtype=np.int32)
        owners += [rows, rows[pc.list_parent_indices(batch["aliases"]).to_numpy()]]
        yield from batch["name"].to_pylist()
        yield from pc.list_flatten(batch["aliases"]).to_pylist()
        first += batch.num_rows


def _labelled(
    scratch: Path, sizes: list[tuple[int, int]], folder: Path, often: np.ndarray
) -> Iterator[list[np.ndarray | pa.Array]]:
    """Columns of the mentions of each block. often: bool[entities]: True for entities that count only where
    extracted."""
    extracted = tables.read_table(folder / "extracted.parquet", tables.EXTRACTED)
    links = np.stack([extracted[name].to_numpy() for name in ("passage", "entity")], 1)
    done = 0
    with scratch.open("rb") as file:
        for last, size in sizes:
            occurrences = np.fromfile(file, np.int32, 4 * size).reshape(-1, 4)
            n = int(np.searchsorted(links[:, 0], last))
            yield _block(occurrences, links[done:n], often)
            done = n


def _block(occurrences: np.ndarray, links: np.ndarray, often: np.ndarray) -> list[np.ndarray | pa.Array]:
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
