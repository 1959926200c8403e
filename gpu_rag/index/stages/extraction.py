"""Stage from passages to entities and triples, by one of three extractors: patterns, an LLM, or ready results."""

from __future__ import annotations

import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import Meta, Struct

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.index import tables
from gpu_rag.index.database import Database, database
from gpu_rag.index.names import HashedRows, one_array, rows_of
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.coreference import coreference_params, resolved
from gpu_rag.index.stages.passages import are_english, are_of_nodes, content_hash
from gpu_rag.index.stages.rejected import Rejects
from gpu_rag.index.stages.requests import decided
from gpu_rag.index.work import Sources, Work
from gpu_rag.index.workers import Shared
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.openie import OpenIERow, read_openie
from gpu_rag.text.rules.extraction import extract_patterns
from gpu_rag.text.rules.extraction.relations import ALSO_CALLED
from gpu_rag.text.structs import schema_of
from gpu_rag.types import Extraction, Profile, Reject

Row = tuple[Extraction, str]  # the extraction of a passage, and its status
_NOTHING = Extraction((), ())
EXTRACTED = pa.schema(  # columns of a batch, one row per passage; profiles: of entities with more than a name
    [
        *(tables.EXTRACTIONS.field(name) for name in ("entities", "triples", "status")),
        ("profiles", pa.list_(pa.struct(list(tables.PROFILES)[1:]))),
    ]
)

# Small models may repeat a fact or a name until they are stopped. These bounds end such a reply as valid JSON within
# `index.extract_tokens`, so that its earlier content is kept.
_MOST = 30
Name = Annotated[str, Meta(max_length=200)]


class Named(Struct, frozen=True):
    """An entity that a passage names."""

    name: Name
    aliases: Annotated[tuple[Name, ...], Meta(max_length=8)]
    types: Annotated[tuple[Annotated[str, Meta(max_length=60)], ...], Meta(max_length=4)]
    description: Annotated[str, Meta(max_length=300)]


class Extracted(Struct, frozen=True):
    """Entities and (subject, relation, object) triples of a passage."""

    entities: Annotated[tuple[Named, ...], Meta(max_length=_MOST)]
    triples: Annotated[
        tuple[Annotated[tuple[Name, ...], Meta(min_length=3, max_length=3)], ...], Meta(max_length=_MOST)
    ]


def extract_batch(passages: pa.RecordBatch) -> pa.RecordBatch:
    """Rule for open information extraction in English, without a model. Returns a row for each passage, as EXTRACTED.

    passages: with the columns `title` and `text`. "X, also called Y" makes Y an alias of X.
    """
    pairs = zip(passages["title"].to_pylist(), passages["text"].to_pylist())
    return _batch([_with_aliases(extract_patterns(title, text)) for title, text in pairs])


def _with_aliases(extraction: Extraction) -> Row:
    """An extraction by patterns, with profiles that hold the aliases in its triples; and its status."""
    aliases: dict[str, list[str]] = {}
    for subject, label, name in extraction.triples:
        if label == ALSO_CALLED:
            aliases.setdefault(subject, []).append(name)
    profiles = tuple(Profile(name, tuple(also)) for name, also in aliases.items())
    return replace(extraction, profiles=profiles), _status(extraction)


