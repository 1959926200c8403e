"""Stage from extractions to entities and relations: one row per normalised name, one row per normalised triple."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.checks import outside
from gpu_rag.index.database import Database, database
from gpu_rag.index.names import TextColumn, changed, normalised, one_array, rows_of
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work

MAX_NAME_CHARS = 300  # longer "names" are sentences that an extractor returned whole
_EVEN = r"^[!-~]+(?: [!-~]+)*$"  # names without white space but single spaces inside

_TABLES = (
    "CREATE TABLE names (passage INTEGER, key VARCHAR, spelling VARCHAR)",
    "CREATE TABLE triples (passage INTEGER, subject VARCHAR, label VARCHAR, object VARCHAR)",
    "CREATE TABLE entities (key VARCHAR, entity INTEGER)",
)
_SPELLINGS = "CREATE TABLE spellings AS SELECT key, spelling, count(*) AS n FROM names GROUP BY key, spelling"
_PLACES = "CREATE TABLE places AS SELECT DISTINCT key, passage FROM names"
_RANKED = "SELECT key, spelling FROM spellings ORDER BY key, n DESC, spelling"
_COUNTS = "SELECT count(*)::INTEGER FROM places GROUP BY key ORDER BY key"
_EXTRACTED = "CREATE TABLE extracted AS SELECT passage, entity FROM places JOIN entities USING (key)"
_STATED = "CREATE TABLE stated AS SELECT DISTINCT * FROM triples"
_SUBJECTS = """CREATE TABLE with_subjects AS SELECT stated.*, entity AS s FROM stated JOIN entities ON subject = key"""
_ENDS = (
    """CREATE TABLE with_ends AS SELECT with_subjects.*, entity AS o FROM with_subjects JOIN entities ON object = key"""
)
_RELATIONS = "SELECT s, label, o, passage FROM with_ends ORDER BY s, label, o, passage"


@stage("entities", needs=("extraction",), version=3, size="extracted")
def entities_stage(work: Work) -> dict[str, int]:
    """Tables `entities` (sorted by normalised name), `relations` (sorted by subject, label, object) and `extracted`,
    the entities of each passage (sorted by passage, entity).

    Names that are equal when normalised become one. Names that are empty after that, or longer than MAX_NAME_CHARS, are
    counted as dropped. Where an earlier run had most of the extractions, its tables are brought up to date in memory.
    Otherwise memory is `index.memory`, for any number of names.
    """
    counts = _updated(work) or _counted(work)
    work.carry(np.array([counts["dropped_names"]]))
    return counts


def _counted(work: Work) -> dict[str, int]:
    """Write the tables from all extractions; counts."""
    path, dropped = work.stage_folders["extraction"] / "extractions.parquet", 0
    work.progress.start("entities", tables.n_rows(path), "passages")
    with database(work) as db:
        db.run(*_TABLES)
        for batch in tables.read_batches(path, tables.EXTRACTIONS, ("passage", "entities", "triples")):
            names, triples, n_dropped = _normalised(batch)
            db.add("names", names)
            db.add("triples", triples)
            dropped += n_dropped
            work.progress.advance(batch.num_rows)
        db.run(_SPELLINGS, _PLACES, "DROP TABLE names")
        n_entities = _write_entities(work, db)
        db.run("DROP TABLE spellings", _EXTRACTED, "DROP TABLE places")
        _write_extracted(work, db)
        db.run("DROP TABLE extracted", _STATED, "DROP TABLE triples")
        db.run(_SUBJECTS, "DROP TABLE stated", _ENDS, "DROP TABLE with_subjects")
        n_relations = write_relations(work.out / "relations.parquet", db.batches(_RELATIONS))
    return {"entities": n_entities, "relations": n_relations, "dropped_names": dropped}


# --- names of a batch ------------------------------------------------------------------------------


def _normalised(batch: pa.RecordBatch) -> tuple[pa.Table, pa.Table, int]:
    """(passage, key, spelling) of each name in a batch of extractions, ends of triples included; (passage, subject,
    label, object) of each triple whose ends are names; and the number of dropped names."""
    passages = batch["passage"].to_numpy()
    entities, triples = batch["entities"], batch["triples"]
    of_names = passages[pc.list_parent_indices(entities).to_numpy()]
    of_triples = passages[pc.list_parent_indices(triples).to_numpy()]
    parts = pc.list_flatten(pc.list_flatten(triples))
    if len(parts) != 3 * len(of_triples):
        raise IndexCorrupt(
            "a triple of the extractions has not three parts", given=f"{len(parts)} parts", expected=3 * len(of_triples)
        )
    texts = pa.concat_arrays([pc.list_flatten(entities), parts])
    distinct = texts.dictionary_encode()
    keys = normalised(distinct.dictionary).cast(pa.string())
    is_spaced = pc.invert(pc.match_substring_regex(distinct.dictionary, _EVEN))
    spellings = changed(distinct.dictionary, distinct.dictionary, is_spaced, lambda name: " ".join(name.split()))
    lengths = pc.utf8_length(keys).to_numpy()
    is_name = (lengths > 0) & (lengths <= MAX_NAME_CHARS)
    codes = distinct.indices.to_numpy()
    n = len(of_names)
    subject, label, object_ = codes[n::3], codes[n + 1 :: 3], codes[n + 2 :: 3]
    code = np.concatenate([codes[:n], subject, object_])
    passage = np.concatenate([of_names, of_triples, of_triples])
    kept, whole = is_name[code], is_name[subject] & is_name[object_]
    columns = [pa.array(passage[kept]), keys.take(pa.array(code[kept])), spellings.take(pa.array(code[kept]))]
    names = pa.table(columns, names=["passage", "key", "spelling"])
    ends = [keys.take(pa.array(part[whole])) for part in (subject, label, object_)]
    stated = pa.table([pa.array(of_triples[whole]), *ends], names=["passage", "subject", "label", "object"])
    return names, stated, int((~kept).sum())


# --- sorted rows -> lists --------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Complete runs of rows with one key: their rows, and where each run begins, plus the end of the last."""

    rows: pa.RecordBatch
    starts: np.ndarray


