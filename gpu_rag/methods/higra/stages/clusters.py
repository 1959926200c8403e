"""Clusters of near names, small enough to be looked at one by one."""

from __future__ import annotations

from collections import defaultdict

import torch

from gpu_rag.graph.cluster import radius_clusters
from gpu_rag.index.work import Work
from gpu_rag.models.set import pick_device

SMALLEST_EPS = 1e-4  # stored vectors are rounded: below it distances say nothing


def entity_clusters(work: Work, vectors: torch.Tensor, eps: float) -> list[list[int]]:
    """`near_clusters` under the settings, on the device of the models: clusters are the same on every device."""
    chosen = work.settings.alignment
    moved = vectors.to(pick_device(work.settings.models.device))
    return near_clusters(moved, eps, chosen.min_samples, chosen.max_cluster)


def near_clusters(vectors: torch.Tensor, eps: float, min_samples: int, most: int) -> list[list[int]]:
    """Clusters of DBSCAN (see `radius_clusters`) with at most `most` rows each, sorted by first row; noise is left out.

    A larger cluster is clustered again by itself with half of eps, and so on; rows that become noise then are left
    out. A cluster that is too large still when eps falls below 1e-4, of rows that are all but equal, is cut into runs
    of `most` rows. vectors: f16|f32[N, D], unit rows.
    """
    done: list[list[int]] = []
    todo = [(rows, eps / 2) for rows in _clusters(vectors, torch.arange(len(vectors)), eps, min_samples)]
    while todo:
        rows, smaller = todo.pop()
        if len(rows) <= most:
            done.append(rows.tolist())
        elif smaller < SMALLEST_EPS:
            done += [part.tolist() for part in rows.split(most) if len(part) > 1]
        else:
            todo += [(part, smaller / 2) for part in _clusters(vectors, rows, smaller, min_samples)]
    return sorted(done)


def _clusters(vectors: torch.Tensor, rows: torch.Tensor, eps: float, min_samples: int) -> list[torch.Tensor]:
    """The rows of each cluster of two or more among `rows`, ascending."""
    label = radius_clusters(vectors[rows.to(vectors.device)], eps, min_samples).cpu()
    members: dict[int, list[int]] = defaultdict(list)
    for at, of in zip(rows.tolist(), label.tolist()):
        if of >= 0:
            members[of].append(at)
    return [torch.tensor(found) for found in members.values() if len(found) > 1]