EXTRACT: Ask[Extracted] = Ask(
    "extraction", Extracted, rule=extract_batch, prompt="gpu_rag.index.stages.prompts:extract"
)


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The extractor, and everything but the passages that its result depends on."""
    extractor = settings.index.extractor
    params: dict[str, Any] = {"extractor": extractor, **coreference_params(settings)}
    if not settings.index.extract_nodes and sources.of_kind("skb"):
        params["extract_nodes"] = False
    if extractor == "import":
        if not sources.openie:
            what, do = "extractor import needs results to import", "or name another: --set index.extractor=patterns"
            raise UsageError(what, given="none", expected="--openie FILE, as when the index was made", do=do)
        params["openie"] = content_hash(sources.openie)
    if extractor == "llm":
        prompt = read_prompt("gpu_rag.index.stages.prompts:extract")
        params["prompt"] = [prompt.system, prompt.render(title="", text="")]
        params["schema"], params["max_tokens"] = schema_of(Extracted), settings.index.extract_tokens
    return params


@stage(
    "extraction",
    needs=("passages",),
    version=5,
    retry=("extraction_failed", "coref_failed"),
    params=_params,
    roles=lambda settings: ("llm",) if "llm" in (settings.index.extractor, settings.index.coref) else (),
    size="extracted",
)
def extraction_stage(work: Work) -> dict[str, int]:
    """Table `extractions`, one row per passage, with a status: ok, empty, truncated, malformed, failed, absent, or
    skipped (the text of a node of a knowledge base, if `index.extract_nodes` is false; another language than English,
    for which there are no patterns).

    Table `profiles`: aliases, types and descriptions of the entities, if known.
    Raises GpuRagError when an LLM's yield is below `index.min_yield`.
    """
    passages = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES)
    n_passages, folder = passages.num_rows, work.stage_folders["passages"]
    wanted = np.ones(n_passages, bool)
    if not work.settings.index.extract_nodes:
        wanted = ~are_of_nodes(folder, passages["doc_id"])
    if work.settings.index.extractor == "patterns":
        wanted &= are_english(folder, passages["doc_id"])
    chosen = np.flatnonzero(wanted)
    if len(chosen) < n_passages:
        passages = passages.take(pa.array(chosen))
    passages, coref = resolved(work, passages)
    work.progress.start("extraction", passages.num_rows, "passages")
    extractor = {"patterns": by_patterns, "llm": by_llm, "import": by_import}[work.settings.index.extractor]
    statuses = _write(work, _with_skipped(extractor(work, passages), chosen, n_passages))
    counts = {**coref, **{f"extraction_{status}": n for status, n in sorted(statuses.items())}}
    if work.settings.index.extractor == "import":
        counts = {"rejects": (work.out / "rejects.jsonl").read_bytes().count(b"\n"), **counts}
    return counts


def _with_skipped(batches: Iterable[pa.RecordBatch], chosen: np.ndarray, n: int) -> Iterator[pa.RecordBatch]:
    """Batches with one row for each of n passages. batches: rows of the passages `chosen`, which ascend; the other
    passages are skipped."""
    skipped = _batch([(_NOTHING, "skipped")])
    begin = n_used = 0
    for batch in chain(batches, (None,)):  # None: the passages after the last chosen one
        rows = chosen[n_used : n_used + (0 if batch is None else len(batch))]
        end = n if batch is None else int(rows[-1]) + 1
        if batch is None:
            batch = skipped.slice(0, 0)
        order = np.full(end - begin, len(batch))
        order[rows - begin] = np.arange(len(batch))
        if len(order) == len(batch) > 0:
            yield batch
        elif len(order):
            yield pa.concat_batches([batch, skipped]).take(pa.array(order))
        begin, n_used = end, n_used + len(rows)


def _write(work: Work, batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    """Write both tables. Returns the number of passages per status."""
    statuses: Counter[str] = Counter()
    n = 0
    with (
        tables.TableWriter(work.out / "extractions.parquet", tables.EXTRACTIONS) as extractions,
        tables.TableWriter(work.out / "profiles.parquet", tables.PROFILES) as profiles,
    ):
        for batch in batches:
            passage = pa.array(np.arange(n, n + len(batch)), pa.int32())
            extractions.add([passage, batch["entities"], batch["triples"], batch["status"]])
            fields = batch["profiles"].flatten().flatten()
            profiles.add([passage.take(pc.list_parent_indices(batch["profiles"])), *fields])
            statuses.update({row["values"]: row["counts"] for row in batch["status"].value_counts().to_pylist()})
            n += len(batch)
    return statuses


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """A batch of these rows, as EXTRACTED."""
    columns = [
        [extraction.entities for extraction, _ in rows],
        [extraction.triples for extraction, _ in rows],
        [status for _, status in rows],
        [[vars(p) for p in e.profiles if p.aliases or p.types or p.description] for e, _ in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, EXTRACTED)]
    return pa.RecordBatch.from_arrays(arrays, schema=EXTRACTED)


def _batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    rows = iter(rows)
    while part := list(islice(rows, tables.ROWS_A_GROUP)):
        yield _batch(part)


def _status(extraction: Extraction) -> str:
    return "ok" if extraction.entities else "empty"


def by_patterns(work: Work, passages: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches of extractions by the rule, as EXTRACTED. A passage whose title and text an earlier run had keeps its
    extraction."""
    with Shared(extract_batch, work.settings, work) as extract:
        yield from _spliced(work, passages, extract, *_earlier(work, passages, _same_texts))