def runs_of(batches: Iterator[pa.RecordBatch], key: tuple[str, ...]) -> Iterator[Runs]:
    """Sorted rows, cut between runs of equal `key`. Memory: a batch and the longest run."""
    rest: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if rest is None or not rest.num_rows else pa.concat_batches([rest, batch])
        starts = _starts(rows, key)
        last = int(starts[-1]) if len(starts) else 0
        if last:
            yield Runs(rows.slice(0, last), starts)
        rest = rows.slice(last)
    if rest is not None and rest.num_rows:
        yield Runs(rest, np.array([0, rest.num_rows]))


def _starts(rows: pa.RecordBatch, key: tuple[str, ...]) -> np.ndarray:
    """First row of each run of equal `key`."""
    n = rows.num_rows
    first = np.zeros(n, bool)
    first[:1] = True
    for name in key:
        differs = pc.not_equal(rows[name].slice(1), rows[name].slice(0, max(n - 1, 0)))
        first[1:] |= differs.to_numpy(zero_copy_only=False)
    return np.flatnonzero(first)


# --- writing ---------------------------------------------------------------------------------------


def _write_entities(work: Work, db: Database) -> int:
    """Write the entities and number the keys. The most frequent spelling is the name, ties by the alphabet; the others
    are aliases."""
    counts, n = db.column(_COUNTS), 0
    with tables.TableWriter(work.out / "entities.parquet", tables.ENTITIES) as writer:
        for run in runs_of(db.batches(_RANKED), ("key",)):
            columns = _spelled(run)
            numbers = np.arange(n, n + len(columns[0]), dtype=np.int32)
            writer.add([*columns, counts[numbers]])
            db.add("entities", pa.table([columns[0], pa.array(numbers)], names=["key", "entity"]))
            n += len(numbers)
    return n


def _spelled(run: Runs) -> list[pa.Array]:
    """(id, name, aliases) of each key. run: columns key and spelling, by key, the commonest spelling first."""
    firsts, spellings = run.starts[:-1], run.rows["spelling"]
    is_alias = np.ones(len(spellings), bool)
    is_alias[firsts] = False
    offsets = pa.array(run.starts - np.arange(len(run.starts)), pa.int32())
    aliases = pa.ListArray.from_arrays(offsets, spellings.filter(pa.array(is_alias)))
    return [run.rows["key"].take(pa.array(firsts)), spellings.take(pa.array(firsts)), aliases]


def _write_extracted(work: Work, db: Database) -> None:
    with tables.TableWriter(work.out / "extracted.parquet", tables.EXTRACTED) as writer:
        for batch in db.batches("SELECT passage, entity FROM extracted ORDER BY passage, entity"):
            writer.add(batch.columns)


