"""Vectors kept by text hash in one SQLite file a model, shared by all indexes and methods of this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from gpu_rag.errors import IndexCorrupt, StorageError
from gpu_rag.models.embed.interface import Embedder, OnBatch
from gpu_rag.models.sqlite_file import SqliteFile, rows_of_keys


def cache_file(folder: Path, content_hash: str) -> Path:
    """The file of one model's vectors below the cache folder."""
    return folder / "vectors" / f"{content_hash[:16]}.sqlite"


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


class CachedEmbedder:
    """An embedder with a cache on disk: a text is embedded once, whichever index or question needs it.

    The file belongs to one model by content hash, so another model never meets these vectors. Vectors are stored as
    float32, so what comes from the file has the bits that the model gave. Once the file holds `limit_bytes`, new texts
    are still embedded but no longer kept. Only embedders whose rows do not depend on their batch may be wrapped.
    """

    def __init__(self, embedder: Embedder, path: Path, limit_bytes: int):
        """Opens or creates `path`. Raises StorageError when the disk refuses, IndexCorrupt for another kind of file."""
        self._embedder, self._path, self._limit = embedder, path, limit_bytes
        self.name, self.content_hash, self.dim = embedder.name, embedder.content_hash, embedder.dim
        self.device, self.row_identical = embedder.device, embedder.row_identical
        self.n_truncated = 0  # among the texts embedded by this process
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            given, do = f"{path}: {error.strerror}", "set GPU_RAG_CACHE, or --set models.vector_cache_gib=0"
            raise StorageError("the vector cache cannot be written", given=given, do=do) from error
        self._file = SqliteFile(path, "vector cache", "clear it: gpu-rag doctor --clear-vector-cache")
        self._db = self._file.connect()
        with self._file.errors(), self._db:
            self._db.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]; only texts that the file lacks are computed."""
        keys = [_key(text) for text in texts]
        known = dict(self._read(list(dict.fromkeys(keys))))
        missing = {key: text for key, text in zip(keys, texts) if key not in known}
        n_known = len(texts) - len(missing)
        if on_batch is not None and n_known:
            on_batch(n_known)
        if missing:
            report = None if on_batch is None else (lambda n_done: on_batch(n_known + n_done))
            with closing(self._computed(missing, report)) as computed:
                for some, fresh in computed:
                    self.n_truncated = self._embedder.n_truncated
                    self._write(some, fresh)
                    known.update(zip(some, fresh))
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        return np.stack([known[key] for key in keys])

    def _computed(
        self, missing: dict[bytes, str], on_batch: OnBatch | None
    ) -> Generator[tuple[list[bytes], np.ndarray], None, None]:
        """(keys, their vectors): as they are finished where the embedder gives out parts, else all at once."""
        keys, texts = list(missing), list(missing.values())
        parts = getattr(self._embedder, "parts", None)
        if parts is None:
            yield keys, self._embedder.embed(texts, on_batch)
            return
        with closing(parts(texts, on_batch)) as finished:
            for rows, vectors in finished:
                yield [keys[row] for row in rows], vectors

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._db.close()

    def _read(self, keys: list[bytes]) -> Iterator[tuple[bytes, np.ndarray]]:
        with self._lock, self._file.errors():
            for key, blob in rows_of_keys(self._db, "SELECT key, vector FROM vectors WHERE key", keys):
                if len(blob) != 4 * self.dim:
                    raise IndexCorrupt("a cached vector has another length", given=f"{self._path}, {len(blob)} bytes")
                yield key, np.frombuffer(blob, dtype="<f4")

    def _write(self, keys: list[bytes], vectors: np.ndarray) -> None:
        if self._path.stat().st_size >= self._limit:
            return
        rows = zip(keys, (np.ascontiguousarray(row, dtype="<f4").tobytes() for row in vectors))
        with self._lock, self._file.errors(), self._db:
            self._db.executemany("INSERT OR IGNORE INTO vectors (key, vector) VALUES (?, ?)", rows)


def cached_bytes(folder: Path) -> int:
    """Bytes of all vector caches below the cache folder."""
    return sum(path.stat().st_size for path in (folder / "vectors").glob("*.sqlite*"))


def clear(folder: Path) -> int:
    """Removes all vector caches below the cache folder; returns the bytes freed."""
    freed = cached_bytes(folder)
    for path in (folder / "vectors").glob("*.sqlite*"):
        path.unlink(missing_ok=True)
    return freed
