"""Texts of nodes of knowledge bases, cut into passages for many nodes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.knowledge_base.tables import ORIGINS
from gpu_rag.index.stages.knowledge_base.columns import replaced
from gpu_rag.index.stages.rejected import checked, short_name
from gpu_rag.index.work import Sources
from gpu_rag.settings import IndexSettings, Settings
from gpu_rag.sources.knowledge_base import read_node_blocks, skb_files
from gpu_rag.sources.knowledge_graph.blocks import TEXT, Block, batch_of, may_have_edges, octets_of
from gpu_rag.sources.lines import count_between
from gpu_rag.sources.rows import Limits, shown
from gpu_rag.text.chunk import MAX_WORD_CHARS, chunk_spans
from gpu_rag.types import Reject

# First bytes of Unicode white space; other characters can begin with them too.
_BLANK = np.isin(np.arange(256), [*range(0x21), 0xC2, 0xE1, 0xE2, 0xE3])
# First bytes of characters of scripts without spaces between words, each of which may begin a word and end another.
_UNSPACED = np.isin(np.arange(256), [0xE0, 0xE1, *range(0xE3, 0xEA), 0xEF])


def _large(schema: pa.Schema) -> pa.Schema:
    """Schema with texts of any total size."""
    return pa.schema([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in schema])


SCHEMAS = {
    "documents": _large(pa.schema([*tables.DOCUMENTS, ("metadata", pa.string()), ("language", pa.string())])),
    "passages": _large(pa.schema([*tables.PASSAGES, *tables.LINES])),
    "origins": _large(ORIGINS),
}
Parts = dict[str, pa.RecordBatch]  # rows of each of these tables


@dataclass(frozen=True)
class Taken:
    """Ids of documents and passages that are in use. About 100 bytes an id."""

    documents: set[str] = field(default_factory=set)
    passages: set[str] = field(default_factory=set)

    def give(self, document: str, passages: Sequence[str]) -> bool:
        """Reserve the ids of a document and its passages if all of them are free. Returns whether they were."""
        free = document not in self.documents and self.passages.isdisjoint(passages)
        if free:
            self.documents.add(document)
            self.passages.update(passages)
        return free


def node_documents(sources: Sources, settings: Settings, taken: Taken) -> Iterator[Parts | Reject]:
    """Documents of the nodes of all knowledge bases, after those whose ids are `taken`, and Rejects.

    A document has the id of its node, or "SOURCE:ID" if that is taken. Other faults of nodes are left to the stage
    `kb`, which reads all nodes. Raises BadInput for the first Reject if `sources.strict`. Memory: a block of some MB of
    text, and about 200 bytes a document.
    """
    for source in sources.of_kind("skb"):
        file = shown(skb_files(source.path).nodes)
        for block in read_node_blocks(source.path, Limits(settings.index.max_document_chars)):
            block = block.take(np.flatnonzero(pc.binary_length(block["text"])))
            passages = cut(block["text"], settings.index)
            owner = passages[0]
            passage_ids = _passage_ids(block["id"], owner)
            form = _forms(source.name, block["id"], passage_ids, owner, taken)
            for row in np.flatnonzero(form < 0):
                reason = "its ids as a document are taken by other documents"
                reject = Reject(file, int(block.line[row]), reason, block["id"][int(row)].as_py())
                yield checked(reject, sources.strict, (source.path,))
            yield _parts(source.name, short_name(file, (source.path,)), block, passage_ids, passages, form)


def _parts(
    source: str,
    file: str,
    block: Block,
    passage_ids: pa.LargeStringArray,
    passages: tuple[np.ndarray, pa.LargeStringArray, np.ndarray, np.ndarray],
    form: np.ndarray,
) -> Parts:
    """Rows of the tables, without documents of form -1."""
    owner, texts, start, end = passages
    ids, passage_ids = _under(source, block["id"], form), _under(source, passage_ids, form[owner])
    n, doc, titles = len(ids), pa.array(owner), block["name"]
    pages = pa.ListArray.from_arrays(np.zeros(n + 1, np.int32), pa.array([], pa.int64()))
    files, sources, unknown = (pa.repeat(pa.scalar(text, TEXT), n) for text in (file, source, ""))
    columns = {
        "documents": (ids, titles, files, block.line, pages, unknown, unknown),
        "passages": (passage_ids, ids.take(doc), titles.take(doc), texts, start, end, np.zeros(len(owner), np.int32)),
        "origins": (ids, sources, block["id"]),
    }
    parts = {name: batch_of(SCHEMAS[name], *given) for name, given in columns.items()}
    kept = {"documents": form >= 0, "passages": form[owner] >= 0, "origins": form >= 0}
    return parts if (form >= 0).all() else {name: part.filter(pa.array(kept[name])) for name, part in parts.items()}


def cut(
    texts: pa.LargeStringArray, settings: IndexSettings
) -> tuple[np.ndarray, pa.LargeStringArray, np.ndarray, np.ndarray]:
    """(document, text, start, end) of each passage, document by document. No text may be blank.

    Equal to `chunk_spans` of each text. That is called only for texts that may have more than `chunk_words` words, or
    white space at their ends: a text has at most one word, plus one per white space and per 64 bytes, plus two
    per character of a script without spaces.
    """
    if len(texts):
        chunk_spans("", settings.chunk_words, settings.overlap_words)  # raises for impossible sizes
    octets, bounds = octets_of(texts)
    words = 1 + np.diff(bounds) // MAX_WORD_CHARS
    if len(octets):
        blanks, unspaced = (
            count_between(kind[octets[: bounds[-1]]], bounds[:-1], bounds[1:]) for kind in (_BLANK, _UNSPACED)
        )
        words = words + blanks + 2 * unspaced
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
    document = np.concatenate([whole, np.array(owner, np.int64)])
    order = np.argsort(document, kind="stable")
    text = pa.concat_arrays([texts.take(pa.array(whole)), pa.array(pieces, pa.large_string())]).take(pa.array(order))
    starts = np.concatenate([np.zeros(len(whole), np.int64), np.array(start, np.int64)])
    ends = np.concatenate([length[whole], np.array(end, np.int64)])
    return document[order], text, starts[order], ends[order]


def _passage_ids(ids: pa.LargeStringArray, owner: np.ndarray) -> pa.LargeStringArray:
    """Passage ids: the document's id if the passage is all of it, else "ID#NUMBER"."""
    several = np.flatnonzero(np.bincount(owner, minlength=len(ids))[owner] > 1)
    owners = ids.take(pa.array(owner))
    number = several - np.searchsorted(owner, owner[several])
    return replaced(owners, several, [f"{id}#{k}" for id, k in zip(owners.take(pa.array(several)).to_pylist(), number)])


def _under(source: str, ids: pa.LargeStringArray, form: np.ndarray) -> pa.LargeStringArray:
    """The ids; ids of form 1 become "SOURCE:ID"."""
    rows = np.flatnonzero(form == 1)
    return replaced(ids, rows, [f"{source}:{id}" for id in ids.take(pa.array(rows)).to_pylist()])


# --- which ids are free --------------------------------------------------------------------------------


def _forms(
    source: str, ids: pa.LargeStringArray, passage_ids: pa.LargeStringArray, owner: np.ndarray, taken: Taken
) -> np.ndarray:
    """i64 per document: 0 for its node's id, 1 for "SOURCE:ID", -1 if neither is free, for it and its passages."""
    names, parts = ids.to_pylist(), passage_ids.to_pylist()
    first = np.searchsorted(owner, np.arange(len(ids) + 1)).tolist()
    form = np.full(len(ids), -1, np.int64)
    for row, name in enumerate(names):  # in turn: an earlier one may take the id of a later one
        mine = parts[first[row] : first[row + 1]]
        if taken.give(name, mine):
            form[row] = 0
        elif taken.give(f"{source}:{name}", [f"{source}:{part}" for part in mine]):
            form[row] = 1
    return form
