"""The exact merge: extracted entities are merged if they share a name, or an unambiguous alias, and a type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.graph.cluster import exact_groups
from gpu_rag.index import tables
from gpu_rag.index.database import ROWS, Database, database
from gpu_rag.index.names import normalised, one_array, rows_of
from gpu_rag.index.stage import stage
from gpu_rag.index.stages.entities import MAX_NAME_CHARS, write_relations
from gpu_rag.index.work import Sources, Work
from gpu_rag.lazy import torch
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
from gpu_rag.methods.higra.tables import EXACT_ENTITIES, HIGRA_RELATIONS, Row, write
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Ragged

_UNKNOWN: Row = {"aliases": [], "types": [], "description": ""}  # a profile with only a name
Key = tuple[str, frozenset[str], frozenset[str]]  # name, types, aliases; all normalised


def _params(settings: Settings, sources: Sources) -> dict[str, Any]:
    chosen = settings.section(AlignmentSettings)
    rule = {} if chosen.aliases == "all" else {"aliases": [chosen.aliases, chosen.max_cluster]}
    return {**rule, **edits_params(sources)}


@stage("higra_exact", needs=("extraction", "entities"), version=2, params=_params, size="characters")
def exact_stage(work: Work) -> dict[str, int]:
    """Write the tables `entities` (EXACT_ENTITIES), `relations` between them, and `merges`. The merges are names joined
    by an alias, and groups with too many names (`careful_merge`)."""
    return exact_tables(work, work.settings.section(AlignmentSettings).aliases)


def exact_tables(work: Work, by: str) -> dict[str, int]:
    """Write the tables of the stage. by: the aliases that merge, unambiguous | all | none; with none, only entities
    with the same name and type are merged."""
    if not tables.n_rows(work.stage_folders["extraction"] / "profiles.parquet"):
        return _plain_tables(work)
    rejected = name_pairs(edited(read_edits(file_of(work.sources)), REJECT))
    limit = work.settings.section(AlignmentSettings).max_cluster
    quarantined: list[list[str]] = []
    with database(work) as db:
        items = Items(db)
        items.read(work)
        if by == "none":
            group_of = _components(items.keys, [()] * len(items.keys))
        elif by == "all":
            group_of = exact_merge(items.keys, rejected)
        else:
            group_of, quarantined = careful_merge(items.keys, limit, rejected)
        groups, names = np.array(group_of, np.int64), pa.array([name for name, _, _ in items.keys], pa.large_string())
        of_names = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES, ("id",))
        members = pa.array(rows_of(names, one_array(of_names["id"])), pa.int32())
        db.create("merged", _MERGED)
        db.add("merged", pa.table([np.arange(len(groups), dtype=np.int32), groups.astype(np.int32), members], _MERGED))
        db.run(*_WAYS)
        ids = _name_groups(db)
        place = np.full(len(groups), -1, np.int32)
        place[db.column("SELECT grp FROM ranks ORDER BY entity")] = np.arange(len(ids), dtype=np.int32)
        db.create("became", _BECAME)
        db.add("became", pa.table([np.arange(len(groups), dtype=np.int32), place[groups], members], _BECAME))
        _write_entities(work, db, ids)
        db.run(_RELATIONS[0], "DROP TABLE stated", _RELATIONS[1], "DROP TABLE with_subjects")
        path = work.out / "higra_exact_relations.parquet"
        n_relations = write_relations(
            path, db.batches("SELECT * FROM with_ends ORDER BY s, label, o, passage"), HIGRA_RELATIONS
        )
    named: dict[int, set[str]] = defaultdict(set)  # {group: names}, for groups of several items
    for group in np.flatnonzero(np.bincount(groups, minlength=1) > 1).tolist():
        named[group] = set()
    for (name, _, _), group in zip(items.keys, group_of):
        if group in named:
            named[group].add(name)
    merges = [
        merge_row(EXACT, "a name of one is an alias of another", 1.0, sorted(merged), ids[int(place[group])].as_py())
        for group, merged in named.items()
        if len(merged) > 1
    ]
    rule = f"more than {limit} names"
    aside = {row["id"]: row for row in (merge_row(QUARANTINED, rule, 1.0, names, "") for names in quarantined)}
    n_merges = len(merges)
    merges += aside.values()
    write(work.out, "higra_exact_merges", sorted(merges, key=lambda row: row["id"]))
    return {
        "higra_exact_entities": len(ids),
        "higra_exact_relations": n_relations,
        "higra_exact_merges": n_merges,
        **({"higra_exact_quarantined": len(aside)} if aside else {}),
        "higra_dropped_names": items.dropped,
    }


def _plain_tables(work: Work) -> dict[str, int]:
    """Write the tables without profiles: no name has a type or an alias, so that each row of ENTITIES is an entity."""
    folder = work.stage_folders["entities"]
    named = tables.read_table(folder / "entities.parquet", tables.ENTITIES, EXACT_ENTITIES.names[:3])
    extracted, n = tables.read_table(folder / "extracted.parquet", tables.EXTRACTED), len(named)
    entity, rows = extracted["entity"].to_numpy(), np.arange(n + 1, dtype=np.int32)
    order, starts = np.argsort(entity, kind="stable"), tables.starts_of(np.bincount(entity, minlength=n))
    nothing = pa.ListArray.from_arrays(pa.array(np.zeros_like(rows)), pa.array([], pa.string()))
    members = pa.ListArray.from_arrays(pa.array(rows), pa.array(rows[:-1]))
    passages = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), extracted["passage"].take(order).combine_chunks())
    columns = [*(column.combine_chunks() for column in named.columns), nothing, nothing, members, passages]
    tables.write_columns(work.out / "higra_exact_entities.parquet", EXACT_ENTITIES, columns)
    with tables.TableWriter(work.out / "higra_exact_relations.parquet", HIGRA_RELATIONS) as writer:
        for batch in tables.read_batches(folder / "relations.parquet", tables.RELATIONS):
            writer.add([*batch.columns, np.ones(batch.num_rows)])
    write(work.out, "higra_exact_merges", [])
    return {
        "higra_exact_entities": n,
        "higra_exact_relations": tables.n_rows(folder / "relations.parquet"),
        "higra_exact_merges": 0,
        "higra_dropped_names": _n_dropped(work),
    }


def _n_dropped(work: Work) -> int:
    """The number of extracted names that are not usable."""
    n, path = 0, work.stage_folders["extraction"] / "extractions.parquet"
    for batch in tables.read_batches(path, tables.EXTRACTIONS, ("entities", "triples")):
        parts = pc.list_flatten(pc.list_flatten(batch["triples"]))
        ends = parts.filter(pa.array(np.arange(len(parts)) % 3 != 1))
        names = pa.concat_arrays([pc.list_flatten(batch["entities"]), ends])
        is_short = pc.less_equal(pc.binary_length(names), MAX_NAME_CHARS)
        is_plain = pc.and_(pc.string_is_ascii(names), pc.match_substring_regex(names, "[A-Za-z0-9]"))
        others = names.filter(pc.invert(pc.and_(is_short, is_plain)))
        n += sum(not _usable(name) for name in others.to_pylist())
    return n


# --- what is merged --------------------------------------------------------------------------------

STATED = pa.schema([("s", pa.int32()), ("label", pa.string()), ("o", pa.int32()), ("passage", pa.int32())])
_TABLES = {  # tables of items; kind: a name, an alias or a type; seq: the order of descriptions
    "written": pa.schema([("item", pa.int32()), ("kind", pa.int8()), ("text", pa.string())]),
    "described": pa.schema([("item", pa.int32()), ("seq", pa.int64()), ("text", pa.string())]),
    "places": pa.schema([("item", pa.int32()), ("passage", pa.int32())]),
    "stated": STATED,
}
_NAME, _ALIAS, _TYPE = range(3)


class Items:
    """The items of a corpus: all extracted entities with the same normalised name, set of types and set of aliases.

    keys: keys of each item, in the order of first use. What was written about an item, and the triples between items,
    are rows of the database, see _TABLES. dropped: number of names that normalise to nothing or are too long; their
    triples are dropped too.
    """

    def __init__(self, db: Database) -> None:
        self.keys: list[Key] = []
        self.dropped = 0
        self._rows: dict[Key, int] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}  # one object for equal sets, most of which are empty
        self._db, self._n_described = db, 0
        self._new: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
        for name, schema in _TABLES.items():
            db.create(name, schema)

    def read(self, work: Work) -> None:
        """Add EXTRACTIONS and PROFILES, passage by passage.

        An end of a triple is the entity of its passage with that name; else the first entity with that alias; else a
        new entity without further data.
        """
        folder, first = work.stage_folders["extraction"], 0
        work.progress.start("higra_exact", tables.n_rows(folder / "extractions.parquet"), "passages")
        profiles = tables.read_table(folder / "profiles.parquet", tables.PROFILES)
        profiles = profiles.take(pc.sort_indices(profiles["passage"]))  # stable
        passages = profiles["passage"].to_numpy()
        for batch in tables.read_batches(folder / "extractions.parquet", tables.EXTRACTIONS):
            rows = batch.select(["passage", "entities", "triples"]).to_pylist()
            last = int(np.searchsorted(passages, rows[-1]["passage"], "right")) if rows else first
            profiles_of: dict[int, list[Row]] = defaultdict(list)
            for profile in profiles.slice(first, last - first).to_pylist():
                profiles_of[profile["passage"]].append(profile)
            first = last
            for row in rows:
                self._read(row["passage"], row["entities"], row["triples"], profiles_of.get(row["passage"], []))
            for name, schema in _TABLES.items():
                columns = list(zip(*self._new[name])) or [()] * len(schema)
                self._db.add(name, pa.table([pa.array(c, f.type) for c, f in zip(columns, schema)], schema))
                self._new[name].clear()
            work.progress.advance(batch.num_rows)
        self._rows.clear()  # the merge has the peak of memory

    def _read(
        self, passage: int, names: Sequence[str], triples: Sequence[Sequence[str]], profiles: Sequence[Row]
    ) -> None:
        known = self._known(passage, names, profiles)
        for subject, label, object_ in triples:
            ends = self._end(passage, subject, known), self._end(passage, object_, known)
            if ends[0] is not None and ends[1] is not None:
                self._new["stated"].append((ends[0], normalise_name(label), ends[1], passage))

    def _known(self, passage: int, names: Sequence[str], profiles: Sequence[Row]) -> dict[str, int]:
        """The items of a passage's entities, by normalised name; and by alias, unless an entity has it as its name."""
        by_name: dict[str, int] = {}
        by_alias: dict[str, int] = {}
        profiled = {profile["name"] for profile in profiles}
        for profile in [*profiles, *(_UNKNOWN | {"name": name} for name in names if name not in profiled)]:
            if (row := self._add(passage, profile)) is not None:
                name, _, aliases = self.keys[row]
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
        sets = frozenset(types), frozenset(aliases.values()) - {name}
        kinds, others = (self._sets.setdefault(part, part) for part in sets)
        key = name, kinds, others
        row = self._rows.setdefault(key, len(self.keys))
        if row == len(self.keys):
            self.keys.append(key)
        written = self._new["written"]
        written.append((row, _NAME, _spaced(profile["name"])))
        written += [(row, _ALIAS, _spaced(alias)) for alias in aliases]
        written += [(row, _TYPE, kind) for kind in types]
        if description := _spaced(profile["description"]):
            self._new["described"].append((row, self._n_described, description))
            self._n_described += 1
        self._new["places"].append((row, passage))
        return row

    def _end(self, passage: int, name: str, known: dict[str, int]) -> int | None:
        normal = _usable(name)
        if normal not in known:
            row = self._add(passage, _UNKNOWN | {"name": name})
            if row is not None:
                known[normal] = row
            return row
        kind = _NAME if normal == self.keys[known[normal]][0] else _ALIAS
        self._new["written"].append((known[normal], kind, _spaced(name)))
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
    while any(aliases):  # each round of joins makes more aliases unambiguous, until none is added
        usable = _unambiguous(keys, aliases, list(zip(joined, by_name)))
        components = _components(keys, usable)
        if components == joined:
            break
        joined = components
    group = _groups(keys, usable) if any(usable) else by_name
    names: dict[int, set[str]] = {g: set() for g in np.flatnonzero(np.bincount(group, minlength=1) > most).tolist()}
    for (name, _, _), g in zip(keys, group):
        if g in names:
            names[g].add(name)
    aside = {g for g, parts in names.items() if len(parts) > most}
    if aside:
        group = _groups(keys, [frozenset() if g in aside else own for g, own in zip(group, usable)])
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
        by_type = meant[alias]
        pairs = set[tuple[int, int]]().union(*(by_type.get(kind, ()) for kind in ({"", *types} if types else by_type)))
        return any(len(set(side)) == 1 for side in zip(*pairs))

    return [
        also and frozenset(alias for alias in also if stands_for_one(alias, types))
        for (_, types, _), also in zip(keys, aliases)
    ]


