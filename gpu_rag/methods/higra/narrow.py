"""The stages of HiGraAgent's graph for a part of its index, see `index.narrow`.

Names that are one entity in the whole index are one in the part. The visible fields of an entity (names, types,
descriptions) are rebuilt from the passages of the part. Inferred relations are left out: they have no passage, since a
model inferred them from descriptions of any documents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.narrow import Narrow, Part, vectors_of
from gpu_rag.methods.higra.stages.exact import exact_stage, exact_tables
from gpu_rag.methods.higra.stages.graph import graph_stage, search_stage
from gpu_rag.methods.higra.stages.merge import merged_rows
from gpu_rag.methods.higra.tables import HIGRA_LINKS, HIGRA_SOURCES, Row, ints, read, read_of, relation_rows, write


def _merge(part: Part) -> None:
    exact, out = part.folders["higra_exact"], part.folders["higra_merge"]
    entities = read(exact, "higra_exact_entities").to_pylist()
    old = _old_rows(part, entities)
    merged, row_of = merged_rows(entities, old)
    of_base = np.zeros(len(merged), np.int64)
    of_base[row_of] = old
    n_old = read_of(part.base, "higra_entities").num_rows
    part.keep("higra_entities", of_base, n_old)
    write(out, "higra_entities", merged)
    triples = (
        ((row["subject"], row["label"], row["object"]), row["passages"])
        for row in read(exact, "higra_exact_relations").to_pylist()
    )
    write(out, "higra_extracted_relations", relation_rows(merged, triples, row_of))
    sources = sorted({(row_of[row], passage) for row, one in enumerate(entities) for passage in one["passages"]})
    columns = {"entity": [entity for entity, _ in sources], "passage": [passage for _, passage in sources]}
    tables.write_table(out / "higra_sources.parquet", HIGRA_SOURCES, columns)


def _old_rows(part: Part, entities: list[Row]) -> list[int]:
    """For each exact entity of the part, its entity in the whole index: the one that has one of its names and was
    extracted from one of its passages."""
    members = read_of(part.base, "higra_entities")["members"].to_pylist()
    named: dict[tuple[int, int], int] = {}  # (row of ENTITIES, passage) of the whole index -> entity
    sources = read_of(part.base, "higra_sources")
    for entity, passage in zip(sources["entity"].to_pylist(), sources["passage"].to_pylist()):
        for member in members[entity]:
            named.setdefault((member, passage), entity)
    names, passages = part.rows["entities"], part.rows["passages"]
    return [
        next(
            named[pair]
            for name in one["members"]
            for passage in one["passages"]
            if (pair := (int(names[name]), int(passages[passage]))) in named
        )
        for one in entities
    ]


def _links(part: Part) -> None:
    relations = read(part.folders["higra_merge"], "higra_extracted_relations")
    write(part.folders["higra_links"], "higra_relations", relations.to_pylist())
    old, of_base = read_of(part.base, "higra_relations"), part.rows["higra_entities"]
    columns = zip(ints(old, "subject").tolist(), old["label"].to_pylist(), ints(old, "object").tolist())
    row_of = {key: row for row, key in enumerate(columns)}
    ends = (of_base[ints(relations, name)].tolist() for name in ("subject", "object"))
    subjects, objects = ends
    rows = [row_of[key] for key in zip(subjects, relations["label"].to_pylist(), objects)]
    part.rows["higra_relations"] = np.asarray(rows, np.int64)


def _mentions(part: Part) -> None:
    ends = {"entity": "higra_entities", "passage": "passages"}
    part.narrow_table("higra_mentions", "higra_links.parquet", HIGRA_LINKS, **ends)
    path = part.folders["higra_mentions"] / "higra_links.parquet"
    keys = [(name, "ascending") for name in ("passage", "start", "entity", "end")]
    sorted_ = tables.read_table(path, HIGRA_LINKS).sort_by(keys)  # entity order may differ in the part
    tables.write_columns(path, HIGRA_LINKS, [column.combine_chunks() for column in sorted_.columns])


# An alias that is unambiguous in the part may be ambiguous in the whole. So merges come later, from the whole index.
_BY_NAMES = replace(exact_stage, run=partial(exact_tables, by="none"))

NARROW: dict[str, Narrow] = {
    "higra_exact": lambda part: part.run(_BY_NAMES),
    "higra_exact_vectors": lambda part: None,  # only needed for merging, which is done
    "higra_merge": _merge,
    "higra_links": _links,
    "higra_mentions": _mentions,
    "higra_entity_vectors": vectors_of("higra_entity_vectors", "higra_entities"),
    "higra_relation_vectors": vectors_of("higra_relation_vectors", "higra_relations"),
    "higra_search": lambda part: part.run(search_stage),
    "higra_graph": lambda part: part.run(graph_stage),
}
