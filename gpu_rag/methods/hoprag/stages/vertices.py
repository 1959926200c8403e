"""The vertices of the hop graph (passages, or their sentences) and the unit vectors of their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.index import tables
from gpu_rag.index.stage import stage, the_embedder
from gpu_rag.index.stages.search import TextRows, embed_blocks
from gpu_rag.index.work import Work
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.tables import KEYWORDS, LISTS, VERTICES, question_texts, questions_file
from gpu_rag.text.keywords import keywords
from gpu_rag.text.sentences import split_sentences


@stage(
    "hop_vertices",
    needs=("passages",),
    version=3,
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


@stage("hop_keywords", needs=("passages", "hop_vertices", "hop_questions"), version=5)
def keywords_stage(work: Work) -> dict[str, int]:
    """Write the table `keywords`, sorted, and for in-questions, out-questions and vertices ascending lists of its
    rows."""
    folder, vertex = work.stage_folders["hop_questions"], vertex_texts(*vertex_folders(work))
    batches: dict[str, Iterable[Sequence[str]]] = {side: question_texts(folder, side) for side in ("in", "out")}
    batches["vertex"] = vertex.blocks()
    n_questions = sum(tables.n_rows(questions_file(folder, side)) for side in ("in", "out"))
    work.progress.start("hop_keywords", n_questions + len(vertex), "texts")
    numbers: dict[str, int] = {}  # of each word, by first use
    numbered = {side: _numbered(work, texts, numbers) for side, texts in batches.items()}
    vocabulary = sorted(numbers)
    tables.write_table(work.out / "keywords.parquet", KEYWORDS, {"keyword": vocabulary})
    rank = np.empty(len(numbers), np.int64)
    rank[[numbers[word] for word in vocabulary]] = np.arange(len(numbers))
    for side, blocks in numbered.items():
        with tables.TableWriter(work.out / f"{side}.parquet", LISTS) as writer:
            for values, sizes in blocks:
                ranks = rank[values]
                order = np.lexsort((ranks, np.repeat(np.arange(len(sizes)), sizes)))
                writer.add([pa.LargeListArray.from_arrays(tables.starts_of(sizes), ranks[order])])
    return {"hop_keywords": len(vocabulary)}


def _numbered(
    work: Work, batches: Iterable[Sequence[str]], numbers: dict[str, int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The keywords of each block of texts, by their numbers, i32, and the number of them in each text. numbers: of the
    known words; new words are added."""
    blocks = []
    for texts in batches:
        lists = list(map({text: keywords(text) for text in set(texts)}.__getitem__, texts))  # questions repeat
        values = np.array([numbers.setdefault(word, len(numbers)) for words in lists for word in words], np.int32)
        blocks.append((values, np.array([len(words) for words in lists], np.int32)))
        work.progress.advance(len(texts))
    return blocks
