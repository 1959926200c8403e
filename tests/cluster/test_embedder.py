"""An embedder on real workers: the bits of the local one, parts kept as they come, workers that compute other bits."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_rag.cluster.models import RayEmbedder
from gpu_rag.errors import ModelError
from gpu_rag.models.embed.cache import CachedEmbedder
from gpu_rag.models.embed.hashing import HashEmbedder

pytestmark = pytest.mark.ray

TEXTS = [f"town {i} lies on the river {'and its bank ' * (i % 7)}" for i in range(60)]


def hashing():
    return HashEmbedder


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_vectors_are_those_of_the_local_embedder_bit_by_bit(pools, all_ready, batch: int) -> None:
    pool = pools.built(HashEmbedder)
    all_ready(pool)
    here, there = HashEmbedder(), RayEmbedder(pool, batch)
    assert (there.name, there.content_hash, there.dim, there.device) == ("hash", here.content_hash, 256, "cpu")
    texts = [*TEXTS, TEXTS[3], "", TEXTS[3]]
    told: list[int] = []
    vectors = there.embed(texts, told.append)
    assert vectors.dtype == np.float32 and np.array_equal(vectors, here.embed(texts))
    assert told == sorted(told) and told[-1] == 61 and len(told) == -(-61 // batch)  # distinct texts
    assert there.embed([]).shape == (0, 256)


def test_minilm_on_workers_gives_the_bits_of_minilm_here(pools, all_ready) -> None:
    def build():
        from gpu_rag.models.embed import load_embedder

        return load_embedder("minilm")

    from gpu_rag.models.embed import load_embedder

    pool = pools.built(build)
    all_ready(pool)
    here, there = load_embedder("minilm"), RayEmbedder(pool, 5)
    texts = [*TEXTS[:20], "a long text of many words " * 100]
    assert np.array_equal(there.embed(texts), here.embed(texts))
    assert there.content_hash == here.content_hash
    assert there.n_truncated == here.n_truncated == 1


def test_what_was_finished_before_the_end_is_kept(pools, tmp_path) -> None:
    def build():
        import os

        from gpu_rag.models.embed.hashing import HashEmbedder

        class Fragile(HashEmbedder):
            def embed(self, texts, on_batch=None):
                if any("poison" in text for text in texts):
                    os.kill(os.getpid(), 9)
                return super().embed(texts, on_batch)

        return Fragile()

    class Counting(HashEmbedder):
        n = 0

        def embed(self, texts, on_batch=None):
            self.n += len(texts)
            return super().embed(texts, on_batch)

    texts = [*TEXTS[:10], "poison " * 100]  # the longest comes last
    path = tmp_path / "vectors.sqlite"
    remote = CachedEmbedder(RayEmbedder(pools.built(build, n=1), 1), path, 2**30)
    with pytest.raises(ModelError, match="texts could not be embedded; given 1 texts, the first 'poison"):
        remote.embed(texts)
    remote.close()
    here = Counting()
    again = CachedEmbedder(here, path, 2**30)
    assert np.array_equal(again.embed(texts), HashEmbedder().embed(texts))
    assert here.n == 1  # nothing but the poison was left to do


def test_workers_that_compute_other_bits_are_refused(pools, until) -> None:
    def build():
        import os

        from gpu_rag.models.embed.hashing import HashEmbedder

        class Own(HashEmbedder):
            def embed(self, texts, on_batch=None):
                vectors = super().embed(texts, on_batch)
                return vectors * (1 + 2e-7 * os.getpid())  # f32 tells any two numbers of processes apart

        return Own()

    pool = pools.built(build)
    with pytest.raises(ModelError, match="the workers of the embedder differ; given bits"):
        until(lambda: False, lambda: pool.pump(0.2))
