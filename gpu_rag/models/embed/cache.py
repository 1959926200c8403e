"""Cache of vectors by text hash: one file per model, shared by all indexes and methods of this machine."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from gpu_rag.errors import IndexCorrupt, StorageError
from gpu_rag.models.embed.interface import Embedder, OnBatch, Parts
from gpu_rag.models.packaged import waiting_lock

_log = logging.getLogger(__name__)
MAGIC = b"gpuragV1"
_HEADER = struct.Struct("<8sIIQ")  # magic, number of vectors, dimension, checksum of the keys
_KEY = np.dtype([("low", "<u8"), ("high", "<u8"), ("sum", "<u8")])  # halves of a text's hash; checksum of its vector
_DO = "clear it: gpu-rag doctor --clear-vector-cache"


def cache_file(folder: Path, content_hash: str) -> Path:
    """Vector file of one model in the cache folder."""
    return folder / "vectors" / f"{content_hash[:16]}.vectors"


class CachedEmbedder:
    """An embedder with a cache on disk: a text is embedded once for all indexes and questions.

    The file belongs to one model by content hash, so another model never reads these vectors. Vectors are stored as
    float32, so vectors from the file have the same bits as from the model. If the file would grow beyond `limit_bytes`,
    or the disk refuses, new texts are embedded but not kept. An embedder's rows should not depend on their batch; a
    server's may, and the first result is kept.
    """

    def __init__(self, embedder: Embedder, path: Path, limit_bytes: int):
        """Open or create `path`. Raises StorageError when the disk refuses, IndexCorrupt for another kind of file."""
        self._embedder, self._limit = embedder, limit_bytes
        self.name, self.content_hash, self.dim = embedder.name, embedder.content_hash, embedder.dim
        self.device, self.row_identical = embedder.device, embedder.row_identical
        self.n_truncated = 0  # counts texts embedded by this process
        self._file = VectorFile(path, self.dim)

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Only texts that are not in the file are computed."""
        place: dict[bytes, int] = {}
        first: list[str] = []  # distinct texts
        index = []
        for text in texts:
            row = place.setdefault(_key_of(text), len(place))
            if row == len(first):
                first.append(text)
            index.append(row)
        keys = np.frombuffer(b"".join(place), np.dtype("<u8")).reshape(-1, 2)
        vectors, known = self._file.read(keys)
        missing = (~known).nonzero()[0]
        n_known = len(texts) - len(missing)
        if on_batch is not None and n_known:
            on_batch(n_known)
        if len(missing):
            report = None if on_batch is None else (lambda n_done: on_batch(n_known + n_done))
            with closing(self._computed([first[row] for row in missing], report)) as computed:
                for rows, fresh in computed:
                    self.n_truncated = self._embedder.n_truncated
                    vectors[missing[rows]] = fresh
                    self._keep(keys[missing[rows]], fresh)
        return vectors[index]

    def _keep(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Append vectors to the file. If the disk refuses, log a warning and keep no more vectors."""
        try:
            if self._limit:
                self._file.append(keys, vectors, self._limit)
        except StorageError as error:
            self._limit = 0
            _log.warning("gpu-rag: new vectors are not kept from now on: %s", error)

    def _computed(self, texts: list[str], on_batch: OnBatch | None) -> Parts:
        """(rows, their vectors): in parts if the embedder yields parts, else all at once."""
        parts = getattr(self._embedder, "parts", None)
        if parts is None:
            yield list(range(len(texts))), self._embedder.embed(texts, on_batch)
            return
        with closing(parts(texts, on_batch)) as finished:
            yield from finished

    def close(self) -> None:
        """Close the file, and the file of a cache behind this one."""
        self._file.close()
        if isinstance(self._embedder, CachedEmbedder):
            self._embedder.close()


def _key_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def keys_of(texts: Iterable[str]) -> np.ndarray:
    """The keys of texts in a cache, u64[n, 2]."""
    return np.frombuffer(b"".join(map(_key_of, texts)), np.dtype("<u8")).reshape(-1, 2)


def keep_vectors(path: Path, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Add the vectors of texts, [n, D], to a file that `CachedEmbedder` reads. Raises StorageError, IndexCorrupt."""
    with closing(VectorFile(path, vectors.shape[1])) as file:
        file.append(keys_of(texts), vectors, sys.maxsize)


def erase(folder: Path, keys: np.ndarray) -> None:
    """Overwrite the vectors of texts, by their keys u64[n, 2], in all caches of the cache folder with zeros.

    Databases that an earlier version kept vectors in are removed. Raises StorageError, IndexCorrupt.
    """
    for path in _files(folder):
        if path.suffix != ".vectors":
            path.unlink(missing_ok=True)
            continue
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
        if len(head) == _HEADER.size:
            with closing(VectorFile(path, _HEADER.unpack(head)[2])) as vectors:
                vectors.erase(keys)


class _Run(NamedTuple):
    """Keys sorted by the low half of the hash, and the file offsets of their vectors."""

    keys: np.ndarray
    places: np.ndarray


class VectorFile:
    """A file of blocks of vectors, appended whole: a header, a hash and a checksum per vector, the vectors.

    Processes share a file: they append under a lock, and read what others appended. A block cut off by a kill is
    overwritten by the next one; a vector with a wrong checksum counts as missing. Memory: 40 bytes a vector.
    """

    def __init__(self, path: Path, dim: int):
        """Open or create `path`. Raises StorageError, IndexCorrupt."""
        self._path, self._dim, self._lock = path, dim, threading.Lock()
        self._runs: list[_Run] = []  # each longer than all later ones together, so that adding stays cheap
        self._end = 0  # end of the last whole block
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            given, do = f"{path}: {error.strerror}", "set GPU_RAG_CACHE, or --set models.vector_cache_gib=0"
            raise StorageError("the vector cache cannot be written", given=given, do=do) from error
        if (start := os.pread(self._fd, len(MAGIC), 0)) != MAGIC[: len(start)]:
            os.close(self._fd)
            raise IndexCorrupt("not a vector cache, or a damaged one", given=path, do=_DO)

    def read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(f32[n, D], bool[n]): vectors of hashes u64[n, 2], zeros if not in the file, and whether each is there."""
        vectors, known = np.zeros((len(keys), self._dim), np.float32), np.zeros(len(keys), bool)
        with self._lock, self._errors():
            self._catch_up()
            for keys_there, places in self._runs:
                # the last copy of a key: one that was appended after a damaged one
                spot = np.maximum(np.searchsorted(keys_there["low"], keys[:, 0], side="right") - 1, 0)
                is_there = (keys_there["low"][spot] == keys[:, 0]) & (keys_there["high"][spot] == keys[:, 1])
                wanted = is_there.nonzero()[0]
                for row in wanted[np.argsort(places[spot[wanted]])].tolist():  # in file order
                    content = os.pread(self._fd, 4 * self._dim, places[spot[row]])
                    if xxhash.xxh3_64_intdigest(content) == keys_there["sum"][spot[row]]:
                        vectors[row], known[row] = np.frombuffer(content, "<f4"), True
        return vectors, known

    def append(self, keys: np.ndarray, vectors: np.ndarray, limit_bytes: int) -> None:
        """Append vectors as one block, unless the file would grow beyond its limit."""
        content = np.ascontiguousarray(vectors, "<f4")
        index = np.zeros(len(keys), _KEY)
        index["low"], index["high"] = keys.T
        index["sum"] = [xxhash.xxh3_64_intdigest(row) for row in content]
        with self._lock, self._errors(), waiting_lock(self._path.with_name("lock")):
            self._catch_up()
            block, n_written = self._front(index) + content.tobytes(), 0
            if not len(keys) or self._end + len(block) > limit_bytes:
                return
            os.ftruncate(self._fd, self._end)
            while n_written < len(block):
                n_written += os.pwrite(self._fd, block[n_written:], self._end + n_written)

    def erase(self, keys: np.ndarray) -> None:
        """Overwrite the vectors with these keys, u64[n, 2], and the keys with zeros. A kill may lose later blocks."""
        chosen = set(map(tuple, keys.tolist()))
        with self._lock, self._errors(), waiting_lock(self._path.with_name("lock")):
            for index, first in self._blocks(0):
                rows = [row for row, key in enumerate(index[["low", "high"]].tolist()) if key in chosen]
                if rows:
                    for row in rows:
                        os.pwrite(self._fd, bytes(4 * self._dim), first + 4 * self._dim * row)
                    index = index.copy()
                    index[rows] = 0
                    os.pwrite(self._fd, self._front(index), first - index.nbytes - _HEADER.size)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _front(self, index: np.ndarray) -> bytes:
        """The bytes of a block before its vectors. index: its keys."""
        content = index.tobytes()
        return _HEADER.pack(MAGIC, len(index), self._dim, xxhash.xxh3_64_intdigest(content)) + content

    def _blocks(self, start: int) -> Iterator[tuple[np.ndarray, int]]:
        """(keys, file offset of the first vector) of the whole blocks from an offset on."""
        size = os.fstat(self._fd).st_size
        while start + _HEADER.size <= size:
            head = os.pread(self._fd, _HEADER.size, start)
            if len(head) < _HEADER.size:  # a block that a kill cut off was just removed by another process
                return
            magic, n, dim, checksum = _HEADER.unpack(head)
            first = start + _HEADER.size + n * _KEY.itemsize
            end = first + 4 * n * self._dim
            if magic != MAGIC or dim != self._dim or end > size:
                return
            content = os.pread(self._fd, n * _KEY.itemsize, start + _HEADER.size)
            if xxhash.xxh3_64_intdigest(content) != checksum:
                return
            yield np.frombuffer(content, _KEY), first
            start = end

    def _catch_up(self) -> None:
        """Read the index of the blocks after the last known one."""
        new_keys, new_places = [], []
        for keys, first in self._blocks(self._end):
            new_keys.append(keys)
            new_places.append(first + 4 * self._dim * np.arange(len(keys)))
            self._end = first + 4 * self._dim * len(keys)
        if new_keys:
            self._add_run(np.concatenate(new_keys), np.concatenate(new_places))

    def _add_run(self, keys: np.ndarray, places: np.ndarray) -> None:
        while self._runs and len(self._runs[-1].keys) <= len(keys):
            before = self._runs.pop()
            keys, places = np.concatenate([before.keys, keys]), np.concatenate([before.places, places])
        order = np.argsort(keys["low"], kind="stable")
        self._runs.append(_Run(keys[order], places[order]))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError("the vector cache cannot be used", given=f"{self._path}: {error.strerror}") from error


def cached_bytes(folder: Path) -> int:
    """Bytes of all vector caches below the cache folder."""
    return sum(path.stat().st_size for path in _files(folder))


def clear(folder: Path) -> int:
    """Remove all vector caches in the cache folder. Returns the bytes freed."""
    freed = cached_bytes(folder)
    for path in _files(folder):
        path.unlink(missing_ok=True)
    return freed


def _files(folder: Path) -> list[Path]:
    """The caches, and the databases that an earlier version kept them in."""
    return [path for form in ("*.vectors", "*.sqlite*") for path in (folder / "vectors").glob(form)]