def _spliced(
    work: Work, passages: pa.Table, extract: Callable[[pa.RecordBatch], pa.RecordBatch], earlier: pa.Table, known: Any
) -> Iterator[pa.RecordBatch]:
    """Batches as EXTRACTED: the rows `known` of earlier extractions, i64[n], where that is -1 those of `extract`."""
    for batch in passages.to_batches(max_chunksize=work.settings.index.block):
        rows, known = known[: len(batch)], known[len(batch) :]
        is_new = rows < 0
        new = extract(batch.take(pa.array(np.flatnonzero(is_new))))
        order = np.empty(len(rows), np.int64)
        order[is_new], order[~is_new] = np.arange(len(new)), len(new) + np.arange(len(rows) - len(new))
        kept = earlier.take(pa.array(rows[~is_new]))
        rows_of_both = pa.concat_tables([pa.Table.from_batches([new]), kept]).combine_chunks()
        yield from rows_of_both.take(pa.array(order)).to_batches()
        work.report.reused += len(kept)
        work.progress.advance(len(batch))


def _earlier(
    work: Work, passages: pa.Table, same: Callable[[pa.Table, pa.Table], np.ndarray]
) -> tuple[pa.Table, np.ndarray]:
    """(earlier extractions as EXTRACTED, i64[n]: the row of each passage among them by `same`, -1 if it is new). A
    passage that was skipped in the earlier run counts as new, and so do all if the extractions have more than 2 GiB of
    text, which Arrow does not join."""
    none = EXTRACTED.empty_table(), np.full(passages.num_rows, -1)
    if not work.previous or not work.previous_inputs or work.settings.index.coref != "none":
        return none
    before = tables.read_table(work.previous_inputs["passages"] / "passages.parquet", tables.PASSAGES)
    rows = same(passages, before)
    table = tables.read_table(work.previous / "extractions.parquet", tables.EXTRACTIONS).drop_columns(["passage"])
    profiles = tables.read_table(work.previous / "profiles.parquet", tables.PROFILES)
    if any(column.num_chunks > 1 for column in (*table.columns, *profiles.columns)):
        return none
    fields = list(EXTRACTED.field("profiles").type.value_type)
    ends = np.searchsorted(profiles["passage"].to_numpy(), np.arange(len(table) + 1)).astype(np.int32)
    structs = pa.StructArray.from_arrays([profiles[field.name].combine_chunks() for field in fields], fields=fields)
    table = table.append_column("profiles", pa.ListArray.from_arrays(pa.array(ends), structs)).cast(EXTRACTED)
    skipped = np.append(pc.equal(table["status"], "skipped").to_numpy(), True)
    return table, np.where(skipped[rows], -1, rows)


def _same_texts(passages: pa.Table, before: pa.Table) -> np.ndarray:
    """The row of each passage among earlier ones, by its title and text; -1 if it is new."""
    return rows_of(_titled(passages), _titled(before))


def _titled(passages: pa.Table) -> pa.LargeStringArray:
    """Title and text of each passage as one text, which is different for different pairs."""
    lengths = pc.utf8_length(passages["title"]).cast(pa.large_string())
    title, text = one_array(passages["title"]), one_array(passages["text"])
    return pc.binary_join_element_wise(one_array(lengths), title, text, pa.scalar(" ", pa.large_string()))


# --- ready results ---------------------------------------------------------------------------------


