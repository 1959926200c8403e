"""Nodes of a knowledge base linked to passages: their own documents, and where they are mentioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_rag.index import tables
from gpu_rag.index.build import Work
from gpu_rag.index.kb_tables import ORIGINS
from gpu_rag.text.mentions import find_mentions
from gpu_rag.text.tokens import STOP_WORDS

MOST_LINKED = 100  # passages of a node beside its own document
_EXTRACTION = "extraction"


@dataclass(frozen=True)
class PassageRows:
    """What is known of the P passages. source: its name, of each; own: {(source, id of the node): rows of its document,
    in the order of the text}."""

    texts: list[str]
    source: list[str]
    own: dict[tuple[str, str], list[int]]


@dataclass(frozen=True)
class NodeNames:
    """names: of each node those that are searched; rows: {source: {id of a record: its node}}."""

    names: Sequence[Sequence[str]]
    rows: Mapping[str, Mapping[str, int]]


def read_passage_rows(folder: Path) -> PassageRows:
    """What the stage `passages` wrote."""
    table = tables.read_table(folder / "passages.parquet", tables.PASSAGES)
    documents, starts = table["doc_id"].to_pylist(), table["start"].to_pylist()
    origins: dict[str, tuple[str, str]] = {}
    if (folder / "origins.parquet").exists():
        held = tables.read_table(folder / "origins.parquet", ORIGINS)
        columns = (held[name].to_pylist() for name in ("document", "source", "node"))
        origins = {document: (source, node) for document, source, node in zip(*columns)}
    source, own = [], dict[tuple[str, str], list[int]]()
    for row, document in enumerate(documents):
        name, node = origins.get(document, ("documents", ""))
        source.append(name)
        if node:
            own.setdefault((name, node), []).append(row)
    for rows in own.values():
        rows.sort(key=starts.__getitem__)
    return PassageRows(table["text"].to_pylist(), source, own)


def link_passages(work: Work, passages: PassageRows, nodes: NodeNames) -> tuple[list[list[int]], list[int]]:
    """(rows of passages of each node, how many at the front are its own document).

    Behind its own document stand at most 100 passages that mention a node, the one that does so most often first: by
    the mentions of the own extraction, and by whole-word search of the names of other sources, see
    `says_something`.
    """
    own: list[list[int]] = [[] for _ in nodes.names]
    for (source, id), rows in passages.own.items():
        node = nodes.rows.get(source, {}).get(id)
        if node is not None:
            own[node].extend(rows)
    linked = [list(rows) for rows in own]
    for one, rows in _ranked(*_mentioned(work, passages, nodes), len(passages.texts)).items():
        mine = set(own[one])
        linked[one].extend([row for row in rows if row not in mine][:MOST_LINKED])
    return linked, [len(rows) for rows in own]


def _mentioned(work: Work, passages: PassageRows, nodes: NodeNames) -> tuple[np.ndarray, np.ndarray]:
    """(node, passage) of each mention."""
    if not passages.texts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    extracted = nodes.rows.get(_EXTRACTION, {})
    found_node, found_passage = [], []
    if extracted:
        entities = tables.read_table(work.stage_folders["entities"] / "entities.parquet", tables.ENTITIES)
        of = np.array([extracted[id] for id in entities["id"].to_pylist()], np.int64)
        mentions = tables.read_table(work.stage_folders["mentions"] / "mentions.parquet", tables.MENTIONS)
        found_node.append(of[mentions["entity"].to_numpy()])
        found_passage.append(mentions["passage"].to_numpy().astype(np.int64))
    others = {node for source, rows in nodes.rows.items() if source != _EXTRACTION for node in rows.values()}
    searched = sorted(others - set(extracted.values()))
    pairs = [(name, node) for node in searched for name in nodes.names[node] if says_something(name)]
    if pairs:
        mentions_of = find_mentions([name.replace("_", " ") for name, _ in pairs], passages.texts)
        of = np.array([node for _, node in pairs], np.int64)
        found_node.append(of[mentions_of.name])
        found_passage.append(mentions_of.text.astype(np.int64))
    none = [np.zeros(0, np.int64)]
    return np.concatenate(none + found_node), np.concatenate(none + found_passage)


def says_something(name: str) -> bool:
    """Whether a name is worth a search: three letters or digits, not digits alone, not stop words alone.

    >>> [says_something(name) for name in ("TP53", "1967", "of the", "Ab")]
    [True, False, False, False]
    """
    words = name.replace("_", " ").casefold().split()
    said = [char for char in name if char.isalnum()]
    return len(said) >= 3 and any(map(str.isalpha, said)) and any(word not in STOP_WORDS for word in words)


def _ranked(node: np.ndarray, passage: np.ndarray, n_passages: int) -> dict[int, list[int]]:
    """The passages of each node that has one, by (-mentions, row)."""
    key, count = np.unique(node * max(n_passages, 1) + passage, return_counts=True)
    node, passage = key // max(n_passages, 1), key % max(n_passages, 1)
    order = np.lexsort((passage, -count, node))
    node, passage = node[order], passage[order]
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    return {int(node[s]): passage[s:e].tolist() for s, e in zip(starts, [*starts[1:], len(node)])}
