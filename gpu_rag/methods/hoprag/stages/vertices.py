"""The vertices of the hop graph (passages, or their sentences) and the unit vectors of their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.ragged import row_of_value, some_lists
from gpu_rag.index import tables
from gpu_rag.index.checks import outside
from gpu_rag.index.database import Database, database
from gpu_rag.index.names import one_array, rows_of
from gpu_rag.index.stage import stage, the_embedder
from gpu_rag.index.stages.search import TextRows, embed_blocks, rows_by_key, text_hashes
from gpu_rag.index.work import Work
from gpu_rag.index.workers import TEXTS, Shared
from gpu_rag.lazy import torch
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.tables import (
    KEYWORDS,
    SIDES,
    VERTICES,
    question_rows,
    questions_file,
    read_lists,
    same_texts,
    write_lists,
)
from gpu_rag.models.embed.interface import distinct
from gpu_rag.text.keywords import keywords
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Ragged


@stage(
    "hop_vertices",
    needs=("passages",),
    version=4,
    params=lambda settings, _: {"granularity": settings.section(HopSettings).granularity},
)
def vertices_stage(work: Work) -> dict[str, int]:
    """Write the table `vertices`, sorted by (passage, start): one row per passage or per sentence. Every passage has a
    row."""
    path, n = work.stage_folders["passages"] / "passages.parquet", 0
    work.progress.start("hop_vertices", tables.n_rows(path), "passages")
    by_sentence = work.settings.section(HopSettings).granularity == "sentence"
    with tables.TableWriter(work.out / "vertices.parquet", VERTICES) as writer:
        for batch in tables.read_batches(path, tables.PASSAGES, ("id", "text")):
            rows = np.arange(n, n + batch.num_rows)
            columns = [batch["id"], rows, np.zeros(len(rows), np.int32), pc.utf8_length(batch["text"])]
            writer.add(_sentences(batch, n) if by_sentence else columns)
            n += batch.num_rows
            work.progress.advance(batch.num_rows)
    return {"hop_vertices": tables.n_rows(work.out / "vertices.parquet")}


def _sentences(batch: pa.RecordBatch, first: int) -> list[list[Any]]:
    """Columns of VERTICES for the sentences of passages. first: the row of the first passage."""
    spans = [split_sentences(text) or [(0, len(text))] for text in batch["text"].to_pylist()]
    rows = zip(batch["id"].to_pylist(), spans)
    cells = [(f"{id}@{k}", first + row, *span) for row, (id, parts) in enumerate(rows) for k, span in enumerate(parts)]
    return [list(column) for column in zip(*cells)]


def read_vertices(work: Work, *columns: str) -> pa.Table:
    """Some columns of the table of vertices."""
    return tables.read_table(work.stage_folders["hop_vertices"] / "vertices.parquet", VERTICES, columns)


def kept_vertices(now: Mapping[str, Path], before: Mapping[str, Path], passages: np.ndarray) -> np.ndarray:
    """i64[V]: the row of each vertex in an earlier run; -1 if it is new, or a vertex of its passage is. now, before:
    folders of the stage `hop_vertices`; passages: the earlier row of each passage with the same text, -1 for others."""
    new, old = (tables.read_table(folders["hop_vertices"] / "vertices.parquet", VERTICES) for folders in (now, before))
    rows = rows_of(one_array(new["id"]), one_array(old["id"]))
    passage, known = new["passage"].to_numpy(), np.flatnonzero(rows >= 0)
    places = [(passages[passage], old["passage"].to_numpy())]
    places += [(new[name].to_numpy(), old[name].to_numpy()) for name in ("start", "end")]
    for place, earlier in places:
        rows[known[place[known] != earlier[rows[known]]]] = -1
        known = np.flatnonzero(rows >= 0)
    is_new = np.bincount(passage[rows < 0], minlength=len(passages)) > 0
    return np.where(is_new[passage], -1, rows)


def vertex_folders(work: Work) -> tuple[Path, Path]:
    """The folders of the passages and of the vertices."""
    return work.stage_folders["passages"], work.stage_folders["hop_vertices"]


def vertex_parts(
    passages_folder: Path, vertices_folder: Path
) -> tuple[np.ndarray, Callable[[int, int], list[tuple[str, str]]]]:
    """i32[V], the passage of each vertex, ascending; and a function of two rows, which gives title and text of the
    vertices from the first row to the second. A sentence has the title of its passage."""
    vertices = tables.read_table(vertices_folder / "vertices.parquet", VERTICES, ("passage", "start", "end"))
    passages = tables.read_table(passages_folder / "passages.parquet", tables.PASSAGES).select(["title", "text"])

    def parts(first: int, last: int) -> list[tuple[str, str]]:
        part = vertices.slice(first, last - first)
        texts = passages.take(part["passage"])
        columns = (*texts.columns, part["start"], part["end"])
        return [(title, text[a:b]) for title, text, a, b in zip(*(column.to_pylist() for column in columns))]

    return vertices["passage"].to_numpy(), parts


def vertex_texts(passages_folder: Path, vertices_folder: Path) -> TextRows:
    """Title and text of each vertex, joined as in `passage_texts`."""
    passage, parts = vertex_parts(passages_folder, vertices_folder)

    def make(rows: slice) -> list[str]:
        return [f"{title}\n{text}" if title else text for title, text in parts(rows.start, rows.stop)]

    return TextRows(len(passage), make)


@stage(
    "hop_vertex_vectors",
    needs=("passages", "passage_vectors", "hop_vertices"),
    roles=the_embedder,
    texts=lambda passages, _, vertices: vertex_texts(passages, vertices),
)
def vertex_vectors_stage(work: Work) -> dict[str, int]:
    """Write unit vectors (float16) of the vertices: copied from the passages, or embedded block by block for
    sentences."""
    if work.settings.section(HopSettings).granularity == "passage":
        vectors = tables.read_arrays(work.stage_folders["passage_vectors"] / "vectors.safetensors")["vectors"]
        work.progress.advance(len(vectors))
    else:
        texts = vertex_texts(*vertex_folders(work))
        work.progress.start("hop_vertex_vectors", len(texts), "texts")
        vectors = embed_blocks(work, texts)
    tables.write_arrays(work.out / "vectors.safetensors", {"vectors": vectors})
    return {}


@stage("hop_keywords", needs=("passages", "hop_vertices", "hop_questions"), version=9)
def keywords_stage(work: Work) -> dict[str, int]:
    """Write the table `keywords`, sorted, and for in-questions, out-questions and vertices ascending lists of its
    rows. A text that an earlier run had keeps its list. Memory: `index.memory`, the texts of a side (now and
    earlier), the earlier words, and some 28 bytes for each keyword of a text."""
    files = [questions_file(work.stage_folders["hop_questions"], side) for side in ("in", "out")]
    files.append(work.stage_folders["hop_vertices"] / "vertices.parquet")
    work.progress.start("hop_keywords", sum(map(tables.n_rows, files)), "texts")
    known = pa.array([], pa.large_string())
    if work.previous and work.previous_inputs:
        known = one_array(tables.read_table(work.previous / "keywords.parquet", KEYWORDS)["keyword"])
    with database(work) as db:
        words = _Words(db, known)
        with Shared(keywords_batch, work.settings, work) as keywords_of:
            lists = {side: _placed(work, side, words, keywords_of) for side in SIDES}
        number, n = words.numbered(work, lists.values())
    for side, given in lists.items():
        keys = row_of_value(given).numpy()
        keys <<= 32
        keys |= number[given.values]
        keys.sort()
        keys &= 0xFFFFFFFF
        write_lists(work.out / f"{side}.parquet", Ragged(torch.from_numpy(keys), given.offsets))
    return {"hop_keywords": n}


class _Words:
    """Words by place, in the table `seen` of a database: a word gets a place in each batch of texts where it occurs.
    known: those of an earlier run, which have the first places."""

    def __init__(self, db: Database, known: pa.LargeStringArray):
        self._db, self._known, self.n_known, self.n = db, known, len(known), len(known)
        db.create("seen", _SEEN)
        db.create("numbered", _NUMBERED)

    def places(self, words: pa.StringArray) -> np.ndarray:
        """i32: the place of each word; each distinct one gets a new place. Raises GpuRagError above 2^31."""
        encoded, first = words.dictionary_encode(), self.n
        self.n += len(encoded.dictionary)
        if self.n >= 1 << 31:
            raise GpuRagError("too many keywords in one index", given=self.n, expected="below 2^31", do=_SPLIT)
        self._db.add("seen", pa.table([np.arange(first, self.n, dtype=np.int32), encoded.dictionary], schema=_SEEN))
        return encoded.indices.to_numpy() + np.int32(first)

    def numbered(self, work: Work, used: Iterable[Ragged]) -> tuple[np.ndarray, int]:
        """Write the table `keywords` of the words at the places in `used`. Returns i32[self.n], the row of each place,
        and the number of rows."""
        is_used = np.zeros(self.n, bool)
        for lists in used:
            is_used[lists.values] = True
        place = np.flatnonzero(is_used[: self.n_known]).astype(np.int32)
        self._db.add("seen", pa.table([place, self._known.take(pa.array(place))], ["place", "word"]))
        self._db.run("CREATE TABLE once AS SELECT DISTINCT word FROM seen")
        n, number = 0, np.zeros(self.n, np.int32)
        with tables.TableWriter(work.out / "keywords.parquet", KEYWORDS) as writer:
            for batch in self._db.batches("SELECT word FROM once ORDER BY word"):
                writer.add([batch["word"]])
                row = np.arange(n, n + batch.num_rows, dtype=np.int32)
                self._db.add("numbered", pa.table([batch["word"], row], schema=_NUMBERED))
                n += batch.num_rows
        for batch in self._db.batches("SELECT place, number FROM seen JOIN numbered USING (word)"):
            number[batch["place"].to_numpy()] = batch["number"].to_numpy()
        return number, n


_SPLIT = "divide the corpus into several indexes"
_SEEN = pa.schema([("place", pa.int32()), ("word", pa.string())])
_NUMBERED = pa.schema([("word", pa.string()), ("number", pa.int32())])
_KEYWORDS = pa.schema([("keywords", pa.list_(pa.string()))])


def keywords_batch(texts: pa.RecordBatch) -> pa.RecordBatch:
    """The keywords of each text."""
    return pa.record_batch([[list(keywords(text)) for text in texts["text"].to_pylist()]], _KEYWORDS)


def _texts(side: str, folders: Mapping[str, Path]) -> TextRows:
    """The texts of a side."""
    if side == "vertex":
        return vertex_texts(folders["passages"], folders["hop_vertices"])
    return question_rows(side, folders["hop_questions"])


def _placed(work: Work, side: str, words: _Words, keywords_of: Shared) -> Ragged:
    """The keywords of each text of a side, by their places in `words`. keywords_of: `keywords_batch`."""
    texts = _texts(side, work.stage_folders)
    earlier = _texts(side, work.previous_inputs) if work.previous and work.previous_inputs else None
    rows, known = np.full(len(texts), -1), read_lists(work.previous / f"{side}.parquet") if work.previous else None
    values, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    if earlier and known and known.batch == len(earlier) and not outside(known.values.numpy(), words.n_known):
        if side == "vertex":
            rows = rows_by_key(text_hashes(texts), text_hashes(earlier))
        else:
            rows = same_texts(side, *(of["hop_questions"] for of in (work.stage_folders, work.previous_inputs)))
        values, sizes = [known.values.numpy()], [np.diff(known.offsets.numpy())]
    is_new = rows < 0
    rows[is_new] = len(sizes[0]) + np.arange(is_new.sum())
    for first in range(0, len(texts), tables.ROWS_A_GROUP):
        mask = is_new[first : first + tables.ROWS_A_GROUP]
        new = [*compress(texts[first : first + len(mask)], mask)] if mask.any() else []
        asked, place = distinct(new)  # neighbouring vertices share many questions
        made = keywords_of(pa.record_batch([asked], TEXTS))["keywords"]
        found = Ragged(*map(torch.from_numpy, (words.places(made.flatten()), made.offsets.to_numpy().astype(np.int64))))
        part = some_lists(found, torch.tensor(place, dtype=torch.int64))
        values.append(part.values.numpy())
        sizes.append(np.diff(part.offsets.numpy()))
        work.progress.advance(len(mask))
    work.report.reused += int((~is_new).sum())
    starts = tables.starts_of(np.concatenate(sizes))
    lists_of_both = Ragged(torch.from_numpy(np.concatenate(values)), torch.from_numpy(starts))
    return some_lists(lists_of_both, torch.from_numpy(rows))
