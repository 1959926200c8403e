"""Which records of different sources are one thing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_rag.index.kb import name_key
from gpu_rag.layers.kb_read import Record
from gpu_rag.sources.skb_types import LITERAL

_WIKIDATA = re.compile(r"(?:https?://www\.wikidata\.org/(?:entity|wiki)/)?([QP][1-9][0-9]*)")
_IRI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")
_LOCAL = re.compile(r"[^/#]*\Z")


@dataclass(frozen=True)
class Fused:
    """node: for each record its group, numbered by the first record of each; links: (left, right, rule), left < right,
    a chain through each group; ambiguous: names that two records of one source share, or that ids contradict."""

    node: list[int]
    links: list[tuple[int, int, str]]
    ambiguous: int


def global_id(id: str) -> tuple[str, str] | None:
    """(kind, id) of an id that means the same in every source: a Wikidata id or IRI ("Q42"), or another IRI, whose kind
    is its namespace. None for ids that only their source knows.

    >>> global_id("http://www.wikidata.org/entity/Q42") == global_id("Q42")
    True
    """
    if found := _WIKIDATA.fullmatch(id):
        return "wikidata", found[1]
    if _IRI.fullmatch(id):
        return _LOCAL.sub("", id), id
    return None


def _value_id(record: Record) -> tuple[str, str] | None:
    """The id of a value, which means the same in every source; None for things."""
    return (LITERAL, record.id) if record.types[:1] == [LITERAL] else None


def fuse(records: Sequence[Record], source: Sequence[int]) -> Fused:
    """Groups of records that are one thing, never two of one source.

    Records with equal global ids are linked; then records with equal names (`name_key`), when each source has at most
    one of that name, and no two of them have different global ids of one kind. Values are linked by id alone, and stand
    in the way of no name: that someone is called "Rome" does not make two things of it. source: of each record.
    Deterministic: depends on the order of the records only for the numbers of the groups. O(n log n).

    KG a with "Q1" Rome and KG b with "rome": one node. With a second Rome in b: three nodes.
    """
    group = list(range(len(records)))
    members: dict[int, list[int]] = {row: [row] for row in group}
    links: list[tuple[int, int, str]] = []
    known = [_value_id(record) or global_id(record.id) for record in records]
    by_id: dict[tuple[str, str], list[int]] = defaultdict(list)
    by_name: dict[str, list[int]] = defaultdict(list)
    for row, record in enumerate(records):
        if (id := known[row]) is not None:
            by_id[id].append(row)
        if _value_id(record) is None:
            by_name[name_key(record.name)].append(row)
    by_name.pop("", None)
    ambiguous = 0
    for rule, classes in (("id", by_id), ("name", by_name)):
        for _, rows in sorted(classes.items()):
            groups = sorted({group[row] for row in rows})
            if len({source[row] for row in rows}) < 2 or len(groups) < 2:
                continue
            held = [row for number in groups for row in members[number]]
            if not _may_join(held, source, known):
                ambiguous += rule == "name"
                continue
            _join(groups, members, group, links, rule)
    return Fused(group, sorted(links), ambiguous)


def _may_join(rows: Sequence[int], source: Sequence[int], known: Sequence[tuple[str, str] | None]) -> bool:
    """No two records of one source, no two different global ids of one kind."""
    if len({source[row] for row in rows}) < len(rows):
        return False
    ids = {id for row in rows if (id := known[row]) is not None}
    return len({kind for kind, _ in ids}) == len(ids)


def _join(
    groups: list[int], members: dict[int, list[int]], group: list[int], links: list[tuple[int, int, str]], rule: str
) -> None:
    """Makes the groups one, with the smallest number; links the first records of each to that of the first."""
    first = groups[0]
    for other in groups[1:]:
        links.append((first, other, rule))
        for row in members[other]:
            group[row] = first
        members[first].extend(members.pop(other))
