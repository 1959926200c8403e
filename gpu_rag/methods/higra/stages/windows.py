"""Windows of near entities: every pair within a radius is shown to a model in at least one request.

A cluster of hundreds of entities fits no request. If it is cut into disjoint parts, most of its pairs are never seen
together. Windows overlap, so that each pair is together in one of them.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_rag.graph.cluster import radius_clusters
from gpu_rag.graph.common.dots import exact_dots
from gpu_rag.graph.nearest.pairs import among_nearest, near_pairs
from gpu_rag.index.folder import storage_errors
from gpu_rag.index.work import Work
from gpu_rag.lazy import torch
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.models.set import pick_device

_log = logging.getLogger(__name__)
MAX_NEAR = 128  # neighbours counted per row: a dense cloud takes requests by its size, not by its square
WINDOWS = 1 << 10  # windows whose pairs are made at a time: it bounds memory
SMALLEST_EPS = 1e-4  # stored vectors are rounded: smaller distances mean nothing
Clusters = list[list[int]]  # rows of entities


@dataclass(frozen=True)
class Near:
    """The pairs of entities within the radius: pairs i64[P, 2], ascending, and their cosines f64[P]. recall: for pairs
    by candidates, the exact pairs of a sample of rows and how many of them were found."""

    pairs: np.ndarray
    cosine: np.ndarray
    recall: Mapping[str, int] = field(default_factory=dict)

    def counts(self, what: str, windows: Clusters) -> dict[str, int]:
        """Counts of a stage. what: merge | link; windows: those shown to a model."""
        together = n_together(self.pairs, windows)
        named = {"clusters": len(windows), "pairs": len(self.pairs), "pairs_together": together, **self.recall}
        return {f"higra_{what}_{name}": n for name, n in named.items()}


def window_params(chosen: AlignmentSettings, eps: float) -> dict[str, Any]:
    """The parameters that the windows of a stage depend on."""
    if chosen.windows == "clusters":
        return {"clusters": [eps, chosen.min_samples, chosen.max_cluster]}
    return {"windows": [eps, chosen.max_cluster]}


@dataclass(frozen=True)
class KeptPairs:
    """The near pairs of an earlier run between rows that it had too: i64[P, 2], ascending. is_new: bool[N], the other
    rows."""

    pairs: np.ndarray
    is_new: np.ndarray


def near_entities(work: Work, vectors: torch.Tensor, eps: float, kept: KeptPairs | None = None) -> Near:
    """The pairs within `eps`, computed on the device of the models; the same on every device up to EXACT_ROWS.

    Above EXACT_ROWS entities on a CPU the pairs are candidates that depend on their two rows alone, see
    `near_pairs`.

    vectors: f16|f32[N, D], unit rows. kept: exact pairs that need not be searched again.
    """
    moved = vectors.to(pick_device(work.settings.models.device))
    earlier: dict[str, Any] = {}
    if kept is not None:
        left, right = torch.from_numpy(kept.pairs.T).to(moved.device)
        score = exact_dots(moved, left, moved, right).cpu().numpy()
        earlier = {"kept": (*kept.pairs.T, score), "is_new": kept.is_new}
    with storage_errors(work.partial):
        found, sampled = near_pairs(
            moved, 1 - eps, dtype=np.float64, advance=work.progress.advance, folder=work.partial, **earlier
        )
    recall = dict(zip(("sampled", "sampled_and_found"), sampled or ()))
    if recall:
        _log.info("near entities by candidates: %s of the exact pairs of a sample of rows", recall)
    return Near(np.stack(found[:2], 1, dtype=np.int64), found[2], recall)


def entity_windows(work: Work, vectors: torch.Tensor, eps: float, near: Near) -> Clusters:
    """The windows for the settings. near: the pairs within `eps` of the same vectors."""
    chosen = work.settings.section(AlignmentSettings)
    if chosen.windows == "clusters":
        moved = vectors.to(pick_device(work.settings.models.device))
        return near_clusters(moved, eps, chosen.min_samples, chosen.max_cluster)
    nearest = np.concatenate([*among_nearest(near.pairs[:, 0], near.pairs[:, 1], near.cosine, MAX_NEAR)])
    return covering(near.pairs[nearest], chosen.max_cluster)


def near_clusters(vectors: torch.Tensor, eps: float, min_samples: int, most: int) -> Clusters:
    """Clusters of DBSCAN (see `radius_clusters`) of at most `most` rows each, sorted by first row; noise is left out.

    A larger cluster is clustered again by itself with half of eps, and so on; rows that become noise are left out. If a
    cluster is still too large when eps falls below 1e-4, its rows are almost equal, and it is cut into runs of `most`
    rows. vectors: f16|f32[N, D], unit rows.
    """
    done: Clusters = []
    todo = [(torch.arange(len(vectors)), eps)]
    while todo:
        rows, radius = todo.pop()
        label = radius_clusters(vectors[rows.to(vectors.device)], radius, min_samples).tolist()
        members: dict[int, list[int]] = defaultdict(list)
        for row, number in zip(rows.tolist(), label):
            members[number].append(row)
        for group in (group for number, group in members.items() if number >= 0 and len(group) > 1):
            if len(group) <= most:
                done.append(group)
            elif radius / 2 < SMALLEST_EPS:
                done += [part for i in range(0, len(group), most) if len(part := group[i : i + most]) > 1]
            else:
                todo.append((torch.tensor(group), radius / 2))
    return sorted(done)


def covering(pairs: np.ndarray, most: int) -> Clusters:
    """Windows of at most `most` rows that cover every pair, sorted. The greedy choice keeps their number small.

    A window begins with the row with most uncovered pairs, and grows by the row with most uncovered pairs into the
    window; ties by the smaller row.
    """
    near: dict[int, set[int]] = {}
    for a, b in pairs.tolist():
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    heap = [(-len(rows), row) for row, rows in near.items()]
    heapq.heapify(heap)
    windows: Clusters = []
    while heap:
        n, first = heapq.heappop(heap)
        if -n == len(near[first]):
            windows.append(_window(near, first, most))
        if near[first]:
            heapq.heappush(heap, (-len(near[first]), first))
    return sorted(windows)


def _window(near: dict[int, set[int]], first: int, limit: int) -> list[int]:
    """One window that starts at a row. Its pairs are removed from `near`."""
    window = {first}
    into = Counter(near[first])  # uncovered pairs between the window and other rows
    while into and len(window) < limit:
        row = min(into, key=lambda row: (-into[row], -len(near[row]), row))
        del into[row]
        window.add(row)
        into.update(near[row] - window)
    for row in window:
        near[row] -= window
    return sorted(window)


def n_together(pairs: np.ndarray, windows: Clusters) -> int:
    """The number of pairs (ascending) with both rows in one window."""
    if not len(pairs):
        return 0
    n = int(pairs.max()) + 1
    seen, keys = np.zeros(len(pairs), bool), pairs @ [n, 1]
    for a, b in window_pairs(windows):
        wanted = (a * n + b)[b < n]
        position = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        seen[position[keys[position] == wanted]] = True
    return int(seen.sum())


def window_pairs(windows: Clusters) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs a < b of rows in one window, of at most WINDOWS windows at a time: i64[P] each."""
    of_size: dict[int, Clusters] = defaultdict(list)
    for window in windows:
        of_size[len(window)].append(window)
    for size, alike in of_size.items():
        i, j = np.triu_indices(size, 1)
        for start in range(0, len(alike), WINDOWS):
            rows = np.array(alike[start : start + WINDOWS])
            yield rows[:, i].ravel(), rows[:, j].ravel()