def _components(keys: Sequence[Key], aliases: Sequence[Iterable[str]]) -> list[int]:
    """Components of entities that share a name or alias, and a type: the smallest row of each row's component."""
    texts = [
        [f"{n}\0{t}" for n in (name, *sorted(also)) for t in sorted(types) or [""]]
        for (name, types, _), also in zip(keys, aliases)
    ]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    encoded = pa.array([text for row in texts for text in row], pa.large_string()).dictionary_encode()
    values = torch.from_numpy(encoded.indices.to_numpy().astype(np.int64))
    groups: list[int] = exact_groups(Ragged(values, torch.from_numpy(offsets))).tolist()
    return groups


def _groups(keys: Sequence[Key], aliases: Sequence[Iterable[str]]) -> list[int]:
    """The group of each entity for the given aliases: its component; an untyped component joins its only typed
    match."""
    group = _components(keys, aliases)
    typed: dict[str, set[int]] = defaultdict(set)
    untyped: dict[int, set[str]] = defaultdict(set)
    for g, (own, types, _), also in zip(group, keys, aliases):
        for name in (own, *also) if types else ():
            typed[name].add(g)
    for g, (own, types, _), also in zip(group, keys, aliases):
        for name in () if types else (own, *also):
            if name in typed:
                untyped[g].add(name)
    joined = {g: set().union(*(typed.get(name, ()) for name in names)) for g, names in untyped.items()}
    joins = {g: next(iter(targets)) for g, targets in joined.items() if len(targets) == 1}
    first: dict[int, int] = {}
    for row, g in enumerate(group):
        first.setdefault(joins.get(g, g), row)
    return [first[joins.get(g, g)] for g in group]