def by_import(work: Work, passages: pa.Table) -> Iterator[pa.RecordBatch]:
    """Ready OpenIE results, matched by passage id or document id. Rows that match nothing become rejects.

    In a document of several passages, each name and triple goes to the passages that hold it verbatim, else to the
    first. The files are not read again where no row names a passage that came or left since an earlier run.
    """
    earlier, known = _earlier(work, passages, _same_parts)
    if _are_imported(work, passages, known):
        yield from _spliced(work, passages, lambda new: _batch([(_NOTHING, "absent")] * len(new)), earlier, known)
        return
    n, carried = 0, array("q")
    with database(work) as db:
        db.create("imported", _IMPORTED)
        with Rejects(work, work.sources.openie) as rejects:
            matched = _matched(work, passages, rejects, carried)
            while part := list(islice(matched, tables.ROWS_A_GROUP)):
                numbered = [(row, seq, e.entities, e.triples) for seq, (row, e) in enumerate(part, n)]
                columns = [pa.array(column, field.type) for column, field in zip(zip(*numbered), _IMPORTED)]
                db.add("imported", pa.table(columns, _IMPORTED))
                n += len(part)
        work.carry(np.array(carried))
        yield from _batches(_in_order(db, passages.num_rows))


_IMPORTED = pa.schema(
    [("passage", pa.int32()), ("seq", pa.int64()), *map(tables.EXTRACTIONS.field, ("entities", "triples"))]
)


def _hash_of(id: str) -> int:
    """Hash of an id, below 2^63."""
    return xxhash.xxh3_64_intdigest(id.encode("utf-8", "surrogatepass")) >> 1


def _same_parts(passages: pa.Table, before: pa.Table) -> np.ndarray:
    """The row of each passage among earlier ones, by its ids, and by its title and text too if it is a part of its
    document; -1 if it is new."""
    rows = rows_of(one_array(passages["id"]), one_array(before["id"]))
    places = pa.array(rows, mask=rows < 0)

    def are_same(name: str) -> pa.Array:
        return pc.fill_null(pc.equal(passages[name], before[name].take(places)), False)

    is_same, are_parts = are_same("doc_id"), pc.not_equal(passages["id"], passages["doc_id"])
    if pc.any(are_parts).as_py():
        is_same = pc.and_(is_same, pc.or_(pc.invert(are_parts), pc.and_(are_same("title"), are_same("text"))))
    return np.where(is_same.to_numpy(), rows, -1)


def _are_imported(work: Work, passages: pa.Table, known: np.ndarray) -> bool:
    """Whether no ready row names a passage or document that came or left since an earlier import, whose passages
    `known` stay. If so, its rejects are copied. The array carried has the hash of each row's id."""
    rows = work.carried(np.int64, values=range(1 << 63))
    if not work.previous or not work.previous_inputs or rows is None or work.sources.strict:
        return False
    columns = ["id", "doc_id"]
    before = tables.read_table(work.previous_inputs["passages"] / "passages.parquet", tables.PASSAGES, columns)
    is_gone = np.ones(len(before), bool)
    is_gone[known[known >= 0]] = False
    changed = pa.concat_tables([passages.select(columns).filter(pa.array(known < 0)), before.filter(pa.array(is_gone))])
    ids = [_hash_of(id) for name in columns for id in changed[name].to_pylist()]
    if np.isin(rows, np.array(ids, np.int64)).any():
        return False
    shutil.copyfile(work.previous / "rejects.jsonl", work.out / "rejects.jsonl")
    work.carry(rows)
    return True


def _matched(work: Work, passages: pa.Table, rejects: Rejects, carried: array[int]) -> Iterator[tuple[int, Extraction]]:
    """(passage, its part) of each ready row, in the order of the files. carried: gets the hash of each row's id."""
    among = "" if work.settings.index.extract_nodes else ", texts of nodes left out (index.extract_nodes is false)"
    ids, doc_ids = one_array(passages["id"]), one_array(passages["doc_id"])
    is_part = pc.not_equal(ids, doc_ids).to_numpy(zero_copy_only=False)
    sorted_ = pa.table({"id": doc_ids, "start": passages["start"], "row": np.arange(len(ids))})
    sorted_ = sorted_.sort_by([("id", "ascending"), ("start", "ascending"), ("row", "ascending")])
    documents, sizes = sorted_["id"].combine_chunks().value_counts().flatten()  # in order of first use
    ends, order = np.cumsum(np.append(0, sizes.to_numpy())), sorted_["row"].to_numpy()
    rows_of_id, rows_of_document = HashedRows(ids), HashedRows(documents)
    for path in work.sources.openie:
        items = iter(read_openie(path))
        while block := list(islice(items, tables.ROWS_A_GROUP)):
            wanted = pa.array([item.id if isinstance(item, OpenIERow) else "" for item in block], pa.large_string())
            for item, row, doc in zip(block, rows_of_id.of(wanted).tolist(), rows_of_document.of(wanted).tolist()):
                rows = order[ends[doc] : ends[doc + 1]].tolist() if doc >= 0 else []
                if row >= 0 and is_part[row]:
                    rows = [row]
                if isinstance(item, Reject):
                    rejects.add(item)
                    continue
                carried.append(_hash_of(item.id))
                if rows:
                    yield from _distribute(item, rows, passages)
                    work.progress.advance(1)
                else:
                    rejects.add(Reject(str(path), 0, f"openie: no passage has this id{among}", item.id))


