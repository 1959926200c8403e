"""The case `nearest`: the k largest dot products of B unit vectors with n others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gpu_rag.bench.case import Case, Checked, Config
from gpu_rag.bench.inputs import check_memory, part, seeded, unit_rows
from gpu_rag.bench.peers import peer_file
from gpu_rag.graph.nearest import QUERY_TILE, nearest

DIMS = 384
K = 10
CHECKED = 8  # questions whose products are computed in f64
ERROR = 1e-5  # error of a dot product of unit vectors in f32
TILE = 65536


def cases(config: Config) -> Iterator[Case]:
    """Random unit vectors, for every size."""
    for n in config.sizes:
        check_memory(f"{n:,} vectors", 3 * 4 * n * DIMS, config)  # the vectors, a peer's copy, and as much free memory
        generator = seeded(config)
        yield _case(unit_rows(n, DIMS, generator), unit_rows(config.pool, DIMS, generator), config)


def _case(base: torch.Tensor, queries: torch.Tensor, config: Config) -> Case:
    n, k = len(base), min(K, len(base))
    vectors, questions = base.to(config.device), queries.to(config.device)
    return Case(
        op="nearest",
        labels={"n": n, "k": k, "dims": DIMS},
        inputs=lambda *span: part(questions, *span),
        run=lambda given: nearest(given, vectors, k),
        check=lambda result, count: check(result, count, base, queries, k),
        bytes_of=lambda batch: nearest_bytes(n, DIMS, batch, k),
        memory_of=lambda batch: 3 * 4 * QUERY_TILE * min(TILE, n) + 4 * min(TILE, n) * DIMS + 8 * batch * DIMS,
        peers=lambda: [
            peer_file("nearest").by_faiss(base.numpy(), queries.numpy(), k, config.threads),
            peer_file("nearest").by_numpy(base.numpy(), queries.numpy(), k),
        ],
    )


def nearest_bytes(n: int, dims: int, batch: int, k: int) -> int:
    """Bytes to read vectors and queries once in f32 and write (id, score): 4 D (n + B) + 8 B k."""
    return 4 * dims * (n + batch) + 8 * batch * k


def check(result: Any, count: int, base: torch.Tensor, queries: torch.Tensor, k: int) -> Checked:
    """Check that scores belong to their ids and reach the k best in f64; nearly equal scores may change places."""
    ids, scores = torch.as_tensor(result.ids).cpu().long(), torch.as_tensor(result.scores).cpu().double()
    if ids.shape != (count, k) or scores.shape != (count, k):
        return Checked(f"the shape is {tuple(ids.shape)} instead of {(count, k)}")
    if bool(((ids < 0) | (ids >= len(base))).any()) or bool((ids.sort(1).values.diff(dim=1) == 0).any()):
        return Checked("an id is out of range, or twice in a row")
    if bool((scores.diff(dim=1) > 0).any()):
        return Checked("a row is not sorted")
    rows = torch.unique(torch.linspace(0, count - 1, CHECKED).long())
    exact = torch.cat([queries[rows].double() @ tile.double().T for tile in base.split(TILE)], 1)
    own, best = exact.gather(1, ids[rows]), exact.topk(k, dim=1).values
    error = float((torch.stack([own, best]) - scores[rows]).abs().max())
    return Checked() if error <= ERROR else Checked(f"a score is off by {error:.2g}, more than {ERROR:g}")
