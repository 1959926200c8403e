"""The exact merge: extracted entities are merged if they share a name, or an unambiguous alias, and a type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch

from gpu_rag.graph.cluster import exact_groups
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.entities import MAX_NAME_CHARS
from gpu_rag.index.work import Sources, Work
from gpu_rag.methods.higra.merges import (
    EXACT,
    QUARANTINED,
    REJECT,
    edited,
    edits_params,
    file_of,
    merge_row,
    name_pairs,
    read_edits,
)
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.higra.tables import Row, by_id, relation_rows, write
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Ragged

_UNKNOWN: Row = {"aliases": [], "types": [], "description": ""}  # a profile with only a name
Key = tuple[str, frozenset[str], frozenset[str]]  # name, types, aliases; all normalised


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    chosen = settings.section(AlignmentSettings)
    rule = {} if chosen.aliases == "all" else {"aliases": [chosen.aliases, chosen.max_cluster]}
    return {**rule, **edits_params(sources)}


@stage("higra_exact", needs=("extraction", "entities"), params=_params, size="characters")
def exact_stage(work: Work) -> dict[str, int]:
    """Write the tables `entities` (EXACT_ENTITIES), `relations` between them, and `merges`. The merges are names joined
    by an alias, and groups with too many names (`careful_merge`)."""
    return exact_tables(work, work.settings.section(AlignmentSettings).aliases)


def exact_tables(work: Work, by: str) -> dict[str, int]:
    """Write the tables of the stage. by: the aliases that merge, unambiguous | all | none; with none, only entities
    with the same name and type are merged."""
    folder = work.stage_folders["extraction"]
    items = Items()
    items.read(
        tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS),
        tables.read_table(folder / "profiles.parquet", tables.PROFILES),
    )
    names = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES)["id"].to_pylist()
    rejected = name_pairs(edited(read_edits(file_of(work.sources)), REJECT))
    keys, most = [item.key for item in items.items], work.settings.section(AlignmentSettings).max_cluster
    quarantined: list[list[str]] = []
    if by == "none":
        group_of = _components(keys, [()] * len(keys))
    elif by == "all":
        group_of = exact_merge(keys, rejected)
    else:
        group_of, quarantined = careful_merge(keys, most, rejected)
    members: dict[int, list[Item]] = defaultdict(list)
    for item, group in zip(items.items, group_of):
        members[group].append(item)
    made = _entities(members, {name: row for row, name in enumerate(names)})
    rows, row_of = by_id(made, group_of)
    write(work.out, "higra_exact_entities", rows)
    n_relations = write(work.out, "higra_exact_relations", relation_rows(rows, items.triples.items(), row_of))
    merges = [
        merge_row(EXACT, "a name of one is an alias of another", 1.0, merged, made[group]["id"])
        for group, parts in members.items()
        if len(merged := sorted({item.key[0] for item in parts})) > 1
    ]
    rule = f"more than {most} names"
    aside = {row["id"]: row for row in (merge_row(QUARANTINED, rule, 1.0, names, "") for names in quarantined)}
    n_merges = len(merges)
    merges += aside.values()
    write(work.out, "higra_exact_merges", sorted(merges, key=lambda row: row["id"]))
    work.progress.advance(len(items.items))
    return {
        "higra_exact_entities": len(rows),
        "higra_exact_relations": n_relations,
        "higra_exact_merges": n_merges,
        **({"higra_exact_quarantined": len(aside)} if aside else {}),
        "higra_dropped_names": items.dropped,
    }


# --- what is merged --------------------------------------------------------------------------------


@dataclass
class Item:
    """All extracted entities with the same normalised name, set of types and set of aliases.

    names, aliases, types: their spellings, with counts.
    """

    key: Key
    names: Counter[str] = field(default_factory=Counter)
    aliases: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    descriptions: list[str] = field(default_factory=list)
    passages: set[int] = field(default_factory=set)


class Items:
    """The items of a corpus, and its triples: {(subject item, normalised label, object item): passages}.

    dropped: number of names that normalise to nothing or are too long; their triples are dropped too.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.triples: dict[tuple[int, str, int], set[int]] = defaultdict(set)
        self.dropped = 0
        self._rows: dict[Key, int] = {}

    def read(self, extractions: pa.Table, profiles: pa.Table) -> None:
        """Add EXTRACTIONS and PROFILES, passage by passage.

        An end of a triple is the entity of its passage with that name; else the first entity with that alias; else a
        new entity without further data.
        """
        profiles_of: dict[int, list[Row]] = defaultdict(list)
        for profile in profiles.to_pylist():
            profiles_of[profile["passage"]].append(profile)
        columns = (extractions[name].to_pylist() for name in ("passage", "entities", "triples"))
        for passage, names, triples in zip(*columns):
            known = self._known(passage, names, profiles_of.get(passage, []))
            for subject, label, object_ in triples:
                ends = self._end(passage, subject, known), self._end(passage, object_, known)
                if ends[0] is not None and ends[1] is not None:
                    self.triples[ends[0], normalise_name(label), ends[1]].add(passage)

    def _known(self, passage: int, names: Sequence[str], profiles: Sequence[Row]) -> dict[str, int]:
        """The items of a passage's entities, by normalised name; and by alias, unless an entity has it as its name."""
        by_name: dict[str, int] = {}
        by_alias: dict[str, int] = {}
        profiled = {profile["name"] for profile in profiles}
        for profile in [*profiles, *(_UNKNOWN | {"name": name} for name in names if name not in profiled)]:
            if (row := self._add(passage, profile)) is not None:
                name, _, aliases = self.items[row].key
                by_name.setdefault(name, row)
                for alias in aliases:
                    by_alias.setdefault(alias, row)
        return by_alias | by_name

    def _add(self, passage: int, profile: Row) -> int | None:
        """Add one entity of a passage. Returns its item, or None if its name is unusable."""
        name = _usable(profile["name"])
        if not name:
            self.dropped += 1
            return None
        aliases = {a: normal for a in profile["aliases"] if (normal := _usable(a))}
        types = [normal for kind in dict.fromkeys(profile["types"]) if (normal := normalise_name(kind))]
        key = name, frozenset(types), frozenset(aliases.values()) - {name}
        row = self._rows.setdefault(key, len(self.items))
        if row == len(self.items):
            self.items.append(Item(key))
        item = self.items[row]
        item.names[_spaced(profile["name"])] += 1
        item.aliases.update(map(_spaced, aliases))
        item.types.update(types)
        description = _spaced(profile["description"])
        if description and description not in item.descriptions:
            item.descriptions.append(description)
        item.passages.add(passage)
        return row

    def _end(self, passage: int, name: str, known: dict[str, int]) -> int | None:
        normal = _usable(name)
        if normal not in known:
            row = self._add(passage, _UNKNOWN | {"name": name})
            if row is not None:
                known[normal] = row
            return row
        item = self.items[known[normal]]
        written = item.names if normal == item.key[0] else item.aliases
        written[_spaced(name)] += 1
        return known[normal]


