"""The exact merge: extracted entities are one when they share a name or alias, and a type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import torch

from gpu_rag.graph.cluster import exact_groups
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.merges import EXACT, REJECT, edited, edits_params, merge_row, name_pairs, read_edits
from gpu_rag.methods.higra.stages.items import Item, Key, commonest, read_items
from gpu_rag.methods.higra.tables import Row, by_id, relation_rows, write
from gpu_rag.text.normalise import normalise_name
from gpu_rag.types import Ragged


@stage("higra_exact", needs=("extraction", "entities"), params=lambda settings, sources: edits_params(sources))
def exact_stage(work: Work) -> dict[str, int]:
    """Tables `entities` (EXACT_ENTITIES), `relations` between them, and `merges`: names that became one by an alias."""
    folder = work.stage_folders["extraction"]
    items = read_items(
        tables.read_table(folder / "extractions.parquet", tables.EXTRACTIONS),
        tables.read_table(folder / "profiles.parquet", tables.PROFILES),
    )
    names = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES)["id"].to_pylist()
    rejected = name_pairs(edited(read_edits(work.sources.merges), REJECT))
    group_of = exact_merge([item.key for item in items.items], rejected)
    members: dict[int, list[Item]] = defaultdict(list)
    for item, group in zip(items.items, group_of):
        members[group].append(item)
    made = entities_of(members, {name: row for row, name in enumerate(names)})
    rows, row_of = by_id(made, group_of)
    write(work.out, "higra_exact_entities", rows)
    n_relations = write(work.out, "higra_exact_relations", relation_rows(rows, items.triples.items(), row_of))
    merges = [
        merge_row(EXACT, "a name of one is an alias of another", 1.0, merged, made[group]["id"])
        for group, parts in members.items()
        if len(merged := sorted({item.key[0] for item in parts})) > 1
    ]
    write(work.out, "higra_exact_merges", sorted(merges, key=lambda row: row["id"]))
    work.progress.advance(len(items.items))
    return {
        "higra_exact_entities": len(rows),
        "higra_exact_relations": n_relations,
        "higra_exact_merges": len(merges),
        "higra_dropped_names": items.dropped,
    }


def exact_merge(keys: Sequence[Key], apart: frozenset[frozenset[str]] = frozenset()) -> list[int]:
    """The group of each entity: the smallest entity of it.

    keys: (name, types, aliases) of N entities, normalised. Two are one when ({name} and aliases) intersect and types
    intersect; without types, with others without; all transitive: connected components over the shared (name, type)
    keys. A component without types then joins the one typed component that has one of its names, unless several have.
    apart: pairs of names that a person rejected: the entities of these names do not merge by their aliases.
    """
    rejected = frozenset(name for pair in apart for name in pair)
    number: dict[tuple[str, str], int] = {}
    values: list[int] = []
    offsets = [0]
    names_of = [[name, *sorted(() if name in rejected else aliases)] for name, _, aliases in keys]
    for (_, types, _), names in zip(keys, names_of):
        values += [number.setdefault((n, t), len(number)) for n in names for t in sorted(types) or [""]]
        offsets.append(len(values))
    ragged = Ragged(torch.tensor(values, dtype=torch.int64), torch.tensor(offsets, dtype=torch.int64))
    group = exact_groups(ragged).tolist()
    typed: dict[str, set[int]] = defaultdict(set)
    untyped: dict[int, set[str]] = defaultdict(set)
    for g, (_, types, _), names in zip(group, keys, names_of):
        for name in names:
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


def entities_of(members: Mapping[int, Sequence[Item]], entity_row: Mapping[str, int]) -> dict[int, Row]:
    """A row of EXACT_ENTITIES for each group, each with an id of its own.

    entity_row: the rows of ENTITIES by normalised name.
    """
    made = {group: _entity(parts, entity_row) for group, parts in members.items()}
    by_name: dict[str, list[Row]] = defaultdict(list)
    for entity in made.values():
        by_name[entity["id"]].append(entity)
    for entities in by_name.values():
        if len(entities) > 1:
            _with_types(entities)
    return made


def _with_types(entities: Sequence[Row]) -> None:
    """Adds the types to the ids of entities of one name, and a number where these are equal too. The two spaces before
    them stand in no normalised name, so no other id is like them."""
    taken: Counter[str] = Counter()
    for entity in entities:
        entity["id"] += f"  [{', '.join(entity['types'])}]"
        taken[entity["id"]] += 1
        if taken[entity["id"]] > 1:
            entity["id"] += f"  #{taken[entity['id']]}"


def _entity(parts: Sequence[Item], entity_row: Mapping[str, int]) -> Row:
    written = commonest(item.names for item in parts)
    also = [way for way in commonest(item.aliases for item in parts) if way not in set(written)]
    return {
        "id": normalise_name(written[0]),
        "name": written[0],
        "aliases": [*written[1:], *also],
        "types": commonest(item.types for item in parts),
        "descriptions": list(dict.fromkeys(text for item in parts for text in item.descriptions)),
        "members": sorted({entity_row[item.key[0]] for item in parts}),
        "passages": sorted(set().union(*(item.passages for item in parts))),
    }
