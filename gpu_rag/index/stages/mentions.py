"""Occurrences of entities: extraction links with their offsets, and further whole-word occurrences found by search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.checks import outside
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.names import inverse
from gpu_rag.index.stage import stage
from gpu_rag.index.tables import unchanged_rows
from gpu_rag.index.work import Work
from gpu_rag.text.mentions import MentionFinder, ascii_words

PASSAGES_FILE = "passages.parquet"
Counted = Callable[[np.ndarray, np.ndarray], np.ndarray]  # see `mention_blocks`
Searched = Callable[[pa.Array, np.ndarray], np.ndarray]  # (n names, entity of each): bool[n], the names to search
MAX_PASSAGES_OF_A_SEARCHED_NAME = 100  # theta of HiGraAgent: a name in more passages is not informative


@stage(
    "mentions",
    needs=("passages", "entities"),
    params=lambda settings, _: {"max_passages": MAX_PASSAGES_OF_A_SEARCHED_NAME},
    size="mentions",
)
def mentions_stage(work: Work) -> dict[str, int]:
    """Table `mentions`, sorted by (passage, start, entity). An extraction link that is not verbatim has offsets -1.
    Every written name is searched in every passage (whole words), unless an earlier run did.

    Memory: that of `mention_blocks`, or 64 bytes a mention where mentions of an earlier run stay.
    """
    folder = work.stage_folders["entities"]
    n_passages = tables.n_rows(work.stage_folders["passages"] / PASSAGES_FILE)
    work.progress.start("mentions", n_passages, "passages")
    extracted = tables.read_table(folder / "extracted.parquet", tables.EXTRACTED)
    links = np.stack([extracted[name].to_numpy() for name in ("passage", "entity")], 1)
    n, n_not_verbatim = 0, 0

    def frequent(counts: np.ndarray) -> np.ndarray:
        work.carry(counts)
        return _is_frequent(counts)

    blocks, args = None, (tables.ENTITIES, links, _once_a_passage, frequent)
    if work.previous and work.previous_inputs:
        path_before = work.previous_inputs["entities"] / "entities.parquet"
        limit = tables.n_rows(work.previous_inputs["passages"] / PASSAGES_FILE) + 1
        carried = work.carried(np.int64, tables.n_rows(path_before), range(limit))
        if carried is not None:
            earlier = Earlier(work.previous / "mentions.parquet", path_before, carried, _is_frequent(carried))
            blocks = updated_blocks(work, folder / "entities.parquet", *args, _is_frequent, earlier)
    if blocks is None:
        blocks = mention_blocks(work, folder / "entities.parquet", *args)
    with tables.TableWriter(work.out / "mentions.parquet", tables.MENTIONS) as writer:
        for columns in blocks:
            writer.add(columns)
            n, n_not_verbatim = n + len(columns[0]), n_not_verbatim + int((columns[2] < 0).sum())
    return {"mentions": n, "mentions_not_verbatim": n_not_verbatim}


def _once_a_passage(occurrences: np.ndarray, named: np.ndarray) -> np.ndarray:
    """The entity of each occurrence, once for each passage that names it."""
    return _distinct(occurrences[:, [0, 3]])[:, 1]


def _is_frequent(n_passages: np.ndarray) -> np.ndarray:
    """Entities that count only where they were extracted: bool[N], from the number of passages that name each."""
    return n_passages >= MAX_PASSAGES_OF_A_SEARCHED_NAME


def mention_blocks(
    work: Work,
    entities: Path,
    schema: pa.Schema,
    links: np.ndarray,
    counted: Counted,
    frequent: Callable[[np.ndarray], np.ndarray],
) -> Iterator[list[Any]]:
    """Columns of MENTIONS for each block of passages, sorted by (passage, start, entity, end).

    entities: a table with a name and aliases for each of N entities; schema: its columns. links: i32[L, 2], ascending,
    (passage, entity) where entities were extracted; an entity that is not found there gets offsets -1.
    counted(occurrences, named): the entities to count in a block, one item a count; occurrences: distinct (passage,
    start, end, entity); named: the entity of each occurrence of a name (not of an alias). frequent(counts): bool[N],
    True for entities that count only where they were extracted.

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
    is_frequent, done = frequent(counts), 0
    with scratch.open("rb") as file:
        for last, size in sizes:
            occurrences = np.fromfile(file, np.int32, 4 * size).reshape(-1, 4)
            n = int(np.searchsorted(links[:, 0], last))
            yield _block(occurrences, links[done:n], is_frequent)
            done = n
    scratch.unlink()