def _usable(name: str) -> str:
    """The normalised name, or "" if it is empty or too long (a sentence that an extractor returned whole)."""
    normal = normalise_name(name)
    return normal if len(normal) <= MAX_NAME_CHARS else ""


def _spaced(text: str) -> str:
    return " ".join(text.split())


# --- merging ---------------------------------------------------------------------------------------


def exact_merge(keys: Sequence[Key], apart: frozenset[frozenset[str]] = frozenset()) -> list[int]:
    """The group of each entity, given as the smallest entity in it.

    keys: (name, types, aliases) of N entities, normalised. Two entities are merged if ({name} and aliases) intersect
    and types intersect; entities without types merge with others without types. This is transitive: the groups are
    connected components over shared (name, type) keys. A component without types then joins the one typed component
    that has one of its names, unless several have.

    apart: pairs of names that a person rejected; entities of these names do not merge by their aliases.
    """
    return _groups(keys, _kept_aliases(keys, apart))


def _kept_aliases(keys: Sequence[Key], apart: frozenset[frozenset[str]]) -> list[frozenset[str]]:
    rejected = frozenset(name for pair in apart for name in pair)
    return [frozenset() if name in rejected else aliases for name, _, aliases in keys]


def careful_merge(
    keys: Sequence[Key], most: int, apart: frozenset[frozenset[str]] = frozenset()
) -> tuple[list[int], list[list[str]]]:
    """(groups as in `exact_merge`, but only unambiguous aliases merge; the names of each component set aside).

    An alias is unambiguous if all entities that it may denote are already one, by their names or by other aliases. It
    may denote the entities that have it as an alias, and those whose last word it is ("campbell" for all Campbells).
    Entities of other types do not count; an entity without types may be of any. A component of more than `most`
    distinct names is set aside: nothing in it merges by an alias.
    """
    aliases = _kept_aliases(keys, apart)
    nothing: list[frozenset[str]] = [frozenset()] * len(keys)
    usable, by_name, joined = nothing, _groups(keys, nothing), _components(keys, nothing)
    while True:  # each round of joins makes more aliases unambiguous, until none is added
        usable = _unambiguous(keys, aliases, list(zip(joined, by_name)))
        found = _components(keys, usable)
        if found == joined:
            break
        joined = found
    group = _groups(keys, usable)
    names: dict[int, set[str]] = defaultdict(set)
    for (name, _, _), g in zip(keys, group):
        names[g].add(name)
    aside = {g for g, parts in names.items() if len(parts) > most}
    if aside:
        group = _groups(keys, [frozenset() if g in aside else found for g, found in zip(group, usable)])
    return group, [sorted(names[g]) for g in sorted(aside)]


