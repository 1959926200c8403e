"""Stage of synonym links between similar names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import xxhash

from gpu_rag.graph.common.dots import unit_of
from gpu_rag.graph.nearest.pairs import EXACT_ROWS, RowPairs, among_nearest, comparisons, joined, near_pairs
from gpu_rag.index import tables
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.names import changed, inverse, rows_of
from gpu_rag.index.stage import Pairs, stage
from gpu_rag.index.stages.search import drop_changed
from gpu_rag.index.work import Sources, Work
from gpu_rag.lazy import torch
from gpu_rag.models.set import pick_device
from gpu_rag.settings import Settings

_log = logging.getLogger(__name__)
_DIGITS = re.compile(r"\d+")
_MIN_LETTERS = 3
_ROWS = 4096  # entities compared at a time: bounds memory, does not change the result
_FEW = 1024  # up to this number of names, torch takes longer to load than it saves


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The threshold and the number of neighbours."""
    return {"threshold": settings.index.synonym_threshold, "k": settings.index.synonym_k}


def _pairs(settings: Settings, sizes: Mapping[str, float]) -> float:
    return sizes["entities"] * comparisons(sizes["entities"], settings.index.synonym_threshold)


@stage(
    "synonyms",
    needs=("entities", "entity_vectors"),
    version=2,
    params=_params,
    size="entities",
    pairs=Pairs("entities squared", _pairs, lambda sizes: sizes["entities"] <= EXACT_ROWS),
)
def synonyms_stage(work: Work) -> dict[str, int]:
    """Table `synonyms`: pairs (left < right) of entities whose names have a cosine of at least the threshold.

    Names of fewer than three letters, and names with different numbers (1941 and 1942 have close vectors), never pair.
    For each name the `synonym_k` nearest of the names that it may pair with count, by (-cosine, row). A pair is kept if
    it counts for one of its two names.
    The search runs on the device of the models: scores are the same on every device. Above EXACT_ROWS names on a CPU,
    pairs are candidates from hashed projections, see `near_pairs`; a sample measures the share of the exact
    pairs among them, and counts report it. Otherwise pairs of an earlier run are kept, and only new names are searched.
    Memory: that of `near_pairs`; vectors and pairs are mapped.
    """
    index = work.settings.index
    vectors = tables.read_arrays(work.stage_folders["entity_vectors"] / "vectors.safetensors")["vectors"]
    groups = _groups(work.stage_folders["entities"] / "entities.parquet")
    work.progress.start("synonyms", len(groups), "names")
    pairs, recall = _pairs_of(work, vectors, groups)
    counts = dict(zip(("synonyms_sampled", "synonyms_sampled_and_found"), recall or ()))
    if recall:
        _log.info("synonyms by candidates: of %d exact pairs of a sample %d are among them", *recall)
    path = work.out / "synonyms.parquet"
    with tables.TableWriter(path, tables.SYNONYMS) as writer:
        for kept in among_nearest(*pairs, index.synonym_k):
            writer.add([column[kept] for column in pairs])
    return {"synonyms": tables.n_rows(path), **counts}


def _groups(path: Path) -> np.ndarray:
    """u64[n], equal for names that may pair: names with enough letters that have the same numbers in the same order."""
    groups = [np.zeros(0, np.uint64)]
    for batch in tables.read_batches(path, tables.ENTITIES, ("id",)):
        names = batch["id"]
        numbers = pc.ascii_trim_whitespace(pc.replace_substring_regex(names, "[^0-9]+", " "))
        has_letters = pc.match_substring_regex(names, f"(?:[A-Za-z][^A-Za-z]*){{{_MIN_LETTERS}}}")
        texts = pc.if_else(has_letters, numbers, pc.binary_join_element_wise("alone", names, " "))
        encoded = changed(texts, names, pc.invert(pc.string_is_ascii(names)), _group).dictionary_encode()
        hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in encoded.dictionary.to_pylist()]
        groups.append(np.array(hashes, np.uint64)[encoded.indices.to_numpy()])
    return np.concatenate(groups)


def _group(name: str) -> str:
    """A text that is equal for names that may pair."""
    return " ".join(_DIGITS.findall(name)) if sum(map(str.isalpha, name)) >= _MIN_LETTERS else f"alone {name}"


