"""Knowledge base of an index under a filter, see `index.narrow`: complete graphs, but only the kept documents.

Records and edges of knowledge graphs and bases stay, because no document states them. Those of the own extraction are
the view's. Nodes are made anew from both. Web pages are no documents, and stay. A node without remaining passages gets
a stand-in text; if the whole index has no vector of that text, the vector of its name is used.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base.tables import KB_TABLES, KB_TEXTS, WEB_PAGES
from gpu_rag.index.narrow import Files, Narrow, View, files_in, vectors_of
from gpu_rag.index.stages.knowledge_base.columns import LISTS, Edges, SourceColumns
from gpu_rag.index.stages.knowledge_base.passages import EXTRACTION, read_passage_rows
from gpu_rag.index.stages.knowledge_base.stage import read_extraction, write_kb
from gpu_rag.index.stages.knowledge_base.texts import kb_texts_stage
from gpu_rag.index.tables import whole_text

_NAMES = ("records", "edges", "relations")
_Tables = dict[str, pa.Table]


def _kb(view: View) -> Files:
    of_all, sources = _tables(view.base), view.base.table("kb", "kb_sources.parquet", KB_TABLES["sources"])
    with view.scratch(
        "passages", *(["extraction", "entities", "mentions"] if "entities" in view.stages else [])
    ) as work:
        parts = [
            read_extraction(work) if row["kind"] == EXTRACTION else _source(of_all, number, row["name"], row["kind"])
            for number, row in enumerate(sources.to_pylist())
            if row["kind"] in ("kg", "skb", EXTRACTION)
        ]
        write_kb(work, parts, read_passage_rows(work.stage_folders["passages"]), sources["name"].to_pylist())
        files = files_in(work.out) | {"kb_sources.parquet": sources}
    provenance = _note_rows(view, of_all, {name: files[f"kb_{name}.parquet"] for name in _NAMES})
    edges = files["kb_edges.parquet"]
    place = edges.schema.get_field_index("provenance")
    return files | {"kb_edges.parquet": edges.set_column(place, edges.schema.field(place), provenance)}


def _tables(index: Index) -> _Tables:
    return {name: index.table("kb", f"kb_{name}.parquet", KB_TABLES[name]) for name in _NAMES}


def _source(of_all: _Tables, number: int, name: str, kind: str) -> SourceColumns:
    """Records and edges of one source as they were read, without provenance."""
    records, edges = (of_all[table].filter(pc.equal(of_all[table]["source"], number)) for table in _NAMES[:2])
    node = _ints(records, "node")
    first, row = np.unique(node, return_index=True)
    ends = (row[np.searchsorted(first, _ints(edges, end))].astype(np.int32) for end in ("head", "tail"))
    used, relation = np.unique(_ints(edges, "relation"), return_inverse=True)
    named = of_all["relations"].take(pa.array(used))
    head, tail = ends
    ids, names, aliases, types = (_large(records[column]) for column in ("id", "name", "aliases", "types"))
    return SourceColumns(
        name, kind, [], ids, names, aliases, types,
        edges=Edges(head, relation.astype(np.int32), tail, np.zeros(len(head), np.int64)),
        relations=list(zip(named["id"].to_pylist(), named["name"].to_pylist())),
    )  # fmt: skip


def _note_rows(view: View, old: _Tables, new: _Tables) -> pa.ChunkedArray:
    """Record the rows of the view's nodes, relations and edges in the whole index. Returns the provenance of edges."""
    was = dict(zip(_keys(old["records"]), old["records"]["node"].to_pylist()))
    node_of: dict[tuple[int, int], int] = {}  # (source, node of the view) -> node of the whole index
    first: dict[int, int] = {}
    for key, node in zip(_keys(new["records"]), new["records"]["node"].to_pylist()):
        node_of.setdefault((key[0], node), was[key])
        first.setdefault(node, was[key])
    n_nodes = max(was.values(), default=-1) + 1
    view.keep("kb/kb_nodes", np.array([first[node] for node in range(len(first))], np.int64), n_nodes)
    row = {id: at for at, id in enumerate(old["relations"]["id"].to_pylist())}
    relation_rows = np.array([row[id] for id in new["relations"]["id"].to_pylist()], np.int64)
    view.keep("kb/kb_relations", relation_rows, len(row))
    columns = [old["edges"][name].to_pylist() for name in ("head", "relation", "tail", "source")]
    known = {key: at for at, key in enumerate(zip(*columns))}
    heads, relations, tails, sources = (_ints(new["edges"], name) for name in ("head", "relation", "tail", "source"))
    of_relation = relation_rows[relations].tolist() if len(relations) else []
    edges = np.array(
        [
            known[node_of[source, head], relation, node_of[source, tail], source]
            for head, relation, tail, source in zip(heads.tolist(), of_relation, tails.tolist(), sources.tolist())
        ],
        np.int64,
    )
    view.keep("kb/kb_edges", edges, len(known))
    return old["edges"]["provenance"].take(pa.array(edges))


def _keys(records: pa.Table) -> list[tuple[int, str]]:
    return list(zip(records["source"].to_pylist(), records["id"].to_pylist()))


def _ints(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.int64)


def _large(column: pa.ChunkedArray) -> pa.Array:
    kind = pa.large_string() if pa.types.is_string(column.type) else LISTS
    return pa.concat_arrays([pa.array([], kind), *column.cast(kind).chunks])


def _text_vectors(view: View) -> Files:
    new, old = (index.table("kb_texts", "kb_texts.parquet", KB_TEXTS) for index in (view, view.base))
    node = view.kept("kb/kb_nodes")[_ints(new, "node")]
    row = pc.index_in(new["text"], value_set=whole_text(old["text"]).cast(new["text"].type)).fill_null(-1).to_numpy()
    vectors = view.base.arrays("kb_text_vectors")["vectors"]
    found = np.zeros((len(node), vectors.shape[1]), vectors.dtype)
    found[row >= 0] = vectors[row[row >= 0]]
    if (row < 0).any() and "kb_name_vectors" in view.stages:
        found[row < 0] = view.base.arrays("kb_name_vectors")["vectors"][node[row < 0]]
    return {"vectors.safetensors": {"vectors": found}}


def _edge_vectors(view: View) -> Files:
    """Vectors of the view's edges; none if the whole index has none, see `texts.exact_texts`."""
    vectors = view.base.arrays("kb_edge_vectors")
    return (
        vectors_of("kb_edge_vectors", "kb/kb_edges")(view)
        if len(vectors["vectors"])
        else {"vectors.safetensors": vectors}
    )


def _web(view: View) -> Files:
    pages = view.base.table("kb_web", "web_pages.parquet", WEB_PAGES)
    return {"web_pages.parquet": pages, "": view.base.words("kb_web")}


NARROW: dict[str, Narrow] = {
    "kb": _kb,
    "kb_name_vectors": vectors_of("kb_name_vectors", "kb/kb_nodes"),
    "kb_edge_vectors": _edge_vectors,
    "kb_relation_vectors": vectors_of("kb_relation_vectors", "kb/kb_relations"),
    "kb_texts": lambda view: view.run(kb_texts_stage, "kb"),
    "kb_text_vectors": _text_vectors,
    "kb_web": _web,
}
