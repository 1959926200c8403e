"""The exact merge: extracted entities are one when they share a name or alias, and a type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpu_rag.graph.cluster import exact_groups
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from gpu_rag.index.work import Work
from gpu_rag.methods.higra.merge_edits import EXACT, Edits, edits_params, merge_id
from gpu_rag.methods.higra.stages.items import Item, Items, commonest, read_items
from gpu_rag.methods.higra.tables import EXACT_ENTITIES, HIGRA_MERGES, HIGRA_RELATIONS
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
    ids = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES)["id"].to_pylist()
    edits = Edits.of(work.sources)
    group_of = exact_merge([item.key for item in items.items], edits.rejected)
    merged = merged_entities(items, group_of, {name: row for row, name in enumerate(ids)})
    tables.write_rows(work.out / "higra_exact_entities.parquet", EXACT_ENTITIES, merged.rows)
    n_relations = tables.write_rows(
        work.out / "higra_exact_relations.parquet", HIGRA_RELATIONS, merged.relations(items)
    )
    merges = sorted(merged.merges, key=lambda row: row["id"])
    tables.write_rows(work.out / "higra_exact_merges.parquet", HIGRA_MERGES, merges)
    work.progress.advance(len(items.items))
    return {
        "higra_exact_entities": len(merged.rows),
        "higra_exact_relations": n_relations,
        "higra_exact_merges": len(merges),
        "higra_dropped_names": items.dropped,
    }


Key = tuple[str, frozenset[str], frozenset[str]]  # name, types, aliases, normalised


def exact_merge(keys: Sequence[Key], apart: frozenset[frozenset[str]] = frozenset()) -> list[int]:
    """The group of each entity: the smallest entity of it.

    keys: (name, types, aliases) of N entities, normalised. Two are one when ({name} and aliases) intersect and types
    intersect; without types, with others without; all transitive: connected components over the shared (name, type)
    keys. A component without types then joins the one typed component that has one of its names, unless several have.
    apart: pairs of names that a person told apart: the entities of these names do not merge by their aliases.
    """
    told_apart = frozenset(name for pair in apart for name in pair)
    number: dict[tuple[str, str], int] = {}
    values: list[int] = []
    offsets = [0]
    names_of = [[name, *sorted(() if name in told_apart else aliases)] for name, _, aliases in keys]
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
    return _smallest([joins.get(g, g) for g in group])


def _smallest(group: Sequence[int]) -> list[int]:
    first: dict[int, int] = {}
    for row, g in enumerate(group):
        first.setdefault(g, row)
    return [first[g] for g in group]


@dataclass
class Merged:
    """The entities after the exact merge: rows of EXACT_ENTITIES; row_of: the row of each group."""

    rows: list[dict[str, Any]]
    row_of: dict[int, int]
    group_of: list[int]
    merges: list[dict[str, Any]]

    def relations(self, items: Items) -> list[dict[str, Any]]:
        """Rows of HIGRA_RELATIONS."""
        found: dict[tuple[int, str, int], set[int]] = defaultdict(set)
        for (s, label, o), passages in items.triples.items():
            found[self.row_of[self.group_of[s]], label, self.row_of[self.group_of[o]]] |= passages
        return relation_rows([row["id"] for row in self.rows], found)


def relation_rows(ids: Sequence[str], found: dict[tuple[int, str, int], set[int]]) -> list[dict[str, Any]]:
    """Rows of HIGRA_RELATIONS of {(subject, label, object): passages}, sorted."""
    return [
        {
            "id": f"{ids[s]} | {label} | {ids[o]}",
            "subject": s,
            "label": label,
            "object": o,
            "passages": sorted(found[s, label, o]),
            "origin": "extraction",
            "confidence": 1.0,
        }
        for s, label, o in sorted(found)
    ]


def merged_entities(items: Items, group_of: list[int], entity_row: dict[str, int]) -> Merged:
    """The rows of EXACT_ENTITIES, sorted by id. entity_row: the rows of ENTITIES by normalised name."""
    members: dict[int, list[Item]] = defaultdict(list)
    for row, group in enumerate(group_of):
        members[group].append(items.items[row])
    made = {group: _entity(parts, entity_row) for group, parts in members.items()}
    by_name: dict[str, list[int]] = defaultdict(list)
    for group, entity in made.items():
        by_name[entity["id"]].append(group)
    for groups in by_name.values():
        if len(groups) > 1:
            _tell_apart([made[group] for group in groups])
    order = sorted(made, key=lambda group: made[group]["id"])
    merges = [_merge(made[group], members[group]) for group in order]
    return Merged(
        [made[group] for group in order],
        {group: row for row, group in enumerate(order)},
        group_of,
        [merge for merge in merges if merge is not None],
    )


def _tell_apart(entities: Sequence[dict[str, Any]]) -> None:
    """Adds the types to the ids of entities of one name, and a number where these are equal too. The two spaces before
    them stand in no normalised name, so no other id is like them."""
    taken: Counter[str] = Counter()
    for entity in entities:
        entity["id"] += f"  [{', '.join(entity['types'])}]"
        taken[entity["id"]] += 1
        if taken[entity["id"]] > 1:
            entity["id"] += f"  #{taken[entity['id']]}"


def _entity(parts: Sequence[Item], entity_row: dict[str, int]) -> dict[str, Any]:
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


def _merge(entity: dict[str, Any], parts: Sequence[Item]) -> dict[str, Any] | None:
    """What became one by an alias; None where all had one name."""
    names = sorted({item.key[0] for item in parts})
    if len(names) < 2:
        return None
    return {
        "id": merge_id(EXACT, names),
        "why": EXACT,
        "rule": "a name of one is an alias of another",
        "score": 1.0,
        "members": names,
        "entity": entity["id"],
    }
