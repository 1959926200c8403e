"""Texts of a knowledge base for embedding, stand-ins of nodes without passages, and web pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.names import MAX_NEIGHBOURS, MAX_RELATIONS, standin_text
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_NODES, KB_RELATIONS, KB_TEXTS, KB_TYPES, WEB_PAGES
from gpu_rag.index.names import TextColumn, one_array
from gpu_rag.index.stage import Stage, stage
from gpu_rag.index.stages.knowledge_base.columns import single_spaced
from gpu_rag.index.stages.knowledge_base.stage import kb_stage
from gpu_rag.index.stages.passages import content_hash
from gpu_rag.index.stages.rejected import Rejects
from gpu_rag.index.stages.search import TextRows, vector_stage
from gpu_rag.index.tables import TableWriter
from gpu_rag.index.work import Sources, Work
from gpu_rag.settings import Settings
from gpu_rag.sources.corpus.parser import versions_for
from gpu_rag.sources.rows import Limits
from gpu_rag.sources.web.snapshot import read_pages
from gpu_rag.text.bm25 import Bm25


def _web_params(settings: Settings, sources: Sources) -> dict[str, Any]:
    """The snapshots, and the settings of their search."""
    named = sources.of_kind("web")
    return {
        "web": [[source.name, content_hash((source.path,))] for source in named],
        "readers": versions_for(["page.html"] if named else []),
        "k1": settings.index.bm25_k1,
        "b": settings.index.bm25_b,
        "max_document_chars": settings.index.max_document_chars,
    }


@stage("kb_web", version=8, params=_web_params, planned=False)
def kb_web_stage(work: Work) -> dict[str, int]:
    """Pages of web snapshots (see `sources.web.snapshot`): table `web_pages`, and a BM25 index over title and text.

    Pages are not passages: only a web search sees them. A page gets the id "SOURCE:URL" if another snapshot has it too.
    """
    rows: dict[str, dict[str, Any]] = {}
    with Rejects(work, tuple(source.path for source in work.sources.of_kind("web"))) as rejects:
        for source in work.sources.of_kind("web"):
            pages, unread = read_pages(source.path, Limits(work.settings.index.max_document_chars))
            for reject in unread:
                rejects.add(reject)
            for page in pages:
                id = f"{source.name}:{page.url}" if page.url in rows else page.url
                rows[id] = {"id": id, "title": page.title, "text": page.text, "url": page.url, "source": source.name}
            work.progress.advance(len(pages))
    kept_rows = [rows[id] for id in sorted(rows)]
    tables.write_rows(work.out / "web_pages.parquet", WEB_PAGES, kept_rows)
    index = work.settings.index
    Bm25.build([f"{p['title']}\n{p['text']}" for p in kept_rows], k1=index.bm25_k1, b=index.bm25_b).save(work.out)
    return {"web_pages": len(kept_rows), "rejects": rejects.n}


NODES_AT_ONCE = 1 << 14
MAX_EXACT = 50_000  # edges that get vectors of their own texts
Pairs = list[tuple[str, str]]  # (relation in words, name of the neighbour)


def _texts(file: str, schema: pa.Schema, folder: Path) -> TextColumn[str]:
    return TextColumn(tables.read_table(folder / file, schema, ["text"])["text"])


relation_texts = partial(_texts, "kb_relations.parquet", KB_RELATIONS)  # texts of the relations, in words
standin_texts = partial(_texts, "kb_texts.parquet", KB_TEXTS)  # as the stage `kb_texts` wrote them


# Edges sorted by the node at one end, stable: i64[N + 1], start of each node's edges; relation; other end.
_Side = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Surroundings:
    """Neighbours of nodes. names: names of the nodes; words: i32, equal for nodes with the same name in words; texts:
    distinct relations, in words; out, into: outgoing and incoming edges."""

    names: pa.LargeStringArray
    words: np.ndarray
    texts: list[str]
    out: _Side
    into: _Side

    @classmethod
    def read(cls, folder: Path) -> Surroundings:
        """Read the knowledge base that the stage `kb` wrote."""
        names = _names(folder)
        number = names_in_words(names).dictionary_encode().indices.to_numpy()
        given = list(relation_texts(folder))
        texts = list(dict.fromkeys(given))
        row = {text: row for row, text in enumerate(texts)}
        kind = np.array([row[text] for text in given], np.int32)
        edges = tables.read_table(folder / "kb_edges.parquet", KB_EDGES)
        head, relation, tail = (edges[name].to_numpy() for name in ("head", "relation", "tail"))
        relation = kind[relation] if len(relation) else relation
        sides = (_side(head, relation, tail, len(names)), _side(tail, relation, head, len(names)))
        return cls(names, number, texts, *sides)

    def pairs(self, rows: np.ndarray) -> list[tuple[Pairs, Pairs]]:
        """(out, into) for each of these nodes (ascending): the edges that `standin_text` shows."""
        out, into = self._shown(self.out, rows), self._shown(self.into, rows)
        return [(out.get(row, []), into.get(row, [])) for row in rows.tolist()]

    def _shown(self, side: _Side, rows: np.ndarray) -> dict[int, Pairs]:
        first, relations, others = side
        sizes = first[rows + 1] - first[rows]
        owner = np.repeat(np.arange(len(rows)), sizes)
        edge = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(first[rows], sizes)
        chosen = _first_named(owner, relations[edge], self.words[others[edge]])
        owner, edge = owner[chosen], edge[chosen]
        shown: dict[int, Pairs] = {}
        names = self.names.take(pa.array(others[edge])).to_pylist()
        for row, relation, name in zip(rows[owner].tolist(), relations[edge].tolist(), names):
            shown.setdefault(row, []).append((self.texts[relation], name))
        return shown


def _side(end: np.ndarray, relation: np.ndarray, other: np.ndarray, n: int) -> _Side:
    order = np.argsort(end, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(end, minlength=n))]) if len(end) else np.zeros(n + 1, np.int64)
    return first, relation[order], other[order]


def _first_named(owner: np.ndarray, relation: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Edges that are shown: for each node the first 12 relations, for each relation the first 3 names.

    owner: ascending. An edge is skipped if its relation has shown its name already.
    """
    place = np.arange(len(owner))
    if not len(owner):
        return place
    group = owner * (int(relation.max()) + 1) + relation
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    nth = np.empty(len(first), np.int64)  # rank of a relation among the relations of its node, by its first edge
    order = np.argsort(first)
    start = np.searchsorted(owner[first[order]], owner[first[order]])
    nth[order] = np.arange(len(order)) - start
    _, new = np.unique(group * (int(word.max()) + 1) + word, return_index=True)
    new = np.sort(new[nth[group[new]] < MAX_RELATIONS])
    order = np.argsort(group[new], kind="stable")
    sorted_groups = group[new][order]
    among = np.empty(len(new), np.int64)
    among[order] = np.arange(len(new)) - np.searchsorted(sorted_groups, sorted_groups)
    shown: np.ndarray = new[among < MAX_NEIGHBOURS]
    return shown


