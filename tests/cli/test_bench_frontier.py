"""The benchmark of HopRAG's searches: rows beside the peer, and wrong searches refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu_rag.bench.case import Config
from gpu_rag.bench.run import run_bench
from gpu_rag.errors import UsageError
from gpu_rag.graph.frontier import FrontierQuery
from gpu_rag.graph.frontier import bench as frontier
from gpu_rag.types import Ragged, TopK

SMALL = Config(sizes=(100,), batches=(1, 5), rounds=1, peers=True)
OPS = ("frontier", "top-edges")
right_step, right_walk = frontier.frontier_topk, frontier.top_edges


def test_both_ops_are_measured_beside_their_peer() -> None:
    result = run_bench(OPS, SMALL)
    assert result.refused == 0
    assert [(row.op, row.B, row.peer) for row in result.rows] == [
        (op, b, "numpy + scipy") for op in OPS for b in (1, 5)
    ]
    for row in result.rows:
        assert row.ms and row.peer_ms and row.bytes and row.m == 600 and row.dims == 384 and row.note == ""


def without_words(asked: FrontierQuery) -> FrontierQuery:
    n = asked.keywords.batch
    return FrontierQuery(asked.vectors, Ragged(asked.keywords.values[:0], torch.zeros(n + 1, dtype=torch.int64)))


def step_by_meaning(asked: FrontierQuery, edges: Any, lists: Ragged, k: int, **options: Any) -> TopK:
    return right_step(without_words(asked), edges, lists, k, **options)


def step_of_others(asked: FrontierQuery, edges: Any, lists: Ragged, k: int, **options: Any) -> TopK:
    return right_step(asked, edges, Ragged(lists.values.flip(0), lists.offsets), k, **options)


def walk_by_meaning(asked: FrontierQuery, edges: Any, k: int, **options: Any) -> TopK:
    return right_walk(without_words(asked), edges, k, **options)


def walk_without_the_best(asked: FrontierQuery, edges: Any, k: int, **options: Any) -> TopK:
    found = right_walk(asked, edges, k + 1, **options)
    return TopK(found.ids[:, 1:], found.scores[:, 1:])


@pytest.mark.parametrize(
    ("op", "name", "wrong"),
    [
        ("frontier", "frontier_topk", step_by_meaning),
        ("frontier", "frontier_topk", step_of_others),
        ("top-edges", "top_edges", walk_by_meaning),
        ("top-edges", "top_edges", walk_without_the_best),
    ],
)
def test_a_wrong_search_is_refused(op: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, name, wrong)
    result = run_bench([op], Config(sizes=(100,), batches=(40,), rounds=1))
    assert result.refused == 1 and result.rows[0].note.startswith("refused")


def test_too_few_vertices_are_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="too few vertices for the walk; given 20"):
        run_bench(["top-edges"], Config(sizes=(20,), batches=(1,)))
