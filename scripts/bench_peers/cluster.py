"""Peers of `gpu-rag bench` for the cases of `cluster`: other libraries at the same work."""

from __future__ import annotations

import numpy as np

from gpu_rag.bench.case import Peer, peer, too_large
from gpu_rag.graph.cluster.bench import EPS, everything

SKLEARN_ROWS = 10_000


@peer("scikit-learn DBSCAN", needs="sklearn")
def by_sklearn(vectors: np.ndarray) -> Peer:
    if len(vectors) > SKLEARN_ROWS:
        return too_large(SKLEARN_ROWS, "rows")
    from sklearn.cluster import DBSCAN

    scan = DBSCAN(eps=EPS, min_samples=2, metric="cosine", n_jobs=1)
    return Peer("", everything, lambda _: scan.fit(vectors).labels_)
