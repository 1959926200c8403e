"""Parts of an index that were built apart: what their models made is taken over, so that no model makes it again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index import tables
from gpu_rag.index.folder import WriteLock, storage_errors
from gpu_rag.index.manifest import Manifest, checked_folder
from gpu_rag.methods.registry import all_stages
from gpu_rag.models.embed.cache import cache_file, keep_vectors
from gpu_rag.models.llm.cache import add_replies

REPLIES = "replies.sqlite"


def pooled_folder(out: Path) -> Path:
    """The folder of the vectors that `pool` took over for the index `out`; a finished build removes it."""
    return out / "work" / "pooled"


def pool(parts: Sequence[Path], out: Path) -> None:
    """Take over the replies and the vectors of indexes for a build of the index `out`.

    Raises IndexCorrupt for a damaged part, IndexLocked while `out` is built, StorageError.
    """
    with WriteLock(out), storage_errors(out):
        replies = [part / REPLIES for part in parts if (part / REPLIES).is_file()]
        if replies:
            add_replies(out / REPLIES, replies)
        shutil.rmtree(pooled_folder(out), ignore_errors=True)  # of a run that was killed
        for part in parts:
            _pool_vectors(part, pooled_folder(out))


def _pool_vectors(part: Path, pooled: Path) -> None:
    """Write the vectors of all stages of an index to a file by the hashes of their texts. Memory: one stage."""
    manifest = Manifest.read(part).without_stale()
    for name, stage in all_stages().items():
        record = manifest.stages.get(name)
        made_by = record.models.get("embedder", {}).get("content_hash", "") if record else ""
        if record is None or stage.texts is None or record.version != stage.version or not made_by.isalnum():
            continue  # the hash of a foreign index names a file
        texts = stage.texts(*(checked_folder(part, manifest, need) for need in stage.needs))
        vectors = tables.read_arrays(checked_folder(part, manifest, name) / "vectors.safetensors")["vectors"]
        if vectors.ndim != 2 or len(vectors) != len(texts):
            given = f"{name} of {part}: {len(vectors)} vectors, {len(texts)} texts"
            raise IndexCorrupt("the vectors of an index are not those of its texts", given=given)
        path = cache_file(pooled, made_by)
        for start in range(0, len(texts), tables.ROWS_A_GROUP):
            rows = slice(start, start + tables.ROWS_A_GROUP)
            keep_vectors(path, texts[rows], vectors[rows])
