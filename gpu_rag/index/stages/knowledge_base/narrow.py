"""Knowledge base of a part of an index, see `index.narrow`: complete graphs, but only the documents of the part.

Records and edges of knowledge graphs and bases stay, because no document states them. Those of the own extraction are
the part's. Nodes are made anew from both. Web pages are no documents, and stay. A node without remaining passages gets
a stand-in text; if the whole index has no vector of that text, the vector of its name is used.
"""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_SOURCES, KB_TEXTS, read_kb_tables
from gpu_rag.index.narrow import Narrow, Part, vectors_of
from gpu_rag.index.stages.knowledge_base.columns import LISTS, Edges, SourceColumns
from gpu_rag.index.stages.knowledge_base.passages import EXTRACTION, read_passage_rows
from gpu_rag.index.stages.knowledge_base.stage import read_extraction, write_kb
from gpu_rag.index.stages.knowledge_base.texts import kb_texts_stage
from gpu_rag.index.tables import whole_text

_NAMES = ("records", "edges", "relations")
_Tables = dict[str, pa.Table]


def _kb(part: Part) -> None:
    out, of_all = part.folders["kb"], read_kb_tables(part.base.folder("kb"), _NAMES)
    sources = tables.read_table(part.base.folder("kb") / "kb_sources.parquet", KB_SOURCES)
    part.write("kb", "kb_sources.parquet", KB_SOURCES, {name: sources[name] for name in sources.column_names})
    work = part.work("kb")
    parts = [
        read_extraction(work) if row["kind"] == EXTRACTION else _source(of_all, number, row["name"], row["kind"])
        for number, row in enumerate(sources.to_pylist())
        if row["kind"] in ("kg", "skb", EXTRACTION)
    ]
    write_kb(work, parts, read_passage_rows(part.folders["passages"]), sources["name"].to_pylist())
    _note_rows(part, of_all, read_kb_tables(out, _NAMES))


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


def _note_rows(part: Part, old: _Tables, new: _Tables) -> None:
    """Record the rows of the part's nodes, relations and edges in the whole index, and write the provenance
    of edges."""
    was = dict(zip(_keys(old["records"]), old["records"]["node"].to_pylist()))
    node_of: dict[tuple[int, int], int] = {}  # (source, node of the part) -> node of the whole index
    first: dict[int, int] = {}
    for key, node in zip(_keys(new["records"]), new["records"]["node"].to_pylist()):
        node_of.setdefault((key[0], node), was[key])
        first.setdefault(node, was[key])
    part.rows["kb_nodes"] = np.array([first[node] for node in range(len(first))], np.int64)
    row = {id: at for at, id in enumerate(old["relations"]["id"].to_pylist())}
    part.rows["kb_relations"] = np.array([row[id] for id in new["relations"]["id"].to_pylist()], np.int64)
    columns = [old["edges"][name].to_pylist() for name in ("head", "relation", "tail", "source")]
    known = {key: at for at, key in enumerate(zip(*columns))}
    heads, relations, tails, sources = (_ints(new["edges"], name) for name in ("head", "relation", "tail", "source"))
    of_relation = part.rows["kb_relations"][relations].tolist() if len(relations) else []
    part.rows["kb_edges"] = np.array(
        [
            known[node_of[source, head], relation, node_of[source, tail], source]
            for head, relation, tail, source in zip(heads.tolist(), of_relation, tails.tolist(), sources.tolist())
        ],
        np.int64,
    )
    provenance = old["edges"]["provenance"].take(pa.array(part.rows["kb_edges"]))
    edges = {name: new["edges"][name] for name in KB_EDGES.names} | {"provenance": provenance}
    part.write("kb", "kb_edges.parquet", KB_EDGES, edges)


def _keys(records: pa.Table) -> list[tuple[int, str]]:
    return list(zip(records["source"].to_pylist(), records["id"].to_pylist()))


def _ints(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.int64)


def _large(column: pa.ChunkedArray) -> pa.Array:
    kind = pa.large_string() if pa.types.is_string(column.type) else LISTS
    return pa.concat_arrays([pa.array([], kind), *column.cast(kind).chunks])


def _text_vectors(part: Part) -> None:
    folder, base = part.folders["kb_texts"], part.base
    new = tables.read_table(folder / "kb_texts.parquet", KB_TEXTS)
    old = tables.read_table(base.folder("kb_texts") / "kb_texts.parquet", KB_TEXTS)
    node = part.rows["kb_nodes"][_ints(new, "node")]
    row = pc.index_in(new["text"], value_set=whole_text(old["text"]).cast(new["text"].type)).fill_null(-1).to_numpy()
    vectors = tables.read_arrays(base.folder("kb_text_vectors") / "vectors.safetensors")["vectors"]
    found = np.zeros((len(node), vectors.shape[1]), vectors.dtype)
    found[row >= 0] = vectors[row[row >= 0]]
    if (row < 0).any() and "kb_name_vectors" in base.stages:
        names = tables.read_arrays(base.folder("kb_name_vectors") / "vectors.safetensors")["vectors"]
        found[row < 0] = names[node[row < 0]]
    tables.write_arrays(part.folders["kb_text_vectors"] / "vectors.safetensors", {"vectors": found})


def _edge_vectors(part: Part) -> None:
    """Take the vectors of the part's edges; none if the whole index has none, see `texts.exact_texts`."""
    file = "vectors.safetensors"
    if len(tables.read_arrays(part.base.folder("kb_edge_vectors") / file)["vectors"]):
        vectors_of("kb_edge_vectors", "kb_edges")(part)
    else:
        shutil.copy(part.base.folder("kb_edge_vectors") / file, part.folders["kb_edge_vectors"] / file)


def _web(part: Part) -> None:
    shutil.copytree(part.base.folder("kb_web"), part.folders["kb_web"], dirs_exist_ok=True)


NARROW: dict[str, Narrow] = {
    "kb": _kb,
    "kb_name_vectors": vectors_of("kb_name_vectors", "kb_nodes"),
    "kb_edge_vectors": _edge_vectors,
    "kb_relation_vectors": vectors_of("kb_relation_vectors", "kb_relations"),
    "kb_texts": lambda part: part.run(kb_texts_stage),
    "kb_text_vectors": _text_vectors,
    "kb_web": _web,
}
