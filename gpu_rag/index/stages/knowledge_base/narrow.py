"""Knowledge base of an index under a filter, see `index.narrow`: complete graphs, but only the kept documents.

Records and edges of knowledge graphs and bases stay, because no document states them. The index's own records and edges
come from the view. A node stays if it has a record; its name, aliases, type and passages are computed from the kept
rows. Web pages are not documents, and stay. A node without remaining passages gets a stand-in text; if the whole index
has no vector of that text, the vector of its name is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.knowledge_base.tables import KB_TABLES, KB_TEXTS
from gpu_rag.index.names import one_array
from gpu_rag.index.narrow import ENTITIES, PASSAGES, Files, Narrow, View, masked_rows
from gpu_rag.index.stages.knowledge_base.fuse import Fused
from gpu_rag.index.stages.knowledge_base.nodes import Nodes, Records, names_of, types_of
from gpu_rag.index.stages.knowledge_base.passages import EXTRACTION, link_passages, read_passage_rows
from gpu_rag.index.stages.knowledge_base.stage import read_extraction
from gpu_rag.index.stages.knowledge_base.texts import kb_texts_stage
from gpu_rag.index.tables import whole_text

_RECORDS, _NODES, _EDGES, _RELATIONS = (f"kb/kb_{name}" for name in ("records", "nodes", "edges", "relations"))


def _kb(view: View) -> Files:
    old = {name: view.base.table("kb", f"kb_{name}.parquet", schema) for name, schema in KB_TABLES.items()}
    sources = old["sources"]["name"].to_pylist()
    extracted = np.array([kind == EXTRACTION for kind in old["sources"]["kind"].to_pylist()], bool)
    source = _ints(old["records"], "source")
    stays = ~extracted[source]  # the index's own records come last: its entities, in order
    others = old["records"].filter(pa.array(stays))
    parts = [tuple(one_array(others[name]) for name in ("id", "name", "aliases", "types"))]
    with view.scratch("passages", *(("extraction", "entities", "mentions") if extracted.any() else ())) as work:
        if extracted.any():
            own = read_extraction(work)
            parts.append((own.ids, own.names, own.aliases, own.types))
            stays[~stays] = view.new(ENTITIES) >= 0
        view.keep(_RECORDS, np.flatnonzero(stays), len(stays))
        records = Records.of(source[stays], parts)
        kept, node = np.unique(_ints(old["records"], "node")[stays], return_inverse=True)
        view.keep(_NODES, kept, old["nodes"].num_rows)
        (names, aliases), (type, types) = names_of(records, node, len(kept)), types_of(records, node, len(kept))
        ids, start = old["nodes"]["id"].take(pa.array(kept)), np.searchsorted(source[stays], range(len(sources) + 1))
        nodes = Nodes(records, Fused(node, [], 0), node, start, one_array(ids), names, aliases, type, types)
        linked, n_own = link_passages(work, read_passage_rows(work.stage_folders["passages"]), nodes, sources)
    columns = {
        "types": [types],
        "nodes": [ids, names, aliases, type, linked, n_own],
        "edges": _edges(view, old["edges"], old["relations"].num_rows, extracted),
        "records": [records.source, records.ids, records.names, records.aliases, records.types, node],
    }
    files = {name: _table(KB_TABLES[name], part) for name, part in columns.items()}
    files["sources"], files["relations"] = old["sources"], old["relations"].take(pa.array(view.kept(_RELATIONS)))
    files["passages"] = old["passages"].take(pa.array(view.kept(PASSAGES)))
    files["links"] = view.masked("kb/kb_links", old["links"], {"left": _RECORDS, "right": _RECORDS})
    return {f"kb_{name}.parquet": table for name, table in files.items()}


def _edges(view: View, old: pa.Table, n_relations: int, extracted: np.ndarray) -> list[Any]:
    """Columns of the edges that a kept passage or another source states. extracted: bool of each source."""
    passages = old["passages"].combine_chunks()
    passage = view.new(PASSAGES)[passages.flatten().to_numpy()]
    owner = pc.list_parent_indices(passages).to_numpy()[passage >= 0]
    n_stated = np.bincount(owner, minlength=len(old))
    stays = ~extracted[_ints(old, "source")] | (n_stated > 0)
    view.keep(_EDGES, np.flatnonzero(stays), len(old))
    offsets = np.append(0, np.cumsum(n_stated[stays])).astype(np.int32)
    lists = pa.ListArray.from_arrays(offsets, passage[passage >= 0].astype(np.int32))
    edges = old.filter(pa.array(stays))
    view.keep(_RELATIONS, np.unique(_ints(edges, "relation")), n_relations)
    ends = (("head", _NODES), ("relation", _RELATIONS), ("tail", _NODES))
    return [*(view.new(table)[_ints(edges, name)] for name, table in ends), edges["source"], edges["provenance"], lists]


def _table(schema: pa.Schema, columns: list[Any]) -> pa.Table:
    arrays = [pa.array(column) if isinstance(column, (list, np.ndarray)) else column for column in columns]
    return pa.table([array.cast(field.type) for array, field in zip(arrays, schema)], schema=schema)


def _ints(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.int64)


def _text_vectors(view: View) -> Files:
    new, old = (index.table("kb_texts", "kb_texts.parquet", KB_TEXTS) for index in (view, view.base))
    node = view.kept(_NODES)[_ints(new, "node")]
    row = pc.index_in(new["text"], value_set=whole_text(old["text"]).cast(new["text"].type)).fill_null(-1).to_numpy()
    vectors = view.base.arrays("kb_text_vectors")["vectors"]
    result = np.zeros((len(node), vectors.shape[1]), vectors.dtype)
    result[row >= 0] = vectors[row[row >= 0]]
    if (row < 0).any() and "kb_name_vectors" in view.stages:
        result[row < 0] = view.base.arrays("kb_name_vectors")["vectors"][node[row < 0]]
    return {"vectors.safetensors": {"vectors": result}}


def _edge_vectors(view: View) -> Files:
    """Vectors of the view's edges; none if the whole index has none, see `texts.exact_texts`."""
    vectors = view.base.arrays("kb_edge_vectors")
    return {"vectors.safetensors": masked_rows(vectors, view.kept(_EDGES)) if len(vectors["vectors"]) else vectors}


NARROW: dict[str, Narrow] = {
    "kb": _kb,
    "kb_name_vectors": {"vectors.safetensors": _NODES},
    "kb_edge_vectors": _edge_vectors,
    "kb_relation_vectors": {"vectors.safetensors": _RELATIONS},
    "kb_texts": lambda view: view.run(kb_texts_stage, "kb"),
    "kb_text_vectors": _text_vectors,
    "kb_web": {"web_pages.parquet": "", "": ""},
}