# --- writing ---------------------------------------------------------------------------------------

_MERGED = pa.schema([("item", pa.int32()), ("grp", pa.int32()), ("member", pa.int32())])  # member: row of ENTITIES
_BECAME = pa.schema([("item", pa.int32()), ("entity", pa.int32()), ("member", pa.int32())])
_RANKS = pa.schema([("grp", pa.int32()), ("entity", pa.int32()), ("name", pa.string())])
_HEADS = pa.schema([("grp", pa.int32()), ("id", pa.string()), ("name", pa.string())])
_WAYS = (  # the commonest first, ties in alphabetical order
    """CREATE TABLE counted AS SELECT grp, kind, text, count(*) AS n FROM written JOIN merged USING (item)
    GROUP BY grp, kind, text""",
    "DROP TABLE written",
    f"CREATE TABLE named AS SELECT grp, text FROM counted WHERE kind = {_NAME}",
    f"""CREATE TABLE ways AS SELECT counted.* FROM counted ANTI JOIN named
    ON counted.kind = {_ALIAS} AND counted.grp = named.grp AND counted.text = named.text""",
    "DROP TABLE counted",
)
_FIRST = f"SELECT grp, arg_min(text, row(-n, text)) AS name FROM ways WHERE kind = {_NAME} GROUP BY grp ORDER BY grp"
_SEVERAL = "CREATE TABLE several AS SELECT id FROM heads GROUP BY id HAVING count(*) > 1"
_HOMONYMS = "SELECT grp, id, name FROM heads SEMI JOIN several USING (id) ORDER BY grp"
_THEIR_TYPES = f"""SELECT grp, text FROM ways SEMI JOIN (SELECT grp FROM heads SEMI JOIN several USING (id)) USING (grp)
    WHERE kind = {_TYPE} ORDER BY grp, n DESC, text"""
