"""Texts of nodes of knowledge bases cut into passages, many nodes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index.stages.knowledge_base.columns import replaced
from gpu_rag.index.stages.rejected import short_name, short_reject, stop_if_strict
from gpu_rag.index.work import NamedSource, Sources
from gpu_rag.settings import IndexSettings, Settings
from gpu_rag.sources.knowledge_base import read_node_blocks, skb_files
from gpu_rag.sources.knowledge_graph.blocks import Block, may_have_edges, octets_of
from gpu_rag.sources.knowledge_graph.lines import count_between
from gpu_rag.sources.rows import Limits, shown
from gpu_rag.sources.seen import Seen, repeats
from gpu_rag.text.chunk import MAX_WORD_CHARS, chunk_spans
from gpu_rag.types import Reject

# Bytes that white space of Unicode may begin with; more characters than white space begin so.
_BLANK = np.isin(np.arange(256), [*range(0x21), 0xC2, 0xE1, 0xE2, 0xE3])
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class NodeDocuments:
    """The texts of n nodes of one source as documents, and their P passages, document by document.

    ids: of the documents; nodes: of their nodes; titles: their names; line: i64[n], of `file`. owner: i64[P], the
    document of each passage; passage_ids, texts: of the passages; start, end: i64[P], characters into the document.
    """

    source: str
    file: str
    ids: pa.LargeStringArray
    nodes: pa.LargeStringArray
    titles: pa.LargeStringArray
    line: np.ndarray
    owner: np.ndarray
    passage_ids: pa.LargeStringArray
    texts: pa.LargeStringArray
    start: np.ndarray
    end: np.ndarray

    @property
    def n(self) -> int:
        """Number of documents."""
        return len(self.ids)


class Taken:
    """Ids of documents and of passages that are given away."""

    def __init__(self) -> None:
        self.documents, self.passages = Seen(), Seen()

    def add(self, documents: pa.LargeStringArray, passages: pa.LargeStringArray) -> None:
        """Gives ids away that were free."""
        for seen, ids in ((self.documents, documents), (self.passages, passages)):
            seen.add(ids, np.zeros(len(ids), np.int64))


def node_documents(sources: Sources, settings: Settings, taken: Taken) -> Iterator[NodeDocuments | Reject]:
    """The documents of the nodes of all knowledge bases, after those whose ids are `taken`, and Rejects.

    A document has the id of its node, "SOURCE:ID" where that is taken. What is wrong with other nodes is left to the
    stage `kb`, which reads them all. Raises BadInput for the first Reject where `sources.strict`. Memory: a block of
    some MB of text, and about 70 bytes a document beside its id.
    """
    for source in sources.of_kind("skb"):
        file = shown(skb_files(source.path).nodes)
        for block in read_node_blocks(source.path, Limits(settings.index.max_document_chars)):
            found, lost = _documents(source, _with_text(block), settings.index, taken)
            for node, line in lost:
                reject = Reject(file, line, "its ids as a document are taken by other documents", node)
                stop_if_strict(sources.strict, reject)
                yield short_reject(reject, (source.path,))
            yield found


def _with_text(block: Block) -> Block:
    said = np.asarray(pc.binary_length(block["text"])) > 0
    return block if said.all() else block.take(np.flatnonzero(said))


def _documents(
    source: NamedSource, block: Block, settings: IndexSettings, taken: Taken
) -> tuple[NodeDocuments, list[tuple[str, int]]]:
    """(the documents of the nodes of a block, (id, line) of nodes whose ids are taken)."""
    owner, texts, start, end = cut(block["text"], settings)
    passage_ids = _passage_ids(block["id"], owner)
    form = _forms(source.name, block["id"], passage_ids, owner, taken)
    lost = [(block["id"][int(row)].as_py(), int(block.line[row])) for row in np.flatnonzero(form < 0)]
    ids, passage_ids = (
        _under(source.name, given, of) for given, of in ((block["id"], form), (passage_ids, form[owner]))
    )
    if lost:
        free, passages = np.flatnonzero(form >= 0), np.flatnonzero(form[owner] >= 0)
        number = np.cumsum(form >= 0) - 1
        block, ids, owner = block.take(free), ids.take(pa.array(free)), number[owner[passages]]
        passage_ids, texts = (column.take(pa.array(passages)) for column in (passage_ids, texts))
        start, end = start[passages], end[passages]
    taken.add(ids, passage_ids)
    file = short_name(shown(skb_files(source.path).nodes), (source.path,))
    found = NodeDocuments(
        source.name, file, ids, block["id"], block["name"], block.line, owner, passage_ids, texts, start, end
    )
    return found, lost


def cut(
    texts: pa.LargeStringArray, settings: IndexSettings
) -> tuple[np.ndarray, pa.LargeStringArray, np.ndarray, np.ndarray]:
    """(document, text, start, end) of each passage, document by document; none of the texts is blank.

    As `chunk_spans` cuts each of them. It cuts those alone that may have more than `chunk_words` words, or
    white space at their ends: there are at most as many words as white space, one, and one for 64 bytes.
    """
    if len(texts):
        chunk_spans("", settings.chunk_words, settings.overlap_words)  # raises for sizes that cannot be
    octets, bounds = octets_of(texts)
    words = 1 + np.diff(bounds) // MAX_WORD_CHARS
    if len(octets):
        words = words + count_between(_BLANK[octets[: bounds[-1]]], bounds[:-1], bounds[1:])
    longer = np.flatnonzero((words > settings.chunk_words) | may_have_edges(texts))
    pieces, owner, start, end = list[str](), list[int](), list[int](), list[int]()
    for row, text in zip(longer.tolist(), texts.take(pa.array(longer)).to_pylist()):
        for first, last in chunk_spans(text, settings.chunk_words, settings.overlap_words):
            pieces.append(text[first:last])
            owner.append(row)
            start.append(first)
            end.append(last)
    whole = np.delete(np.arange(len(texts)), longer)
    length = np.asarray(pc.utf8_length(texts)).astype(np.int64)
    of = np.concatenate([whole, np.array(owner, np.int64)])
    order = np.argsort(of, kind="stable")
    text = pa.concat_arrays([texts.take(pa.array(whole)), pa.array(pieces, pa.large_string())]).take(pa.array(order))
    starts = np.concatenate([np.zeros(len(whole), np.int64), np.array(start, np.int64)])
    ends = np.concatenate([length[whole], np.array(end, np.int64)])
    return of[order], text, starts[order], ends[order]


def _passage_ids(ids: pa.LargeStringArray, owner: np.ndarray) -> pa.LargeStringArray:
    """The id of its document for a passage that is all of it, else "ID#NUMBER"."""
    several = np.flatnonzero(np.bincount(owner, minlength=len(ids))[owner] > 1) if len(owner) else _NONE
    of = ids.take(pa.array(owner))
    number = several - np.searchsorted(owner, owner[several])
    return replaced(of, several, [f"{id}#{k}" for id, k in zip(of.take(pa.array(several)).to_pylist(), number)])


def _under(source: str, ids: pa.LargeStringArray, form: np.ndarray) -> pa.LargeStringArray:
    """The ids, those of form 1 as "SOURCE:ID"."""
    rows = np.flatnonzero(form == 1)
    return replaced(ids, rows, [f"{source}:{id}" for id in ids.take(pa.array(rows)).to_pylist()])


# --- which ids are free --------------------------------------------------------------------------------


def _forms(
    source: str, ids: pa.LargeStringArray, passage_ids: pa.LargeStringArray, owner: np.ndarray, taken: Taken
) -> np.ndarray:
    """i64 of each document: 0 for its node's id, 1 for "SOURCE:ID", -1 where neither it nor its passages' are free."""
    used = taken.documents.numbers(ids) >= 0
    used_passage = taken.passages.numbers(passage_ids) >= 0
    if not (used.any() or used_passage.any() or len(repeats(passage_ids)[0])):
        return np.zeros(len(ids), np.int64)
    prefixed = [_under(source, given, np.ones(len(given))) for given in (ids, passage_ids)]
    others = taken.documents.numbers(prefixed[0]) >= 0, taken.passages.numbers(prefixed[1]) >= 0
    first = np.searchsorted(owner, np.arange(len(ids) + 1))
    choices = [
        _Choice(ids.to_pylist(), passage_ids.to_pylist(), used, used_passage, first),
        _Choice(prefixed[0].to_pylist(), prefixed[1].to_pylist(), *others, first),
    ]
    return _in_turn(choices)


@dataclass(frozen=True)
class _Choice:
    """Ids that documents may have, their passages' ids, and which of both are taken. first: where passages begin."""

    ids: list[str]
    passage_ids: list[str]
    used: np.ndarray
    used_passage: np.ndarray
    first: np.ndarray

    def of(self, row: int, ids: set[str], passages: set[str]) -> list[str] | None:
        """The passage ids of a document, None where something is taken, here or by an earlier one of the block."""
        part = slice(self.first[row], self.first[row + 1])
        mine = self.passage_ids[part]
        is_taken = self.used[row] or self.ids[row] in ids or self.used_passage[part].any()
        return None if is_taken or not passages.isdisjoint(mine) else mine


def _in_turn(choices: list[_Choice]) -> np.ndarray:
    """The forms, document by document: an earlier one may take what a later one wants."""
    form = np.full(len(choices[0].ids), -1, np.int64)
    ids, passages = set[str](), set[str]()
    for row in range(len(form)):
        for number, choice in enumerate(choices):
            mine = choice.of(row, ids, passages)
            if mine is not None:
                form[row] = number
                ids.add(choice.ids[row])
                passages.update(mine)
                break
    return form
