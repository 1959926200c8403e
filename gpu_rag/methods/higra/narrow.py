"""The stages of HiGraAgent's graph under a filter, see `index.narrow`.

Names that are one entity in the whole index are one in the view. The visible fields of an entity (names, types,
descriptions) are computed from the kept passages. Inferred relations are left out: they have no passage, since a
model inferred them from descriptions of any documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from gpu_rag.index.narrow import ENTITIES, PASSAGES, Files, Narrow, View
from gpu_rag.index.stages.search import triple_texts
from gpu_rag.methods.higra.stages.asks import entity_text
from gpu_rag.methods.higra.stages.exact import exact_stage, exact_tables
from gpu_rag.methods.higra.stages.graph import graph_stage
from gpu_rag.methods.higra.stages.merge import merged_rows
from gpu_rag.methods.higra.tables import HIGRA_RELATIONS, TABLES, Row, Triple, ints, read_of, relation_rows
from gpu_rag.text.bm25 import Bm25

_ENTITIES, _RELATIONS = "higra_merge/higra_entities", "higra_links/higra_relations"


def _merge(view: View) -> Files:
    exact = read_of(view, "higra_exact_entities").to_pylist()
    old_rows = _old_rows(view, exact)
    merged, row_of = merged_rows(exact, old_rows)
    of_base = np.zeros(len(merged), np.int64)
    of_base[row_of] = old_rows
    view.keep(_ENTITIES, of_base, read_of(view.base, "higra_entities").num_rows)
    rows = {"higra_entities": merged, "higra_became": [{"entity": row} for row in row_of]}
    return {f"{name}.parquet": pa.Table.from_pylist(dicts, schema=TABLES[name][1]) for name, dicts in rows.items()}


def _old_rows(view: View, entities: list[Row]) -> list[int]:
    """For each exact entity of the view, its entity in the whole index: the one that has one of its names and was
    extracted from one of its passages; of several such, the first that has one of its types."""
    whole = read_of(view.base, "higra_entities")
    members, types = whole["members"].to_pylist(), whole["types"].to_pylist()
    named: dict[tuple[int, int], list[int]] = {}  # (row of ENTITIES, passage) of the whole index -> entities
    sources = read_of(view.base, "higra_sources")
    for entity, passage in zip(sources["entity"].to_pylist(), sources["passage"].to_pylist()):
        for member in members[entity]:
            named.setdefault((member, passage), []).append(entity)
    names, passages = view.kept(ENTITIES), view.kept(PASSAGES)
    rows = []
    for row in entities:
        pairs = ((int(names[name]), int(passages[passage])) for name in row["members"] for passage in row["passages"])
        candidates = (entity for pair in pairs for entity in named.get(pair, ()))
        first, kinds = next(candidates), set(row["types"])
        typed = (entity for entity in chain((first,), candidates) if not kinds.isdisjoint(types[entity]))
        rows.append(next(typed, first) if kinds else first)
    return rows


def _links(view: View) -> Files:
    exact, row_of = read_of(view, "higra_exact_relations").to_pylist(), read_of(view, "higra_became")["entity"]
    triples = (((row["subject"], row["label"], row["object"]), row["passages"]) for row in exact)
    relations = pa.Table.from_pylist(relation_rows(triples, row_of.to_pylist()), HIGRA_RELATIONS)
    old, of_base = read_of(view.base, "higra_relations"), view.kept(_ENTITIES)
    keys = list(zip(ints(old, "subject").tolist(), old["label"].to_pylist(), ints(old, "object").tolist()))
    row_of = {key: row for row, key in enumerate(keys)}
    subjects, objects = (of_base[ints(relations, name)].tolist() for name in ("subject", "object"))
    wanted = list(zip(subjects, relations["label"].to_pylist(), objects))
    rows = [row_of.get(key, -1) for key in wanted]
    if -1 in rows:  # several things in a passage have one name: the relation may end at another of them
        stated = [set(passages) for passages in old["passages"].to_pylist()]
        kept = view.kept(PASSAGES)
        for number, row in enumerate(rows):
            if row < 0:
                passages = set(kept[relations["passages"][number].as_py()].tolist())
                rows[number] = _nearest(wanted[number], passages, keys, stated)
    view.keep(_RELATIONS, np.asarray(rows, np.int64), old.num_rows)
    return {"higra_relations.parquet": relations}


def _nearest(wanted: Triple, passages: set[int], keys: Sequence[Triple], stated: Sequence[set[int]]) -> int:
    """The row of the relation with this label, from one of these passages, that shares most ends; ties to the first."""
    near = [row for row, key in enumerate(keys) if key[1] == wanted[1] and not passages.isdisjoint(stated[row])]
    return max(near, key=lambda row: sum(ours == theirs for ours, theirs in zip(wanted, keys[row])))


def _mentions(view: View) -> Files:
    ends = {"entity": _ENTITIES, "passage": PASSAGES}
    links = view.masked("higra_mentions/higra_links", read_of(view.base, "higra_links"), ends)
    keys = [(name, "ascending") for name in ("passage", "start", "entity", "end")]  # the order of entities may differ
    return {"higra_links.parquet": links.sort_by(keys).combine_chunks()}


def _search(view: View) -> Files:
    entities, relations = read_of(view, "higra_entities"), read_of(view, "higra_relations")
    names = [entity_text(row, descriptions=False) for row in entities.to_pylist()]
    facts, params = triple_texts(entities["name"], relations)[:], view.manifest.stages["higra_search"].params
    return {"entities": Bm25.build(names, **params), "relations": Bm25.build(facts, **params)}


# An alias that is unambiguous in the view may be ambiguous in the whole. So merges come later, from the whole index.
_BY_NAMES = replace(exact_stage, run=partial(exact_tables, by="none"))

NARROW: dict[str, Narrow] = {
    "higra_exact": lambda view: view.run(_BY_NAMES, "extraction", "entities"),
    "higra_exact_vectors": {},  # only needed for merging, which is done
    "higra_merge": _merge,
    "higra_links": _links,
    "higra_mentions": _mentions,
    "higra_entity_vectors": {"vectors.safetensors": _ENTITIES},
    "higra_relation_vectors": {"vectors.safetensors": _RELATIONS},
    "higra_search": _search,
    "higra_graph": lambda view: view.run(graph_stage, *graph_stage.needs),
}
