"""An embedder whose texts are embedded by workers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from gpu_rag.cluster.pool import Pool
from gpu_rag.errors import GpuRagError, ModelError
from gpu_rag.models.embed.batches import distinct
from gpu_rag.models.embed.interface import OnBatch

Parts = Generator[tuple[list[int], np.ndarray], None, None]


class RayEmbedder:
    """Unit vectors by the embedder that each worker of `pool` holds, with its name, content hash and bits.

    Texts are sorted by length, so that those of one padded length meet, and cut into lists of `batch`, each the task of
    one worker. The shape in which a text is computed depends on that text alone (see `embed.batches`), so its vector
    does not depend on the lists or on who embeds it; that workers compute the same bits is checked when they join.
    At most two lists a worker are on their way.
    """

    def __init__(self, pool: Pool, batch: int):
        """For a pool that runs already."""
        about = pool.about
        self.name, self.content_hash, self.dim = about["name"], about["content_hash"], about["dim"]
        self.device, self.row_identical = about["device"], about["row_identical"]
        self.n_truncated = 0
        self._pool, self._batch = pool, batch

    def embed(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> np.ndarray:
        """f32[n, D], row i the unit vector of texts[i]. Equal texts are computed once. Raises ModelError."""
        once, index = distinct(texts)
        out = np.zeros((len(once), self.dim), dtype=np.float32)
        with closing(self.parts(once, on_batch)) as parts:
            for rows, vectors in parts:
                out[rows] = vectors
        return out[index]

    def parts(self, texts: Sequence[str], on_batch: OnBatch | None = None) -> Parts:
        """(rows, f32[len(rows), D]) of distinct texts, a list as each is finished, in any order. Raises ModelError."""
        order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), row))
        lists = [order[start : start + self._batch] for start in range(0, len(order), self._batch)]
        n_done = 0
        with closing(self._pool.run([[texts[row] for row in rows] for rows in lists])) as results:
            for place, result in results:
                vectors = self._vectors(lists[place], result, texts)
                n_done += len(lists[place])
                yield lists[place], vectors
                if on_batch is not None:
                    on_batch(n_done)

    def _vectors(self, rows: list[int], result: Any, texts: Sequence[str]) -> np.ndarray:
        if isinstance(result, GpuRagError):
            given = f"{len(rows)} texts, the first {texts[rows[0]][:80]!r}: {result}"
            raise ModelError("texts could not be embedded", given=given) from result
        vectors, n_truncated = result
        self.n_truncated += n_truncated
        return np.asarray(vectors)
