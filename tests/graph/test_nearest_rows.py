"""Rows that are held for search: brute force by either library, what is made when, and what the record says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_rag_kernels.dispatch import preferring, recording

from gpu_rag.graph.nearest import index as nearest_rows
from gpu_rag.graph.nearest.index import NearestRows


def unit(n: int, seed: int) -> torch.Tensor:
    rows = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 24)).astype(np.float32))
    return rows / rows.norm(dim=1, keepdim=True)


BASE, QUERIES = unit(300, 0).half(), unit(7, 1)


def check(held: NearestRows, k: int) -> None:
    top = held.search(QUERIES, k)
    scores = QUERIES.double() @ BASE.double().T
    for row, ids, found in zip(scores.tolist(), top.ids.tolist(), top.scores.tolist()):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        assert ids == order
        assert found == pytest.approx([row[i] for i in order], abs=1e-6)


@pytest.mark.parametrize("by", ["auto", "torch", "faiss"])
@pytest.mark.parametrize("k", [1, 10, 300])
def test_the_best_rows_by_brute_force(by: str, k: int) -> None:
    with preferring({} if by == "auto" else {"neighbours": by}):
        check(NearestRows(BASE), k)


def test_rows_that_are_not_the_best_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nearest_rows.nearest
    monkeypatch.setattr(nearest_rows, "nearest", lambda queries, base, k: real(-queries, base, k))
    with pytest.raises(AssertionError):
        check(NearestRows(BASE), 3)


def test_an_index_is_made_once_and_every_search_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], nearest_rows.nearest_index
    monkeypatch.setattr(nearest_rows, "nearest_index", lambda base, **given: made.append(1) or real(base, **given))
    held = NearestRows(BASE)
    for _ in range(2):
        with preferring({"neighbours": "faiss"}), recording() as ran:
            held.search(QUERIES, 3)
        assert ran["nearest_index"] == {"faiss"} and "nearest" not in ran and made == [1]
    with recording() as ran:
        held.search(QUERIES, 3)
    assert ran == {"nearest": {"numba"}}


def test_no_rows() -> None:
    for by in ("torch", "faiss"):
        with preferring({"neighbours": by}):
            top = NearestRows(BASE[:0]).search(QUERIES, 2)
        assert top.ids.tolist() == [[-1, -1]] * 7
