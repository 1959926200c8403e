"""Export of an index for other programs: Parquet tables, one GraphML graph, or one graph for PyG.

GraphML edges are directed: from the subject of a relation to its object, from an entity to a passage that mentions it.
A synonym is written once; it holds in both directions.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import UsageError
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.hetero import hetero_graph, write_hetero
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.metadata import to_text

_EDGE_ROWS = 1 << 16
FORMATS = ("parquet", "graphml", "pyg")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NODE_KEYS = (("kind", "node"), ("name", "node"), ("text", "node"), ("type", "node"))
_METADATA_KEY = ("metadata", "node")  # JSON text, if documents have metadata
_KINDS = {"mentioned_in": "mention"}  # kinds of edges with another name here
_EDGE_KEYS = (("kind", "edge"), ("label", "edge"), ("weight", "edge"))


def export(index: Index, form: str, out: Path) -> list[Path]:
    """Write the index in a format ("parquet", "pyg": a folder, "graphml": a file). Returns the files written.

    Raises UsageError for an unknown format, or if `out` exists already: nothing is overwritten.
    """
    if form not in FORMATS:
        raise UsageError("unknown export format", given=form, expected=" | ".join(FORMATS))
    if out.exists():
        raise UsageError("--out exists already", given=out, do="remove it or choose another name")
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if form == "pyg":
            return write_hetero(hetero_graph(index), out)
        return _parquet(index, out) if form == "parquet" else _graphml(index, out)


def _parquet(index: Index, out: Path) -> list[Path]:
    out.mkdir()
    written = []
    for stage in index.stages:
        for source in sorted(index.folder(stage).glob("*.parquet")):
            written.append(Path(shutil.copyfile(source, out / source.name)))
    return written


def _graphml(index: Index, out: Path) -> list[Path]:
    with out.open("w", encoding="utf-8") as file:
        file.write('<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
        more = () if index.metadata is None else (_METADATA_KEY,)
        for name, domain in (*_NODE_KEYS, *more, *_EDGE_KEYS):
            form = "double" if name == "weight" else "string"
            key = quoteattr(f"{domain[0]}_{name}")
            file.write(f'<key id={key} for="{domain}" attr.name="{name}" attr.type="{form}"/>\n')
        file.write('<graph edgedefault="directed">\n')
        _write_nodes(index, file)
        for (source, name, target), edges in hetero_graph(index, vectors=False).edges.items():
            kind, ends = _data("e_kind", _KINDS.get(name, name)), edges["edge_index"]
            labels = [_data("e_label", label) for label in edges.get("labels", [""])]
            named = pa.array(labels, pa.string()).take(pa.array(edges.get("label", np.zeros(ends.shape[1], np.int64))))
            weights = edges.get("edge_weight", np.ones(ends.shape[1])).tolist()
            data = [f"{kind}{label}{_data('e_weight', str(w))}" for label, w in zip(named.to_pylist(), weights)]
            file.write(_edge_lines(source[0], ends[0], target[0], ends[1], pa.array(data, pa.string())))
        if "kb" in index.stages:
            file.writelines(_kb_edge_lines(index.loaded("kb", load_kb)))
        file.write("</graph>\n</graphml>\n")
    return [out]


def _data(key: str, text: str) -> str:
    return f'<data key="{key}">{escape(_NOT_XML.sub("", text))}</data>' if text else ""


def _write_nodes(index: Index, file: IO[str]) -> None:
    rows = zip(index.passage_ids, index.passages["title"].to_pylist(), index.passages["text"].to_pylist())
    for number, (passage, title, text) in enumerate(rows):
        data = _data("n_kind", "passage") + _data("n_name", f"{title} [{passage}]") + _data("n_text", text)
        data += "" if index.metadata is None else _data("n_metadata", to_text(index.metadata_of(number)))
        file.write(f'<node id="p{number}">{data}</node>\n')
    if "entities" in index.stages:
        for number, name in enumerate(index.entity_names):
            file.write(f'<node id="e{number}">{_data("n_kind", "entity")}{_data("n_name", name)}</node>\n')
    if "kb" in index.stages:
        kb = index.loaded("kb", load_kb)
        for number, (name, type) in enumerate(zip(kb.node_names, kb.node_type.tolist())):
            data = _data("n_kind", "node") + _data("n_name", name) + _data("n_type", kb.type_names[type])
            file.write(f'<node id="n{number}">{data}</node>\n')


def _kb_edge_lines(kb: KnowledgeBase) -> Iterator[str]:
    """Lines of the edges of a knowledge base, then of node-passage edges: "document" for a node's own passages,
    "mention" for others.

    Memory: the lines of 65,536 edges.
    """
    weight = _data("e_weight", "1.0")
    labels = pa.array(
        [_data("e_kind", "edge") + _data("e_label", name) + weight for name in kb.relation_names], pa.string()
    )
    for start in range(0, kb.n_edges, _EDGE_ROWS):
        part = slice(start, start + _EDGE_ROWS)
        yield _edge_lines("n", kb.head[part], "n", kb.tail[part], labels.take(pa.array(kb.relation[part])))
    offsets = kb.node_passages.offsets.cpu().numpy()
    passages = kb.node_passages.values.cpu().numpy()
    kinds = pa.array([_data("e_kind", kind) + weight for kind in ("document", "mention")], pa.string())
    for start in range(0, len(passages), _EDGE_ROWS):
        place = np.arange(start, min(start + _EDGE_ROWS, len(passages)))
        node = np.searchsorted(offsets, place, side="right") - 1
        is_mention = place - offsets[node] >= kb.n_own[node]
        kind_of = kinds.take(pa.array(is_mention.astype(np.int64)))
        yield _edge_lines("n", node, "p", passages[place], kind_of)


def _edge_lines(left: str, source: np.ndarray, right: str, target: np.ndarray, data: pa.StringArray) -> str:
    ends = (pa.array(np.ascontiguousarray(rows)).cast(pa.string()) for rows in (source, target))
    head, tail = ends
    parts = [f'<edge source="{left}', head, f'" target="{right}', tail, '">', data, "</edge>\n"]
    lines = pc.binary_join_element_wise(*parts, "")
    return "".join(lines.to_pylist())
