"""The vector cache: bit-equal vectors, one computation a text, a bounded file, models kept apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from gpu_rag.models.embed import load_embedder
from gpu_rag.models.embed.cache import CachedEmbedder, cache_file, cached_bytes, clear

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
    cached = CachedEmbedder(inner, tmp_path / "v.sqlite", LARGE)
    assert np.array_equal(cached.embed(TEXTS), plain)
    assert sorted(inner.asked) == sorted(set(TEXTS))
    cached.close()
    again = Counting()
    other = CachedEmbedder(again, tmp_path / "v.sqlite", LARGE)
    assert np.array_equal(other.embed(TEXTS[::-1]), plain[::-1])
    assert again.asked == []
    assert other.embed([]).shape == (0, 256)


def test_progress_reaches_the_number_of_texts(tmp_path: Path) -> None:
    cached = CachedEmbedder(Counting(), tmp_path / "v.sqlite", LARGE)
    cached.embed(TEXTS[:2])
    seen: list[int] = []
    cached.embed(TEXTS, seen.append)
    assert seen == sorted(seen) and seen[-1] == len(TEXTS)


def test_a_full_cache_still_embeds(tmp_path: Path) -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, tmp_path / "v.sqlite", 1)
    first = cached.embed(TEXTS[:2])
    assert np.array_equal(cached.embed(TEXTS[:2]), first)
    assert len(inner.asked) == 4  # nothing was kept


def test_models_have_files_of_their_own_and_clear_removes_them(tmp_path: Path) -> None:
    paths = [cache_file(tmp_path, content) for content in ("a" * 64, "b" * 64)]
    assert paths[0] != paths[1]
    for path in paths:
        CachedEmbedder(Counting(), path, LARGE).close()
    assert cached_bytes(tmp_path) > 0
    assert clear(tmp_path) > 0
    assert cached_bytes(tmp_path) == 0


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
    path = tmp_path / "v.sqlite"
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