def _in_order(db: Database, n: int) -> Iterator[Row]:
    """The imported rows of n passages; parts of one passage are joined in the order of the files."""
    next_row = 0
    rows = (row for batch in db.batches("SELECT * FROM imported ORDER BY passage, seq") for row in batch.to_pylist())
    for passage, parts in groupby(rows, itemgetter("passage")):
        yield from repeat((_NOTHING, "absent"), passage - next_row)
        extraction = reduce(_joined, (Extraction(tuple(p["entities"]), tuple(map(tuple, p["triples"]))) for p in parts))
        yield extraction, _status(extraction)
        next_row = passage + 1
    yield from repeat((_NOTHING, "absent"), n - next_row)


def _distribute(item: OpenIERow, rows: list[int], passages: pa.Table) -> Iterator[tuple[int, Extraction]]:
    if len(rows) == 1:
        yield rows[0], Extraction(tuple(item.entities), tuple(item.triples))
        return
    some = passages.select(["title", "text"]).take(rows).to_pylist()
    texts = {row: f"{part['title']}\n{part['text']}" for row, part in zip(rows, some)}
    entities: dict[int, list[str]] = {row: [] for row in rows}
    triples: dict[int, list[tuple[str, str, str]]] = {row: [] for row in rows}
    for name in item.entities:
        for row in [row for row in rows if name in texts[row]] or rows[:1]:
            entities[row].append(name)
    for triple in item.triples:
        for row in [row for row in rows if triple[0] in texts[row] and triple[2] in texts[row]] or rows[:1]:
            triples[row].append(triple)
    for row in rows:
        yield row, Extraction(tuple(entities[row]), tuple(triples[row]))


def _joined(old: Extraction, new: Extraction) -> Extraction:
    return Extraction(
        tuple(dict.fromkeys(old.entities + new.entities)), tuple(dict.fromkeys(old.triples + new.triples))
    )


# --- by an LLM -------------------------------------------------------------------------------------


def by_llm(work: Work, passages: pa.Table) -> Iterator[pa.RecordBatch]:
    """Extraction by one schema-constrained request per passage, and one repair of a reply that cannot be read.

    Every finished reply is in the durable cache: a run after a killed one reuses it. Raises GpuRagError if fewer
    passages than `index.min_yield` gave entities.
    """
    rows = zip(passages["title"].to_pylist(), passages["text"].to_pylist())
    tokens = work.settings.index.extract_tokens
    fields = ({"title": title, "text": text, "max_tokens": tokens} for title, text in rows)
    statuses: Counter[str] = Counter()
    for batch in _batches(_row(reply) for reply in decided(work, EXTRACT, fields)):
        statuses.update(batch["status"].to_pylist())
        yield batch
    _check_yield(statuses, work.settings.index.min_yield)


def _row(reply: Extracted | str) -> Row:
    """Extraction in a reply, and its status."""
    if isinstance(reply, str):
        return _NOTHING, reply
    profiles = tuple(Profile(e.name, e.aliases, e.types, e.description) for e in reply.entities)
    triples = tuple((s, r, o) for s, r, o in reply.triples)
    extraction = Extraction(tuple(profile.name for profile in profiles), triples, profiles)
    return extraction, _status(extraction)


def _check_yield(statuses: Counter[str], floor: float) -> None:
    if statuses["ok"] < floor * statuses.total():
        raise GpuRagError(
            "the extraction found entities in too few passages",
            given=f"{statuses['ok']} of {statuses.total()} ({dict(statuses)})",
            expected=f"at least {floor:.0%}",
            do="use a stronger model, --set index.extractor=patterns, or lower index.min_yield; replies are kept",
        )
