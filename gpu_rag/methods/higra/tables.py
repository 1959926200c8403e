"""Schemas of the tables of HiGraAgent's graph: entities after alignment, their relations, links and merges."""

from __future__ import annotations

import pyarrow as pa

EXACT_ENTITIES = pa.schema(  # after the exact merge; sorted by id
    [
        ("id", pa.string()),  # the normalised name, with its types where several entities have that name
        ("name", pa.string()),  # the commonest way it is written
        ("aliases", pa.list_(pa.string())),  # every other way, commonest first
        ("types", pa.list_(pa.string())),
        ("descriptions", pa.list_(pa.string())),
        ("members", pa.list_(pa.int32())),  # rows of ENTITIES whose names it holds, ascending
        ("passages", pa.list_(pa.int32())),  # where it was extracted, ascending
    ]
)
HIGRA_ENTITIES = pa.schema(  # after the semantic merge; sorted by id
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("aliases", pa.list_(pa.string())),
        ("types", pa.list_(pa.string())),
        ("descriptions", pa.list_(pa.string())),
        ("members", pa.list_(pa.int32())),  # rows of ENTITIES
        ("n_passages", pa.int32()),  # in how many passages it was extracted
    ]
)
HIGRA_RELATIONS = pa.schema(  # sorted by (subject, label, object)
    [
        ("id", pa.string()),
        ("subject", pa.int32()),  # rows of HIGRA_ENTITIES
        ("label", pa.string()),
        ("object", pa.int32()),
        ("passages", pa.list_(pa.int32())),  # where it was extracted, ascending; of an inferred one none
        ("origin", pa.string()),  # extraction | inferred
        ("confidence", pa.float32()),  # 1 for what was extracted
    ]
)
HIGRA_LINKS = pa.schema(  # sorted by (passage, start, entity, end)
    [
        ("entity", pa.int32()),  # rows of HIGRA_ENTITIES
        ("passage", pa.int32()),
        ("start", pa.int32()),  # characters into the passage text; -1: extracted there, not found verbatim
        ("end", pa.int32()),
        ("origin", pa.string()),  # extraction | search
    ]
)
HIGRA_MERGES = pa.schema(  # what became one and why; sorted by (why, -score, id)
    [
        ("id", pa.string()),  # for `gpu-rag merges --reject`; the same for the same names in every build
        ("why", pa.string()),  # exact | semantic | forced
        ("rule", pa.string()),
        ("score", pa.float32()),  # the cosine of the two names; of exact and forced ones 1
        ("members", pa.list_(pa.string())),  # exact: normalised names; else ids of EXACT_ENTITIES
        ("entity", pa.string()),  # id of the entity of HIGRA_ENTITIES that they became
    ]
)
HIGRA_SOURCES = pa.schema([("entity", pa.int32()), ("passage", pa.int32())])  # where entities were extracted; sorted