def _unambiguous(
    keys: Sequence[Key], aliases: Sequence[frozenset[str]], groups: Sequence[tuple[int, int]]
) -> list[frozenset[str]]:
    """The unambiguous aliases of each entity. groups: two groups per entity; entities that are all equal in one of the
    two are already one."""
    wanted = frozenset().union(*aliases)
    meant: dict[str, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))  # alias -> type, or ""
    for (name, types, _), also, g in zip(keys, aliases, groups):
        last = name.rpartition(" ")[2]
        for alias in also if last == name or last not in wanted else also | {last}:
            for kind in types or ("",):
                meant[alias][kind].add(g)

    def stands_for_one(alias: str, types: frozenset[str]) -> bool:
        found = meant[alias]
        things = set[tuple[int, int]]().union(*(found.get(kind, ()) for kind in ({"", *types} if types else found)))
        return any(len(set(side)) == 1 for side in zip(*things))

    return [
        frozenset(alias for alias in also if stands_for_one(alias, types)) for (_, types, _), also in zip(keys, aliases)
    ]


def _components(keys: Sequence[Key], aliases: Sequence[Iterable[str]]) -> list[int]:
    """Components of entities that share a name or alias, and a type: the smallest row of each row's component."""
    number: dict[tuple[str, str], int] = {}
    values: list[int] = []
    offsets = [0]
    for (name, types, _), also in zip(keys, aliases):
        names = [name, *sorted(also)]
        values += [number.setdefault((n, t), len(number)) for n in names for t in sorted(types) or [""]]
        offsets.append(len(values))
    ragged = Ragged(torch.tensor(values, dtype=torch.int64), torch.tensor(offsets, dtype=torch.int64))
    found: list[int] = exact_groups(ragged).tolist()
    return found


def _groups(keys: Sequence[Key], aliases: Sequence[Iterable[str]]) -> list[int]:
    """The group of each entity for the given aliases: its component; an untyped component joins its only typed
    match."""
    group = _components(keys, aliases)
    typed: dict[str, set[int]] = defaultdict(set)
    untyped: dict[int, set[str]] = defaultdict(set)
    for g, (own, types, _), also in zip(group, keys, aliases):
        for name in (own, *also):
            if types:
                typed[name].add(g)
            else:
                untyped[g].add(name)
    joined = {g: set().union(*(typed.get(name, ()) for name in names)) for g, names in untyped.items()}
    joins = {g: next(iter(found)) for g, found in joined.items() if len(found) == 1}
    first: dict[int, int] = {}
    for row, g in enumerate(group):
        first.setdefault(joins.get(g, g), row)
    return [first[joins.get(g, g)] for g in group]


def _entities(members: Mapping[int, Sequence[Item]], entity_row: Mapping[str, int]) -> dict[int, Row]:
    """A row of EXACT_ENTITIES for each group. entity_row: the rows of ENTITIES by normalised name.

    If entities share a name, their ids also hold their types, and a number if the types are equal too. The two spaces
    before these occur in no normalised name, so ids stay unique.
    """
    made = {group: _entity(parts, entity_row) for group, parts in members.items()}
    n_named, taken = Counter(entity["id"] for entity in made.values()), Counter[str]()
    for entity in made.values():
        if n_named[entity["id"]] > 1:
            entity["id"] += f"  [{', '.join(entity['types'])}]"
            taken[entity["id"]] += 1
            if taken[entity["id"]] > 1:
                entity["id"] += f"  #{taken[entity['id']]}"
    return made


def _entity(parts: Sequence[Item], entity_row: Mapping[str, int]) -> Row:
    written = _commonest(item.names for item in parts)
    also = [way for way in _commonest(item.aliases for item in parts) if way not in set(written)]
    return {
        "id": normalise_name(written[0]),
        "name": written[0],
        "aliases": [*written[1:], *also],
        "types": _commonest(item.types for item in parts),
        "descriptions": list(dict.fromkeys(text for item in parts for text in item.descriptions)),
        "members": sorted({entity_row[item.key[0]] for item in parts}),
        "passages": sorted(set().union(*(item.passages for item in parts))),
    }


def _commonest(written: Iterable[Counter[str]]) -> list[str]:
    """All spellings, the commonest first, ties in alphabetical order."""
    total: Counter[str] = Counter()
    for counts in written:
        total.update(counts)
    return sorted(total, key=lambda way: (-total[way], way))
