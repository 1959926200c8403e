"""Pairs of entities to whose names a rule of spelling may apply, found by shared keys instead of all comparisons."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import xxhash

from gpu_rag.index import tables
from gpu_rag.index.checks import outside
from gpu_rag.index.names import inverse
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.stages.graph import same_exact
from gpu_rag.text.rules.same_name import rule_keys

PAIRS = 1 << 21  # pairs at a time, and those of one more row
_BITS = 32  # of a key's hash; two keys with one hash only add pairs, which no rule joins


def sharing_pairs(work: Work, entities: pa.Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs a < b of rows of EXACT_ENTITIES that share a key of `rule_keys`: i32[P] each, in parts; a pair may come
    more than once. Every pair of names to which a rule of `NameRules` applies is among them.

    Keys of rows that an earlier run had too are kept. Time and memory grow with the names and the pairs of a part.
    """
    keys, rows = _keys(work, entities)
    work.carry(np.concatenate([keys, np.diff(rows, prepend=0)]))  # smaller numbers need less disk
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    ends = np.flatnonzero(np.append(keys[1:] >> 1 != keys[:-1] >> 1, True)[: len(keys)])
    following = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(len(keys))  # rows with the same key
    places = np.flatnonzero((following > 0) & (keys & 1 == 0))
    n_pairs = following[places]
    total = n_pairs.cumsum()
    cuts = np.searchsorted(total, np.arange(PAIRS, total[-1] if len(total) else 0, PAIRS))
    for first, n in zip(np.split(places, cuts), np.split(n_pairs, cuts)):
        left = np.repeat(first, n)
        right = left + 1 + np.arange(len(left)) - np.repeat(n.cumsum() - n, n)
        a, b = rows[left], rows[right]
        yield np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]


def _keys(work: Work, entities: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(i64[K], i32[K]): keys of all names and aliases, and their rows. The last bit of a key is 1 where two rows with
    it are no pair."""
    (keys, rows), is_new = _earlier(work, len(entities))
    todo, keys_of, rows_of = np.flatnonzero(is_new), [keys], [rows]
    work.report.reused += len(entities) - len(todo)
    work.progress.advance(len(entities) - len(todo))
    for part in np.split(todo, range(tables.ROWS_A_GROUP, len(todo), tables.ROWS_A_GROUP)):
        batch = entities.select(["name", "aliases"]).take(pa.array(part))
        named = [_hashes([name, *more]) for name, more in zip(*(column.to_pylist() for column in batch.columns))]
        keys_of.append(np.array([key for keys in named for key in keys], np.int64))
        rows_of.append(np.repeat(part.astype(np.int32), list(map(len, named))))
        work.progress.advance(len(part))
    return np.concatenate(keys_of), np.concatenate(rows_of)


def _hashes(ways: list[str]) -> list[int]:
    return [
        xxhash.xxh3_64_intdigest(key.encode()) >> (64 - _BITS) << 1 | (not is_short)
        for way in ways
        for key, is_short in rule_keys(way).items()
    ]


def _earlier(work: Work, n: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The keys that an earlier run carried for rows that are the same, and bool[n]: the other rows."""
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int32)), np.ones(n, bool)
    carried = work.carried(np.int64, values=range(-(1 << 31), 2 << _BITS))
    if carried is None or len(carried) % 2 or not work.previous_inputs:
        return nothing
    keys, rows = carried.reshape(2, -1)
    rows = rows.cumsum()
    before = work.previous_inputs["higra_exact"]
    n_before = tables.n_rows(before / "higra_exact_entities.parquet")
    if outside(rows, n_before):
        return nothing
    same = same_exact(work.stage_folders["higra_exact"], before)
    rows = inverse(same, n_before)[rows]
    return (keys[rows >= 0], rows[rows >= 0].astype(np.int32)), same < 0
