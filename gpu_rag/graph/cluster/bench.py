"""The cases `groups` and `clusters`: group the rows of a table, or the vectors of a set, in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from gpu_rag.bench.case import Case, Config
from gpu_rag.bench.inputs import lists_of, seeded, unit_rows
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.cluster import cluster_bytes, exact_groups, radius_clusters
from gpu_rag.graph.components.bench import WHOLE, check_labels, everything, scipy_labels

KEYS = 3  # per row
DIMS = 384
EPS = 0.2  # cosine distance
MEMBERS = 4  # per planted cluster
SPREAD = 0.3  # length of the noise added to a cluster's centre
MOST_CLUSTERED = 100_000  # maximum rows: the time grows with their square


def groups_cases(config: Config) -> Iterator[Case]:
    """Rows with three keys each; a few rows share a key."""
    for n in config.sizes:
        keys = torch.randint(2 * n, (n, KEYS), generator=seeded(config))
        yield _groups(n, keys, torch.device(config.device))


def _groups(n: int, keys: torch.Tensor, device: torch.device) -> Case:
    lists, matrix = lists_of(keys, device), _shared_keys(keys.numpy())
    return Case(
        op="groups",
        labels={"n": n, "m": n * KEYS},
        inputs=everything,
        run=lambda _: exact_groups(lists),
        check=lambda result, count: check_labels(result, scipy_labels(matrix)[:n]),
        bytes_of=lambda batch: 8 * n * KEYS + 16 * n,
        memory_of=lambda batch: 40 * n * KEYS + 40 * n,
        peers=lambda: [
            peer_file("components").scipy_components(matrix, n),
            peer_file("cluster").by_python(keys.tolist()),
        ],
        batches=WHOLE,
    )


def clusters_cases(config: Config) -> Iterator[Case]:
    """DBSCAN of unit vectors around planted centres, at most 100,000 of them."""
    for n in sorted({min(n, MOST_CLUSTERED) for n in config.sizes}):
        vectors = planted(n, seeded(config))
        yield _clusters(n, vectors, vectors.to(config.device))


def _clusters(n: int, vectors: torch.Tensor, on_device: torch.Tensor) -> Case:
    return Case(
        op="clusters",
        labels={"n": n, "dims": DIMS},
        inputs=everything,
        run=lambda _: radius_clusters(on_device, EPS),
        check=lambda result, count: check_labels(result, planted_labels(n)),
        bytes_of=lambda batch: 4 * n * DIMS + 8 * n,
        memory_of=lambda batch: cluster_bytes(n, DIMS),
        peers=lambda: [peer_file("cluster").by_sklearn(vectors.numpy())],
        batches=WHOLE,
    )


def planted(n: int, generator: torch.Generator) -> torch.Tensor:
    """Unit rows f32[n, DIMS]: MEMBERS around each random centre, at a cosine of about 0.92 with one another."""
    centres, noise = unit_rows(-(-n // MEMBERS), DIMS, generator), unit_rows(n, DIMS, generator)
    return torch.nn.functional.normalize(centres.repeat_interleave(MEMBERS, 0)[:n] + SPREAD * noise)


def planted_labels(n: int) -> np.ndarray:
    """The planted clusters. They are so far apart that DBSCAN over all pairs gives the same clusters."""
    label = np.arange(n) // MEMBERS
    return np.where(np.bincount(label)[label] > 1, label, -1)


def _shared_keys(keys: np.ndarray) -> Any:
    """Rows and keys as the nodes of one bipartite matrix, rows first."""
    n = len(keys)
    rows, size = np.repeat(np.arange(n), keys.shape[1]), n + int(keys.max()) + 1
    return csr_matrix((np.ones(keys.size, np.int8), (rows, n + keys.ravel())), shape=(size, size))
