"""Text search: the BM25 index, and unit vectors of passages, entities and relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpu_rag.index import tables
from gpu_rag.index.stage import Stage, stage, the_embedder
from gpu_rag.index.work import Work
from gpu_rag.text.bm25 import Bm25


def passage_texts(folder: Path) -> list[str]:
    """Title and text of each passage, as both searches see it."""
    table = tables.read_table(folder / "passages.parquet", tables.PASSAGES)
    pairs = zip(table["title"].to_pylist(), table["text"].to_pylist())
    return [f"{title}\n{text}" if title else text for title, text in pairs]


def entity_texts(folder: Path) -> list[str]:
    """The written name of each entity."""
    return tables.read_table(folder / "entities.parquet", tables.ENTITIES)["name"].to_pylist()


def relation_texts(folder: Path) -> list[str]:
    """Each relation as "subject label object", with the entities' written names."""
    return triple_texts(entity_texts(folder), tables.read_table(folder / "relations.parquet", tables.RELATIONS))


def triple_texts(names: Sequence[str], table: pa.Table) -> list[str]:
    """Each row of a table of relations as "subject label object"; names: of the rows of its ends."""
    rows = zip(table["subject"].to_pylist(), table["label"].to_pylist(), table["object"].to_pylist())
    return [f"{names[s]} {label} {names[o]}" for s, label, o in rows]


def _embed(work: Work, texts: Sequence[str]) -> np.ndarray:
    done = 0

    def on_batch(n_done: int) -> None:
        nonlocal done
        work.progress.advance(n_done - done)
        done = n_done

    return work.models.embedder().embed(texts, on_batch).astype(np.float16)


def embed_blocks(work: Work, texts: Sequence[str]) -> np.ndarray:
    """Vectors f16[len(texts), D], block by block; blocks that an earlier run finished come from disk."""
    parts = [work.array_block(number, partial(_embed, work, texts[rows])) for number, rows in work.blocks(len(texts))]
    dim = int(work.models.describe("embedder")["dim"])
    return np.concatenate(parts) if parts else np.zeros((0, dim), np.float16)


@stage(
    "bm25",
    needs=("passages",),
    params=lambda settings, _: {"k1": settings.index.bm25_k1, "b": settings.index.bm25_b},
    size="characters",
)
def bm25_stage(work: Work) -> dict[str, int]:
    """A BM25 index over the passages, whose texts are read by block."""
    path, index = work.stage_folders["passages"] / "passages.parquet", work.settings.index

    def texts() -> Iterator[str]:
        for batch in tables.read_batches(path, tables.PASSAGES, ("title", "text")):
            for title, text in zip(batch["title"].to_pylist(), batch["text"].to_pylist()):
                yield f"{title}\n{text}" if title else text
            work.progress.advance(batch.num_rows)

    Bm25.build(texts(), k1=index.bm25_k1, b=index.bm25_b).save(work.out)
    return {}


def vector_stage(
    name: str,
    needs: tuple[str, ...],
    texts_of: Callable[..., Sequence[str]],
    size: str = "passages",
    graph: bool = False,
) -> Stage:
    """Unit vectors (float16) of texts; resumes at the block where a run died.

    texts_of(folder of each needed stage, in the order of `needs`): the texts. size, graph: as of `Stage`.
    """

    def run(work: Work) -> dict[str, int]:
        texts = texts_of(*(work.stage_folders[need] for need in needs))
        work.progress.start(name, len(texts), "texts")
        tables.write_arrays(work.out / "vectors.safetensors", {"vectors": embed_blocks(work, texts)})
        return {}

    return Stage(name, run, needs, roles=the_embedder, size=size, graph=graph)
