"""The case `clusters`: DBSCAN of a set of vectors in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gpu_rag.bench.case import Case, Checked, Config
from gpu_rag.bench.inputs import seeded, unit_rows
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.cluster import cluster_bytes, radius_clusters

DIMS = 384
EPS = 0.2  # cosine distance
MEMBERS = 4  # per planted cluster
SPREAD = 0.3  # length of the noise added to a cluster's centre
MOST_CLUSTERED = 100_000  # maximum rows: the time grows with their square


def cases(config: Config) -> Iterator[Case]:
    """DBSCAN of unit vectors around planted centres, at most 100,000 of them."""
    for n in sorted({min(n, MOST_CLUSTERED) for n in config.sizes}):
        vectors = planted(n, seeded(config))
        yield _case(n, vectors, vectors.to(config.device))


def _case(n: int, vectors: torch.Tensor, on_device: torch.Tensor) -> Case:
    return Case(
        op="clusters",
        labels={"n": n, "dims": DIMS},
        inputs=everything,
        run=lambda _: radius_clusters(on_device, EPS),
        check=lambda result, count: check_labels(result, planted_labels(n)),
        bytes_of=lambda batch: 4 * n * DIMS + 8 * n,
        memory_of=lambda batch: cluster_bytes(n, DIMS),
        peers=lambda: [peer_file("cluster").by_sklearn(vectors.numpy())],
        batches=(1,),  # one call for everything
    )


def everything(start: int, count: int) -> None:
    """The inputs of an op that already has its whole input: None."""


def check_labels(result: Any, wanted: np.ndarray) -> Checked:
    """Check that the groups are the same, for any labels; -1 is no group."""
    labels = torch.as_tensor(result).cpu().numpy()
    if labels.shape != wanted.shape:
        return Checked(f"the shape is {labels.shape} instead of {wanted.shape}")
    if not np.array_equal(labels < 0, wanted < 0):
        return Checked("other rows are left out")
    pairs = np.unique(np.stack([labels, wanted]), axis=1).shape[1]
    same = pairs == len(np.unique(labels)) == len(np.unique(wanted))
    return Checked() if same else Checked("the groups are other ones")


def planted(n: int, generator: torch.Generator) -> torch.Tensor:
    """Unit rows f32[n, DIMS]: MEMBERS around each random centre, at a cosine of about 0.92 with one another."""
    centres, noise = unit_rows(-(-n // MEMBERS), DIMS, generator), unit_rows(n, DIMS, generator)
    return torch.nn.functional.normalize(centres.repeat_interleave(MEMBERS, 0)[:n] + SPREAD * noise)


def planted_labels(n: int) -> np.ndarray:
    """The planted clusters. They are so far apart that DBSCAN over all pairs gives the same clusters."""
    label = np.arange(n) // MEMBERS
    return np.where(np.bincount(label)[label] > 1, label, -1)