def _occurrences(work: Work, entities: Path, schema: pa.Schema) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Per block of passages: the number of passages up to its end, i32[T, 4], distinct (passage, start, end, entity),
    and the entity of each occurrence of a name."""
    names, first = _Names(entities, schema), 0
    for batch in tables.read_batches(work.stage_folders["passages"] / PASSAGES_FILE, tables.PASSAGES, ("text",)):
        rows, named = names.find(batch["text"], np.arange(first, first + batch.num_rows))
        first += batch.num_rows
        yield first, rows, named
        work.progress.advance(batch.num_rows)


class _Names:
    """The names and aliases of a table of entities, ready to be searched; searched: which of them, all if None."""

    def __init__(self, path: Path, schema: pa.Schema, searched: Searched | None = None):
        owners: list[np.ndarray] = []
        self._finder = MentionFinder(_written_names(path, schema, owners, searched))
        self._entity = np.concatenate(owners) if owners else np.zeros(0, np.int32)

    def find(self, texts: pa.Array, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """i32[T, 4], distinct (passage, start, end, entity), and the entity of each occurrence of a name."""
        mentions = self._finder.find(texts.to_pylist())
        owner = self._entity[mentions.name]
        entity = np.where(owner < 0, ~owner, owner)
        passage = passages.astype(np.int32)[mentions.text]
        return _distinct(np.stack([passage, mentions.start, mentions.end, entity], 1)), owner[owner >= 0]


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Rows in ascending order, each once."""
    rows = rows[np.lexsort(rows.T[::-1])]
    first = np.ones(len(rows), bool)
    first[1:] = (rows[1:] != rows[:-1]).any(1)
    return rows[first]


def _written_names(
    path: Path, schema: pa.Schema, owners: list[np.ndarray], searched: Searched | None = None
) -> Iterator[str]:
    """The names and aliases of every entity that are `searched`. Appends to `owners` the row of the entity
    of each, inverted (~row) for an alias."""
    first = 0
    for batch in tables.read_batches(path, schema, ("name", "aliases")):
        rows = np.arange(first, first + batch.num_rows, dtype=np.int32)
        owner = np.concatenate([rows, ~rows[pc.list_parent_indices(batch["aliases"]).to_numpy()]])
        names = pa.concat_arrays([batch["name"], pc.list_flatten(batch["aliases"])])
        if searched:
            mask = searched(names, np.where(owner < 0, ~owner, owner))
            names, owner = names.filter(pa.array(mask)), owner[mask]
        owners.append(owner)
        yield from names.to_pylist()
        first += batch.num_rows


def _block(occurrences: np.ndarray, links: np.ndarray, is_frequent: np.ndarray) -> list[Any]:
    """Columns of MENTIONS for a block of passages; arguments as in `mention_blocks`."""
    n = len(is_frequent)
    key_of_link = links[:, 0].astype(np.int64) * n + links[:, 1]
    key = occurrences[:, 0].astype(np.int64) * n + occurrences[:, 3]
    is_extracted = _is_in(key, key_of_link)
    kept = is_extracted | ~is_frequent[occurrences[:, 3]]
    absent = links[~_is_in(key_of_link, np.sort(key))]
    nowhere = np.full(len(absent), -1, np.int32)
    passage, start, end, entity = (
        np.concatenate([column, more])
        for column, more in zip(occurrences[kept].T, (absent[:, 0], nowhere, nowhere, absent[:, 1]))
    )
    places = (left.astype(np.int64) << 32 | right + 1 for left, right in ((entity, end), (passage, start)))
    order = np.lexsort((*places,))  # two keys take half the time of four
    origin = np.concatenate([is_extracted[kept], np.ones(len(absent), bool)])[order]
    names = pa.array(["search", "extraction"]).take(pa.array(origin.astype(np.int8)))
    return [entity[order], passage[order], start[order], end[order], names]