_LISTS = (  # lists of each entity: aliases, types, descriptions, members, passages
    f"""SELECT entity, text FROM ways JOIN ranks USING (grp) WHERE (kind = {_NAME} AND text <> name OR kind = {_ALIAS})
    AND {{}} ORDER BY entity, kind, n DESC, text""",
    f"SELECT entity, text FROM ways JOIN ranks USING (grp) WHERE kind = {_TYPE} AND {{}} ORDER BY entity, n DESC, text",
    """SELECT entity, text FROM described JOIN became USING (item) WHERE {} GROUP BY entity, text
    ORDER BY entity, min(row(item, seq))""",
    "SELECT DISTINCT entity, member FROM became WHERE {} ORDER BY entity, member",
    "SELECT DISTINCT entity, passage FROM places JOIN became USING (item) WHERE {} ORDER BY entity, passage",
)
_RELATIONS = (
    """CREATE TABLE with_subjects AS SELECT entity AS s, label, o, passage FROM stated JOIN became ON s = item""",
    """CREATE TABLE with_ends AS SELECT DISTINCT s, label, entity AS o, passage FROM with_subjects
    JOIN became ON o = item""",
)


def _name_groups(db: Database) -> pa.LargeStringArray:
    """Make the table `ranks`, and return the ids of the entities, sorted.

    If entities share a name, their ids also hold their types, and a number if the types are equal too. The two spaces
    before these occur in no normalised name, so ids stay unique.
    """
    db.create("heads", _HEADS)
    for batch in db.batches(_FIRST):
        db.add("heads", pa.table([batch["grp"], normalised(one_array(batch["name"])), batch["name"]], _HEADS.names))
    db.run(_SEVERAL)
    types: dict[int, list[str]] = defaultdict(list)
    for batch in db.batches(_THEIR_TYPES):
        for group, kind in zip(batch["grp"].to_pylist(), batch["text"].to_pylist()):
            types[group].append(kind)
    renamed, n_of_id = [], Counter[str]()
    for row in (row for batch in db.batches(_HOMONYMS) for row in batch.to_pylist()):
        row["id"] += f"  [{', '.join(types[row['grp']])}]"
        n_of_id[row["id"]] += 1
        if n_of_id[row["id"]] > 1:
            row["id"] += f"  #{n_of_id[row['id']]}"
        renamed.append(row)
    db.run("DELETE FROM heads WHERE id IN (SELECT id FROM several)")
    db.add("heads", pa.Table.from_pylist(renamed, _HEADS))
    db.create("ranks", _RANKS)
    ids, n = [pa.array([], pa.large_string())], 0
    for batch in db.batches("SELECT * FROM heads ORDER BY id"):
        ids.append(batch["id"].cast(pa.large_string()))
        rows = np.arange(n, n + batch.num_rows, dtype=np.int32)
        db.add("ranks", pa.table([batch["grp"], rows, batch["name"]], _RANKS.names))
        n += batch.num_rows
    return pa.concat_arrays(ids)


def _write_entities(work: Work, db: Database, ids: pa.LargeStringArray) -> None:
    with tables.TableWriter(work.out / "higra_exact_entities.parquet", EXACT_ENTITIES) as writer:
        for first in range(0, len(ids), ROWS):
            last = min(first + ROWS, len(ids))
            part = f"entity BETWEEN {first} AND {last - 1}"
            names = pa.concat_arrays(
                [b["name"] for b in db.batches(f"SELECT name FROM ranks WHERE {part} ORDER BY entity")]
            )
            lists = [
                _lists(db, query.format(part), first, last, type)
                for query, type in zip(_LISTS, EXACT_ENTITIES.types[2:])
            ]
            writer.add([ids.slice(first, last - first), names, *lists])


def _lists(db: Database, query: str, first: int, last: int, type: pa.DataType) -> pa.ListArray:
    """The second column of a query, one list for each of the entities first to last - 1."""
    batches = list(db.batches(query))
    if not batches:
        return pa.array([[]] * (last - first), type)
    rows = pa.Table.from_batches(batches)
    offsets = np.searchsorted(rows["entity"].to_numpy(), np.arange(first, last + 1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows.column(1).combine_chunks())