def _pairs_of(work: Work, vectors: np.ndarray, groups: np.ndarray) -> tuple[RowPairs, tuple[int, int] | None]:
    """`near_pairs` of the names, and those of an earlier run."""
    threshold, device = work.settings.index.synonym_threshold, work.settings.models.device
    is_exact = len(groups) <= EXACT_ROWS or pick_device(device) != "cpu"  # a device imports torch
    kept, is_new = _earlier_pairs(work, vectors) if is_exact else (None, np.ones(len(groups), bool))
    work.report.reused += int((~is_new).sum())
    if kept is not None and is_new.sum() <= _FEW:
        work.progress.advance(len(groups))
        return joined([kept, *_all_close(vectors, np.flatnonzero(is_new), groups, threshold)]), None
    base, k = torch.from_numpy(vectors).to(pick_device(device)), work.settings.index.synonym_k
    advance = work.progress.advance
    with storage_errors(work.partial):
        return near_pairs(
            base, threshold, groups=groups, kept=kept, is_new=is_new, k=k, advance=advance, folder=work.partial
        )


def _all_close(vectors: np.ndarray, rows: np.ndarray, groups: np.ndarray, threshold: float) -> Iterator[RowPairs]:
    """All pairs of a few rows with rows of their groups that reach the threshold, by NumPy. vectors: f16[n, D]."""
    queries, least = vectors[rows].astype(np.float32), threshold - unit_of(vectors.shape[1])
    for start in range(0, len(vectors), _ROWS):
        row, query = np.nonzero(vectors[start : start + _ROWS].astype(np.float32) @ queries.T >= least)
        a, b = row + start, rows[query]
        fits = (groups[a] == groups[b]) & (a != b)
        a, b = a[fits], b[fits]
        # products of f16 are whole multiples of 2^-48, so that a sum in f64 is exact
        score = np.einsum("ij,ij->i", *(vectors[side].astype(np.float64) for side in (a, b))).astype(np.float32)
        close = score >= threshold
        yield np.minimum(a, b)[close], np.maximum(a, b)[close], score[close]


def _earlier_pairs(work: Work, vectors: np.ndarray) -> tuple[RowPairs | None, np.ndarray]:
    """Pairs of an earlier run that still hold, and bool[n]: the rows to search.

    Rows to search are new names, and names that had at least `synonym_k` pairs and lost one: a pair that was not kept
    then may take its place.
    """
    were_candidates = "synonyms_sampled" in work.previous_counts  # then some pairs may be missing
    if not work.previous or not work.previous_inputs or were_candidates:
        return None, np.ones(len(vectors), bool)
    rows, n_before = _unchanged(work, vectors)
    table = tables.read_table(work.previous / "synonyms.parquet", tables.SYNONYMS)
    left, right, score = (table[name].to_numpy() for name in ("left", "right", "score"))
    row_now = inverse(rows, n_before)
    n_pairs = np.bincount(np.concatenate([left, right]), minlength=n_before)
    stays = (row_now[left] >= 0) & (row_now[right] >= 0)
    to_search = np.zeros(n_before + 1, bool)
    to_search[left[~stays]] = to_search[right[~stays]] = True
    to_search[:-1] &= n_pairs >= work.settings.index.synonym_k
    to_search[-1] = True  # new names have row -1
    return (row_now[left[stays]], row_now[right[stays]], score[stays]), to_search[rows]


def _unchanged(work: Work, vectors: np.ndarray) -> tuple[np.ndarray, int]:
    """(i64[n], m): the row of each name among the m names of the earlier run, -1 if it is new or its vector changed."""
    now, before = work.stage_folders, work.previous_inputs
    paths = [folders["entities"] / "entities.parquet" for folders in (now, before)]
    ids, ids_before = (tables.whole_text(tables.read_table(p, tables.ENTITIES, ["id"])["id"]) for p in paths)
    earlier = tables.read_arrays(before["entity_vectors"] / "vectors.safetensors")["vectors"]
    rows = rows_of(ids, ids_before.combine_chunks())
    drop_changed(rows, vectors, earlier)
    return rows, len(ids_before)
