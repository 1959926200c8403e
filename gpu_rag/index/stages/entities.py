"""Stage from extractions to entities and relations: one row per normalised name, one row per normalised triple."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.database import Database, database
from gpu_rag.index.names import changed, normalised
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
    counted as dropped. Memory: `index.memory`, for any number of names.
    """
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
        n_relations = _write_relations(work, db)
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
            firsts = run.starts[:-1]
            keys, spellings = run.rows["key"].take(pa.array(firsts)), run.rows["spelling"]
            is_alias = np.ones(len(spellings), bool)
            is_alias[firsts] = False
            offsets = pa.array(run.starts - np.arange(len(run.starts)), pa.int32())
            aliases = pa.ListArray.from_arrays(offsets, spellings.filter(pa.array(is_alias)))
            numbers = np.arange(n, n + len(firsts), dtype=np.int32)
            writer.add([keys, spellings.take(pa.array(firsts)), aliases, counts[numbers]])
            db.add("entities", pa.table([keys, pa.array(numbers)], names=["key", "entity"]))
            n += len(firsts)
    return n


def _write_extracted(work: Work, db: Database) -> None:
    with tables.TableWriter(work.out / "extracted.parquet", tables.EXTRACTED) as writer:
        for batch in db.batches("SELECT passage, entity FROM extracted ORDER BY passage, entity"):
            writer.add(batch.columns)


def _write_relations(work: Work, db: Database) -> int:
    n = 0
    with tables.TableWriter(work.out / "relations.parquet", tables.RELATIONS) as writer:
        for run in runs_of(db.batches(_RELATIONS), ("s", "label", "o")):
            firsts = pa.array(run.starts[:-1])
            subjects, labels, objects = (run.rows[name].take(firsts) for name in ("s", "label", "o"))
            passages = pa.ListArray.from_arrays(pa.array(run.starts, pa.int32()), run.rows["passage"])
            origins = pa.repeat("extraction", len(firsts))
            writer.add([subjects, labels, objects, passages, origins])
            n += len(firsts)
    return n
