"""A small knowledge base made in memory, without files: for tests and examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import MissingLayer
from gpu_rag.index.knowledge_base import KbSource, KnowledgeBase
from gpu_rag.index.knowledge_base.names import in_words, relation_text, standin_text
from gpu_rag.types import Ragged

Embed = Callable[[list[str]], np.ndarray]


def edge_text(head: str, relation: str, tail: str) -> str:
    """The text behind a row of kb_edge_vectors. relation: already in words."""
    return f"{in_words(head)} {relation} {in_words(tail)}"


def knowledge_base(
    nodes: Sequence[Sequence[Any]],
    edges: Sequence[Sequence[str]],
    *,
    embed: Embed | None = None,
    sources: Sequence[str] = ("kg",),
    passages: Sequence[tuple[str, str, str]] = (),
) -> KnowledgeBase:
    """A knowledge base of nodes (id, name, type[, aliases]) and edges (head id, relation, tail id[, source]).

    sources: names, all of kind kg; edges without one are of the first. passages: (passage id, node id or "", text), the
    own documents of nodes. embed: unit vectors f32 of texts; without it `vectors` raises MissingLayer.

    >>> kb = knowledge_base([("a", "Ada", "person"), ("b", "Bern", "city")], [("a", "born in", "b")])
    >>> kb.triple(0)
    ('Ada', 'born in', 'Bern', 'kg:1')
    """
    held = sorted(nodes, key=lambda node: str(node[0]))
    ids = [str(node[0]) for node in held]
    rows = {id: row for row, id in enumerate(ids)}
    assert len(rows) == len(ids), "two nodes have one id"
    relations = sorted({edge[1] for edge in edges})
    keys = _edges(edges, rows, relations, sources)
    columns = np.array([key[:4] for key in keys], np.int32).reshape(-1, 4)
    types = sorted({str(node[2]) for node in held})
    passages = sorted(passages)
    own = [[p for p, (_, node, _) in enumerate(passages) if node == id] for id in ids]
    names, texts = [str(node[1]) for node in held], [relation_text(relation) for relation in relations]
    where = [f"{sources[key[3]]}:{key[4]}" for key in keys]
    node_type = np.array([types.index(str(node[2])) for node in held], np.int32)
    node_sources = np.zeros((len(ids), len(sources)), bool)
    node_sources[columns[:, 0], columns[:, 3]] = node_sources[columns[:, 2], columns[:, 3]] = True
    text_row = np.full(len(ids), -1, np.int32)
    alone = [row for row, listed in enumerate(own) if not listed]
    text_row[alone] = np.arange(len(alone))
    triples = [(names[h], texts[r], names[t]) for h, r, t, _ in columns.tolist()]
    standins = [
        standin_text(names[row], str(held[row][2]), *_around(row, columns.tolist(), texts, names)) for row in alone
    ]
    made = {
        "kb_name_vectors": [in_words(name) for name in names],
        "kb_edge_vectors": [edge_text(*triple) for triple in triples],
        "kb_relation_vectors": texts,
        "kb_text_vectors": standins,
        "passage_vectors": [text for _, _, text in passages],
    }
    return KnowledgeBase(
        sources=tuple(KbSource(name, "kg") for name in sources),
        node_ids=ids, node_names=names, node_aliases=[list(node[3]) if len(node) > 3 else [] for node in held],
        node_type=node_type, type_names=types, node_sources=node_sources,
        head=columns[:, 0], relation=columns[:, 1], tail=columns[:, 2], source=columns[:, 3],
        relation_names=relations, relation_texts=texts, provenance=where,
        edge_passages=_ragged([[] for _ in keys]), node_passages=_ragged(own),
        n_own=np.array([len(listed) for listed in own], np.int32),
        passage_ids=[id for id, _, _ in passages], passage_source=np.zeros(len(passages), np.int32),
        texts=standins, text_row=text_row, vectors=_vectors(made, embed),
    )  # fmt: skip


def _edges(
    edges: Sequence[Sequence[str]], rows: dict[str, int], relations: list[str], sources: Sequence[str]
) -> list[tuple[int, int, int, int, int]]:
    """(head, relation, tail, source, line) by the first four, each of them once, with its first line."""
    found: dict[tuple[int, int, int, int], int] = {}
    for line, edge in enumerate(edges, 1):
        source = sources.index(edge[3]) if len(edge) > 3 else 0
        found.setdefault((rows[edge[0]], relations.index(edge[1]), rows[edge[2]], source), line)
    return [(*key, found[key]) for key in sorted(found)]


def _around(
    row: int, edges: list[list[int]], relations: list[str], names: list[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(relation, neighbour) of the edges that leave a node, and of those that reach it."""
    out = [(relations[r], names[t]) for h, r, t, _ in edges if h == row]
    into = [(relations[r], names[h]) for h, r, t, _ in edges if t == row]
    return out, into


def _ragged(lists: list[list[int]]) -> Ragged:
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    values = np.array([value for one in lists for value in one], np.int32)
    return Ragged(torch.from_numpy(values), torch.from_numpy(offsets))


def _vectors(texts: dict[str, list[str]], embed: Embed | None) -> Callable[[str], torch.Tensor]:
    made: dict[str, torch.Tensor] = {}

    def vectors(layer: str) -> torch.Tensor:
        if embed is None or layer not in texts:
            raise MissingLayer("the knowledge base lacks vectors", given=layer, expected=" | ".join(texts))
        if layer not in made:
            made[layer] = torch.from_numpy(np.asarray(embed(texts[layer]), np.float32))
        return made[layer]

    return vectors


def text_of_edge(kb: KnowledgeBase, edge: int) -> str:
    """The text behind a row of kb_edge_vectors."""
    head, tail = kb.node_names[kb.head[edge]], kb.node_names[kb.tail[edge]]
    return edge_text(head, kb.relation_texts[kb.relation[edge]], tail)
