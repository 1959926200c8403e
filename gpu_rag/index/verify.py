"""Checks of a finished index: every checksum, the tables against each other, the invariants of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import GpuRagError, UsageError
from gpu_rag.graph.csr import check_csr, is_symmetric
from gpu_rag.index import tables
from gpu_rag.index.build import rejects_of, unfinished
from gpu_rag.index.checks import is_outside, outside, wrong_vectors
from gpu_rag.index.folder import SOURCES, SOURCES_COPY, check_seal, checksums
from gpu_rag.index.index import GRAPH, Index
from gpu_rag.index.knowledge_base.verify import KB_PARTS, check_kb
from gpu_rag.index.manifest import COPY, Manifest
from gpu_rag.index.name_table import NAMES
from gpu_rag.index.stages.names import PROFILES, names_of_entities, names_of_titles
from gpu_rag.index.titles import TITLE_WEIGHT, title_edges
from gpu_rag.index.walk import STORED, walk_of
from gpu_rag.lazy import torch
from gpu_rag.models.llm.cache import faults_of
from gpu_rag.settings import make_settings
from gpu_rag.types import CSR

Check = Callable[[Index], Iterator[str]]
_AGAIN = "run gpu-rag index again"


def verify(folder: Path, checks: Mapping[str, Check] | None = None) -> list[str]:
    """Faults of an index, one per line; empty if the index is sound.

    checks: for stages that only one method has, by name of stage (`Method.verify`). For a stage without a check only
    checksums are verified: see `unchecked`.
    """
    index = Index.open(folder)
    index.manifest = Manifest.read(folder)  # with the stages of a build that stopped half-way
    broken = [*_settings(index), *_files(index), *_beside(index)]
    if broken:
        return broken
    every = {**_CHECKS, **(checks or {})}
    for check in (_asked, _inputs, *dict.fromkeys(check for stage, check in every.items() if stage in index.stages)):
        broken.extend(_guarded(check, index))
    return broken


def unchecked(folder: Path, checks: Mapping[str, Check]) -> list[str]:
    """Stages without a check, of which `verify` only compares the checksums."""
    return [stage for stage in Manifest.read(folder).stages if stage not in _CHECKS and stage not in checks]


def _guarded(check: Check, index: Index) -> list[str]:
    faults: list[str] = []
    try:
        faults.extend(check(index))
    except GpuRagError as error:
        faults.append(str(error))
    except (
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
        pa.ArrowException,
    ) as error:  # raised while the check reads
        what = check.__name__.removeprefix("check").strip("_")
        faults.append(f"{what}: the check stopped at what no build writes: {type(error).__name__} {error}")
    return faults


def _settings(index: Index) -> Iterator[str]:
    if strange := index.manifest.strange_settings():
        yield f"manifest.json: settings that no build writes: {', '.join(strange)}"
    try:
        make_settings({}, index.manifest.defaults())
    except UsageError as error:
        yield f"manifest.json: {error}"


def _files(index: Index) -> Iterator[str]:
    for record in index.manifest.stages.values():
        base = index.path / record.folder
        if not base.is_dir():
            yield f"{record.folder}: the folder is missing"
            continue
        sums = checksums(base)
        for name, entry in record.files.items():
            if name not in sums:
                yield f"{record.folder}/{name}: missing"
            elif sums[name] != entry:
                now, then = sums[name]["sha256"][:12], entry["sha256"][:12]
                yield f"{record.folder}/{name}: altered (sha256 {now}, recorded {then})"
        for name in sorted(sums.keys() - record.files.keys()):
            yield f"{record.folder}/{name}: not part of the index"


def _asked(index: Index) -> Iterator[str]:
    """Name the missing stages of an interrupted build."""
    if missing := [name for name in unfinished(index.path) if name not in index.stages]:
        yield f"missing: {', '.join(missing)}, which the last build was to make; run the same gpu-rag index again"


def _beside(index: Index) -> Iterator[str]:
    """Faults of the files outside the stages; each of them may be missing."""
    for name in (COPY, "run.json", "plan.json", SOURCES, SOURCES_COPY):
        try:
            if (index.path / name).is_file():
                (Manifest.read_from if name == COPY else check_seal)(index.path / name, _AGAIN)
        except GpuRagError as error:
            yield f"{name}: {error}"
    rejects = index.path / "rejects.jsonl"
    if rejects.is_file() and rejects.read_bytes() != rejects_of(index.path, index.manifest):
        yield "rejects.jsonl: altered"
    if (replies := index.path / "replies.sqlite").is_file():
        yield from (f"replies.sqlite: {fault}" for fault in faults_of(replies))


def _inputs(index: Index) -> Iterator[str]:
    stages = index.manifest.stages
    for record in stages.values():
        for need, output in record.inputs.items():
            if need not in stages or stages[need].output_hash != output:
                yield f"{record.folder}: made from another state of {need}"


def _sorted_unique(ids: pa.ChunkedArray, what: str) -> Iterator[str]:
    if len(ids) > 1 and not pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py():
        yield f"{what}: ids are not sorted and unique"


def _passages(index: Index) -> Iterator[str]:
    passages, documents = index.passages, index.documents
    yield from _sorted_unique(passages["id"], "passages")
    yield from _sorted_unique(documents["id"], "documents")
    if bad := sum(not _are_page_starts(starts) for starts in documents["pages"].to_pylist()):
        yield f"documents: {bad} have page offsets that do not rise from 0"
    known = pc.is_in(passages["doc_id"], value_set=tables.whole_text(documents["id"]).cast(pa.string()))
    lost = passages["doc_id"].filter(pc.invert(known))
    if len(lost):
        yield f"passages: {len(lost)} name a document that does not exist, such as {lost[0].as_py()}"
    if index.metadata is not None and not any(len(c) - c.null_count for c in index.metadata.columns):
        yield "metadata: no document has any"
    if len(index.passage_lines) != index.n_passages:
        yield f"lines: {len(index.passage_lines)} rows for {index.n_passages} passages"
    fits = pc.equal(_lengths(index), pc.subtract(passages["end"], passages["start"]))
    if bad := index.n_passages - pc.sum(fits, min_count=0).as_py():
        yield f"passages: {bad} have offsets that do not fit their text"


def _lengths(index: Index) -> pa.ChunkedArray:
    """Number of characters of each passage."""
    return pc.utf8_length(index.passages["text"]).cast(pa.int64())


def _are_page_starts(starts: list[int]) -> bool:
    return not starts or (starts[0] == 0 and all(a < b for a, b in zip(starts, starts[1:])))


def _bm25(index: Index) -> Iterator[str]:
    if index.bm25.n != index.n_passages:
        yield f"bm25: {index.bm25.n} passages for {index.n_passages}"


_ROWS_OF = {"passage_vectors": "passages", "entity_vectors": "entities", "relation_vectors": "relations"}


def _vectors(index: Index) -> Iterator[str]:
    for stage, table in _ROWS_OF.items():
        if stage in index.stages:
            yield from wrong_vectors(index, stage, getattr(index, table).num_rows, table)


def _extractions(index: Index) -> Iterator[str]:
    folder = index.folder("extraction")
    table = tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS)
    if not np.array_equal(table["passage"].to_numpy(), np.arange(index.n_passages)):
        yield "extractions: not one row a passage, in order"
        return
    if index.manifest.stages["extraction"].version < 2:
        return  # version 1 had no profiles
    entities = table["entities"].to_pylist()
    profiles = tables.read_table(folder / "profiles.parquet", tables.PROFILES)
    passages = profiles["passage"].to_pylist()
    if passages != sorted(passages):
        yield "profiles: not sorted by passage"
    rows = zip(passages, profiles["name"].to_pylist())
    if bad := sum(not 0 <= passage < len(entities) or name not in entities[passage] for passage, name in rows):
        yield f"profiles: {bad} of an entity that was not extracted there"


def _entities(index: Index) -> Iterator[str]:
    yield from _sorted_unique(index.entities["id"], "entities")
    for end in ("subject", "object"):
        if bad := outside(index.relations[end].to_numpy(), index.n_entities):
            yield f"relations: {bad} with a row number as {end} that no entity has"
    where = index.relations["passages"]
    counts = pc.list_value_length(where).fill_null(0).to_numpy()
    wrong = np.repeat(np.arange(len(counts)), counts)[is_outside(pc.list_flatten(where).to_numpy(), index.n_passages)]
    if bad := len(np.union1d(wrong, np.flatnonzero(counts == 0))):
        yield f"relations: {bad} name no passage, or one that does not exist"
    path = index.folder("entities") / "extracted.parquet"
    if path.exists():  # an earlier version did not write it
        yield from _extracted(index, tables.read_table(path, tables.EXTRACTED))


def _extracted(index: Index, table: pa.Table) -> Iterator[str]:
    passage, entity = (table[name].to_numpy().astype(np.int64) for name in ("passage", "entity"))
    if bad := int((is_outside(passage, index.n_passages) | is_outside(entity, index.n_entities)).sum()):
        yield f"extracted: {bad} with a row number that no passage or entity has"
        return
    if (np.diff(passage * index.n_entities + entity) <= 0).any():
        yield "extracted: not sorted and unique"
    counts = np.bincount(entity, minlength=index.n_entities)
    if bad := int((counts != index.entity_n_passages).sum()):
        yield f"extracted: {bad} entities are in another number of passages than they say"


def _mentions(index: Index) -> Iterator[str]:
    for name, limit in (("entity", index.n_entities), ("passage", index.n_passages)):
        if bad := outside(index.mentions[name].to_numpy(), limit):
            yield f"mentions: {bad} with a row number that no {name} has"
            return
    lengths = _lengths(index).to_numpy()
    start, end = index.mentions["start"].to_numpy(), index.mentions["end"].to_numpy()
    located = start >= 0
    inside = (start < end) & (end <= lengths[index.mentions["passage"].to_numpy()])
    if bad := int((located & ~inside).sum()):
        yield f"mentions: {bad} lie outside their passage"


def _synonyms(index: Index) -> Iterator[str]:
    left, right = _synonym_ends(index)
    if bad := int(((left < 0) | (left >= right) | (right >= index.n_entities)).sum()):
        yield f"synonyms: {bad} are not a pair of entities, the smaller row first"


def _synonym_ends(index: Index) -> tuple[np.ndarray, np.ndarray]:
    table = tables.read_table(index.folder("synonyms") / "synonyms.parquet", tables.SYNONYMS)
    return table["left"].to_numpy().astype(np.int64), table["right"].to_numpy().astype(np.int64)


def _title_names(index: Index) -> Iterator[str]:
    yield from wrong_arrays(index, "title_names", NAMES, names_of_titles(index.passage_titles.column).arrays)


def _entity_names(index: Index) -> Iterator[str]:
    profiles = index.table("extraction", PROFILES, tables.PROFILES)
    yield from wrong_arrays(index, "entity_names", NAMES, names_of_entities(index.entity_rows.column, profiles).arrays)


def _graph(index: Index) -> Iterator[str]:
    n_entities = index.n_entities
    entity, passage = _mentioned(index)
    ends = [index.relation_ends, _synonym_ends(index), (entity, passage + n_entities)]
    yield from wrong_walk(index, "graph", GRAPH, ends, n_entities, index.entity_rows.column)


def _relation_graph(index: Index) -> Iterator[str]:
    first = index.n_entities + index.n_relations
    relation, where = np.arange(index.n_entities, first), index.relation_passages.column
    stated = np.repeat(relation, pc.list_value_length(where).to_numpy()), pc.list_flatten(where).to_numpy()
    ends = [*((relation, end) for end in index.relation_ends), _mentioned(index), stated]
    ends[2:] = [(node, passage + first) for node, passage in ends[2:]]
    yield from wrong_walk(index, "relation_graph", GRAPH, ends, first, index.entity_rows.column)


def wrong_walk(
    index: Index, stage: str, file: str, ends: list[tuple[np.ndarray, np.ndarray]], first: int, names: pa.Array,
    rows: np.ndarray | None = None,
) -> Iterator[str]:  # fmt: skip
    """Faults of a graph with the edges of titles. ends: pairs of nodes that have an edge; first: the node of passage 0;
    names, rows: as in `title_edges`."""
    arrays = walk_of(index.arrays(stage, file, *STORED))
    csr = CSR(*(torch.from_numpy(arrays[name]) for name in ("indptr", "indices", "weight")))
    n = first + index.n_passages
    check_csr(csr)
    if csr.n != n:
        yield f"{stage}: {csr.n} nodes for {first} and {index.n_passages} passages"
        return
    if not is_symmetric(csr):
        yield f"{stage}: an edge lacks its other direction"
    titled, titles = title_edges(index.passage_titles.column, names, rows)
    src, dst = (np.concatenate(side) for side in zip(*ends, (titled, titles + first)))
    rows_of_entries, columns = np.repeat(np.arange(n), np.diff(arrays["indptr"])), arrays["indices"].astype(np.int64)
    stored = _pairs(rows_of_entries, columns, n)
    reasons = _pairs(src.astype(np.int64), dst.astype(np.int64), n)
    lost, strange = np.setdiff1d(reasons, stored), np.setdiff1d(stored, reasons)
    if len(lost) or len(strange):
        yield f"{stage}: {len(lost)} edges are missing, {len(strange)} have no reason in the tables"
    is_heavy = arrays["weight"] >= TITLE_WEIGHT
    heavy = _pairs(rows_of_entries[is_heavy], columns[is_heavy], n)
    if not np.array_equal(heavy, _pairs(titled, titles + first, n)):
        yield f"{stage}: the weight of a title is on other edges than those of the titles"


def wrong_arrays(index: Index, stage: str, file: str, expected: Mapping[str, np.ndarray]) -> Iterator[str]:
    """A line that names the arrays of a file that differ from the expected ones."""
    arrays = index.arrays(stage, file)
    equal = {name: name in arrays and np.array_equal(arrays[name], array) for name, array in expected.items()}
    if wrong := [name for name, same in equal.items() if not same]:
        yield f"{stage}: not what the tables give: {', '.join(wrong)}"


def _mentioned(index: Index) -> tuple[np.ndarray, np.ndarray]:
    """(entity, passage) of the mentions."""
    entity, passage = (index.mentions[name].to_numpy().astype(np.int64) for name in ("entity", "passage"))
    return entity, passage


def _pairs(src: np.ndarray, dst: np.ndarray, n: int) -> np.ndarray:
    """Each pair of different nodes once, as one number."""
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    return np.unique((low * n + high)[low != high])


_CHECKS: dict[str, Check] = {
    "passages": _passages,
    "title_names": _title_names,
    "bm25": _bm25,
    **dict.fromkeys(_ROWS_OF, _vectors),
    "extraction": _extractions,
    "entities": _entities,
    "entity_names": _entity_names,
    "mentions": _mentions,
    "synonyms": _synonyms,
    "graph": _graph,
    "relation_graph": _relation_graph,
    **dict.fromkeys(("kb", "kb_web", *KB_PARTS), check_kb),
}
