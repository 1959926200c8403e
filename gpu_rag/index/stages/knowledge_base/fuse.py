"""Links between records of different sources that describe one thing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.knowledge_base.names import name_keys
from gpu_rag.sources.knowledge_base.nodes import LITERAL

_WIKIDATA = re.compile(r"(?:https?://www\.wikidata\.org/(?:entity|wiki)/)?([QP][1-9][0-9]*)")
_IRI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")
_LOCAL = re.compile(r"[^/#]*\Z")
_IN_WIKIDATA = r"^https?://www\.wikidata\.org/(?:entity|wiki)/"
Class = tuple[tuple[str, str] | str, list[int]]


@dataclass(frozen=True)
class Fused:
    """Groups of linked records. node: i64, group of each record, numbered by the first record of each group; links:
    (left, right, rule), left < right, a tree in each group; ambiguous: number of names that two records of one source
    share, or that ids contradict."""

    node: np.ndarray
    links: list[tuple[int, int, str]]
    ambiguous: int


def global_id(id: str) -> tuple[str, str] | None:
    """(kind, id) of an id with the same meaning in every source: a Wikidata id or IRI ("Q42"), or another IRI, whose
    kind is its namespace. None for ids that only their source knows.

    >>> global_id("http://www.wikidata.org/entity/Q42") == global_id("Q42")
    True
    """
    if match := _WIKIDATA.fullmatch(id):
        return "wikidata", match[1]
    if _IRI.fullmatch(id):
        return _LOCAL.sub("", id), id
    return None


def fuse(ids: pa.LargeStringArray, names: pa.LargeStringArray, is_value: np.ndarray, source: np.ndarray) -> Fused:
    """Groups of records that are one thing, never two of one source.

    Records with equal global ids are linked. Then records with equal names (`name_key`) are linked, if each source has
    at most one of that name, and no two of them have different global ids of one kind. Values are linked only by id,
    and do not make a name ambiguous: a value "Rome" does not make two things of the name. is_value, source: bool and
    i32 of each record. Deterministic: the order of the records changes only the numbers of the groups.
    O(n log n); records that only one source has need only array operations.

    KG a with "Q1" Rome and KG b with "rome": one node. With a second Rome in b: three nodes.
    """
    group = np.arange(len(ids))
    links: list[tuple[int, int, str]] = []
    ambiguous = 0
    if not len(source) or source.min() == source.max():
        return Fused(group, links, ambiguous)
    by_id, by_name = _classes_by_id(ids, is_value, source), _classes_by_name(names, is_value, source)
    known = _known(ids, is_value, by_id, by_name)
    members: dict[int, list[int]] = {}
    for rule, classes in (("id", by_id), ("name", by_name)):
        for _, rows in classes:
            groups = sorted({int(group[row]) for row in rows})
            if len(groups) < 2:
                continue
            together = [row for number in groups for row in members.get(number, [number])]
            if not _may_join(together, source, known):
                ambiguous += rule == "name"
                continue
            _join(groups, members, group, links, rule)
    return Fused(group, sorted(links), ambiguous)


def _classes_by_id(ids: pa.LargeStringArray, is_value: np.ndarray, source: np.ndarray) -> list[Class]:
    """Records of several sources with one id, sorted by id."""
    keys = pc.replace_substring_regex(ids, _IN_WIKIDATA, "")
    rows_of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rows in _shared(keys, np.ones(len(ids), bool), source):
        texts = ids.take(pa.array(rows)).to_pylist()
        for row, text in zip(rows.tolist(), texts):
            if (id := (LITERAL, text) if is_value[row] else global_id(text)) is not None:
                rows_of[id].append(row)
    return sorted((id, rows) for id, rows in rows_of.items() if len({source[row] for row in rows}) > 1)


def _classes_by_name(names: pa.LargeStringArray, is_value: np.ndarray, source: np.ndarray) -> list[Class]:
    """Things of several sources with one name, sorted by name."""
    keys = name_keys(names)
    searched = ~is_value & np.asarray(pc.not_equal(keys, ""))
    return sorted((keys[int(rows[0])].as_py(), rows.tolist()) for rows in _shared(keys, searched, source))


def _shared(keys: pa.LargeStringArray, searched: np.ndarray, source: np.ndarray) -> list[np.ndarray]:
    """Rows of each key that at least two sources have, ascending; only rows that are True in `searched`."""
    encoded = keys.dictionary_encode()
    code = encoded.indices.to_numpy()
    rows = np.flatnonzero(searched)
    first = np.full(len(encoded.dictionary), np.iinfo(np.int32).max, np.int32)
    last = np.full(len(encoded.dictionary), -1, np.int32)
    np.minimum.at(first, code[rows], source[rows])
    np.maximum.at(last, code[rows], source[rows])
    rows = rows[(first < last)[code[rows]]]
    order = rows[np.argsort(code[rows], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1) if len(order) else []


def _known(
    ids: pa.LargeStringArray, is_value: np.ndarray, *classes: Sequence[Class]
) -> Mapping[int, tuple[str, str] | None]:
    """Global ids of the records of these classes."""
    rows = sorted({row for members in classes for _, rows in members for row in rows})
    texts = ids.take(pa.array(rows, pa.int64())).to_pylist()
    return {row: (LITERAL, text) if is_value[row] else global_id(text) for row, text in zip(rows, texts)}


def _may_join(rows: Sequence[int], source: np.ndarray, known: Mapping[int, tuple[str, str] | None]) -> bool:
    """Whether rows have no two records of one source, and no two different global ids of one kind."""
    if len({int(source[row]) for row in rows}) < len(rows):
        return False
    ids = {id for row in rows if (id := known[row]) is not None}
    return len({kind for kind, _ in ids}) == len(ids)


def _join(
    groups: list[int], members: dict[int, list[int]], group: np.ndarray, links: list[tuple[int, int, str]], rule: str
) -> None:
    """Join groups into the one with the smallest number, and link the first record of each to its first record."""
    first = groups[0]
    together = members.setdefault(first, [first])
    for other in groups[1:]:
        links.append((first, other, rule))
        moved = members.pop(other, [other])
        group[moved] = first
        together.extend(moved)
