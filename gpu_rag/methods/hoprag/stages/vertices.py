"""The vertices of the hop graph (passages, or their sentences) and the unit vectors of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.stage import stage, the_embedder
from gpu_rag.index.stages.search import embed_blocks
from gpu_rag.index.work import Work
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.tables import KEYWORDS, VERTICES, read_questions, write_lists
from gpu_rag.text.keywords import keywords
from gpu_rag.text.sentences import split_sentences


@stage(
    "hop_vertices",
    needs=("passages",),
    version=2,
    params=lambda settings, _: {"granularity": settings.section(HopSettings).granularity},
)
def vertices_stage(work: Work) -> dict[str, int]:
    """Write the table `vertices`, sorted by (passage, start): one row per passage or per sentence. Every passage has a
    row."""
    passages = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES)
    by_sentence = work.settings.section(HopSettings).granularity == "sentence"
    rows: list[dict[str, Any]] = []
    for passage, (name, text) in enumerate(zip(passages["id"].to_pylist(), passages["text"].to_pylist())):
        spans = (split_sentences(text) if by_sentence else []) or [(0, len(text))]
        ids = [f"{name}@{k}" for k in range(len(spans))] if by_sentence else [name]
        rows.extend({"id": i, "passage": passage, "start": a, "end": b} for i, (a, b) in zip(ids, spans))
        work.progress.advance(1)
    tables.write_rows(work.out / "vertices.parquet", VERTICES, rows)
    return {"hop_vertices": len(rows)}


def read_vertices(work: Work) -> pa.Table:
    """The table of vertices."""
    return tables.read_table(work.stage_folders["hop_vertices"] / "vertices.parquet", VERTICES)


def vertex_parts(passages_folder: Path, vertices: pa.Table) -> tuple[list[str], list[str]]:
    """(titles, texts) of the vertices; a sentence has the title of its passage."""
    passages = tables.read_table(passages_folder / "passages.parquet", tables.PASSAGES)
    titles, texts = passages["title"].to_pylist(), passages["text"].to_pylist()
    spans = list(zip(*(vertices[name].to_pylist() for name in ("passage", "start", "end"))))
    return [titles[p] for p, _, _ in spans], [texts[p][start:end] for p, start, end in spans]


def vertex_texts(passages_folder: Path, vertices: pa.Table) -> list[str]:
    """Title and text of each vertex, joined as in `passage_texts`."""
    pairs = zip(*vertex_parts(passages_folder, vertices))
    return [f"{title}\n{text}" if title else text for title, text in pairs]


@stage("hop_vertex_vectors", needs=("passages", "passage_vectors", "hop_vertices"), roles=the_embedder)
def vertex_vectors_stage(work: Work) -> dict[str, int]:
    """Write unit vectors (float16) of the vertices: copied from the passages, or embedded block by block for
    sentences."""
    if work.settings.section(HopSettings).granularity == "passage":
        vectors = tables.read_arrays(work.stage_folders["passage_vectors"] / "vectors.safetensors")["vectors"]
        work.progress.advance(len(vectors))
    else:
        texts = vertex_texts(work.stage_folders["passages"], read_vertices(work))
        work.progress.start("hop_vertex_vectors", len(texts), "texts")
        vectors = embed_blocks(work, texts)
    tables.write_arrays(work.out / "vectors.safetensors", {"vectors": vectors})
    return {}


@stage("hop_keywords", needs=("passages", "hop_vertices", "hop_questions"), version=2)
def keywords_stage(work: Work) -> dict[str, int]:
    """Write the table `keywords`, sorted, and for in-questions, out-questions and vertices ascending lists of its
    rows."""
    folders = work.stage_folders
    texts: dict[str, Sequence[str]] = {
        side: read_questions(folders["hop_questions"], side)["text"].to_pylist() for side in ("in", "out")
    }
    texts["vertex"] = vertex_texts(folders["passages"], read_vertices(work))
    work.progress.start("hop_keywords", sum(map(len, texts.values())), "texts")
    found: dict[str, list[frozenset[str]]] = {side: [] for side in texts}
    for side, text in ((side, text) for side, of_side in texts.items() for text in of_side):
        found[side].append(keywords(text))
        work.progress.advance(1)
    vocabulary = sorted(frozenset().union(*(words for lists in found.values() for words in lists)))
    number = {word: row for row, word in enumerate(vocabulary)}
    tables.write_table(work.out / "keywords.parquet", KEYWORDS, {"keyword": vocabulary})
    for side, lists in found.items():
        write_lists(work.out / f"{side}.safetensors", [sorted(number[word] for word in words) for words in lists])
    return {"hop_keywords": len(vocabulary)}