def write_relations(path: Path, rows: Iterator[pa.RecordBatch], schema: pa.Schema = tables.RELATIONS) -> int:
    """Write extracted relations. Returns their number.

    rows: distinct (s, label, o, passage), sorted. schema: may have a confidence too, which is 1.
    """
    n, values = 0, ("extraction", 1.0)[: len(schema) - 4]
    with tables.TableWriter(path, schema) as writer:
        for run in runs_of(rows, ("s", "label", "o")):
            firsts = pa.array(run.starts[:-1])
            subjects, labels, objects = (run.rows[name].take(firsts) for name in ("s", "label", "o"))
            passages = pa.ListArray.from_arrays(pa.array(run.starts, pa.int32()), run.rows["passage"])
            writer.add([subjects, labels, objects, passages, *(pa.repeat(value, len(firsts)) for value in values)])
            n += len(firsts)
    return n


# --- tables of an earlier run ------------------------------------------------------------------------

_MAX_CHANGED = 0.2  # share of extractions that may differ; above, all names are counted


@dataclass(frozen=True)
class _Earlier:
    """The tables of an earlier run, with the extractions that it read (`old`) and those of this run (`now`).

    dropped: names that the earlier run dropped. passage, entity: columns of its table `extracted`; ends: its subjects
    and objects.
    """

    dropped: int
    old: pa.Table
    now: pa.Table
    entities: pa.Table
    relations: pa.Table
    passage: np.ndarray
    entity: np.ndarray
    ends: list[np.ndarray]

    @property
    def stated(self) -> pa.ListArray:
        """The passages of each relation."""
        return self.relations["passages"].chunk(0)


def _earlier(work: Work) -> _Earlier | None:
    """The tables of an earlier run; None if there are none, or if they do not fit together."""
    dropped, columns = work.carried(np.int64, 1), ["passage", "entities", "triples"]
    if not work.previous or not work.previous_inputs or dropped is None:
        return None
    folders = (work.previous_inputs["extraction"], work.stage_folders["extraction"])
    old, now = (tables.read_table(f / "extractions.parquet", tables.EXTRACTIONS, columns) for f in folders)
    entities = tables.read_table(work.previous / "entities.parquet", tables.ENTITIES)
    relations = tables.read_table(work.previous / "relations.parquet", tables.RELATIONS, [*_STATED_IN])
    extracted = tables.read_table(work.previous / "extracted.parquet", tables.EXTRACTED)
    if any(c.num_chunks != 1 for table in (old, now, entities, relations) for c in table.columns):
        return None  # more than 2 GiB of text
    passage, entity = (extracted[name].to_numpy() for name in ("passage", "entity"))
    ends = [relations[name].to_numpy() for name in ("subject", "object")]
    tables_before = _Earlier(int(dropped[0]), old, now, entities, relations, passage, entity, ends)
    passages = (passage, tables_before.stated.flatten().to_numpy())
    made_by_other_code = any(outside(rows, len(entities)) for rows in (entity, *ends))
    return None if made_by_other_code or any(outside(rows, len(old)) for rows in passages) else tables_before


def _updated(work: Work) -> dict[str, int] | None:
    """Write the tables of an earlier run brought up to date. None if there is none, if too many extractions differ, or
    if its tables do not fit together.

    A passage is known by its extraction, on which alone the tables depend. Names in extractions that came or left are
    counted again; all other entities and relations only get new numbers.
    """
    earlier = _earlier(work)
    if earlier is None:
        return None
    now, ids = earlier.now, one_array(earlier.entities["id"])
    passage_now = _kept_rows(earlier.old.select(_NAMED), now.select(_NAMED))
    is_new, is_gone = np.ones(len(now) + 1, bool), passage_now < 0
    is_new[passage_now[~is_gone]] = False
    if is_new[:-1].sum() + is_gone.sum() > _MAX_CHANGED * len(now):
        return None
    names, triples, n_dropped = _normalised(_chosen(now, is_new[:-1]))
    names_gone, _, n_gone = _normalised(_chosen(earlier.old, is_gone))
    keys = pc.unique(one_array(pa.chunked_array([*names["key"].chunks, *names_gone["key"].chunks])))
    is_counted = np.zeros(len(ids) + 1, bool)
    is_counted[rows_of(keys, ids)] = True  # new names have row -1
    also = np.zeros(len(now) + 1, bool)
    also[passage_now[earlier.passage[is_counted[earlier.entity]]]] = True
    others = _normalised(_chosen(now, (also & ~is_new)[:-1]))[0]
    recounted = pa.concat_tables([names, others.filter(pc.is_in(one_array(others["key"]), value_set=keys))])
    counted = pa.table(_spelled(_ranked(recounted)), names=["id", "name", "aliases"])
    counted_ids = one_array(counted["id"])
    order, number, number_counted = _renumbered(ids, is_counted[:-1], counted_ids)

    def numbers_of(column: pa.ChunkedArray) -> np.ndarray:
        """The number of the entity of each key that was counted."""
        return number_counted[rows_of(one_array(column), counted_ids)]

    stays, stated = passage_now[earlier.passage] >= 0, earlier.stated
    of_stated = pc.list_parent_indices(stated).to_numpy()[passage_now[stated.flatten().to_numpy()] >= 0]
    if any((number[rows] < 0).any() for rows in (earlier.entity[stays], *(rows[of_stated] for rows in earlier.ends))):
        return None
    before = passage_now[earlier.passage[stays]] << 32 | number[earlier.entity[stays]]
    added = names["passage"].to_numpy().astype(np.int64) << 32 | numbers_of(names["key"])
    pairs = np.sort(np.concatenate([before, added]))  # faster than np.unique, which hashes
    pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]
    _write_updated_entities(work, earlier.entities, counted, order, pairs)
    new = triples.group_by(triples.column_names).aggregate([])
    new_ends = [numbers_of(new[name]) for name in ("subject", "object")]
    old_ends = [number[rows] for rows in earlier.ends]
    n_relations = _write_updated_relations(work, earlier.relations, old_ends, passage_now, new, new_ends)
    work.report.reused = int((~is_gone).sum())
    work.progress.advance(len(now))
    n_dropped += earlier.dropped - n_gone
    return {"entities": len(order), "relations": n_relations, "dropped_names": n_dropped}