def _is_in(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Whether each value (>= 0) is in a sorted array; much faster than `np.isin`."""
    return np.append(ascending, -1)[np.searchsorted(ascending, values)] == values


# --- mentions of an earlier run ----------------------------------------------------------------------

_ROWS = 1 << 14  # passages of a block
_ASCII_RUN, _BETWEEN_RUNS, _NOT_ASCII = "[a-z0-9_]+", "[^a-z0-9_]+", r"[^\x00-\x7f]"
_FOLDS_TO_ASCII = "ßẞİ"  # characters that NFKC leaves as they are, and that fold to letters of ASCII
_MARKED = r"[a-z]\p{M}"  # such as J with a caron: NFKC leaves two characters, and folding makes them one
_MAX_PATTERNS = 10_000  # with more names to look for, all texts are searched
_TOGETHER = 128  # patterns of an expression: with 500, the automaton outgrows its memory and takes 15 times as long


@dataclass(frozen=True)
class Earlier:
    """Files of an earlier run: its mentions and entities; the count of each entity, i64[N], and whether it was
    frequent, bool[N]."""

    mentions: Path
    entities: Path
    counts: np.ndarray
    was_frequent: np.ndarray


def updated_blocks(
    work: Work,
    path: Path,
    schema: pa.Schema,
    links: np.ndarray,
    counted: Counted,
    frequent: Callable[[np.ndarray], np.ndarray],
    is_frequent: Callable[[np.ndarray], np.ndarray],
    earlier: Earlier,
) -> Iterator[list[Any]] | None:
    """The blocks of `mention_blocks`, from the mentions of an earlier run. None if its tables do not fit together.
    is_frequent: `frequent`, which is called once, without effects.

    New passages are searched for all names. Old passages are searched only for new names, and for names that were
    frequent and are no longer, or that are extracted from further passages.
    """
    before, passages = work.previous_inputs["passages"], work.stage_folders["passages"]
    n_before, names_before = tables.n_rows(before / PASSAGES_FILE), len(earlier.counts)
    columns = ("passage", "entity", "start", "end")
    table = tables.read_table(earlier.mentions, tables.MENTIONS, columns)
    rows, entities, start, end = (table[name].to_numpy() for name in columns)
    if outside(rows, n_before) or outside(entities, names_before):  # made by other code
        return None
    # earlier rows; -1: new
    passage = unchanged_rows(passages / PASSAGES_FILE, before / PASSAGES_FILE, tables.PASSAGES, ("id", "text"))
    entity = unchanged_rows(path, earlier.entities, schema, ("id", "name", "aliases"))
    n = len(entity)
    passage_now, entity_now = inverse(passage, n_before, np.int32), inverse(entity, names_before, np.int32)
    came, left = ((passages, passage < 0), (before, passage_now < 0))
    texts = (text for place in (came, left) for _, part in _texts(*place) for text in part.to_pylist())
    words = set(chain.from_iterable(ascii_words(texts)))
    names = _Names(path, schema, lambda names, _: _may_occur(names, words))
    (new, n_new), (_, n_gone) = (_found(names, _texts(*place), counted, n) for place in (came, left))
    counts = np.where(entity < 0, 0, np.append(earlier.counts, 0)[entity] - n_gone) + n_new

    kept = np.stack([passage_now[rows], start, end, entity_now[entities]], 1)
    kept = kept[(kept[:, 0] >= 0) & (kept[:, 3] >= 0)]
    was_frequent = np.append(earlier.was_frequent, False)[entity]
    linked = links[(passage[links[:, 0]] >= 0) & was_frequent[links[:, 1]]]
    is_searched = (entity < 0) | (was_frequent & ~is_frequent(counts))
    is_searched[linked[~_is_in(linked @ [n, 1], np.sort(kept[:, [0, 3]] @ [n, 1])), 1]] = True

    more, n_more = _found_again(path, schema, is_searched, came[0], ~came[1], counted)
    counts += np.where(entity < 0, n_more, 0)
    work.report.reused = int((passage >= 0).sum())
    work.progress.advance(len(passage))
    rows = np.concatenate([new, more, kept[(kept[:, 1] >= 0) & ~is_searched[kept[:, 3]]]])
    return _by_block(rows[np.argsort(rows[:, 0], kind="stable")], links, frequent(counts), len(passage))


def _found_again(
    path: Path, schema: pa.Schema, is_searched: np.ndarray, folder: Path, wanted: np.ndarray, counted: Counted
) -> tuple[np.ndarray, np.ndarray]:
    """`_found` for some entities, bool[N], in some passages, bool[n]."""

    def searched(_: pa.Array, entities: np.ndarray) -> np.ndarray:
        return is_searched[entities]

    names = _written_names(path, schema, [], searched)
    patterns = {rf"\b{_BETWEEN_RUNS.join(runs)}\b" if runs else _NOT_ASCII for runs in ascii_words(names)}
    texts = _texts(folder, wanted, patterns if len(patterns) <= _MAX_PATTERNS else None)
    return _found(_Names(path, schema, searched), texts, counted, len(is_searched))


def _texts(folder: Path, wanted: np.ndarray, patterns: set[str] | None = None) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """(rows, texts) of the `wanted` passages, bool[n], by block. patterns: the runs of ASCII in each folded name; a
    text without any of them is left out."""
    expressions, first = [*sorted(patterns or ()), *_FOLDS_TO_ASCII, _MARKED], 0
    for batch in tables.read_batches(folder / PASSAGES_FILE, tables.PASSAGES, ("text",)):
        rows = np.flatnonzero(wanted[first : first + batch.num_rows])
        texts = batch["text"].take(pa.array(rows))
        if patterns is not None and len(rows):
            others = pc.invert(pc.string_is_ascii(texts))
            folded = pc.replace_with_mask(texts, others, pc.utf8_normalize(texts.filter(others), "NFKC"))
            parts = (expressions[i : i + _TOGETHER] for i in range(0, len(expressions), _TOGETHER))
            mask = reduce(pc.or_, (pc.match_substring_regex(folded, f"(?i){'|'.join(part)}") for part in parts))
            rows, texts = rows[mask.to_numpy(zero_copy_only=False)], texts.filter(mask)
        yield first + rows, texts
        first += batch.num_rows


def _found(
    names: _Names, texts: Iterator[tuple[np.ndarray, pa.Array]], counted: Counted, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Occurrences in all blocks of `_texts`, distinct (passage, start, end, entity), i32[T, 4]; and the counts of n
    entities in them, i64[n]."""
    parts, counts = [np.zeros((0, 4), np.int32)], np.zeros(n, np.int64)
    for passages, part in texts:
        if len(passages):
            occurrences, named = names.find(part, passages)
            counts += np.bincount(counted(occurrences, named), minlength=n)
            parts.append(occurrences)
    return np.concatenate(parts), counts


def _may_occur(names: pa.Array, words: set[str]) -> np.ndarray:
    """Whether names are not ASCII, or their first and last word are among `words`: bool[n]."""
    known, lower = pa.array(sorted(words), pa.string()), pc.ascii_lower(names)
    ends = (f"(?P<word>{_ASCII_RUN})", f"(?P<word>{_ASCII_RUN})[^a-z0-9_]*$")
    first, last = (pc.is_in(pc.struct_field(pc.extract_regex(lower, end), "word"), value_set=known) for end in ends)
    return pc.or_(pc.and_(first, last), pc.invert(pc.string_is_ascii(names))).to_numpy(zero_copy_only=False)


def _by_block(occurrences: np.ndarray, links: np.ndarray, is_frequent: np.ndarray, n: int) -> Iterator[list[Any]]:
    """Columns of MENTIONS of n passages, by block; occurrences and links are sorted by passage."""
    for start in range(0, n, _ROWS):
        parts = (np.searchsorted(rows[:, 0], (start, start + _ROWS)) for rows in (occurrences, links))
        (first, last), (first_link, last_link) = parts
        yield _block(occurrences[first:last], links[first_link:last_link], is_frequent)