def node_names(folder: Path) -> TextColumn[str]:
    """Name of each node, in words."""
    return TextColumn(pa.chunked_array([names_in_words(_names(folder))]))


def _names(folder: Path) -> pa.LargeStringArray:
    return one_array(tables.read_table(folder / "kb_nodes.parquet", KB_NODES, ["name"])["name"])


def names_in_words(names: pa.LargeStringArray) -> pa.LargeStringArray:
    """Names as `in_words` returns them."""
    spaced = single_spaced(pc.replace_substring(names, "_", " "))
    return pc.if_else(pc.equal(spaced, ""), names, spaced)


def edge_texts(folder: Path) -> TextRows:
    """Texts of all edges: head, relation and tail in words. Memory: 12 bytes an edge, and the names in words.

    folder: folder of the stage `kb`.
    """
    names, relations = names_in_words(_names(folder)), pa.array(list(relation_texts(folder)), pa.large_string())
    edges = tables.read_table(folder / "kb_edges.parquet", KB_EDGES)
    columns = ((names, edges["head"]), (relations, edges["relation"]), (names, edges["tail"]))

    def make(rows: slice) -> list[str]:
        parts = [texts.take(numbers[rows]) for texts, numbers in columns]
        texts: list[str] = pc.binary_join_element_wise(*parts, pa.scalar(" ", pa.large_string())).to_pylist()
        return texts

    return TextRows(len(edges), make)


def exact_texts(folder: Path) -> Sequence[str]:
    """Texts of all edges; () if there are more than MAX_EXACT: their vectors are then composed during a search."""
    texts = edge_texts(folder)
    return texts if len(texts) <= MAX_EXACT else ()


@stage("kb_texts", needs=("kb",), size="triples")
def kb_texts_stage(work: Work) -> dict[str, int]:
    """Table `kb_texts`: for each node without any passage, "name (type)." and its first edges as sentences.

    Edges are in the order of the edge table. Memory: some 30 bytes an edge.
    """
    folder = work.stage_folders["kb"]
    nodes = tables.read_table(folder / "kb_nodes.parquet", KB_NODES)
    alone = np.flatnonzero(pc.list_value_length(nodes["passages"]).to_numpy() == 0)
    work.progress.start("kb_texts", len(alone), "nodes")
    around = Surroundings.read(folder)
    types = tables.read_table(folder / "kb_types.parquet", KB_TYPES)["name"].to_pylist()
    type_of = nodes["type"].to_numpy()
    with TableWriter(work.out / "kb_texts.parquet", KB_TEXTS) as writer:
        for start in range(0, len(alone), NODES_AT_ONCE):
            rows = alone[start : start + NODES_AT_ONCE]
            names = around.names.take(pa.array(rows)).to_pylist()
            parts = zip(names, type_of[rows], around.pairs(rows))
            writer.add([rows, [standin_text(name, types[type], *beside) for name, type, beside in parts]])
            work.progress.advance(len(rows))
    return {"kb_texts": len(alone)}


def kb_stages() -> list[Stage]:
    """Stages of a knowledge base in building order. A method names those that it reads."""
    return [
        kb_stage,
        vector_stage("kb_name_vectors", ("kb",), node_names, "nodes"),
        vector_stage("kb_edge_vectors", ("kb",), exact_texts, "triples"),
        vector_stage("kb_relation_vectors", ("kb",), relation_texts, "kinds of relation"),
        kb_texts_stage,
        vector_stage("kb_text_vectors", ("kb_texts",), standin_texts, "stand-ins"),
        kb_web_stage,
    ]
