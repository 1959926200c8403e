"""Schemas of the tables of a knowledge base. Integer ids are row numbers, as in `tables`."""

from __future__ import annotations

import pyarrow as pa

ORIGINS = pa.schema(  # one row per document, in the order of DOCUMENTS; only if the sources of documents have names
    [
        ("document", pa.string()),
        ("source", pa.string()),
        ("node", pa.string()),  # id of the node that the document describes, in that source; "" in a corpus
    ]
)
KB_SOURCES = pa.schema([("name", pa.string()), ("kind", pa.string()), ("files", pa.list_(pa.string()))])
KB_TYPES = pa.schema([("name", pa.string())])  # ascending
KB_RELATIONS = pa.schema(
    [
        ("name", pa.string()),  # ascending
        ("id", pa.string()),  # as in the files: an IRI, or the name itself
        ("text", pa.string()),  # the relation in words
    ]
)
KB_NODES = pa.schema(
    [
        ("id", pa.string()),  # ascending
        ("name", pa.string()),
        ("aliases", pa.list_(pa.string())),
        ("type", pa.int32()),  # rows of KB_TYPES
        ("passages", pa.list_(pa.int32())),  # passages of its own document, then passages that mention it
        ("n_own", pa.int32()),
    ]
)
KB_RECORDS = pa.schema(  # sorted by (source, id): the data of each source about a node, before nodes were fused
    [
        ("source", pa.int32()),  # rows of KB_SOURCES
        ("id", pa.string()),
        ("name", pa.string()),
        ("aliases", pa.list_(pa.string())),
        ("types", pa.list_(pa.string())),
        ("node", pa.int32()),  # rows of KB_NODES
    ]
)
KB_LINKS = pa.schema(  # pairs of records that are one node, and why; rows of KB_RECORDS, left < right
    [("left", pa.int32()), ("right", pa.int32()), ("rule", pa.string())]  # rule: id | name
)
KB_EDGES = pa.schema(  # sorted by (head, relation, tail, source), without duplicates
    [
        ("head", pa.int32()),
        ("relation", pa.int32()),
        ("tail", pa.int32()),
        ("source", pa.int32()),
        ("provenance", pa.string()),  # "file:line", then in brackets the note of the row itself; "" if extracted
        ("passages", pa.list_(pa.int32())),  # passages that state the edge, ascending
    ]
)
KB_PASSAGES = pa.schema([("source", pa.int32())])  # one row per passage
KB_TEXTS = pa.schema([("node", pa.int32()), ("text", pa.string())])  # nodes without passages, ascending
WEB_PAGES = pa.schema(
    [
        ("id", pa.string()),  # ascending; the URL, or "SOURCE:URL" if another snapshot also has the page
        ("title", pa.string()),
        ("text", pa.string()),
        ("url", pa.string()),  # or the path below the folder of pages
        ("source", pa.string()),
    ]
)
KB_TABLES = {  # tables of the stage `kb`, by name
    "sources": KB_SOURCES, "types": KB_TYPES, "relations": KB_RELATIONS, "nodes": KB_NODES, "records": KB_RECORDS,
    "links": KB_LINKS, "edges": KB_EDGES, "passages": KB_PASSAGES,
}  # fmt: skip
KB_ROWS = (  # (table, column with row numbers, table that these numbers refer to)
    ("nodes", "type", "types"), ("nodes", "passages", "passages"), ("records", "node", "nodes"),
    ("records", "source", "sources"), ("edges", "head", "nodes"), ("edges", "relation", "relations"),
    ("edges", "tail", "nodes"), ("edges", "source", "sources"), ("edges", "passages", "passages"),
    ("passages", "source", "sources"),
)  # fmt: skip
