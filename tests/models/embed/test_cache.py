"""The vector cache: bit-equal vectors, one computation a text, a bounded file, models kept apart."""

import errno
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.models.embed import load_embedder
from gpu_rag.models.embed.cache import (
    CachedEmbedder,
    VectorFile,
    cache_file,
    cached_bytes,
    clear,
    erase,
    keep_vectors,
    keys_of,
)

TEXTS = ["the bridge", "the river", "", "the bridge", "größer", "a" * 2000]
LARGE = 10**9


class Counting:
    """An embedder that remembers what it was asked."""

    def __init__(self) -> None:
        self._inner = load_embedder("hash")
        self.asked: list[str] = []
        self.name, self.content_hash, self.dim = "counting", self._inner.content_hash, self._inner.dim
        self.device, self.row_identical, self.n_truncated = "cpu", True, 0

    def embed(self, texts, on_batch=None):
        self.asked.extend(texts)
        return self._inner.embed(texts, on_batch)


def test_vectors_are_those_of_the_model_and_computed_once(tmp_path: Path) -> None:
    plain = load_embedder("hash").embed(TEXTS)
    inner = Counting()
    cached = CachedEmbedder(inner, tmp_path / "v.vectors", LARGE)
    assert np.array_equal(cached.embed(TEXTS), plain)
    assert sorted(inner.asked) == sorted(set(TEXTS))
    cached.close()
    again = Counting()
    other = CachedEmbedder(again, tmp_path / "v.vectors", LARGE)
    assert np.array_equal(other.embed(TEXTS[::-1]), plain[::-1])
    assert again.asked == []
    assert other.embed([]).shape == (0, 256)


def test_a_full_cache_still_embeds(tmp_path: Path) -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, tmp_path / "v.vectors", 1)
    first = cached.embed(TEXTS[:2])
    assert np.array_equal(cached.embed(TEXTS[:2]), first)
    assert len(inner.asked) == 4  # nothing was kept


def test_a_disk_that_refuses_ends_the_keeping_and_not_the_work(tmp_path: Path, monkeypatch, caplog) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpu_rag.models.embed.cache.os.pwrite", full)
    cached = CachedEmbedder(Counting(), tmp_path / "v.vectors", LARGE)
    for _ in range(2):
        assert np.array_equal(cached.embed(TEXTS), load_embedder("hash").embed(TEXTS))
    [warning] = caplog.messages
    assert "space" in warning


def test_a_block_that_shrinks_while_it_is_read_is_not_there(tmp_path: Path, monkeypatch) -> None:
    """Another process removes a block that a kill cut off, between the look at the size and the reading."""
    path = tmp_path / "v.vectors"
    CachedEmbedder(Counting(), path, LARGE).embed(TEXTS)
    size = path.stat().st_size
    monkeypatch.setattr("gpu_rag.models.embed.cache.os.fstat", lambda fd: SimpleNamespace(st_size=size + 1000))
    inner = Counting()
    CachedEmbedder(inner, path, LARGE).embed(TEXTS)
    assert not inner.asked


def test_models_have_files_of_their_own_and_clear_removes_them(tmp_path: Path) -> None:
    paths = [cache_file(tmp_path, content) for content in ("a" * 64, "b" * 64)]
    assert paths[0] != paths[1]
    for path in paths:
        CachedEmbedder(Counting(), path, LARGE).embed(["a"])
    assert cached_bytes(tmp_path) > 0
    assert clear(tmp_path) > 0
    assert cached_bytes(tmp_path) == 0


def test_erased_vectors_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    path, vectors = cache_file(tmp_path, "a" * 64), np.arange(24, dtype=np.float32).reshape(6, 4) + 1
    texts = [f"text {number}" for number in range(6)]
    for rows in (slice(0, 4), slice(4, 6)):
        keep_vectors(path, texts[rows], vectors[rows])
    erase(tmp_path, keys_of([texts[1], texts[2], "not there"]))
    content = path.read_bytes()
    assert [vector.tobytes() in content for vector in vectors] == [True, False, False, True, True, True]
    assert not any(keys_of([text]).tobytes() in content for text in texts[1:3])
    keep_vectors(path, texts[1:2], vectors[1:2])
    with closing(VectorFile(path, 4)) as file:
        read, known = file.read(keys_of(texts))
    assert known.tolist() == [True, True, False, True, True, True] and np.array_equal(read[known], vectors[known])


def test_a_call_is_one_write_whatever_the_number_of_texts(tmp_path: Path, monkeypatch) -> None:
    writes: list[int] = []
    plain = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: writes.append(len(data)) or plain(fd, data, at))
    CachedEmbedder(Counting(), tmp_path / "v.vectors", LARGE).embed([f"name {i}" for i in range(500)])
    assert len(writes) == 1 and 500 * 256 * 4 < writes[0] < 500 * (256 * 4 + 32)


@pytest.mark.parametrize("n_cut", [1, 1023, 2048, 2100])  # within the last vectors, before all of them, in the header
def test_a_block_cut_off_by_a_kill_is_written_anew(tmp_path: Path, n_cut: int) -> None:
    path = tmp_path / "v.vectors"
    first = CachedEmbedder(Counting(), path, LARGE)
    first.embed(TEXTS)
    whole = path.stat().st_size
    first.embed(["new", "newer"])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - n_cut)
    inner = Counting()
    again = CachedEmbedder(inner, path, LARGE)
    plain = load_embedder("hash").embed([*TEXTS, "new", "newer"])
    assert np.array_equal(again.embed([*TEXTS, "new", "newer"]), plain)
    assert inner.asked == ["new", "newer"] and path.stat().st_size > whole
    assert np.array_equal(first.embed(["newer"]), plain[-1:])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=12), max_size=12), st.integers(0, 1))
def test_two_readers_of_a_file_see_what_a_dictionary_holds(tmp_path_factory, blocks: list[list[int]], who: int) -> None:
    path = tmp_path_factory.mktemp("vectors") / "v.vectors"
    files, held = [VectorFile(path, 3), VectorFile(path, 3)], dict[int, float]()
    for number, block in enumerate(blocks):
        new = [key for key in block if key not in held]
        held |= {key: number + key / 64 for key in new}
        keys = np.array([[key, ~key & 7] for key in new], np.uint64).reshape(-1, 2)
        files[(number + who) % 2].append(keys, np.array([[held[key]] * 3 for key in new]).reshape(-1, 3), LARGE)
        keys = np.array([[key, ~key & 7] for key in range(31)], np.uint64)
        for file in files:
            vectors, known = file.read(keys)
            assert {key: float(vectors[key, 2]) for key in known.nonzero()[0].tolist()} == held
    other = np.array([[key, 9] for key in range(31)], np.uint64)  # the same low half, another text
    assert not files[0].read(other)[1].any()


FILL = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("tests_here", sys.argv[1])
here = importlib.util.module_from_spec(spec)
sys.modules["tests_here"] = here
spec.loader.exec_module(here)
cached, first = here.CachedEmbedder(here.Counting(), Path(sys.argv[2]), here.LARGE), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for i in range(first, first + 40):
    cached.embed([f"text {i}", f"text {i + 1}"])
"""


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "v.vectors"
    CachedEmbedder(Counting(), path, LARGE).close()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", FILL, __file__, str(path), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in (0, 20)
    ]
    assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["ready\n"] * 2
    for worker in workers:  # both begin now
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=600)
    assert [worker.returncode for worker in workers] == [0, 0]
    inner = Counting()
    CachedEmbedder(inner, path, LARGE).embed([f"text {i}" for i in range(60)])
    assert inner.asked == []
