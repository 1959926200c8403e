"""Replies and vectors of indexes that were built apart, reused by a build of all their sources."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.folder import storage_errors, writing
from gpu_rag.index.manifest import Manifest, StageRecord, checked_folder
from gpu_rag.index.stage import Stage
from gpu_rag.index.stages.search import COMPOSED
from gpu_rag.methods.registry import all_stages
from gpu_rag.models.embed.cache import cache_file, keep_vectors
from gpu_rag.models.llm.cache import add_replies

REPLIES = "replies.sqlite"


def pooled_folder(out: Path) -> Path:
    """The folder of the vectors that `pool` copied for the index `out`; a finished build removes it."""
    return out / "work" / "pooled"


def pool(parts: Sequence[Path], out: Path) -> None:
    """Copy the replies and vectors of indexes for a build of the index `out`. parts: folders of the indexes.

    Raises IndexCorrupt for a damaged part, IndexLocked while `out` is built, StorageError.
    """
    with writing(out), storage_errors(out):
        replies = [part / REPLIES for part in parts if (part / REPLIES).is_file()]
        if replies:
            add_replies(out / REPLIES, replies)
        shutil.rmtree(pooled_folder(out), ignore_errors=True)  # an earlier run may have been killed
        for part in parts:
            _pool_vectors(part, pooled_folder(out))


def _pool_vectors(part: Path, pooled: Path) -> None:
    """Write the vectors of all stages of an index to files by embedder, with the hashes of texts as keys.

    Memory: the texts and vectors of one stage.
    """
    manifest = Manifest.read(part).without_stale()
    for name, texts in texts_of_vectors(part, manifest):
        embedder = manifest.stages[name].models.get("embedder", {}).get("content_hash", "")
        if not embedder.isalnum():  # a foreign index gives this part of a file name
            continue
        vectors = tables.read_arrays(checked_folder(part, manifest, name) / "vectors.safetensors")["vectors"]
        if vectors.ndim != 2 or len(vectors) != len(texts):
            given = f"{name} of {part}: {len(vectors)} vectors, {len(texts)} texts"
            raise IndexCorrupt("the vectors of an index do not belong to its texts", given=given)
        path = cache_file(pooled, embedder)
        for start in range(0, len(texts), tables.ROWS_A_GROUP):
            rows = slice(start, start + tables.ROWS_A_GROUP)
            keep_vectors(path, texts[rows], vectors[rows])


def has_older_vectors(manifest: Manifest) -> bool:
    """Whether an index has vectors whose texts are not known: of another version of this package, or composed."""
    own = ((stage, manifest.stages.get(name)) for name, stage in all_stages().items() if stage.texts is not None)
    return any(record is not None and not _is_embedded(stage, record) for stage, record in own)


def _is_embedded(stage: Stage, record: StageRecord) -> bool:
    """Whether each vector of a stage was embedded from the text that this version knows."""
    return record.version == stage.version and COMPOSED not in record.params


def texts_of_vectors(folder: Path, manifest: Manifest) -> Iterator[tuple[str, Sequence[str]]]:
    """(stage, its texts) for each stage of vectors of an index. Raises IndexCorrupt."""
    for name, stage in all_stages().items():
        record = manifest.stages.get(name)
        if record is not None and stage.texts is not None and _is_embedded(stage, record):
            yield name, stage.texts(*(checked_folder(folder, manifest, need) for need in stage.needs))
