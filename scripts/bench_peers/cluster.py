"""Peers of `gpu-rag bench` for the cases of `cluster`: other libraries at the same work."""

from __future__ import annotations

import numpy as np

from gpu_rag.bench.case import Peer, peer, too_large
from gpu_rag.graph.cluster.bench import EPS
from gpu_rag.graph.components.bench import everything

SKLEARN_ROWS = 10_000


@peer("Python dict")
def by_python(keys: list[list[int]]) -> Peer:
    """Union-find over a dictionary of the first row of each key."""

    def run(_: None) -> np.ndarray:
        root = list(range(len(keys)))
        first: dict[int, int] = {}
        for row, own in enumerate(keys):
            for key in own:
                a, b = row, first.setdefault(key, row)
                while root[a] != a:
                    root[a] = a = root[root[a]]
                while root[b] != b:
                    root[b] = b = root[root[b]]
                root[max(a, b)] = min(a, b)
        for row in range(len(root)):
            root[row] = root[root[row]]
        return np.array(root)

    return Peer("", everything, run)


@peer("scikit-learn DBSCAN", needs="sklearn")
def by_sklearn(vectors: np.ndarray) -> Peer:
    if len(vectors) > SKLEARN_ROWS:
        return too_large(SKLEARN_ROWS, "rows")
    from sklearn.cluster import DBSCAN

    scan = DBSCAN(eps=EPS, min_samples=2, metric="cosine", n_jobs=1)
    return Peer("", everything, lambda _: scan.fit(vectors).labels_)
