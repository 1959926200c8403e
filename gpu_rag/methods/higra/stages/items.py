"""Extracted entities as items that the exact merge groups: one for each name, types and aliases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gpu_rag.index.stages.entities import MAX_NAME_CHARS
from gpu_rag.text.normalise import normalise_name

Key = tuple[str, frozenset[str], frozenset[str]]  # name, types, aliases, normalised


@dataclass
class Item:
    """All passages' entities that have one normalised name, one set of types and one set of aliases.

    key: (name, types, aliases), normalised. names, aliases, types: how they are written, with counts.
    """

    key: Key
    names: Counter[str] = field(default_factory=Counter)
    aliases: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    descriptions: list[str] = field(default_factory=list)
    passages: set[int] = field(default_factory=set)


@dataclass
class Items:
    """The items of a corpus, and its triples: {(subject item, normalised label, object item): passages}.

    dropped: names that normalise to nothing or are too long; their triples are left out with them.
    """

    items: list[Item] = field(default_factory=list)
    triples: dict[tuple[int, str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    dropped: int = 0

    def __post_init__(self) -> None:
        self._rows: dict[Key, int] = {}

    def add(self, passage: int, profile: dict[str, Any]) -> int | None:
        """Takes in one entity of a passage; its item, or None where its name is none."""
        name = usable(profile["name"])
        if not name:
            self.dropped += 1
            return None
        aliases = {a: usable(a) for a in profile["aliases"]}
        types = {t: normalise_name(t) for t in profile["types"]}
        key = (name, frozenset(filter(None, types.values())), frozenset(filter(None, aliases.values())) - {name})
        row = self._rows.setdefault(key, len(self.items))
        if row == len(self.items):
            self.items.append(Item(key))
        item = self.items[row]
        item.names[_spaced(profile["name"])] += 1
        item.aliases.update(_spaced(a) for a, normal in aliases.items() if normal)
        item.types.update(normal for normal in types.values() if normal)
        description = _spaced(profile["description"])
        if description and description not in item.descriptions:
            item.descriptions.append(description)
        item.passages.add(passage)
        return row


def usable(name: str) -> str:
    """The normalised name, or "" where it is nothing, or a sentence that an extractor returned whole."""
    normal = normalise_name(name)
    return normal if len(normal) <= MAX_NAME_CHARS else ""


def _spaced(text: str) -> str:
    return " ".join(text.split())


def read_items(extractions: pa.Table, profiles: pa.Table) -> Items:
    """The items of EXTRACTIONS and PROFILES, passage by passage.

    An end of a triple is the entity of its passage with that name, else the first that has it as an alias, else an
    entity of its own, of which nothing else is known.
    """
    known: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for profile in profiles.to_pylist():
        known[profile["passage"]].append(profile)
    items = Items()
    columns = (extractions[name].to_pylist() for name in ("passage", "entities", "triples"))
    for passage, names, triples in zip(*columns):
        _read_passage(items, passage, names, triples, known.get(passage, []))
    return items


def _plain(name: str) -> dict[str, Any]:
    return {"name": name, "aliases": [], "types": [], "description": ""}


def _read_passage(
    items: Items, passage: int, names: list[str], triples: list[list[str]], profiles: list[dict[str, Any]]
) -> None:
    profiled = {profile["name"] for profile in profiles}
    by_name: dict[str, int] = {}
    by_alias: dict[str, int] = {}
    for profile in [*profiles, *(_plain(name) for name in names if name not in profiled)]:
        row = items.add(passage, profile)
        if row is not None:
            by_name.setdefault(items.items[row].key[0], row)
            for alias in items.items[row].key[2]:
                by_alias.setdefault(alias, row)
    for subject, label, object_ in triples:
        ends = [_end(items, passage, name, by_name, by_alias) for name in (subject, object_)]
        if ends[0] is not None and ends[1] is not None:
            items.triples[ends[0], normalise_name(label), ends[1]].add(passage)


def _end(items: Items, passage: int, name: str, by_name: dict[str, int], by_alias: dict[str, int]) -> int | None:
    normal = usable(name)
    row = by_name.get(normal, by_alias.get(normal)) if normal else None
    if row is None:
        row = items.add(passage, _plain(name))
        if row is not None:
            by_name[normal] = row
    else:
        items.items[row].names[_spaced(name)] += normal == items.items[row].key[0]
        items.items[row].aliases[_spaced(name)] += normal != items.items[row].key[0]
    return row


def commonest(written: Iterable[Counter[str]]) -> list[str]:
    """Every spelling, the commonest first, ties by the alphabet."""
    total: Counter[str] = Counter()
    for counts in written:
        total.update(counts)
    return [way for way, n in sorted(total.items(), key=lambda pair: (-pair[1], pair[0])) if n > 0]
