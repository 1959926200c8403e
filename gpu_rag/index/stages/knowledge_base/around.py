"""The edges around nodes that their stand-in texts show, found without a Python object an edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import KB_EDGES, KB_NODES, KB_RELATIONS
from gpu_rag.index.knowledge_base.words import MOST_NEIGHBOURS, MOST_RELATIONS, in_words

NODES_AT_ONCE = 1 << 14
Pairs = list[tuple[str, str]]  # (relation in words, name of the neighbour)


def relation_texts(folder: Path) -> list[str]:
    """Each relation, in words."""
    texts: list[str] = tables.read_table(folder / "kb_relations.parquet", KB_RELATIONS)["text"].to_pylist()
    return texts


@dataclass(frozen=True)
class _Side:
    """Edges sorted by the node at one end, in their order. first: i64[N + 1], where those of each node begin."""

    first: np.ndarray
    relation: np.ndarray
    other: np.ndarray


@dataclass(frozen=True)
class Surroundings:
    """names: of the nodes; words: i32, the same number for two nodes that are one name in words; texts: of relations,
    in words, each once; out, into: the edges that leave and that reach nodes."""

    names: pa.ChunkedArray
    words: np.ndarray
    texts: list[str]
    out: _Side
    into: _Side

    @classmethod
    def read(cls, folder: Path) -> Surroundings:
        """The surroundings in the knowledge base that the stage `kb` wrote."""
        names = tables.whole_text(tables.read_table(folder / "kb_nodes.parquet", KB_NODES)["name"])
        words = [pa.array([in_words(name) for name in part.to_pylist()], pa.large_string()) for part in _parts(names)]
        number = pa.concat_arrays(words).dictionary_encode().indices.to_numpy()
        given = relation_texts(folder)
        texts = list(dict.fromkeys(given))
        row = {text: row for row, text in enumerate(texts)}
        kind = np.array([row[text] for text in given], np.int32)
        edges = tables.read_table(folder / "kb_edges.parquet", KB_EDGES)
        head, relation, tail = (edges[name].to_numpy() for name in ("head", "relation", "tail"))
        relation = kind[relation] if len(relation) else relation
        sides = (_side(head, relation, tail, len(names)), _side(tail, relation, head, len(names)))
        return cls(names, number, texts, *sides)

    def of(self, rows: np.ndarray) -> Callable[[int], tuple[Pairs, Pairs]]:
        """For each of these nodes (ascending) what `standin_text` shows of its edges: (out, into)."""
        out, into = self._shown(self.out, rows), self._shown(self.into, rows)
        return lambda row: (out.get(row, []), into.get(row, []))

    def _shown(self, side: _Side, rows: np.ndarray) -> dict[int, Pairs]:
        sizes = side.first[rows + 1] - side.first[rows]
        owner = np.repeat(np.arange(len(rows)), sizes)
        at = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(side.first[rows], sizes)
        chosen = _first_named(owner, side.relation[at], self.words[side.other[at]])
        owner, at = owner[chosen], at[chosen]
        found: dict[int, Pairs] = {}
        names = self.names.take(pa.array(side.other[at])).to_pylist()
        for row, relation, name in zip(rows[owner].tolist(), side.relation[at].tolist(), names):
            found.setdefault(row, []).append((self.texts[relation], name))
        return found


def _parts(names: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    return [names.slice(start, 1 << 16) for start in range(0, max(len(names), 1), 1 << 16)]


def _side(end: np.ndarray, relation: np.ndarray, other: np.ndarray, n: int) -> _Side:
    order = np.argsort(end, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(end, minlength=n))]) if len(end) else np.zeros(n + 1, np.int64)
    return _Side(first, relation[order], other[order])


def _first_named(owner: np.ndarray, relation: np.ndarray, word: np.ndarray) -> np.ndarray:
    """The edges that are shown: of each node the first 12 relations, of each relation the first 3 names.

    owner: ascending. An edge whose name its relation has shown already says nothing new.
    """
    place = np.arange(len(owner))
    if not len(owner):
        return place
    group = owner * (int(relation.max()) + 1) + relation
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    nth = np.empty(len(first), np.int64)  # of a relation among those of its node, by its first edge
    order = np.argsort(first)
    start = np.searchsorted(owner[first[order]], owner[first[order]])
    nth[order] = np.arange(len(order)) - start
    _, new = np.unique(group * (int(word.max()) + 1) + word, return_index=True)
    new = np.sort(new[nth[group[new]] < MOST_RELATIONS])
    order = np.argsort(group[new], kind="stable")
    sorted_groups = group[new][order]
    among = np.empty(len(new), np.int64)
    among[order] = np.arange(len(new)) - np.searchsorted(sorted_groups, sorted_groups)
    shown: np.ndarray = new[among < MOST_NEIGHBOURS]
    return shown
