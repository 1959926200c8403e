"""Links from nodes of a knowledge base to passages: their own documents, and passages that mention them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.stages.knowledge_base.nodes import Nodes
from gpu_rag.index.work import Work
from gpu_rag.text.mentions import MentionFinder
from gpu_rag.text.tokens import STOP_WORDS

MAX_LINKED = 100  # passages of a node besides its own document
EXTRACTION = "extraction"  # the index's own source


@dataclass(frozen=True)
class PassageRows:
    """The P passages of an index. path: their table; source: name of each one's source; own: {(source, node id): rows
    of its document, in the order of the text}."""

    path: Path
    source: list[str]
    own: dict[tuple[str, str], list[int]]


def read_passage_rows(folder: Path) -> PassageRows:
    """Passages as their stage wrote them."""
    path = folder / "passages.parquet"
    table = tables.read_table(path, tables.PASSAGES, ("doc_id", "start"))
    documents, starts = table["doc_id"].to_pylist(), table["start"].to_pylist()
    origins: dict[str, tuple[str, str]] = {}
    if (folder / "origins.parquet").exists():
        given = tables.read_table(folder / "origins.parquet", ORIGINS)
        columns = (given[name].to_pylist() for name in ("document", "source", "node"))
        origins = {document: (source, node) for document, source, node in zip(*columns)}
    source, own = [], dict[tuple[str, str], list[int]]()
    for row, document in enumerate(documents):
        name, node = origins.get(document, ("documents", ""))
        source.append(name)
        if node:
            own.setdefault((name, node), []).append(row)
    for rows in own.values():
        rows.sort(key=starts.__getitem__)
    return PassageRows(path, source, own)


def link_passages(
    work: Work, passages: PassageRows, nodes: Nodes, sources: Sequence[str]
) -> tuple[pa.ListArray, np.ndarray]:
    """(rows of passages of each node, i32: number of rows at the front that are its own document). sources: their
    names.

    After a node's own document come at most 100 passages that mention it, by descending number of mentions. Mentions
    come from the index's extraction, and from whole-word search of the names of other sources, see `says_something`.
    """
    owner, own = _own(passages, nodes, sources)
    node, passage = _ranked(*_mentioned(work, passages, nodes, sources), len(passages.source))
    width = max(len(passages.source), 1)
    others = ~np.isin(node * width + passage, owner * width + own)
    node, passage = node[others], passage[others]
    first = np.arange(len(node)) - np.searchsorted(node, node) < MAX_LINKED
    pair_node = np.concatenate([owner, node[first]])
    order = np.argsort(pair_node, kind="stable")
    offsets = np.searchsorted(pair_node[order], np.arange(nodes.n + 1))
    rows = np.concatenate([own, passage[first]])[order]
    linked = pa.ListArray.from_arrays(offsets.astype(np.int32), rows.astype(np.int32))
    return linked, np.bincount(owner, minlength=nodes.n).astype(np.int32)


def _own(passages: PassageRows, nodes: Nodes, sources: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(node, row) of each passage of a node's own document, in the order of the text."""
    owner, own = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, name in enumerate(sources):
        mine = [(id, rows) for (source, id), rows in passages.own.items() if source == name]
        node = nodes.with_ids(number, [id for id, _ in mine])
        repeated = np.repeat(node, [len(rows) for _, rows in mine])
        rows = np.array([row for _, rows in mine for row in rows], np.int64)
        owner.append(repeated[repeated >= 0])
        own.append(rows[repeated >= 0])
    return np.concatenate(owner), np.concatenate(own)


def _mentioned(
    work: Work, passages: PassageRows, nodes: Nodes, sources: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(node, passage) of each mention."""
    if not passages.source:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    found_node, found_passage = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    searched = np.zeros(nodes.n, bool)
    extracted = np.zeros(0, np.int32)
    for number, name in enumerate(sources):
        if name == EXTRACTION:
            extracted = nodes.of_source(number)
        else:
            searched[nodes.of_source(number)] = True
    if len(extracted):
        mentions = tables.read_table(work.stage_folders["mentions"] / "mentions.parquet", tables.MENTIONS)
        found_node.append(extracted[mentions["entity"].to_numpy()].astype(np.int64))  # record rows are entity rows
        found_passage.append(mentions["passage"].to_numpy().astype(np.int64))
    searched[extracted] = False
    owners: list[np.ndarray] = []
    finder = MentionFinder(_searched(nodes, np.flatnonzero(searched & ~nodes.is_value()), owners))
    owner, first = np.concatenate([np.zeros(0, np.int64), *owners]), 0
    for batch in tables.read_batches(passages.path, tables.PASSAGES, ("text",)) if len(owner) else ():
        mentions_of = finder.find(batch["text"].to_pylist())
        found_node.append(owner[mentions_of.name])
        found_passage.append(mentions_of.text.astype(np.int64) + first)
        first += batch.num_rows
    return np.concatenate(found_node), np.concatenate(found_passage)


def _searched(nodes: Nodes, rows: np.ndarray, owners: list[np.ndarray]) -> Iterator[str]:
    """Names that are worth a search of some nodes, names before aliases; appends their nodes to `owners`."""
    for start in range(0, len(rows), tables.ROWS_A_GROUP):
        part = rows[start : start + tables.ROWS_A_GROUP]
        names, aliases = (column.take(pa.array(part)).to_pylist() for column in (nodes.names, nodes.aliases))
        searched = [[text for text in (name, *more) if says_something(text)] for name, more in zip(names, aliases)]
        owners.append(np.repeat(part, [len(texts) for texts in searched]))
        yield from (text.replace("_", " ") for texts in searched for text in texts)


def says_something(name: str) -> bool:
    """Whether a name is worth a search: at least three letters or digits, not only digits, not only stop words.

    >>> [says_something(name) for name in ("TP53", "1967", "of the", "Ab")]
    [True, False, False, False]
    """
    words = name.replace("_", " ").casefold().split()
    characters = [char for char in name if char.isalnum()]
    return len(characters) >= 3 and any(map(str.isalpha, characters)) and any(word not in STOP_WORDS for word in words)


def _ranked(node: np.ndarray, passage: np.ndarray, n_passages: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct pairs, sorted by (node, -mentions, passage)."""
    key, count = np.unique(node * max(n_passages, 1) + passage, return_counts=True)
    node, passage = key // max(n_passages, 1), key % max(n_passages, 1)
    order = np.lexsort((passage, -count, node))
    return node[order], passage[order]