def _renumbered(
    ids: pa.StringArray, is_counted: np.ndarray, counted_ids: pa.StringArray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(order, number, number_counted) of the entities that stay, and of those that were counted again.

    order: the new entities as rows of [earlier entities | counted entities]; number: i64[n + 1], the number of each
    earlier entity, and -1 for one that is gone and at the end; number_counted: the number of each counted entity.
    """
    stay, n_counted = np.flatnonzero(~is_counted), len(counted_ids)
    kept: TextColumn[str] = TextColumn(pa.chunked_array([ids.take(pa.array(stay))]))
    places = [bisect_left(kept, key) for key in counted_ids.to_pylist()]
    order = np.insert(stay, places, len(ids) + np.arange(n_counted))
    place = np.full(len(ids) + n_counted + 1, -1)
    place[order] = np.arange(len(order))
    number, number_counted = place[: len(ids) + 1].copy(), place[len(ids) : -1]
    number[rows_of(counted_ids, ids)] = number_counted  # new names have row -1
    return order, number, number_counted


def _write_updated_entities(
    work: Work, entities: pa.Table, counted: pa.Table, order: np.ndarray, pairs: np.ndarray
) -> None:
    """Write the tables of entities and of extracted names. order: see `_renumbered`; pairs: passage << 32 | entity."""
    of_pairs = pairs & 0xFFFFFFFF
    tables.write_columns(work.out / "extracted.parquet", tables.EXTRACTED, [pairs >> 32, of_pairs])
    table = pa.concat_tables([entities.select(counted.column_names), counted.cast(_SPELLED)]).combine_chunks()
    rows = table.take(pa.array(order))
    counts = pa.array(np.bincount(of_pairs, minlength=len(order)), pa.int32())
    columns = [*(column.combine_chunks() for column in rows.columns), counts]
    tables.write_columns(work.out / "entities.parquet", tables.ENTITIES, columns)


_STATED_IN = ("subject", "label", "object", "passages")
_SPELLED = pa.schema([tables.ENTITIES.field(name) for name in ("id", "name", "aliases")])


def _chosen(extractions: pa.Table, mask: np.ndarray) -> pa.RecordBatch:
    """The rows of a table in memory where a mask is True, as one batch."""
    rows = extractions.take(pa.array(np.flatnonzero(mask)))
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)


def _ranked(names: pa.Table) -> Runs:
    """The spellings of each key, as `_RANKED` orders them."""
    spellings = names.group_by(["key", "spelling"]).aggregate([([], "count_all")])
    order = [("key", "ascending"), ("count_all", "descending"), ("spelling", "ascending")]
    ranked = spellings.sort_by(order).select(["key", "spelling"])
    rows = pa.RecordBatch.from_arrays([column.combine_chunks() for column in ranked.columns], schema=ranked.schema)
    return Runs(rows, np.append(_starts(rows, ("key",)), rows.num_rows))


def _write_updated_relations(
    work: Work,
    relations: pa.Table,
    ends: list[np.ndarray],
    passage_now: np.ndarray,
    new: pa.Table,
    new_ends: list[np.ndarray],
) -> int:
    """Write the relations of an earlier run and new statements. ends, new_ends: numbers of subjects and objects;
    passage_now: the row of each earlier passage, -1 if it left."""
    stated = relations["passages"].chunk(0)
    rows = np.append(pc.list_parent_indices(stated).to_numpy(), len(relations) + np.arange(len(new)))
    passages = np.append(passage_now[stated.flatten().to_numpy()], new["passage"].to_numpy())
    rows, passages = rows[passages >= 0], passages[passages >= 0]
    labels = one_array(pa.chunked_array([*relations["label"].chunks, *new["label"].cast(pa.string()).chunks]))
    encoded = labels.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank))
    label = rank[encoded.indices.to_numpy()]
    subject, object_ = (np.append(*both) for both in zip(ends, new_ends))
    stated_by, about = object_[rows] << 32 | passages, subject[rows] << 32 | label[rows]
    order = np.lexsort((stated_by, about))  # two keys take half the time of four
    rows, passages = rows[order], passages[order]
    key = np.stack([about[order], object_[rows]])
    starts = np.flatnonzero(np.append(True, (key[:, 1:] != key[:, :-1]).any(0))[: len(rows)])
    firsts = rows[starts]
    lists = pa.ListArray.from_arrays(pa.array(np.append(starts, len(rows)), pa.int32()), pa.array(passages, pa.int32()))
    columns = [subject[firsts], labels.take(pa.array(firsts)), object_[firsts], lists]
    origins = pa.repeat("extraction", len(firsts))
    return tables.write_columns(work.out / "relations.parquet", tables.RELATIONS, [*columns, origins])


_NAMED = ["entities", "triples"]


def _row_hashes(extractions: pa.Table) -> np.ndarray:
    """A hash of the names and triples of each row for `_same_rows`, i64[n]. Python's hash has a secret key, so that
    nobody can prepare two rows with one hash."""
    both = zip(*(_bytes_of_lists(column.combine_chunks()) for column in extractions.columns))
    return np.fromiter(map(hash, both), np.int64, len(extractions))


def _bytes_of_lists(column: pa.ListArray) -> Iterator[tuple[bytes, bytes]]:
    """The texts of each list, joined, and their lengths. column: lists of texts, or of lists of three texts."""
    bounds, values = column.offsets.to_numpy(), column.values
    while pa.types.is_list(values.type):
        bounds, values = values.offsets.to_numpy()[bounds], values.values
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    text, lengths = memoryview(data or b""), memoryview(np.diff(ends).tobytes())
    for (a, b), (first, last) in zip(pairwise(bounds.tolist()), pairwise(ends[bounds].tolist())):
        yield bytes(text[first:last]), bytes(lengths[4 * a : 4 * b])


def _kept_rows(before: pa.Table, now: pa.Table) -> np.ndarray:
    """i64[M]: for each of M earlier rows an equal row, each at most once; -1 if there is none left. Rows before the
    first difference, and behind the last one, are not hashed."""
    least = min(len(before), len(now))
    first = _n_same(least, lambda start, stop: (t.slice(start, stop - start) for t in (before, now)))
    last = _n_same(least - first, lambda start, stop: (t.slice(len(t) - stop, stop - start) for t in (before, now)))
    hashes = (_row_hashes(table.slice(first, len(table) - first - last)) for table in (before, now))
    between = _same_rows(*hashes)
    between[between >= 0] += first
    return np.concatenate([np.arange(first), between, np.arange(len(now) - last, len(now))])


def _n_same(most: int, both: Callable[[int, int], Iterable[pa.Table]]) -> int:
    """The number of rows, at most `most`, up to which two tables are equal. both(start, stop): rows of the two."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        before, now = both(low, middle)
        low, high = (middle, high) if before.equals(now) else (low, middle - 1)
    return low


def _same_rows(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """`_kept_rows` from a hash of each row."""
    keys = []
    for hashes in (before, now):
        order = np.argsort(hashes, kind="stable")
        ascending = hashes[order]
        copies = np.empty(len(hashes), np.uint64)
        copies[order] = np.arange(len(hashes)) - np.searchsorted(ascending, ascending)
        keys.append(hashes.view(np.uint64) + copies * np.uint64(0x9E3779B97F4A7C15))
    _, rows_before, rows = np.intersect1d(keys[0], keys[1], return_indices=True)
    same = np.full(len(before), -1)
    same[rows_before] = rows
    return same
